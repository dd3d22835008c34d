"""Polynomials as arrays of coefficients, the highest first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import finfo
from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.creation import ones, zeros
from ctrlgrad.frontend.array.decompositions import svd
from ctrlgrad.frontend.array.dims import (
    dim,
    dims,
    dtype_of,
    known_size,
    rank_of,
    reshaped,
    shape_of,
    times,
    whole_number,
)
from ctrlgrad.frontend.array.elementwise import sqrt
from ctrlgrad.frontend.array.joining import concatenate, stack
from ctrlgrad.frontend.array.linalg import matmul
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.numerics import convolve
from ctrlgrad.frontend.array.padding import pad
from ctrlgrad.frontend.array.promote import floats, operand, same_dtype
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.array.reduction import trace
from ctrlgrad.frontend.array.structured import vander
from ctrlgrad.frontend.functions import array_function


@array_function()
def polyval(p: Any, x: Any) -> Any:
    """A polynomial, its coefficients from the highest, at x; as `numpy.polyval`, by Horner's scheme.

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

    >>> cnp.polyadd([1, 2], [3])
    array([1, 5])
    """
    a1, a2 = same_dtype("polyadd", [a1, a2])
    sizes = [known_size("polyadd", shape_of(a)[0]) for a in (a1, a2)]
    return pad(a1, (max(sizes) - sizes[0], 0)) + pad(a2, (max(sizes) - sizes[1], 0))


@array_function()
def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials; as `numpy.polysub`.

    >>> cnp.polysub([1, 2], [3])
    array([ 1, -1])
    """
    return polyadd(a1, -operand("polysub", a2))


@array_function()
def polymul(a1: Any, a2: Any) -> Any:
    """The product of two polynomials; as `numpy.polymul`, leading zeros kept.

    >>> cnp.polymul([1, 1], [1, -1])
    array([ 1,  0, -1])
    """
    return convolve(a1, a2)


@array_function()
def polyder(p: Any, m: int = 1) -> Any:
    """The derivative of a polynomial; as `numpy.polyder`.

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

    >>> cnp.polyint([2.0, 1.0])
    array([1., 1., 0.])
    """
    p = floats("polyint", p)
    constants = np.broadcast_to(np.asarray(k, dtype_of(p)), (m,))
    for i in range(m):
        size = known_size("polyint", shape_of(p)[0])
        p = concatenate([p / np.arange(size, 0, -1, dtype=dtype_of(p)), constants[i : i + 1]], 0)
    return p


@array_function()
def polydiv(u: Any, v: Any) -> tuple[Any, Any]:
    """The quotient and the remainder of two polynomials; as `jax.numpy.polydiv`, which keeps the size of u.

    >>> cnp.polydiv([1.0, 0.0, -1.0], [1.0, 1.0])
    (array([ 1., -1.]), array([0., 0., 0.]))
    """
    u, v = (floats("polydiv", x) for x in same_dtype("polydiv", [u, v]))
    size, degree = (known_size("polydiv", shape_of(x)[0]) for x in (u, v))
    quotient = []
    for k in range(size - degree + 1):
        factor = u[k] / v[0]
        quotient.append(factor)
        u = u - pad(factor * v, (k, size - degree - k))
    return (stack(quotient) if quotient else zeros(1, dtype_of(u))), u


@array_function()
def poly(seq_of_zeros: Any) -> Any:
    """The polynomial with these zeros, or the characteristic polynomial of a matrix; as `numpy.poly`.

    >>> cnp.poly([1.0, -1.0])
    array([ 1.,  0., -1.])
    """
    given = floats("poly", seq_of_zeros)
    if rank_of(given) == 2:
        return _characteristic(given)
    one = ones(1, dtype_of(given))
    found = one
    for k in range(known_size("poly", shape_of(reshaped(given, [times(dims(given))]))[0])):
        found = convolve(found, concatenate([one, -ravel(given)[k : k + 1]]))
    return found


def _characteristic(a: Any) -> Any:
    """By Faddeev and LeVerrier: each coefficient is the trace of a product of the matrix and the one before."""
    size = known_size("poly", shape_of(a)[0])
    unit = np.eye(size, dtype=dtype_of(a))
    coefficients, m = [ones((), dtype_of(a))], unit
    for k in range(1, size + 1):
        product = matmul(a, m)
        coefficients.append(-trace(product) / k)
        m = product + coefficients[-1] * unit
    return stack(coefficients)


@array_function()
def polyfit(x: Any, y: Any, deg: int, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False) -> Any:
    """The polynomial of degree `deg` next to points by least squares; as `numpy.polyfit`.

    Args:
        x: [n].
        y: [n], or [n, k] for k polynomials at once.
        deg: the degree, a known integer.
        rcond: singular values below this part of the largest one count as zero; n times the precision by default.
        full: return also the sums of squares that are left, the rank, the singular values and rcond.
        w: [n], what each distance is multiplied with.
        cov: return also the covariance of the coefficients, scaled by what is left unless it is "unscaled".

    >>> cnp.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1).round(6)
    array([2., 1.])
    """
    x, y = (floats("polyfit", v) for v in same_dtype("polyfit", [x, y]))
    order, count = whole_number("polyfit", "deg", deg) + 1, dim(x, 0)
    if rcond is None:
        rcond = count * finfo(dtype_of(x)).eps
    left, right = vander(x, order), y
    if w is not None:
        w = cast(operand("polyfit", w), dtype_of(x))
        left, right = left * w[:, None], right * (w[:, None] if rank_of(y) == 2 else w)
    # Columns of one length make the matrix well conditioned.
    scale = sqrt(total(left * left, 0))
    left = left / scale
    factors = svd(left)
    kept = rcond * factors.S[0] < factors.S
    inverse = where(kept, 1 / where(kept, factors.S, 1), 0)
    columns = right if rank_of(right) == 2 else right[:, None]
    found = matmul(factors.Vh.T, inverse[:, None] * matmul(factors.U.T, columns)) / scale[:, None]
    result = found if rank_of(y) == 2 else found[:, 0]
    if full:
        apart = columns - matmul(left * scale, found)
        return result, total(apart * apart, 0), total(kept), factors.S, rcond
    if not cov:
        return result
    base = matmul(factors.Vh.T * inverse**2, factors.Vh) / (scale[:, None] * scale)
    if cov == "unscaled":
        return result, base
    if isinstance(count, int) and count <= order:
        raise ShapeError(
            "polyfit: too few points to scale the covariance",
            expected=f"more than {order} points",
            got=str(count),
            hint="cov='unscaled'",
        )
    apart = columns - matmul(left * scale, found)
    factor = total(apart * apart, 0) / (count - order)
    return result, (base[:, :, None] * factor if rank_of(y) == 2 else base * factor[0])


__all__ = [
    "poly",
    "polyadd",
    "polyder",
    "polydiv",
    "polyfit",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
]
