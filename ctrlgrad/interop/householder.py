"""LAPACK's reductions by Householder reflectors, written as loops: their factors and signs are LAPACK's.

A reflector is H = 1 - tau v v^H with a vector v that is zero before a place p and one there. What stands behind p is
kept in the column of the matrix that the reflector has made zero, as LAPACK has it; R, the Hessenberg or the
tridiagonal matrix stand on the other side. Matrices may have leading batch dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.interop.arrays import recorded
from ctrlgrad.interop.primitives import Equation, entry


def adjoint(a: Any) -> Any:
    return cnp.conj(cnp.swapaxes(a, -1, -2))


def _column(a: Any, i: Any) -> Any:
    return lax.dynamic_index_in_dim(a, i, -1, keepdims=False)


def _with_column(a: Any, i: Any, column: Any) -> Any:
    return cnp.where(np.arange(a.shape[-1]) == i, column[..., None], a)


def _vector(column: Any, place: Any) -> Any:
    """The vector of a reflector that is kept in a column."""
    rows = np.arange(column.shape[-1])
    return cnp.where(rows > place, column, (rows == place).astype(column.dtype))


def _reflect(x: Any, v: Any, tau: Any) -> Any:
    """(1 - tau v v^H) x."""
    return x - tau[..., None, None] * v[..., :, None] * (cnp.conj(v)[..., None, :] @ x)


def _generated(column: Any, place: Any) -> tuple[Any, Any, Any]:
    """LAPACK's larfg: v, tau and beta, with (1 - conj(tau) v v^H) column = beta at `place` and zero behind it."""
    rows = np.arange(column.shape[-1])
    alpha = cnp.sum(cnp.where(rows == place, column, cnp.zeros_like(column)), -1)
    behind = cnp.where(rows > place, column, cnp.zeros_like(column))
    square = cnp.sum(cnp.abs(behind) ** 2, -1)
    is_done = (square == 0) & (cnp.imag(alpha) == 0)
    one = cnp.ones_like(square)
    norm = cnp.sqrt(cnp.where(is_done, one, square + cnp.abs(alpha) ** 2))
    beta = cnp.where(cnp.real(alpha) >= 0, -norm, norm)
    scale = cnp.where(is_done, one, alpha - beta)
    v = behind / scale[..., None] + (rows == place)
    tau = cnp.where(is_done, cnp.zeros_like(alpha), (beta - alpha) / beta)
    return v, tau, cnp.where(is_done, cnp.real(alpha), beta)


def _reduced(a: Any, count: int, below: int, both_sides: bool) -> Any:
    """`count` columns made zero behind the place `below` the diagonal, and the factors; the vectors in their place."""
    rows, columns = np.arange(a.shape[-2]), np.arange(a.shape[-1])
    taus = cnp.broadcast_to(recorded(np.zeros((), a.dtype)), (*a.shape[:-2], count))

    def step(i: Any, state: Any) -> Any:
        a, taus = state
        place, column = i + below, _column(a, i)
        v, tau, beta = _generated(column, place)
        # Columns before hold the vectors of former reflectors, and this one will hold the new one.
        rest = cnp.where(columns > i, _reflect(a, v, cnp.conj(tau)), a)
        if both_sides:
            rest = cnp.where(columns > i, adjoint(_reflect(adjoint(rest), v, cnp.conj(tau))), rest)
        kept = cnp.where(rows < place, column, cnp.where(rows == place, beta[..., None].astype(column.dtype), v))
        return _with_column(rest, i, kept), cnp.where(np.arange(count) == i, tau[..., None], taus)

    return fori_loop(0, count, step, (recorded(a), taus))


def _applied(a: Any, taus: Any, x: Any, is_adjoint: bool) -> Any:
    """Q x or Q^H x for the product Q of the reflectors in the columns of a, the first one leftmost."""
    count = taus.shape[-1]

    def step(i: Any, x: Any) -> Any:
        place = i if is_adjoint else count - 1 - i
        tau = _column(taus, place)
        return _reflect(x, _vector(_column(a, place), place), cnp.conj(tau) if is_adjoint else tau)

    return fori_loop(0, count, step, recorded(x))


