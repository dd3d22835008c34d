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
from ctrlgrad.advice import check_choice, explain_calls
from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import UnknownSizeError
from ctrlgrad.frontend.array.decompositions import solve_triangular as by_triangle
from ctrlgrad.frontend.array.promote import whole_number
from ctrlgrad.frontend.functions import publish
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.options import default_float
from ctrlgrad.transforms.custom_calls import custom_jvp
from ctrlgrad.transforms.vmap import vmap

# Factors of matrices by SciPy's names, as `jax.scipy.linalg`: LU, and what follows from the singular values.


def of_triangle(a: Any, lower: bool) -> Any:
    """A matrix whose Hermitian part, which `cnp.linalg` takes, has this triangle of `a`."""
    return cnp.tril(a) + cnp.tril(a, -1) if lower else cnp.triu(a) + cnp.triu(a, 1)


def _eliminated(a: Any) -> tuple[Any, Any, Any]:
    """Both factors of one matrix in one, the row that each step chose, and the order of the rows.

    Gauss' elimination with partial pivoting: Golub and Van Loan, "Matrix Computations", algorithm 3.4.1.
    """
    rows, columns = a.shape
    row, column = np.arange(rows), np.arange(columns)

    def step(k: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, pivots, order = state
        line = cnp.take(a, k, axis=1)
        size = cnp.abs(line.real) + cnp.abs(line.imag) if dtype_kind(line.dtype) == "c" else cnp.abs(line)
        chosen = cnp.argmax(cnp.where(row >= k, size, -np.inf), axis=0)
        swapped = cnp.where(row == k, chosen, cnp.where(row == chosen, k, row))
        a, order = cnp.take(a, swapped, axis=0), cnp.take(order, swapped, axis=0)
        line, pivot = cnp.take(a, k, axis=1), cnp.take(cnp.take(a, k, axis=0), k, axis=0)
        # A column of zeros is left as it is.
        line = cnp.where(row > k, line / cnp.where(pivot == 0, 1, pivot), line)
        below = cnp.where((row[:, None] > k) & (column > k), line[:, None] * cnp.take(a, k, axis=0), 0)
        a = cnp.where(column == k, line[:, None], a - below)
        return a, cnp.at(pivots)[k].set(chosen.astype(np.int32)), order

    count = min(rows, columns)
    begin = (a, cnp.zeros(count, np.int32), cnp.asarray(row.astype(np.int32)))
    return begin if not count else fori_loop(0, count, step, begin)


@custom_jvp
def _lu(a: Any) -> tuple[Any, Any, Any]:
    found = _eliminated
    for _ in a.shape[:-2]:
        found = vmap(found)
    return found(a)


@_lu.defjvp
def _lu_rule(primals: tuple[Any], tangents: tuple[Any]) -> Any:
    """With P a = L U: L^-1 P da U^-1 has L^-1 dL below its diagonal, and dU U^-1 above and on it."""
    ((a,), (da,)) = primals, tangents
    found = _lu(a)
    both, pivots, order = found
    rows, columns = a.shape[-2:]
    count = min(rows, columns)
    # Where there are more rows or columns than the other, the smaller factor goes on as the identity.
    unit = cnp.eye(rows, dtype=a.dtype)
    left = cnp.pad(cnp.tril(both[..., :count], -1), [*[(0, 0)] * (a.ndim - 1), (0, rows - count)]) + unit
    right = cnp.pad(cnp.triu(both[..., :count, :]), [*[(0, 0)] * (a.ndim - 2), (0, columns - count), (0, 0)])
    right = right + np.diag((np.arange(columns) >= count).astype(a.dtype))
    inner = cnp.take_along_axis(da, order[..., None].astype(np.int64), -2)
    inner = by_triangle(left, inner, lower=True, unit_diagonal=True)
    inner = by_triangle(cnp.matrix_transpose(right), cnp.matrix_transpose(inner), lower=True)
    inner = cnp.matrix_transpose(inner)
    tangent = left @ cnp.tril(inner, -1) + cnp.triu(inner) @ right
    return found, (tangent, cnp.zeros_like(pivots), cnp.zeros_like(order))


def factors(a: Any) -> tuple[Any, Any, Any]:
    """Both triangular factors in one matrix, the row that each step chose, and the order of the rows, as `getrf`.

    >>> factors(np.array([[0.0, 2.0], [4.0, 1.0]]))[0]
    array([[4., 1.],
           [0., 2.]])
    """
    a = cnp.asarray(a)
    a = a if dtype_kind(a.dtype) in "fc" else a.astype(default_float())
    if a.ndim < 2 or not all(isinstance(n, int) for n in a.shape[-2:]):
        raise UnknownSizeError(
            "linalg.lu: not matrices of known sizes", expected="[..., m, n]", got=str(a), hint="a.reshape(m, n)"
        )
    found: tuple[Any, Any, Any] = _lu(a)
    return found


def lu(
    a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True, p_indices: bool = False
) -> tuple[Any, ...]:
    """(p, l, u) with a = p @ l @ u, l unit lower and u upper triangular; or with `permute_l` (p @ l, u).

    Args:
        p_indices: give the permutation as indices, a = l[p] @ u.

    >>> p, l, u = lu(np.array([[0.0, 2.0], [4.0, 1.0]]))
    >>> p @ l @ u
    array([[0., 2.],
           [4., 1.]])
    """
    both, _, order = factors(a)
    rows, columns = both.shape[-2:]
    count = min(rows, columns)
    lower = cnp.tril(both[..., :count], -1) + cnp.eye(rows, count, dtype=both.dtype)
    upper = cnp.triu(both[..., :count, :])
    places = cnp.argsort(order, axis=-1)
    if permute_l:
        return cnp.take_along_axis(lower, places[..., None], -2), upper
    if p_indices:
        return places.astype(np.int32), lower, upper
    return (places[..., None] == np.arange(rows)).astype(both.dtype), lower, upper


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, Any]:
    """Both triangular factors in one matrix, and the row that each step chose: for `lu_solve`.

    >>> lu_solve(lu_factor(np.array([[0.0, 2.0], [4.0, 1.0]])), np.array([2.0, 5.0]))
    array([1., 1.])
    """
    return factors(a)[:2]


