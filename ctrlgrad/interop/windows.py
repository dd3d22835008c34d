"""Convolutions, pooling and normalisation over x[batch, channel, *sizes], as models of ONNX and PyTorch have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax


def per_channel(v: Any, x: Any) -> Any:
    """A number for each channel, as an array that broadcasts with x[batch, channel, ...]."""
    return cnp.reshape(v, (-1, *[1] * (x.ndim - 2)))


def normalised(x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any, Any]:
    """x with mean 0 and variance 1 over some axes, its mean, its variance, and 1 / sqrt(variance + epsilon)."""
    mean = cnp.mean(x, axes, keepdims=True)
    centred = x - mean
    variance = cnp.mean(centred * centred, axes, keepdims=True)
    scale = 1 / cnp.sqrt(variance + np.asarray(epsilon, x.dtype))
    return centred * scale, mean, variance, scale


def transposed_kernels(w: Any, groups: int) -> Any:
    """Kernels [in, out / groups, *window] of a transposed convolution as those of a convolution, [out, in / groups, *].

    Groups stand in front of w's inputs; a convolution has them in front of its outputs.
    """
    parts = cnp.reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))
    kernels = cnp.reshape(cnp.swapaxes(parts, 1, 2), (groups * w.shape[1], w.shape[0] // groups, *w.shape[2:]))
    return cnp.flip(kernels, tuple(range(2, w.ndim)))


@dataclass(frozen=True)
class Window:
    """Sizes, strides and dilations of a window over the last axes, and the padding before and after each axis.

    `stated` is the padding that counts for a mean that includes it: without what `ceil` adds at the end.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    stated: tuple[tuple[int, int], ...]

    @staticmethod
    def of(
        sizes: Any, strides: Any, dilations: Any, stated: Any, own: Sequence[int] = (), ceil: bool = False
    ) -> Window:
        """The window over axes of the sizes `own`; with `ceil` padding is added with which the last one ends."""
        window = Window(*map(tuple, (sizes, strides, dilations, stated, stated)))
        if not ceil:
            return window
        pads = []
        for n, stride, span, (before, after) in zip(own, strides, window.spans, stated, strict=True):
            total = n + before + after
            count = -(-(total - span) // stride) + 1
            # A window that would begin in the padding behind is left out.
            count -= (count - 1) * stride >= n + before
            pads.append((before, after + max(0, (count - 1) * stride + span - total)))
        return Window(window.sizes, window.strides, window.dilations, tuple(pads), window.stated)

    @property
    def spans(self) -> tuple[int, ...]:
        return tuple(d * (k - 1) + 1 for k, d in zip(self.sizes, self.dilations, strict=True))

    def reduce(self, x: Any, neutral: Any, fn: Callable[..., Any], pads: Any = None) -> Any:
        """Reduce the numbers of each window."""
        ones = (1,) * (x.ndim - len(self.sizes))
        return lax.reduce_window(
            x,
            np.asarray(neutral, x.dtype),
            fn,
            (*ones, *self.sizes),
            (*ones, *self.strides),
            [(0, 0)] * len(ones) + list(self.pads if pads is None else pads),
            window_dilation=(*ones, *self.dilations),
        )

    def counts(self, own: Sequence[int], dtype: Any, has_padding: bool) -> Any:
        """Number of elements in each window over axes of the sizes `own`, with the stated padding or without."""
        ones, pads = np.ones((1, 1, *own), dtype), self.pads
        if has_padding:
            ones = np.pad(ones, [(0, 0), (0, 0), *self.stated], constant_values=1)
            pads = tuple((p[0] - s[0], p[1] - s[1]) for p, s in zip(self.pads, self.stated, strict=True))
        return self.reduce(ones, 0, lax.add, pads)[0, 0]

    def places(self, own: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """Positions in an image of the numbers of each window, [windows, numbers]; one past its end is padding."""
        flat, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
        counts = []
        for n, (a, b), span, stride, k, d in zip(
            own, self.pads, self.spans, self.strides, self.sizes, self.dilations, strict=True
        ):
            starts = np.arange(0, n + a + b - span + 1, stride) - a
            along = starts[:, None] + np.arange(k) * d
            new = (flat.shape[0] * along.shape[0], flat.shape[1] * along.shape[1])
            flat = (flat[:, None, :, None] * n + along[:, None, :]).reshape(new)
            inside = (inside[:, None, :, None] & ((along >= 0) & (along < n))[:, None, :]).reshape(new)
            counts.append(len(starts))
        return np.where(inside, flat, math.prod(own)), counts


def with_padding(x: Any, rank: int, value: Any) -> Any:
    """The numbers of images in one row each, with the number that stands for padding at the end."""
    rows = cnp.reshape(x, (*x.shape[: x.ndim - rank], -1))
    return cnp.concatenate([rows, cnp.full((*rows.shape[:-1], 1), value, x.dtype)], -1)


def unfolded(x: Any, window: Window) -> Any:
    """The windows of images as blocks [batch, channel * numbers, windows]."""
    places, _ = window.places(x.shape[2:])
    blocks = cnp.take(with_padding(x, len(window.sizes), 0), places.T, axis=2)
    return cnp.reshape(blocks, (x.shape[0], x.shape[1] * places.shape[1], -1))


def folded(x: Any, image: Sequence[int], window: Window) -> Any:
    """Blocks [batch, channel * numbers, windows] added up in the images that they were cut out of."""
    places, size = window.places(image)[0].T, math.prod(image)
    parts = cnp.reshape(x, (x.shape[0], x.shape[1] // places.shape[0], places.size))
    found = cnp.at(cnp.zeros((*parts.shape[:2], size + 1), x.dtype))[:, :, places.ravel()].add(parts)
    return cnp.reshape(found[:, :, :size], (*parts.shape[:2], *image))
