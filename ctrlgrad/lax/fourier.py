"""Fourier transforms by the names of `jax.lax`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.errors import UserInputError
from ctrlgrad.source import here


class FftType(enum.Enum):
    """Which transform `fft` is; as `jax.lax.FftType`.

    >>> FftType.IRFFT.name
    'IRFFT'
    """

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


def fft(x: Any, fft_type: Any, fft_lengths: Sequence[int]) -> Any:
    """The transform of the last axes: `FftType.FFT`, `IFFT`, of real numbers `RFFT`, or to real numbers `IRFFT`.

    Args:
        fft_type: an `FftType`, JAX's or a name.
        fft_lengths: the sizes of the last axes, of the side that is real where one is.

    >>> import numpy as np
    >>> fft(np.array([1.0, 0.0]), "RFFT", (2,))
    array([1.+0.j, 1.+0.j])
    """
    name = str(getattr(fft_type, "name", fft_type)).upper()
    functions = {"FFT": cnp.fft.fftn, "IFFT": cnp.fft.ifftn, "RFFT": cnp.fft.rfftn, "IRFFT": cnp.fft.irfftn}
    if name not in functions:
        raise UserInputError(
            "lax.fft: no such transform", source=here(), expected="FFT, IFFT, RFFT or IRFFT", got=repr(fft_type)
        )
    lengths = tuple(fft_lengths)
    return functions[name](cnp.asarray(x), lengths, tuple(range(-len(lengths), 0)))


__all__ = ["FftType", "fft"]
