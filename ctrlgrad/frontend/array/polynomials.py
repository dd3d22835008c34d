"""Polynomials as arrays of coefficients, the highest first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.frontend.array.arranging import known_size
from ctrlgrad.frontend.array.dims import dtype_of, shape_of
from ctrlgrad.frontend.array.joining import concatenate, pad
from ctrlgrad.frontend.array.numerics import convolve
from ctrlgrad.frontend.array.promote import floats, operand, same_dtype
from ctrlgrad.frontend.functions import array_function


@array_function()
def polyval(p: Any, x: Any) -> Any:
    """A polynomial, its coefficients from the highest, at x; as `numpy.polyval`, by Horner's scheme.

    >>> import ctrlgrad.numpy as cnp
    >>> float(cnp.polyval([1.0, 0.0, -1.0], 3.0))
    8.0
    """
    p, x = operand("polyval", p), operand("polyval", x)
    found = x * 0
    for k in range(known_size("polyval", shape_of(p)[0])):
        found = found * x + p[k]
    return found


@array_function()
def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials; as `numpy.polyadd`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.polyadd([1, 2], [3])
    array([1, 5])
    """
    a1, a2 = same_dtype("polyadd", [a1, a2])
    sizes = [known_size("polyadd", shape_of(a)[0]) for a in (a1, a2)]
    return pad(a1, (max(sizes) - sizes[0], 0)) + pad(a2, (max(sizes) - sizes[1], 0))


@array_function()
def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials; as `numpy.polysub`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.polysub([1, 2], [3])
    array([ 1, -1])
    """
    return polyadd(a1, -operand("polysub", a2))


@array_function()
def polymul(a1: Any, a2: Any) -> Any:
    """The product of two polynomials; as `numpy.polymul`, leading zeros kept.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.polymul([1, 1], [1, -1])
    array([ 1,  0, -1])
    """
    return convolve(a1, a2)


@array_function()
def polyder(p: Any, m: int = 1) -> Any:
    """The derivative of a polynomial; as `numpy.polyder`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.polyder([1, 2, 3])
    array([2, 2])
    """
    p = operand("polyder", p)
    for _ in range(m):
        size = known_size("polyder", shape_of(p)[0])
        p = p[:-1] * np.arange(size - 1, 0, -1, dtype=dtype_of(p))
    return p


@array_function()
def polyint(p: Any, m: int = 1, k: Any = 0) -> Any:
    """The integral of a polynomial, its constants k; as `numpy.polyint`.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.polyint([2.0, 1.0])
    array([1., 1., 0.])
    """
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
