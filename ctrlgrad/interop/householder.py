"""JAX's primitives of LAPACK's reductions by Householder reflectors, and the order of columns of a pivoted one."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.array.decompositions import adjoint, applied, column_at, reduced
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.interop.arrays import recorded
from ctrlgrad.interop.primitives import Equation, entry


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
        column = column_at(rest, i)[..., None]
        norm = cnp.sum(cnp.abs(column) ** 2, -2, keepdims=True)
        along = adjoint(column) @ rest / cnp.where(norm == 0, 1, norm)
        return rest - column * along, cnp.take_along_axis(order, swapped, -1)

    return fori_loop(0, min(rows, columns), step, (recorded(cnp.stop_gradient(a)), order))[1]


@entry("geqrf")
def _geqrf(equation: Equation, a: Any) -> Any:
    return reduced(recorded(a), min(a.shape[-2:]), 0, False)


@entry("householder_product")
def _householder_product(equation: Equation, a: Any, taus: Any) -> Any:
    eye = np.eye(*a.shape[-2:], dtype=a.dtype)
    return applied(recorded(a), recorded(taus), cnp.broadcast_to(recorded(eye), a.shape), False)


@entry("ormqr")
def _ormqr(equation: Equation, a: Any, taus: Any, x: Any) -> Any:
    a, taus, is_adjoint = recorded(a), recorded(taus), equation.params["transpose"]
    if equation.params["left"]:
        return applied(a, taus, x, is_adjoint)
    return adjoint(applied(a, taus, adjoint(x), not is_adjoint))


@entry("hessenberg")
def _hessenberg(equation: Equation, a: Any) -> Any:
    return reduced(recorded(a), max(a.shape[-1] - 1, 0), 1, True)


@entry("tridiagonal")
def _tridiagonal(equation: Equation, a: Any) -> Any:
    lower, size = equation.params["lower"], a.shape[-1]
    given = a if lower else cnp.flip(a, (-1, -2))
    below = cnp.tril(given, -1)
    whole = below + adjoint(below) + np.eye(size, dtype=a.dtype) * cnp.real(given)
    found, taus = reduced(recorded(whole), max(size - 1, 0), 1, True)
    diagonals = [cnp.real(cnp.diagonal(found, -k, -2, -1)) for k in (0, 1)]
    # LAPACK leaves the other triangle alone.
    found = cnp.tril(found) + cnp.triu(given, 1)
    if not lower:
        found, taus, diagonals = cnp.flip(found, (-1, -2)), cnp.flip(taus, -1), [cnp.flip(d, -1) for d in diagonals]
    return found, *diagonals, taus
