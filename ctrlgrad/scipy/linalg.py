"""Linear algebra by SciPy's names, as `jax.scipy.linalg`; matrices may be stacked along axes in front.

>>> from ctrlgrad.scipy import linalg
>>> linalg.block_diag(np.ones((1, 2)), 5.0)
array([[1., 1., 0.],
       [0., 0., 5.]])
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import result_type
from ctrlgrad.frontend.array.decompositions import solve_triangular as by_triangle
from ctrlgrad.scipy.factorisations import expm, expm_frechet, lu, lu_factor, lu_solve, of_triangle, polar

det, inv = cnp.linalg.det, cnp.linalg.inv


def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The triangular factor of a positive definite matrix, the upper one unless `lower`.

    It reads that triangle of `a`, and has derivatives by it: the elements of the other one have none.

    >>> cholesky(np.array([[4.0]]))
    array([[2.]])
    """
    return cnp.linalg.cholesky(of_triangle(cnp.asarray(a), lower), upper=not lower)


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
    """`cholesky` and whether it is the lower factor, for `cho_solve`.

    >>> cho_solve(cho_factor(np.array([[4.0]])), np.array([8.0]))
    array([2.])
    """
    return cholesky(a, lower), lower


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """The solution of a x = b by the factor that `cho_factor` gives; see there."""
    c, lower = c_and_lower
    first = solve_triangular(c, b, trans=0 if lower else 2, lower=lower)
    return solve_triangular(c, first, trans=2 if lower else 0, lower=lower)


def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:
    """The solution of a x = b, of which one triangle of `a` is read.

    >>> solve_triangular(np.array([[2.0, 1.0], [7.0, 4.0]]), np.array([4.0, 8.0]))
    array([1., 2.])
    """
    matrix, is_turned = cnp.asarray(a), trans in (1, "T", 2, "C")
    if is_turned:
        matrix = cnp.matrix_transpose(matrix)
        matrix = cnp.conj(matrix) if trans in (2, "C") else matrix
    return by_triangle(matrix, cnp.asarray(b), lower=lower != is_turned, unit_diagonal=unit_diagonal)


def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Any:
    """The solution of a x = b; with `assume_a="pos"` by a Cholesky factor.

    >>> solve(np.array([[2.0]]), np.array([4.0]))
    array([2.])
    """
    return cho_solve(cho_factor(a, lower), b) if assume_a == "pos" else cnp.linalg.solve(a, b)


def eigh(a: Any, lower: bool = True, eigvals_only: bool = False, **settings: Any) -> Any:
    """Eigenvalues, rising, and eigenvectors of a Hermitian matrix.

    >>> eigh(np.array([[2.0, 0.0], [0.0, 1.0]]), eigvals_only=True)
    array([1., 2.])
    """
    triangle = "L" if lower else "U"
    if eigvals_only:
        return cnp.linalg.eigvalsh(a, UPLO=triangle)
    found = cnp.linalg.eigh(a, UPLO=triangle)
    return found.eigenvalues, found.eigenvectors


def svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, **settings: Any) -> Any:
    """The singular value decomposition, as `numpy.linalg.svd`: `full_matrices` is SciPy's default, here it is not.

    >>> svd(np.array([[3.0]]), compute_uv=False)
    array([3.])
    """
    return cnp.linalg.svd(a, full_matrices=full_matrices, compute_uv=compute_uv)


def qr(a: Any, overwrite_a: bool = False, lwork: Any = None, mode: str = "full", **settings: Any) -> Any:
    """The QR decomposition; modes "full", "r" and "economic".

    >>> abs(qr(np.array([[3.0], [4.0]]), mode="economic")[1])
    array([[5.]])
    """
    if mode == "r":
        return (cnp.linalg.qr(a, mode="complete").R,)
    return tuple(cnp.linalg.qr(a, mode="complete" if mode == "full" else "reduced"))


