"""Polynomials as arrays of coefficients, the highest first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.frontend.array.arranging import known_size
from ctrlgrad.frontend.array.dims import dtype_of, shape_of
from ctrlgrad.frontend.array.joining import concatenate, pad
from ctrlgrad.frontend.array.numerics import convolve, floats
from ctrlgrad.frontend.array.promote import operand, same_dtype
from ctrlgrad.frontend.functions import array_function


@array_function()
def polyval(p: Any, x: Any) -> Any:
    """A polynomial, its coefficients from the highest, at x; as `numpy.polyval`, by Horner's scheme."""
    p, x = operand("polyval", p), operand("polyval", x)
    found = x * 0
    for k in range(known_size("polyval", shape_of(p)[0])):
        found = found * x + p[k]
    return found


@array_function()
def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials; as `numpy.polyadd`."""
    a1, a2 = same_dtype("polyadd", [a1, a2])
    sizes = [known_size("polyadd", shape_of(a)[0]) for a in (a1, a2)]
    return pad(a1, (max(sizes) - sizes[0], 0)) + pad(a2, (max(sizes) - sizes[1], 0))


@array_function()
def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials; as `numpy.polysub`."""
    return polyadd(a1, -operand("polysub", a2))


@array_function()
def polymul(a1: Any, a2: Any) -> Any:
    """The product of two polynomials; as `numpy.polymul`, leading zeros kept."""
    return convolve(a1, a2)


@array_function()
def polyder(p: Any, m: int = 1) -> Any:
    """The derivative of a polynomial; as `numpy.polyder`."""
    p = operand("polyder", p)
    for _ in range(m):
        size = known_size("polyder", shape_of(p)[0])
        p = p[:-1] * np.arange(size - 1, 0, -1, dtype=dtype_of(p))
    return p


@array_function()
def polyint(p: Any, m: int = 1, k: Any = 0) -> Any:
    """The integral of a polynomial, its constants k; as `numpy.polyint`."""
    p = floats("polyint", p)
    constants = np.broadcast_to(np.asarray(k, dtype_of(p)), (m,))
    for i in range(m):
        size = known_size("polyint", shape_of(p)[0])
        p = concatenate([p / np.arange(size, 0, -1, dtype=dtype_of(p)), constants[i : i + 1]], 0)
    return p


__all__ = [
    "polyadd",
    "polyder",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
]
