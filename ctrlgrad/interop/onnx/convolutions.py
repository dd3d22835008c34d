"""Convolutions and pooling, over x[batch, channel, *sizes]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import TABLE, Node, entry


@dataclass(frozen=True)
class Window:
    """A window's sizes, strides and dilations, and what stands before and after each axis."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    # What of the padding counts for a mean that includes it: not what `ceil_mode` adds at the end.
    stated: tuple[tuple[int, int], ...]

    @property
    def spans(self) -> tuple[int, ...]:
        return tuple(d * (k - 1) + 1 for k, d in zip(self.sizes, self.dilations, strict=True))


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
    stated = tuple(pads)
    if node.get("ceil_mode", 0):
        pads = [_rounded_up(*at) for at in zip(own, strides, spans, pads, strict=True)]
    return Window(tuple(sizes), strides, dilations, tuple(pads), stated)


def _rounded_up(n: int, stride: int, span: int, pad: tuple[int, int]) -> tuple[int, int]:
    """Padding with which the last window ends: one that would begin in the padding behind is left out."""
    total = n + sum(pad)
    count = -(-(total - span) // stride) + 1
    if (count - 1) * stride >= n + pad[0]:
        count -= 1
    return pad[0], pad[1] + max(0, (count - 1) * stride + span - total)


@entry("Conv")
def _conv(node: Node, x: Any, w: Any, bias: Any = None) -> Any:
    window = _window(node, node.get("kernel_shape") or w.shape[2:], x.shape[2:])
    found = lax.conv_general_dilated(
        x, w, window.strides, window.pads, rhs_dilation=window.dilations, feature_group_count=node.get("group", 1)
    )
    return found if bias is None else found + _channels(bias, found)


def _channels(v: Any, x: Any) -> Any:
    return cnp.reshape(v, (*v.shape, *[1] * (x.ndim - 2)))


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
        # What is missing is added behind.
        halves = [(max(0, t) // 2, max(0, t) - max(0, t) // 2, min(0, t)) for t in totals]
        pads = [(a, b + rest) if automatic == "SAME_UPPER" else (b, a + rest) for a, b, rest in halves]
    # Groups stand in front of w's inputs; a convolution has them in front of its outputs.
    parts = cnp.reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))
    kernels = cnp.reshape(cnp.swapaxes(parts, 1, 2), (groups * w.shape[1], w.shape[0] // groups, *w.shape[2:]))
    kernels = cnp.flip(kernels, tuple(range(2, w.ndim)))
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
    return found if bias is None else found + _channels(bias, found)


def _reduced(x: Any, window: Window, neutral: Any, fn: Any, pads: Sequence[tuple[int, int]]) -> Any:
    one = (1, 1)
    return lax.reduce_window(
        x,
        np.asarray(neutral, x.dtype),
        fn,
        (*one, *window.sizes),
        (*one, *window.strides),
        [(0, 0), (0, 0), *pads],
        window_dilation=(*one, *window.dilations),
    )


@entry("MaxPool")
def _max_pool(node: Node, x: Any) -> Any:
    window = _window(node, node.get("kernel_shape"), x.shape[2:])
    least = -np.inf if dtype_kind(np.dtype(x.dtype)) == "f" else np.iinfo(x.dtype).min
    found = _reduced(x, window, least, lax.max, window.pads)
    return (found, _places_of_maxima(node, x, window, least)) if node.wanted[1:2] == (True,) else found


def _places_of_maxima(node: Node, x: Any, window: Window, least: Any) -> Any:
    """Where in x, as one row of numbers, the maximum of each window stands, the first one of several."""
    sizes = x.shape[2:]
    count = math.prod(sizes)
    # Along each axis [window, place in it]; of all axes together likewise, one past the end for padding.
    flat, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    shape: list[int] = []
    for axis, n in enumerate(sizes):
        before, behind = window.pads[axis]
        starts = np.arange(0, n + before + behind - window.spans[axis] + 1, window.strides[axis]) - before
        along = starts[:, None] + np.arange(window.sizes[axis]) * window.dilations[axis]
        new = (flat.shape[0] * along.shape[0], flat.shape[1] * along.shape[1])
        flat = (flat[:, None, :, None] * n + along[:, None, :]).reshape(new)
        inside = (inside[:, None, :, None] & ((along >= 0) & (along < n))[:, None, :]).reshape(new)
        shape.append(len(starts))
    rows = cnp.reshape(x, (*x.shape[:2], count))
    padded = cnp.concatenate([rows, cnp.broadcast_to(np.asarray(least, x.dtype), (*x.shape[:2], 1))], -1)
    chosen = cnp.argmax(cnp.take(padded, np.where(inside, flat, count), axis=2), axis=-1)
    if node.get("storage_order", 0):
        flat = np.ravel_multi_index(np.unravel_index(np.where(inside, flat, 0), sizes), sizes, order="F")
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
    total = _reduced(x, window, 0, lax.add, window.pads)
    # How many numbers each window holds.
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if node.get("count_include_pad", 0):
        ones = np.pad(ones, [(0, 0), (0, 0), *window.stated], constant_values=1)
        rest = [(p[0] - s[0], p[1] - s[1]) for p, s in zip(window.pads, window.stated, strict=True)]
        return total / _reduced(ones, window, 0, lax.add, rest)
    return total / _reduced(ones, window, 0, lax.add, window.pads)


@entry("LpPool")
def _lp_pool(node: Node, x: Any) -> Any:
    p = node.get("p", 2)
    window = _window(node, node.get("kernel_shape"), x.shape[2:])
    total = _reduced(cnp.abs(x) ** np.asarray(p, x.dtype), window, 0, lax.add, window.pads)
    return total ** np.asarray(1 / p, x.dtype)


TABLE |= {
    ("", "GlobalAveragePool"): lambda node, x: cnp.mean(x, tuple(range(2, x.ndim)), keepdims=True),
    ("", "GlobalMaxPool"): lambda node, x: cnp.max(x, tuple(range(2, x.ndim)), keepdims=True),
}


@entry("GlobalLpPool")
def _global_lp_pool(node: Node, x: Any) -> Any:
    p = np.asarray(node.get("p", 2), x.dtype)
    return cnp.sum(cnp.abs(x) ** p, tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)