def block_diag(*arrays: Any) -> Any:
    """Matrices along the diagonal of one; as `scipy.linalg.block_diag`.

    >>> block_diag([[1.0, 2.0]], 3.0)
    array([[1., 2., 0.],
           [0., 0., 3.]])
    """
    blocks = [cnp.atleast_2d(cnp.asarray(x)) for x in arrays]
    width = sum(b.shape[1] for b in blocks)
    dtype = result_type(*(b.dtype for b in blocks))
    rows, before = [], 0
    for b in blocks:
        rows.append(cnp.pad(b.astype(dtype), ((0, 0), (before, width - before - b.shape[1]))))
        before += b.shape[1]
    return cnp.concatenate(rows, 0)


def _lines(x: Any, index: Any) -> Any:
    return cnp.take(cnp.asarray(x), index, axis=-1)


def toeplitz(c: Any, r: Any = None) -> Any:
    """The matrix with constant diagonals, its first column c and its first row r, c's conjugate if not given.

    >>> toeplitz(np.array([1, 2, 3]), np.array([1, 9]))
    array([[1, 9],
           [2, 1],
           [3, 2]])
    """
    c = cnp.ravel(cnp.asarray(c))
    r = cnp.conj(c) if r is None else cnp.ravel(cnp.asarray(r))
    m, n = c.shape[0], r.shape[0]
    values = cnp.concatenate([cnp.flip(c), r[1:]], 0)
    return _lines(values, np.arange(m)[::-1][:, None] + np.arange(n)[None])


def hankel(c: Any, r: Any = None) -> Any:
    """The matrix with constant antidiagonals, its first column c and its last row r, zeros if not given.

    >>> hankel(np.array([1, 2]))
    array([[1, 2],
           [2, 0]])
    """
    c = cnp.ravel(cnp.asarray(c))
    r = cnp.zeros_like(c) if r is None else cnp.ravel(cnp.asarray(r))
    values = cnp.concatenate([c, r[1:]], 0)
    return _lines(values, np.arange(c.shape[0])[:, None] + np.arange(r.shape[0])[None])


def circulant(c: Any) -> Any:
    """The matrix whose columns are c, turned on by one each.

    >>> circulant(np.array([1, 2, 3]))
    array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]])
    """
    n = cnp.asarray(c).shape[-1]
    return _lines(c, (np.arange(n)[:, None] - np.arange(n)[None]) % n)


def companion(a: Any) -> Any:
    """The companion matrix of a polynomial, its coefficients from the highest.

    >>> companion(np.array([1.0, -3.0, 2.0]))
    array([[ 3., -2.],
           [ 1.,  0.]])
    """
    a = cnp.asarray(a)
    n = a.shape[0] - 1
    return cnp.concatenate([-a[None, 1:] / a[0], cnp.eye(n - 1, n, dtype=a.dtype)], 0)


def hilbert(n: int) -> Any:
    """The Hilbert matrix, 1 / (i + j + 1).

    >>> hilbert(2)[0]
    array([1. , 0.5])
    """
    return 1.0 / (np.arange(n)[:, None] + np.arange(n)[None] + 1)


def pascal(n: int, kind: str = "symmetric") -> Any:
    """The Pascal matrix, symmetric, lower or upper.

    >>> pascal(3)[2]
    array([1., 3., 6.])
    """
    lower = np.zeros((n, n))
    lower[:, 0] = 1
    for i in range(1, n):
        lower[i, 1:] = lower[i - 1, 1:] + lower[i - 1, :-1]
    return {"lower": lower, "upper": lower.T, "symmetric": lower @ lower.T}[kind]


def invhilbert(n: int) -> Any:
    """The inverse of the Hilbert matrix.

    >>> invhilbert(2)
    array([[ 4., -6.],
           [-6., 12.]])
    """
    c = [(-1) ** i * (i + 1) * math.comb(n + i, i + 1) * math.comb(n - 1, i) for i in range(n)]
    return np.array([[c[i] * c[j] / (i + j + 1) for j in range(n)] for i in range(n)])


def invpascal(n: int, kind: str = "symmetric") -> Any:
    """The inverse of the Pascal matrix.

    >>> invpascal(2)
    array([[ 2., -1.],
           [-1.,  1.]])
    """
    # Of the lower factor the inverse has the same numbers with alternating signs.
    signs = (-1.0) ** np.arange(n)
    lower = pascal(n, "lower") * signs[:, None] * signs
    return {"lower": lower, "upper": lower.T, "symmetric": lower.T @ lower}[kind]