def order_of(pivots: Any, size: int) -> Any:
    """The order of so many rows after the swaps that `lu_factor` names.

    >>> order_of(np.array([1, 1]), 2)
    array([1, 0], dtype=int32)
    """
    pivots = cnp.asarray(pivots)

    def one(pivots: Any) -> Any:
        def swap(k: Any, order: Any) -> Any:
            other = cnp.take(pivots, k, axis=0)
            first, second = cnp.take(order, k, axis=0), cnp.take(order, other, axis=0)
            return cnp.at(cnp.at(order)[k].set(second))[other].set(first)

        return fori_loop(0, pivots.shape[0], swap, cnp.asarray(np.arange(size, dtype=np.int32)))

    for _ in pivots.shape[:-1]:
        one = vmap(one)
    return one(pivots)


def lu_solve(
    lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    """The solution of a x = b by the factors that `lu_factor` gives; with `trans` 1 of a.T x = b, 2 of a.T* x = b.

    >>> factors = lu_factor(np.array([[2.0, 0.0], [4.0, 1.0]]))
    >>> lu_solve(factors, np.array([8.0, 1.0]), trans=1)
    array([2., 1.])
    """
    both, pivots = map(cnp.asarray, lu_and_piv)
    b = cnp.asarray(b)
    n = both.shape[-1]
    order = order_of(pivots, n).astype(np.int64)
    is_vector = b.ndim == both.ndim - 1
    x = b[..., None] if is_vector else b
    if trans == 0:
        x = cnp.take_along_axis(x, order[..., None], -2)
        x = by_triangle(both, by_triangle(both, x, lower=True, unit_diagonal=True), lower=False)
    else:
        turned = cnp.matrix_transpose(cnp.conj(both) if trans == 2 else both)
        x = by_triangle(turned, by_triangle(turned, x, lower=True), lower=False, unit_diagonal=True)
        x = cnp.take_along_axis(x, cnp.argsort(order, axis=-1)[..., None], -2)
    return x[..., 0] if is_vector else x


def polar(a: Any, side: str = "right") -> tuple[Any, Any]:
    """(u, p) with a = u @ p, or for the side "left" a = p @ u: u has orthonormal columns, p is positive semidefinite.

    >>> polar(np.array([[-2.0]]))
    (array([[-1.]]), array([[2.]]))
    """
    check_choice("linalg.polar", "side", side, ("left", "right"))
    w, s, vh = cnp.linalg.svd(a, full_matrices=False)
    factor = cnp.matrix_transpose(cnp.conj(vh)) if side == "right" else w
    return w @ vh, (factor * s[..., None, :]) @ cnp.matrix_transpose(cnp.conj(factor))


def expm_frechet(A: Any, E: Any, *, method: Any = None, compute_expm: bool = True) -> Any:
    """exp(A) and its derivative along E; with `compute_expm` False the derivative alone.

    Source: Mathias, "A chain rule for matrix functions" (1996): both stand in the exponential of [[A, E], [0, A]].

    >>> round(float(expm_frechet(np.zeros((1, 1)), np.ones((1, 1)))[1][0, 0]), 12)
    1.0
    """
    a, e = cnp.asarray(A), cnp.asarray(E)
    n = a.shape[-1]
    above = cnp.concatenate([a, e], -1)
    whole = expm(cnp.concatenate([above, cnp.concatenate([cnp.zeros_like(a), a], -1)], -2))
    return (whole[..., :n, :n], whole[..., :n, n:]) if compute_expm else whole[..., :n, n:]


def expm(A: Any, *, upper_triangular: bool = False, max_squarings: int = 16) -> Any:
    """The exponential of a matrix, by a Padé approximant of order 13 and squarings.

    Source: Higham, "The scaling and squaring method for the matrix exponential revisited" (2005). It is NaN, as JAX's,
    where the matrix needs more than `max_squarings`.

    >>> expm(np.zeros((1, 1)))
    array([[1.]])
    """
    a = cnp.asarray(A)
    norm = cnp.max(cnp.sum(cnp.abs(a), -2))
    max_squarings = whole_number("linalg.expm", "max_squarings", max_squarings, least=0)
    squarings = cnp.ceil(cnp.log2(cnp.maximum(norm / 5.4, 1.0)))
    is_enough, squarings = squarings <= max_squarings, cnp.minimum(squarings, max_squarings)
    a = a / cnp.exp2(squarings).astype(a.dtype)
    b: tuple[int, ...] = (
        64764752532480000,
        32382376266240000,
        7771770303897600,
        1187353796428800,
        129060195264000,
        10559470521600,
    )
    b += (670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1)
    unit = cnp.eye(a.shape[-1], dtype=a.dtype)
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    odd = a6 @ (b[13] * a6 + b[11] * a4 + b[9] * a2) + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * unit
    even = a6 @ (b[12] * a6 + b[10] * a4 + b[8] * a2) + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * unit
    odd = a @ odd
    result = cnp.linalg.solve(even - odd, even + odd)
    for k in range(max_squarings):
        result = cnp.where(k < squarings, result @ result, result)
    return cnp.where(is_enough, result, np.nan)


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
    # The inverse of the lower factor has the same numbers with alternating signs.
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


publish(__name__, "factors", "of_triangle", "order_of", more=["det", "inv"])
explain_calls(globals(), globals()["__all__"])
