"""JAX's primitives of linear algebra: decompositions, equations, spectra, and Householder reflectors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.linalg

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.frontend.array.decompositions import adjoint, applied, column_at, reduced
from ctrlgrad.frontend.host_calls import host_call
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.interop.array_rules import recorded
from ctrlgrad.interop.avals import tensor_type
from ctrlgrad.interop.primitives import TABLE, Entry, Equation, by_keyword, entry, plain, unsupported
from ctrlgrad.options import options

# JAX's primitives of LAPACK's reductions by Householder reflectors, and the order of columns of a pivoted one.


def pivots(a: Any) -> Any:
    """Pivots of the columns, int32 [..., n]: each is the longest after projection on the complement of those before."""
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


def _or_nan(fn: Entry) -> Entry:
    """An entry in which matrices without an answer have NaN."""

    @functools.wraps(fn)
    def answered(equation: Equation, *operands: Any) -> Any:
        with options(no_answer="nan"):
            return fn(equation, *operands)

    return answered


TABLE |= {
    "cholesky": lambda equation, a: lax.linalg.cholesky(
        a, symmetrize_input=equation.params.get("symmetrize_input", False)
    ),
    "lu": plain(lax.linalg.lu),
    "lu_pivots_to_permutation": by_keyword(lax.linalg.lu_pivots_to_permutation, "permutation_size"),
    "triangular_solve": by_keyword(
        lax.linalg.triangular_solve, "left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"
    ),
    "tridiagonal_solve": plain(lax.linalg.tridiagonal_solve),
    "geqrf": lambda equation, a: reduced(recorded(a), min(a.shape[-2:]), 0, False),
    "hessenberg": lambda equation, a: reduced(recorded(a), max(a.shape[-1] - 1, 0), 1, True),
}
TABLE |= {name: _or_nan(TABLE[name]) for name in ("cholesky", "triangular_solve", "tridiagonal_solve")}


@entry("qr")
def _qr(equation: Equation, a: Any) -> Any:
    if equation.params.get("use_magma"):
        raise unsupported(equation, "it is to be computed on a card, by MAGMA", "leave use_magma out")
    order = pivots(a) if equation.params.get("pivoting") else None
    a = a if order is None else cnp.take_along_axis(a, order[..., None, :], -1)
    q, r = cnp.linalg.qr(a, mode="complete" if equation.params["full_matrices"] else "reduced")
    return (q, r) if order is None else (q, r, order)


@entry("eigh")
def _eigh(equation: Equation, a: Any) -> Any:
    if equation.params.get("subset_by_index") not in (None, (0, a.shape[-1])):
        raise unsupported(equation, "it asks for some of the eigenvalues", "take a part of all of them")
    return lax.linalg.eigh(a, lower=equation.params["lower"], symmetrize_input=False)


@entry("eig")
@_or_nan
def _eig(equation: Equation, a: Any) -> Any:
    found, vectors = cnp.linalg.eig(a)
    results = [found]
    if equation.params["compute_left_eigenvectors"]:
        # The rows of the inverse, each up to its scale.
        results.append(_scaled(adjoint(cnp.linalg.inv(vectors))))
    if equation.params["compute_right_eigenvectors"]:
        results.append(vectors)
    return results


def _scaled(columns: Any) -> Any:
    """Columns of norm 1 whose largest component is real."""
    size = cnp.abs(columns)
    largest = cnp.take_along_axis(columns, cnp.argmax(size, axis=-2, keepdims=True), -2)
    norm = cnp.sqrt(cnp.sum(size * size, -2, keepdims=True))
    return columns * (cnp.conj(largest) / (cnp.abs(largest) * norm))


@entry("schur")
def _schur(equation: Equation, a: Any) -> Any:
    """As LAPACK has it, by SciPy, which comes with JAX; like JAX without a derivative."""
    types = [tensor_type(aval) for aval in equation.outputs]
    fn = lambda x: _schur_factors(np.asarray(x))[: len(types)]
    return host_call(fn, [a], types, "Schur's decomposition", "broadcast_all")


def _schur_factors(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The triangular matrices and the vectors of matrices [..., n, n]; NaN for one that is not finite."""
    both = np.full((2, *x.shape), np.nan, x.dtype)
    for place in np.ndindex(x.shape[:-2]):
        if np.isfinite(x[place]).all():
            both[(slice(None), *place)] = scipy.linalg.schur(x[place])
    return both[0], both[1]


@entry("svd")
def _svd(equation: Equation, a: Any) -> Any:
    if not equation.params["compute_uv"]:
        return cnp.linalg.svdvals(a)
    u, s, vh = cnp.linalg.svd(a, full_matrices=equation.params["full_matrices"])
    return s, u, vh


@entry("fft")
def _fft(equation: Equation, x: Any) -> Any:
    kind = equation.params["fft_type"]
    lengths = tuple(equation.params["fft_lengths"])
    name = {0: "fftn", 1: "ifftn", 2: "rfftn", 3: "irfftn"}[int(kind)]
    axes = tuple(range(-len(lengths), 0))
    return getattr(cnp.fft, name)(x, s=lengths, axes=axes)
