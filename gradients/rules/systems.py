"""Derivatives of linear systems, and what rules on matrices have in common: triangles, transposes.

Below, x^T is `swap_last(x)`. A complex matrix is paired as in `decompositions`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.gradients.rules.complex import conj
from ctrlgrad.gradients.table import forward, reverse
from ctrlgrad.ir import Builder
from ctrlgrad.ops.term import Term, constant, emit, sum_to, swap_last, where


def adjoint(x: Term) -> Term:
    return conj(swap_last(x))


def solve(a: Term, b: Term, or_nan: bool = False) -> Term:
    return emit("solve", a, b, or_nan=or_nan)


def solve_triangular(a: Term, b: Term, *, lower: bool, unit_diagonal: bool = False, or_nan: bool = False) -> Term:
    """The solution of a x = b by one triangle of a."""
    return emit("triangular_solve", a, b, lower=lower, unit_diagonal=unit_diagonal, or_nan=or_nan)


def numbers(size: int | Term, builder: Builder) -> Term:
    return emit("iota", size, shape=(None,)) if isinstance(size, Term) else constant(builder, np.arange(size))


def triangle(x: Term, compare: str) -> Term:
    """Where the row number compares with the column number, as booleans [m, n] for x [..., m, n]."""
    rows, columns = (numbers(x.dim(axis), x.builder) for axis in (-2, -1))
    return emit(compare, emit("expand_dims", rows, axes=(1,)), emit("expand_dims", columns, axes=(0,)))


def keep(x: Term, compare: str) -> Term:
    return where(triangle(x, compare), x, 0)


def _summed(ct: Term, x: Term) -> Term:
    """Summed over batch dimensions in which x was broadcast."""
    return sum_to(ct, x.dims)


# a x = b:  dx = a^-1 (db - da x).


def _push_solve(tangents: Sequence[Term | None], out: Term, a: Term, b: Term, **answer: bool) -> Term:
    da, db = tangents
    if da is None:
        assert db is not None
        return solve(a, db, **answer)
    return solve(a, -(da @ out) if db is None else db - da @ out, **answer)


forward("solve", _push_solve)
reverse(
    "solve",
    lambda ct, out, a, b, **answer: _summed(-(solve(swap_last(a), ct, **answer) @ swap_last(out)), a),
    lambda ct, out, a, b, **answer: _summed(solve(swap_last(a), ct, **answer), b),
)


# The same with t, a triangle of a that is read, for a: elements that are not read have no part in da.


def _read(x: Term, lower: bool, unit_diagonal: bool) -> Term:
    order = "greater" if lower else "less"
    return keep(x, order if unit_diagonal else f"{order}_equal")


def _push_triangular(
    tangents: Sequence[Term | None], out: Term, a: Term, b: Term, lower: bool, unit_diagonal: bool, **answer: bool
) -> Term:
    da, db = tangents
    change = None if da is None else _read(da, lower, unit_diagonal) @ out
    right = db if change is None else -change if db is None else db - change
    assert right is not None
    return solve_triangular(a, right, lower=lower, unit_diagonal=unit_diagonal, **answer)


def _pull_triangular(ct: Term, a: Term, lower: bool, **others: bool) -> Term:
    return solve_triangular(swap_last(a), ct, lower=not lower, **others)


def _pull_triangle(ct: Term, out: Term, a: Term, b: Term, lower: bool, unit_diagonal: bool, **answer: bool) -> Term:
    change = -(_pull_triangular(ct, a, lower, unit_diagonal=unit_diagonal, **answer) @ swap_last(out))
    return _read(_summed(change, a), lower, unit_diagonal)


def _pull_right_side(ct: Term, out: Term, a: Term, b: Term, lower: bool, **others: bool) -> Term:
    return _summed(_pull_triangular(ct, a, lower, **others), b)


forward("triangular_solve", _push_triangular)
reverse("triangular_solve", _pull_triangle, _pull_right_side)
