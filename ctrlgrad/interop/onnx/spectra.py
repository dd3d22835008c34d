"""Fourier transforms, whose complex numbers are pairs on a last axis, and the bands that spectra are weighed by."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import Node, entry
from ctrlgrad.interop.onnx.protos import dtype_of


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
