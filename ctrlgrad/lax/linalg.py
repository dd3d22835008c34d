"""Factorisations, triangular solves and Fourier transforms with the signatures of `jax.lax`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.scipy.linalg import factors, of_triangle, order_of, solve_triangular

# Fourier transforms by the names of `jax.lax`.


class FftType(enum.Enum):
    """Kind of the transform `fft`; as `jax.lax.FftType`.

    >>> FftType.IRFFT.name
    'IRFFT'
    """

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


def fft(x: Any, fft_type: Any, fft_lengths: Sequence[int]) -> Any:
    """The transform of the last axes: `FftType.FFT`, `IFFT`, of real numbers `RFFT`, or to real numbers `IRFFT`.

    Args:
        fft_type: an `FftType`, JAX's or a name.
        fft_lengths: the sizes of the last axes, of the side that is real where one is.

    >>> fft(np.array([1.0, 0.0]), "RFFT", (2,))
    array([1.+0.j, 1.+0.j])
    """
    name = str(getattr(fft_type, "name", fft_type)).upper()
    functions = {"FFT": cnp.fft.fftn, "IFFT": cnp.fft.ifftn, "RFFT": cnp.fft.rfftn, "IRFFT": cnp.fft.irfftn}
    check_choice("lax.fft", "fft_type", name, functions)
    lengths = tuple(fft_lengths)
    return functions[name](cnp.asarray(x), lengths, tuple(range(-len(lengths), 0)))


def cholesky(a: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower triangular factor of a positive definite matrix.

    It is that of the Hermitian part; without `symmetrize_input`, of the lower triangle: the other one is not read, and
    has derivatives of zero (JAX's derivatives there are those of no function).

    >>> cholesky(np.array([[4.0]]))
    array([[2.]])
    """
    a = cnp.asarray(a)
    return cnp.linalg.cholesky(a if symmetrize_input else of_triangle(a, lower=True))


def lu(x: Any) -> tuple[Any, Any, Any]:
    """Both triangular factors in one matrix, the row that each step chose, and the order of the rows.

    >>> both, pivots, order = lu(np.array([[0.0, 2.0], [4.0, 1.0]]))
    >>> both, order
    (array([[4., 1.],
           [0., 2.]]), array([1, 0], dtype=int32))
    """
    return factors(x)


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """The order of so many rows after the swaps that `lu` names.

    >>> lu_pivots_to_permutation(np.array([1, 1]), 2)
    array([1, 0], dtype=int32)
    """
    return order_of(pivots, permutation_size)


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """The solution of x a = b, or with `left_side` of a x = b, of which one triangle of `a` is read.

    >>> a, b = np.array([[2.0, 7.0], [1.0, 4.0]]), np.array([[4.0], [8.0]])
    >>> triangular_solve(a, b, left_side=True, lower=True)
    array([[2. ],
           [1.5]])
    """
    a, b = cnp.asarray(a), cnp.asarray(b)
    is_vector = b.ndim == a.ndim - 1
    x = b[..., None] if is_vector else b
    a = cnp.conj(a) if conjugate_a and dtype_kind(a.dtype) == "c" else a
    # x a = b is a^T x^T = b^T.
    turned = transpose_a if left_side or is_vector else not transpose_a
    across = not left_side and not is_vector
    x = cnp.matrix_transpose(x) if across else x
    x = solve_triangular(a, x, trans=1 if turned else 0, lower=lower, unit_diagonal=unit_diagonal)
    x = cnp.matrix_transpose(x) if across else x
    return x[..., 0] if is_vector else x


def qr(x: Any, *, full_matrices: bool = True, **settings: Any) -> tuple[Any, Any]:
    """(q, r) with x = q @ r, q orthonormal and r upper triangular.

    >>> abs(qr(np.array([[3.0], [4.0]]), full_matrices=False)[1])
    array([[5.]])
    """
    q, r = cnp.linalg.qr(x, mode="complete" if full_matrices else "reduced")
    return q, r


def eigh(x: Any, *, lower: bool = True, symmetrize_input: bool = True, **settings: Any) -> tuple[Any, Any]:
    """(v, w): the eigenvectors, the columns of v, and the eigenvalues of a Hermitian matrix, rising.

    They are those of the Hermitian part; without `symmetrize_input`, of one triangle, the lower one or the upper one.

    >>> eigh(np.array([[2.0, 0.0], [0.0, 1.0]]))[1]
    array([1., 2.])
    """
    x = cnp.asarray(x)
    found = cnp.linalg.eigh(x if symmetrize_input else of_triangle(x, lower))
    return found.eigenvectors, found.eigenvalues


def svd(x: Any, *, full_matrices: bool = True, compute_uv: bool = True, **settings: Any) -> Any:
    """(u, s, vh) with x = u @ diag(s) @ vh; without `compute_uv` the singular values alone.

    >>> svd(np.array([[3.0]]), compute_uv=False)
    array([3.])
    """
    return cnp.linalg.svd(x, full_matrices=full_matrices and compute_uv, compute_uv=compute_uv)


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any) -> Any:
    """The solution of a x = b for a matrix of three diagonals: below, on and above the main one.

    The first element of `dl` and the last of `du` are not read.

    >>> tridiagonal_solve(np.zeros(2), np.array([2.0, 4.0]), np.zeros(2), np.ones((2, 1)))
    array([[0.5 ],
           [0.25]])
    """
    dl, d, du = map(cnp.asarray, (dl, d, du))
    n = d.shape[-1]
    # Element i of each diagonal stands in row i.
    main, above = cnp.eye(n, dtype=d.dtype), cnp.eye(n, k=1, dtype=d.dtype)
    matrix = d[..., None] * main + dl[..., None] * above.T + du[..., None] * above
    return cnp.linalg.solve(matrix, b)