def complete_qr(a: Any) -> tuple[Any, Any]:
    """Q [..., m, m] and R [..., m, n] of matrices with more rows than columns, as LAPACK has them."""
    rows, columns = a.shape[-2:]
    found, taus = _reduced(a, columns, 0, False)
    # Reflectors are made of as many columns as there are rows; those behind are zero.
    vectors = cnp.pad(found, [*[(0, 0)] * (found.ndim - 1), (0, rows - columns)])
    eye = cnp.broadcast_to(recorded(np.eye(rows, dtype=a.dtype)), (*a.shape[:-1], rows))
    return _applied(vectors, taus, eye, False), cnp.triu(found)


def completed(basis: Any) -> Any:
    """Orthonormal columns, and behind them others that make them a basis of the whole space."""
    q, _ = complete_qr(basis)
    return cnp.concatenate([basis, q[..., basis.shape[-1] :]], -1)


def pivots(a: Any) -> Any:
    """The order of columns in which each is the longest, beside those before it: int32 [..., n]."""
    rows, columns = a.shape[-2:]
    places = np.arange(columns)
    order = cnp.broadcast_to(recorded(places.astype(np.int32)), (*a.shape[:-2], columns))

    def step(i: Any, state: Any) -> Any:
        rest, order = state
        square = cnp.sum(cnp.abs(rest) ** 2, -2)
        longest = cnp.argmax(cnp.where(places < i, -1, square), axis=-1)[..., None]
        swapped = cnp.where(places == i, longest, cnp.where(places == longest, i, places))
        rest = cnp.take_along_axis(rest, swapped[..., None, :], -1)
        column = _column(rest, i)[..., None]
        norm = cnp.sum(cnp.abs(column) ** 2, -2, keepdims=True)
        along = adjoint(column) @ rest / cnp.where(norm == 0, 1, norm)
        return rest - column * along, cnp.take_along_axis(order, swapped, -1)

    return fori_loop(0, min(rows, columns), step, (recorded(cnp.stop_gradient(a)), order))[1]


@entry("geqrf")
def _geqrf(equation: Equation, a: Any) -> Any:
    return _reduced(a, min(a.shape[-2:]), 0, False)


@entry("householder_product")
def _householder_product(equation: Equation, a: Any, taus: Any) -> Any:
    eye = np.eye(*a.shape[-2:], dtype=a.dtype)
    return _applied(recorded(a), recorded(taus), cnp.broadcast_to(recorded(eye), a.shape), False)


@entry("ormqr")
def _ormqr(equation: Equation, a: Any, taus: Any, x: Any) -> Any:
    a, taus, is_adjoint = recorded(a), recorded(taus), equation.params["transpose"]
    if equation.params["left"]:
        return _applied(a, taus, x, is_adjoint)
    return adjoint(_applied(a, taus, adjoint(x), not is_adjoint))


@entry("hessenberg")
def _hessenberg(equation: Equation, a: Any) -> Any:
    return _reduced(a, max(a.shape[-1] - 1, 0), 1, True)


@entry("tridiagonal")
def _tridiagonal(equation: Equation, a: Any) -> Any:
    lower, size = equation.params["lower"], a.shape[-1]
    given = a if lower else cnp.flip(a, (-1, -2))
    below = cnp.tril(given, -1)
    whole = below + adjoint(below) + np.eye(size, dtype=a.dtype) * cnp.real(given)
    found, taus = _reduced(whole, max(size - 1, 0), 1, True)
    diagonals = [cnp.real(cnp.diagonal(found, -k, -2, -1)) for k in (0, 1)]
    # LAPACK leaves the other triangle alone.
    found = cnp.tril(found) + cnp.triu(given, 1)
    if not lower:
        found, taus, diagonals = cnp.flip(found, (-1, -2)), cnp.flip(taus, -1), [cnp.flip(d, -1) for d in diagonals]
    return found, *diagonals, taus