def hadamard(n: int, dtype: Any = np.int64) -> Any:
    """The Hadamard matrix of a power of two.

    >>> hadamard(2)
    array([[ 1,  1],
           [ 1, -1]])
    """
    found = np.ones((1, 1), dtype)
    while len(found) < n:
        found = np.block([[found, found], [found, -found]])
    return found


def dft(n: int, scale: str | None = None) -> Any:
    """The matrix of the discrete Fourier transform.

    >>> dft(1)
    array([[1.+0.j]])
    """
    factor = {None: 1.0, "sqrtn": np.sqrt(n), "n": float(n)}[scale]
    return np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) / factor + 0.0


def leslie(f: Any, s: Any) -> Any:
    """The Leslie matrix: f in the first row, s below the diagonal.

    >>> leslie(np.array([1.0, 2.0]), np.array([0.5]))
    array([[1. , 2. ],
           [0.5, 0. ]])
    """
    f, s = cnp.asarray(f), cnp.asarray(s)
    below = cnp.pad(cnp.diag(s), ((0, 0), (0, 1)))
    return cnp.concatenate([f[None], below], 0)


def fiedler(a: Any) -> Any:
    """The matrix of the distances of numbers.

    >>> fiedler(np.array([1.0, 3.0]))
    array([[0., 2.],
           [2., 0.]])
    """
    a = cnp.asarray(a)
    return cnp.abs(a[:, None] - a[None])


def fiedler_companion(a: Any) -> Any:
    """The companion matrix of a polynomial with five diagonals, its coefficients from the highest.

    >>> fiedler_companion(np.array([1.0, -3.0, 2.0]))
    array([[ 3., -2.],
           [ 1.,  0.]])
    """
    a = cnp.asarray(a)
    n = a.shape[0] - 1
    c = -a[1:] / a[0]
    rows, columns, places = [0], [0], [0]
    for k in range(1, n):
        row = k - 1 if k % 2 else k
        rows, columns, places = [*rows, row], [*columns, k if k % 2 else k - 1], [*places, k]
    found = cnp.at(cnp.zeros((n, n), c.dtype))[np.array(rows), np.array(columns)].set(c[np.array(places)])
    ones = [(1, 0)] if n > 1 else []
    ones += [(k, k + 2) for k in range(0, n - 2, 2)] + [(k + 2, k) for k in range(1, n - 2, 2)]
    for row, column in ones:
        found = cnp.at(found)[row, column].set(1)
    return found


def helmert(n: int, full: bool = False) -> Any:
    """The Helmert matrix.

    >>> helmert(2, full=True).shape
    (2, 2)
    """
    matrix = np.tril(np.ones((n, n)), -1) - np.diag(np.arange(n))
    matrix[0] += 1
    sizes = np.arange(n) * np.arange(1, n + 1)
    sizes[0] = n
    matrix = matrix / np.sqrt(sizes)[:, None]
    return matrix if full else matrix[1:]


def convolution_matrix(a: Any, n: int, mode: str = "full") -> Any:
    """The matrix whose product with a vector of n numbers is the convolution with a.

    >>> convolution_matrix(np.array([1.0, 2.0]), 2)
    array([[1., 0.],
           [2., 1.],
           [0., 2.]])
    """
    a = cnp.asarray(a)
    m = a.shape[0]
    full = toeplitz(cnp.pad(a, (0, n - 1)), cnp.pad(a[:1], (0, n - 1)))
    if mode == "full":
        return full
    start = (min(m, n) - 1) // 2 if mode == "same" else min(m, n) - 1
    return full[start : start + (max(m, n) if mode == "same" else abs(m - n) + 1)]


__all__ = [
    "block_diag",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "circulant",
    "companion",
    "convolution_matrix",
    "det",
    "dft",
    "eigh",
    "expm",
    "expm_frechet",
    "fiedler",
    "fiedler_companion",
    "hadamard",
    "hankel",
    "helmert",
    "hilbert",
    "inv",
    "invhilbert",
    "invpascal",
    "leslie",
    "lu",
    "lu_factor",
    "lu_solve",
    "pascal",
    "polar",
    "qr",
    "solve",
    "solve_triangular",
    "svd",
    "toeplitz",
]


def __dir__() -> list[str]:
    return sorted(__all__)
