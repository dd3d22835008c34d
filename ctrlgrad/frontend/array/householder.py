"""LAPACK's reductions by Householder reflectors, written as loops: their factors and signs are LAPACK's.

A reflector is H = 1 - tau v v^H with a vector v that is zero before a place p and one there. What stands behind p is
kept in the column of the matrix that the reflector has made zero, as LAPACK has it; R, the Hessenberg or the
tridiagonal matrix stand on the other side. Traced matrices of known sizes, which may have leading batch dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array.complex import conjugate, imag, real
from ctrlgrad.frontend.array.creation import ones_like, zeros_like
from ctrlgrad.frontend.array.dims import broadcasted, dims, expanded, rank_of
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import sqrt, stop_gradient
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.joining import concatenate
from ctrlgrad.frontend.array.logic import equal, where
from ctrlgrad.frontend.array.manipulation import matrix_transpose
from ctrlgrad.frontend.array.padding import pad
from ctrlgrad.frontend.array.ranges import triu
from ctrlgrad.frontend.array.reduction import any as any_of
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.loops import fori_loop


def adjoint(a: Any) -> Any:
    """The conjugate transpose of matrices."""
    return conjugate(matrix_transpose(a))


def column_at(a: Any, i: Any) -> Any:
    """A column of matrices."""
    return take(a, i, axis=-1)


def _with_column(a: Any, i: Any, column: Any) -> Any:
    return where(np.arange(a.shape[-1]) == i, column[..., None], a)


def _vector(column: Any, place: Any) -> Any:
    """The vector of a reflector that is kept in a column."""
    rows = np.arange(column.shape[-1])
    return where(rows > place, column, (rows == place).astype(column.dtype))


def _reflect(x: Any, v: Any, tau: Any) -> Any:
    """(1 - tau v v^H) x."""
    return x - tau[..., None, None] * v[..., :, None] * (conjugate(v)[..., None, :] @ x)


def _generated(column: Any, place: Any) -> tuple[Any, Any, Any]:
    """LAPACK's larfg: v, tau and beta, with (1 - conj(tau) v v^H) column = beta at `place` and zero behind it."""
    rows = np.arange(column.shape[-1])
    alpha = total(where(rows == place, column, zeros_like(column)), -1)
    behind = where(rows > place, column, zeros_like(column))
    square = total(absolute(behind) ** 2, -1)
    is_done = (square == 0) & (imag(alpha) == 0)
    one = ones_like(square)
    norm = sqrt(where(is_done, one, square + absolute(alpha) ** 2))
    beta = where(real(alpha) >= 0, -norm, norm)
    scale = where(is_done, one, alpha - beta)
    v = behind / scale[..., None] + (rows == place)
    tau = where(is_done, zeros_like(alpha), (beta - alpha) / beta)
    return v, tau, where(is_done, real(alpha), beta)


def reduced(a: Any, count: int, below: int, both_sides: bool) -> Any:
    """`count` columns made zero behind the place `below` the diagonal, and the factors; the vectors in their place."""
    rows, columns = np.arange(a.shape[-2]), np.arange(a.shape[-1])
    taus = broadcasted(np.zeros((), a.dtype), [*dims(a)[:-2], count])

    def step(i: Any, state: Any) -> Any:
        a, taus = state
        place, column = i + below, column_at(a, i)
        v, tau, beta = _generated(column, place)
        # Columns before hold the vectors of former reflectors, and this one will hold the new one.
        rest = where(columns > i, _reflect(a, v, conjugate(tau)), a)
        if both_sides:
            rest = where(columns > i, adjoint(_reflect(adjoint(rest), v, conjugate(tau))), rest)
        kept = where(rows < place, column, where(rows == place, beta[..., None].astype(column.dtype), v))
        return _with_column(rest, i, kept), where(np.arange(count) == i, tau[..., None], taus)

    return fori_loop(0, count, step, (a, taus))


def applied(a: Any, taus: Any, x: Any, is_adjoint: bool) -> Any:
    """Q x or Q^H x for the product Q of the reflectors in the columns of a, the first one leftmost."""
    count = taus.shape[-1]

    def step(i: Any, x: Any) -> Any:
        place = i if is_adjoint else count - 1 - i
        tau = column_at(taus, place)
        return _reflect(x, _vector(column_at(a, place), place), conjugate(tau) if is_adjoint else tau)

    return fori_loop(0, count, step, x)


def complete_qr(a: Any, q: Any) -> tuple[Any, Any]:
    """Q [..., m, m] and R [..., m, n] of matrices with more rows than columns, as LAPACK has them.

    `q` is the reduced Q. Where a column has nothing to be made zero, LAPACK's Q jumps, and the loop's derivative is not
    that of any basis: there it is the one by which the further columns follow the space beside those of `q`.
    """
    rows, columns = a.shape[-2:]
    found, taus = reduced(a, columns, 0, False)
    whole = _whole(found, taus)
    jumps = expanded(any_of(equal(taus, 0), axis=-1), [rank_of(a) - 2, rank_of(a) - 1])
    # Of the values that the loop found.
    first = whole[..., :columns]
    first = stop_gradient(first) + (q - stop_gradient(q))
    top = triu(adjoint(first) @ a)
    followed = pad(top, [*[(0, 0)] * (rank_of(a) - 2), (0, rows - columns), (0, 0)])
    return where(jumps, _followed(first, whole), whole), where(jumps, followed, triu(found))


def completed(basis: Any) -> Any:
    """Orthonormal columns, and behind them others that make them a basis of the whole space."""
    return _followed(basis, _whole(*reduced(stop_gradient(basis), basis.shape[-1], 0, False)))


def _whole(found: Any, taus: Any) -> Any:
    """The product of all reflectors."""
    rows, columns = found.shape[-2:]
    # Reflectors are made of as many columns as there are rows; those behind are zero.
    vectors = pad(found, [*[(0, 0)] * (rank_of(found) - 1), (0, rows - columns)])
    return applied(vectors, taus, broadcasted(np.eye(rows, dtype=found.dtype), [*dims(found)[:-1], rows]), False)


def _followed(basis: Any, whole: Any) -> Any:
    """The columns `basis`, and behind them those of `whole`, which stay orthonormal to them in derivatives."""
    beside = stop_gradient(whole[..., basis.shape[-1] :])
    beside = beside - basis @ (adjoint(basis) @ beside)
    factor = apply("cholesky", [adjoint(beside) @ beside])
    triangle = {"lower": True, "unit_diagonal": False}
    return concatenate([basis, adjoint(apply("triangular_solve", [factor, adjoint(beside)], triangle))], -1)
