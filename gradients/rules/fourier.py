"""The Fourier transform is linear over the complex numbers, and its matrix is symmetric: its own transpose."""

from __future__ import annotations

from ctrlgrad.gradients.table import linear
from ctrlgrad.ops.term import emit

linear("fft", lambda ct, x, axis, inverse: emit("fft", ct, axis=axis, inverse=inverse))
