"""Decompositions, linear equations and spectra."""

from __future__ import annotations

from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.interop.primitives import Equation, entry, unsupported
from ctrlgrad.scipy.linalg import solve_triangular


def _adjoint(x: Any) -> Any:
    return cnp.conj(cnp.matrix_transpose(x))


@entry("cholesky")
def _cholesky(equation: Equation, a: Any) -> Any:
    if equation.params.get("symmetrize_input", False):
        a = (a + _adjoint(a)) / 2
    return cnp.linalg.cholesky(a)


@entry("triangular_solve")
def _triangular_solve(equation: Equation, a: Any, b: Any) -> Any:
    params = equation.params
    lower, transposed = params["lower"], params["transpose_a"]
    a = cnp.conj(a) if params["conjugate_a"] else a
    if not params["left_side"]:
        # x a = b is a^T x^T = b^T.
        b, transposed = cnp.matrix_transpose(b), not transposed
    x = solve_triangular(a, b, trans=int(transposed), lower=lower, unit_diagonal=params["unit_diagonal"])
    return x if params["left_side"] else cnp.matrix_transpose(x)


@entry("qr")
def _qr(equation: Equation, a: Any) -> Any:
    if equation.params.get("pivoting") or equation.params.get("use_magma"):
        raise unsupported(equation, "its columns are pivoted", "call jnp.linalg.qr without pivoting")
    mode = "complete" if equation.params["full_matrices"] else "reduced"
    return tuple(cnp.linalg.qr(a, mode=mode))


@entry("eigh")
def _eigh(equation: Equation, a: Any) -> Any:
    values, vectors = cnp.linalg.eigh(a if equation.params["lower"] else _adjoint(a))
    return vectors, values


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
