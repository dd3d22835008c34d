"""Images of other sizes.

An axis is resized by itself: each place of the result is a sum of neighbours in the image. Which these are and how they
are weighed is known before the model runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import Node, entry

_NEAREST: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(distance: Any) -> Any:
    return np.maximum(1 - np.abs(distance), 0)


def cubic(distance: Any, a: float) -> Any:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), equation 15 with any a."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    return np.where(d <= 1, near, np.where(d < 2, a * (((d - 5) * d + 8) * d - 4), 0))


def _sources(mode: str, size: int, scale: float, count: int, roi: Sequence[float]) -> np.ndarray:
    """Where in an axis of this size the places of the result lie."""
    y, width = np.arange(count, dtype=np.float64), scale * size
    if mode == "asymmetric":
        return y / scale
    if mode == "align_corners":
        return np.zeros(count) if width == 1 else y * (size - 1) / (width - 1)
    if mode == "tf_crop_and_resize":
        begin, end = roi
        if width == 1:
            return np.full(count, (begin + end) * (size - 1) / 2)
        return (begin + y * (end - begin) / (width - 1)) * (size - 1)
    middle = (y + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel" and width == 1:
        return np.zeros(count)
    return middle + size / 2 * (1 - count / width) if mode == "half_pixel_symmetric" else middle


def _neighbours(node: Node, x: np.ndarray, size: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """For each place the neighbours that count and their weights."""
    if node.get("mode", "nearest") == "nearest":
        nearest = _NEAREST[node.get("nearest_mode", "floor")](x)
        return nearest[:, None].astype(np.int64), np.ones((len(x), 1))
    shrink = min(scale, 1.0) if node.get("antialias", 0) else 1.0
    is_cubic = node.get("mode") == "cubic"
    reach = math.ceil((2 if is_cubic else 1) / shrink)
    places = np.floor(x)[:, None].astype(np.int64) + np.arange(1 - reach, reach + 1)
    distances = (places - x[:, None]) * shrink
    weights = cubic(distances, node.get("cubic_coeff_a", -0.75)) if is_cubic else _linear(distances)
    if node.get("exclude_outside", 0):
        weights = weights * ((places >= 0) & (places < size))
    return places, weights / weights.sum(-1, keepdims=True)


def _resized(node: Node, x: Any, axis: int, scale: float, count: int, roi: Sequence[float]) -> Any:
    mode, size = node.get("coordinate_transformation_mode", "asymmetric"), x.shape[axis]
    sources = _sources(mode, size, scale, count, roi)
    places, weights = _neighbours(node, sources, size, scale)
    behind = [1] * (x.ndim - axis - 1)
    # Beside the edge the image goes on as its last pixel.
    found = cnp.take(x, np.clip(places, 0, size - 1), axis=axis)
    found = cnp.sum(found * weights.reshape(*weights.shape, *behind).astype(x.dtype), axis + 1)
    if mode == "tf_crop_and_resize":
        outside = (sources < 0) | (sources > size - 1)
        found = cnp.where(
            outside.reshape(-1, *behind), np.asarray(node.get("extrapolation_value", 0.0), x.dtype), found
        )
    return found


def _scales(node: Node, x: Any, axes: Sequence[int], scales: Any, sizes: Any) -> tuple[list[float], list[int]]:
    """By how much each axis grows, and to which size."""
    own = [x.shape[a] for a in axes]
    if sizes is None:
        return [float(s) for s in scales], [int(float(s) * n) for s, n in zip(scales, own, strict=True)]
    factors = [int(m) / n for m, n in zip(sizes, own, strict=True)]
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return factors, [int(m) for m in sizes]
    one = min(factors) if policy == "not_larger" else max(factors)
    return [one] * len(own), [int(one * n + 0.5) for n in own]


def _given(node: Node, i: int) -> np.ndarray:
    """The value of an input, empty where it is left out."""
    return node.value(i) if i < len(node.inputs) and node.inputs[i] is not None else np.zeros(0)


@entry("Resize", "Upsample")
def _resize(node: Node, x: Any, *inputs: Any) -> Any:
    has_old_inputs = node.name == "Upsample" or node.version < 11
    stated = node.get("scales")
    scales = np.asarray(stated) if stated is not None else _given(node, 1 if has_old_inputs else 2)
    roi, sizes = (np.zeros(0),) * 2 if has_old_inputs else (_given(node, 1), _given(node, 3))
    axes = [a % x.ndim for a in node.get("axes") or range(x.ndim)]
    factors, counts = _scales(node, x, axes, scales, sizes if sizes.size else None)
    begins, ends = (roi[: len(axes)], roi[len(axes) :]) if roi.size else ([0.0] * len(axes), [1.0] * len(axes))
    dtype = np.dtype(x.dtype)
    found = x if dtype_kind(dtype) == "f" else cast(x, np.float64)
    for axis, scale, count, *box in zip(axes, factors, counts, begins, ends, strict=True):
        if scale != 1 or count != x.shape[axis] or tuple(box) != (0, 1):
            found = _resized(node, found, axis, scale, count, [float(edge) for edge in box])
    if dtype_kind(dtype) == "f":
        return found
    limits = np.iinfo(dtype)
    return cast(cnp.clip(cnp.rint(found), limits.min, limits.max), dtype)


@entry("Col2Im")
def _col2im(node: Node, x: Any, *_: Any) -> Any:
    """Blocks [batch, channel * block, number] added up in the images that they were cut out of."""
    image, block = (tuple(map(int, node.value(i))) for i in (1, 2))
    rank = len(image)
    strides, dilations = (node.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = node.get("pads") or [0] * (2 * rank)
    # Along each axis [place in the block, number of the block]: where it lies, one past the end if in the padding.
    flat = np.zeros((1, 1), np.int64)
    inside = np.ones((1, 1), bool)
    for i, (n, k) in enumerate(zip(image, block, strict=True)):
        count = (n + pads[i] + pads[rank + i] - dilations[i] * (k - 1) - 1) // strides[i] + 1
        along = np.arange(k)[:, None] * dilations[i] + np.arange(count) * strides[i] - pads[i]
        here = (along >= 0) & (along < n)
        shape = (flat.shape[0] * k, flat.shape[1] * count)
        flat = (flat[:, None, :, None] * n + along[None, :, None, :]).reshape(shape)
        inside = (inside[:, None, :, None] & here[None, :, None, :]).reshape(shape)
    size = math.prod(image)
    places = np.where(inside, flat, size)
    parts = cnp.reshape(x, (x.shape[0], x.shape[1] // math.prod(block), places.size))
    found = cnp.at(cnp.zeros((*parts.shape[:2], size + 1), x.dtype))[:, :, places.ravel()].add(parts)
    return cnp.reshape(found[:, :, :size], (*parts.shape[:2], *image))
