"""Factors of matrices by SciPy's names, as `jax.scipy.linalg`: LU, and what follows from the singular values."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.frontend.array.decompositions import solve_triangular
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.options import default_float
from ctrlgrad.source import here
from ctrlgrad.transforms.custom_jvp import custom_jvp
from ctrlgrad.transforms.vmap import vmap


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
    inner = solve_triangular(left, inner, lower=True, unit_diagonal=True)
    inner = solve_triangular(cnp.matrix_transpose(right), cnp.matrix_transpose(inner), lower=True)
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
        raise ShapeError("linalg.lu: not matrices of known sizes", expected="[..., m, n]", got=str(a))
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

    >>> lu_solve(lu_factor(np.array([[2.0, 0.0], [4.0, 1.0]])), np.array([8.0, 1.0]), trans=1)
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
        x = solve_triangular(both, solve_triangular(both, x, lower=True, unit_diagonal=True), lower=False)
    else:
        turned = cnp.matrix_transpose(cnp.conj(both) if trans == 2 else both)
        x = solve_triangular(turned, solve_triangular(turned, x, lower=True), lower=False, unit_diagonal=True)
        x = cnp.take_along_axis(x, cnp.argsort(order, axis=-1)[..., None], -2)
    return x[..., 0] if is_vector else x


def polar(a: Any, side: str = "right") -> tuple[Any, Any]:
    """(u, p) with a = u @ p, or for the side "left" a = p @ u: u has orthonormal columns, p is positive semidefinite.

    >>> polar(np.array([[-2.0]]))
    (array([[-1.]]), array([[2.]]))
    """
    if side not in ("left", "right"):
        raise UserInputError("linalg.polar: no such side", source=here(), expected="'left' or 'right'", got=repr(side))
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

    Source: Higham, "The scaling and squaring method for the matrix exponential revisited" (2005).

    >>> expm(np.zeros((1, 1)))
    array([[1.]])
    """
    a = cnp.asarray(A)
    norm = cnp.max(cnp.sum(cnp.abs(a), -2))
    squarings = cnp.clip(cnp.ceil(cnp.log2(cnp.maximum(norm / 5.4, 1.0))), 0, max_squarings)
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
    return result


__all__ = ["expm", "expm_frechet", "factors", "lu", "lu_factor", "lu_solve", "of_triangle", "order_of", "polar"]
