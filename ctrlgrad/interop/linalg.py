"""Decompositions, linear equations and spectra."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.linalg

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.frontend.array.decompositions import adjoint
from ctrlgrad.frontend.host_calls import host_call
from ctrlgrad.interop.avals import tensor_type
from ctrlgrad.interop.householder import pivots
from ctrlgrad.interop.primitives import TABLE, Entry, Equation, by_keyword, entry, plain, unsupported
from ctrlgrad.options import options


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
