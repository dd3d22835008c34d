"""ONNX operators of neural networks: normalisation, convolutions, spectra, resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.dtypes import computed_dtype, dtype_kind
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import TABLE, Node, dtype_of, entry
from ctrlgrad.interop.windows import Window, folded, normalised, per_channel, transposed_kernels, with_padding

# Normalisations.


@entry("LayerNormalization")
def _layer(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    axis, dtype = node.get("axis", -1) % x.ndim, x.dtype
    wide = cast(x, computed_dtype(dtype))
    found, mean, _, deviation = normalised(wide, tuple(range(axis, x.ndim)), node.get("epsilon", 1e-5))
    found = cast(found, dtype) * scale
    return found if bias is None else found + bias, mean, deviation


@entry("BatchNormalization")
def _batch(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    epsilon, momentum = node.get("epsilon", 1e-5), node.get("momentum", 0.9)
    running: tuple[Any, ...] = ()
    if node.get("training_mode", 0) if node.version >= 14 else node.outputs > 1:
        axes = (0, *range(2, x.ndim))
        now = cnp.mean(x, axes)
        spread = cnp.mean((x - per_channel(now, x)) ** 2, axes)
        running = tuple(
            cast(old * momentum + cast(new, old.dtype) * (1 - momentum), old.dtype)
            for old, new in ((mean, now), (variance, spread))
        )
        mean, variance = now, spread
    centred = x - per_channel(cast(mean, x.dtype), x)
    factor = cast(scale, x.dtype) / cnp.sqrt(cast(variance, x.dtype) + np.asarray(epsilon, x.dtype))
    return centred * per_channel(factor, x) + per_channel(cast(bias, x.dtype), x), *running


@entry("InstanceNormalization")
def _instance(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    found = normalised(x, tuple(range(2, x.ndim)), node.get("epsilon", 1e-5))[0]
    return found * per_channel(scale, x) + per_channel(bias, x)


@entry("LRN")
def _local_response(node: Node, x: Any) -> Any:
    size = node.get("size")
    before = (size - 1) // 2
    channels = x.shape[1]
    squares = cnp.pad(x * x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    total = sum((squares[:, i : i + channels] for i in range(1, size)), squares[:, :channels])
    number: Callable[[float], Any] = lambda value: np.asarray(value, x.dtype)
    base = number(node.get("bias", 1.0)) + number(node.get("alpha", 1e-4) / size) * total
    return x / base ** number(node.get("beta", 0.75))


# Fourier transforms, whose complex numbers are pairs on a last axis, and the bands that spectra are weighed by.


def _numbers(x: Any) -> Any:
    """Real numbers [..., 1] or pairs [..., 2] as numbers [...]."""
    return x[..., 0] if x.shape[-1] == 1 else cnp.make_complex(x[..., 0], x[..., 1])


def _pairs(z: Any) -> Any:
    return cnp.stack([cnp.real(z), cnp.imag(z)], -1)


def _transformed(x: Any, length: int, axis: int, onesided: bool) -> Any:
    """The spectrum of numbers along an axis; of the one side k up to length / 2."""
    if dtype_kind(np.dtype(x.dtype)) != "c":
        return cnp.fft.rfft(x, n=length, axis=axis) if onesided else cnp.fft.fft(x, n=length, axis=axis)
    found = cnp.fft.fft(x, n=length, axis=axis)
    return cnp.take(found, np.arange(length // 2 + 1), axis=axis) if onesided else found


@entry("DFT")
def _dft(node: Node, x: Any, length: Any = None, axis: Any = None) -> Any:
    axis = node.get("axis", 1) if node.version < 20 else -2 if axis is None else int(node.value(2).reshape(()))
    axis %= x.ndim
    numbers, dtype, onesided = _numbers(x), x.dtype, bool(node.get("onesided", 0))
    is_real_again = bool(node.get("inverse", 0)) and onesided
    own = 2 * (x.shape[axis] - 1) if is_real_again else x.shape[axis]
    size = own if length is None else int(node.value(1).reshape(()))
    if is_real_again:
        return cast(cnp.expand_dims(cnp.fft.irfft(numbers, n=size, axis=axis), -1), dtype)
    if node.get("inverse", 0):
        return cast(_pairs(cnp.fft.ifft(numbers, n=size, axis=axis)), dtype)
    return cast(_pairs(_transformed(numbers, size, axis, onesided)), dtype)


@entry("STFT")
def _stft(node: Node, x: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    whole = x.shape[1] if window is None else window.shape[0]
    size = whole if length is None else int(node.value(3).reshape(()))
    hop = int(node.value(1).reshape(()))
    first = np.arange(0, x.shape[1] - size + 1, hop)
    frames = cnp.take(_numbers(x), first[:, None] + np.arange(size), axis=1)
    if window is not None:
        frames = frames * window
    return cast(_pairs(_transformed(frames, size, 2, bool(node.get("onesided", 1)))), x.dtype)


@entry("MelWeightMatrix")
def _mel_weight_matrix(node: Node, *_: Any) -> Any:
    """Triangles, each rising from the middle of the one before to its own, and falling to that of the next one."""
    bands, length, rate = (int(node.value(i).reshape(())) for i in range(3))
    low, high = (2595 * np.log10(1 + float(node.value(i).reshape(())) / 700) for i in (3, 4))
    mels = low + np.arange(bands + 2) * ((high - low) / (bands + 2))
    places = (length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate
    left, middle, right = places[:-2], places[1:-1], places[2:]
    k = np.arange(length // 2 + 1)[:, None]
    rising = np.where(k == middle, 1, (k - left) / np.maximum(middle - left, 1)) * ((left <= k) & (k <= middle))
    falling = (right - k) / np.maximum(right - middle, 1) * ((middle < k) & (k < right))
    return (rising + falling).astype(dtype_of(node.get("output_datatype", 1)))


# Convolutions and pooling, over x[batch, channel, *sizes].


def _window(node: Node, sizes: Sequence[int], own: Sequence[int]) -> Window:
    """The window of a node, over axes of these sizes."""
    rank = len(sizes)
    strides = tuple(node.get("strides") or [1] * rank)
    dilations = tuple(node.get("dilations") or [1] * rank)
    spans = [d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True)]
    given = node.get("pads") or [0] * (2 * rank)
    pads = [(given[i], given[rank + i]) for i in range(rank)]
    automatic = node.get("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, s, k in zip(own, strides, spans, strict=True)]
        halves = [(t // 2, t - t // 2) for t in totals]
        pads = halves if automatic == "SAME_UPPER" else [(b, a) for a, b in halves]
    elif automatic == "VALID":
        pads = [(0, 0)] * rank
    return Window.of(sizes, strides, dilations, pads, own, bool(node.get("ceil_mode", 0)))


@entry("Conv")
def _conv(node: Node, x: Any, w: Any, bias: Any = None) -> Any:
    window = _window(node, node.get("kernel_shape") or w.shape[2:], x.shape[2:])
    found = lax.conv_general_dilated(
        x, w, window.strides, window.pads, rhs_dilation=window.dilations, feature_group_count=node.get("group", 1)
    )
    return found if bias is None else found + per_channel(bias, found)


@entry("ConvInteger")
def conv_integer(node: Node, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    """The convolution of whole numbers without their zero points: int32."""
    x, w = cast(x, np.int32), cast(w, np.int32)
    x = x if x_zero is None else x - cast(cnp.reshape(x_zero, ()), np.int32)
    if w_zero is not None:
        zero = cast(w_zero, np.int32)
        w = w - (cnp.reshape(zero, (-1, *[1] * (w.ndim - 1))) if zero.ndim and zero.size > 1 else cnp.reshape(zero, ()))
    # Whole numbers of float64 are exact.
    found = _conv(node, cast(x, np.float64), cast(w, np.float64))
    return cast(cnp.rint(found), np.int32)


@entry("ConvTranspose")
def _conv_transpose(node: Node, x: Any, w: Any, bias: Any = None) -> Any:
    rank, groups = x.ndim - 2, node.get("group", 1)
    window = _window(node, node.get("kernel_shape") or w.shape[2:], x.shape[2:])
    more = node.get("output_padding") or [0] * rank
    own = x.shape[2:]
    # The sizes of the result without padding.
    whole = [s * (n - 1) + k + m for s, n, k, m in zip(window.strides, own, window.spans, more, strict=True)]
    wanted, automatic = node.get("output_shape"), node.get("auto_pad", "NOTSET")
    pads = list(window.stated)
    if wanted is not None or automatic.startswith("SAME"):
        wanted = wanted or [n * s for n, s in zip(own, window.strides, strict=True)]
        totals = [a - b for a, b in zip(whole, wanted[-rank:], strict=True)]
        # A negative total is added as padding behind.
        halves = [(max(0, t) // 2, max(0, t) - max(0, t) // 2, min(0, t)) for t in totals]
        pads = [(a, b + rest) if automatic == "SAME_UPPER" else (b, a + rest) for a, b, rest in halves]
    kernels = transposed_kernels(w, groups)
    padding = [(k - 1 - a, k - 1 - b + m) for k, (a, b), m in zip(window.spans, pads, more, strict=True)]
    found = lax.conv_general_dilated(
        x,
        kernels,
        (1,) * rank,
        padding,
        lhs_dilation=window.strides,
        rhs_dilation=window.dilations,
        feature_group_count=groups,
    )
    return found if bias is None else found + per_channel(bias, found)


@entry("MaxPool")
def _max_pool(node: Node, x: Any) -> Any:
    window = _window(node, node.get("kernel_shape"), x.shape[2:])
    least = -np.inf if dtype_kind(np.dtype(x.dtype)) == "f" else np.iinfo(x.dtype).min
    found = window.reduce(x, least, lax.max)
    return (found, _places_of_maxima(node, x, window, least)) if node.wanted[1:2] == (True,) else found


def _places_of_maxima(node: Node, x: Any, window: Window, least: Any) -> Any:
    """Flat place in x of the maximum of each window, the first one of several."""
    sizes = x.shape[2:]
    count = math.prod(sizes)
    flat, shape = window.places(sizes)
    chosen = cnp.argmax(cnp.take(with_padding(x, len(sizes), least), flat, axis=2), axis=-1)
    if node.get("storage_order", 0):
        flat = np.ravel_multi_index(np.unravel_index(np.where(flat < count, flat, 0), sizes), sizes, order="F")
    places = cnp.sum(cnp.where(np.arange(flat.shape[1]) == chosen[..., None], flat, 0), -1)
    first = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1) * count
    return cnp.reshape(places + first, (*x.shape[:2], *shape))


@entry("MaxUnpool")
def _max_unpool(node: Node, x: Any, places: Any, shape: Any = None) -> Any:
    rank = x.ndim - 2
    kernel, strides = node.get("kernel_shape"), node.get("strides") or [1] * rank
    pads = node.get("pads") or [0] * (2 * rank)
    steps = zip(x.shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True)
    sizes = (*x.shape[:2], *((n - 1) * s + k - a - b for n, s, k, a, b in steps))
    found = cnp.at(cnp.zeros(math.prod(sizes), x.dtype))[cnp.ravel(places)].set(cnp.ravel(x))
    found = cnp.reshape(found, sizes)
    if shape is None:
        return found
    return cnp.pad(found, [(0, int(n) - m) for n, m in zip(node.value(2), sizes, strict=True)])


@entry("AveragePool")
def _average_pool(node: Node, x: Any) -> Any:
    window = _window(node, node.get("kernel_shape"), x.shape[2:])
    counts = window.counts(x.shape[2:], x.dtype, bool(node.get("count_include_pad", 0)))
    return window.reduce(x, 0, lax.add) / counts


@entry("LpPool")
def _lp_pool(node: Node, x: Any) -> Any:
    p = node.get("p", 2)
    window = _window(node, node.get("kernel_shape"), x.shape[2:])
    total = window.reduce(cnp.abs(x) ** np.asarray(p, x.dtype), 0, lax.add)
    return total ** np.asarray(1 / p, x.dtype)


TABLE |= {
    ("", "GlobalAveragePool"): lambda node, x: cnp.mean(x, tuple(range(2, x.ndim)), keepdims=True),
    ("", "GlobalMaxPool"): lambda node, x: cnp.max(x, tuple(range(2, x.ndim)), keepdims=True),
}


@entry("GlobalLpPool")
def _global_lp_pool(node: Node, x: Any) -> Any:
    p = np.asarray(node.get("p", 2), x.dtype)
    return cnp.sum(cnp.abs(x) ** p, tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)


# Images of other sizes.
#
# An axis is resized by itself: each place of the result is a sum of neighbours in the image. Which these are and how
# they are weighed is known before the model runs.


_NEAREST: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def cubic(distance: Any, a: float) -> Any:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), equation 15 with any a."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    return np.where(d <= 1, near, np.where(d < 2, a * (((d - 5) * d + 8) * d - 4), 0))


def _sources(mode: str, size: int, scale: float, count: int, roi: Sequence[float]) -> np.ndarray:
    """Positions in an axis of this size that the result's elements are taken from."""
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
    weights = cubic(distances, node.get("cubic_coeff_a", -0.75)) if is_cubic else np.maximum(1 - np.abs(distances), 0)
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
    """Scale factor and new size of each axis."""
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
    return folded(x, image, Window.of(block, strides, dilations, list(zip(pads[:rank], pads[rank:], strict=True))))
