"""Linear systems, determinants and factorisations of matrices, as in the Array API's linear algebra.

All take leading batch dimensions, float32, float64 and their complex dtypes (integers become float64), and are
differentiable in both modes. A matrix that has no answer (singular, not positive definite) is an ExecutionError at
run time. Derivatives of eigenvectors and singular vectors exist where the values are distinct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import dtype_kind, finfo, result_type
from ctrlgrad.errors import ShapeError, TypeMismatchError, UnknownSizeError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.creation import ones_like, zeros_like
from ctrlgrad.frontend.array.elementwise import *
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.linalg import matmul
from ctrlgrad.frontend.array.manipulation import concatenate, matrix_transpose, moveaxis, ravel
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.array.ranges import eye, triu
from ctrlgrad.frontend.array.reduction import any as any_of
from ctrlgrad.frontend.array.reduction import max as largest
from ctrlgrad.frontend.array.reduction import min as smallest
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.array.windows import pad
from ctrlgrad.frontend.functions import array_function, publish
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import current_options, default_float

# LAPACK's reductions by Householder reflectors, written as loops: their factors and signs are LAPACK's.
#
# A reflector is H = 1 - tau v v^H with a vector v that is zero before a place p and one there. What stands behind p
# is kept in the column of the matrix that the reflector has made zero, as LAPACK has it; R, the Hessenberg or the
# tridiagonal matrix stand on the other side. Traced matrices of known sizes, which may have leading batch dimensions.


def adjoint(a: Any) -> Any:
    """The conjugate transpose of matrices."""
    return conjugate(matrix_transpose(a))


def column_at(a: Any, i: Any) -> Any:
    """A column of matrices."""
    return take(a, i, axis=-1)


def _with_column(a: Any, i: Any, column: Any) -> Any:
    return where(np.arange(a.shape[-1]) == i, column[..., None], a)


def _vector(column: Any, place: Any) -> Any:
    """The vector of a reflector that is kept in a column."""
    rows = np.arange(column.shape[-1])
    return where(rows > place, column, (rows == place).astype(column.dtype))


def _reflect(x: Any, v: Any, tau: Any) -> Any:
    """(1 - tau v v^H) x."""
    return x - tau[..., None, None] * v[..., :, None] * (conjugate(v)[..., None, :] @ x)


def _generated(column: Any, place: Any) -> tuple[Any, Any, Any]:
    """LAPACK's larfg: v, tau and beta, with (1 - conj(tau) v v^H) column = beta at `place` and zero behind it."""
    rows = np.arange(column.shape[-1])
    alpha = total(where(rows == place, column, zeros_like(column)), -1)
    behind = where(rows > place, column, zeros_like(column))
    square = total(absolute(behind) ** 2, -1)
    is_done = (square == 0) & (imag(alpha) == 0)
    one = ones_like(square)
    norm = sqrt(where(is_done, one, square + absolute(alpha) ** 2))
    beta = where(real(alpha) >= 0, -norm, norm)
    scale = where(is_done, one, alpha - beta)
    v = behind / scale[..., None] + (rows == place)
    tau = where(is_done, zeros_like(alpha), (beta - alpha) / beta)
    return v, tau, where(is_done, real(alpha), beta)


def reduced(a: Any, count: int, below: int, both_sides: bool) -> Any:
    """`count` columns made zero behind the place `below` the diagonal, and the factors; the vectors in their place."""
    rows, columns = np.arange(a.shape[-2]), np.arange(a.shape[-1])
    taus = broadcasted(np.zeros((), a.dtype), [*dims(a)[:-2], count])

    def step(i: Any, state: Any) -> Any:
        a, taus = state
        place, column = i + below, column_at(a, i)
        v, tau, beta = _generated(column, place)
        # Columns before hold the vectors of former reflectors, and this one will hold the new one.
        rest = where(columns > i, _reflect(a, v, conjugate(tau)), a)
        if both_sides:
            rest = where(columns > i, adjoint(_reflect(adjoint(rest), v, conjugate(tau))), rest)
        kept = where(rows < place, column, where(rows == place, beta[..., None].astype(column.dtype), v))
        return _with_column(rest, i, kept), where(np.arange(count) == i, tau[..., None], taus)

    return fori_loop(0, count, step, (a, taus))


def applied(a: Any, taus: Any, x: Any, is_adjoint: bool) -> Any:
    """Q x or Q^H x for the product Q of the reflectors in the columns of a, the first one leftmost."""
    count = taus.shape[-1]

    def step(i: Any, x: Any) -> Any:
        place = i if is_adjoint else count - 1 - i
        tau = column_at(taus, place)
        return _reflect(x, _vector(column_at(a, place), place), conjugate(tau) if is_adjoint else tau)

    return fori_loop(0, count, step, x)


def complete_qr(a: Any, q: Any) -> tuple[Any, Any]:
    """Q [..., m, m] and R [..., m, n] of matrices with more rows than columns, as LAPACK has them.

    `q` is the reduced Q. Where a column has nothing to be made zero, LAPACK's Q jumps, and the loop's derivative is not
    that of any basis: there it is the one by which the further columns follow the space beside those of `q`.
    """
    rows, columns = a.shape[-2:]
    found, taus = reduced(a, columns, 0, False)
    whole = _whole(found, taus)
    jumps = expanded(any_of(equal(taus, 0), axis=-1), [rank_of(a) - 2, rank_of(a) - 1])
    # Of the values that the loop found.
    first = whole[..., :columns]
    first = stop_gradient(first) + (q - stop_gradient(q))
    top = triu(adjoint(first) @ a)
    followed = pad(top, [*[(0, 0)] * (rank_of(a) - 2), (0, rows - columns), (0, 0)])
    return where(jumps, _followed(first, whole), whole), where(jumps, followed, triu(found))


def completed(basis: Any) -> Any:
    """Extend orthonormal columns by further columns to an orthonormal basis of the whole space."""
    return _followed(basis, _whole(*reduced(stop_gradient(basis), basis.shape[-1], 0, False)))


def _whole(found: Any, taus: Any) -> Any:
    """The product of all reflectors."""
    rows, columns = found.shape[-2:]
    # Reflectors are made of as many columns as there are rows; those behind are zero.
    vectors = pad(found, [*[(0, 0)] * (rank_of(found) - 1), (0, rows - columns)])
    return applied(vectors, taus, broadcasted(np.eye(rows, dtype=found.dtype), [*dims(found)[:-1], rows]), False)


def _followed(basis: Any, whole: Any) -> Any:
    """The columns `basis`, and behind them those of `whole`, which stay orthonormal to them in derivatives."""
    beside = stop_gradient(whole[..., basis.shape[-1] :])
    beside = beside - basis @ (adjoint(basis) @ beside)
    factor = apply("cholesky", [adjoint(beside) @ beside])
    triangle = {"lower": True, "unit_diagonal": False}
    return concatenate([basis, adjoint(apply("triangular_solve", [factor, adjoint(beside)], triangle))], -1)


class QRResult(NamedTuple):
    """Result of `qr`: x = Q @ R."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """Result of `slogdet`: det(x) = sign * exp(logabsdet)."""

    sign: Any
    logabsdet: Any


class EighResult(NamedTuple):
    """Result of `eigh`: x = eigenvectors @ diag(eigenvalues) @ adjoint(eigenvectors)."""

    eigenvalues: Any
    eigenvectors: Any


class SVDResult(NamedTuple):
    """Result of `svd`: x = U @ diag(S) @ Vh."""

    U: Any
    S: Any
    Vh: Any


def inexact(operation: str, x: Any) -> Any:
    """The operand in a dtype that linear algebra is done in."""
    x = operand(operation, x)
    if dtype_kind(dtype_of(x)) in "biu":
        return cast(x, default_float())
    if dtype_of(x).itemsize < 4:
        raise TypeMismatchError(
            f"{operation}: half precision is not supported", got=shown(x), hint="x.astype(numpy.float32)"
        )
    return x


def matrices(operation: str, x: Any, *, square: bool = False) -> Any:
    """The operand, which must be matrices."""
    x = inexact(operation, x)
    shape = shape_of(x)
    check_rank(operation, x, 2)
    if square and None not in shape[-2:] and shape[-1] != shape[-2]:
        raise ShapeError(
            f"{operation}: the matrices are not square",
            expected="[..., n, n]",
            got=shown(x),
            hint="matrices that are not square have a ctrlgrad.numpy.linalg.svd and a ctrlgrad.numpy.linalg.pinv,\n"
            "and ctrlgrad.numpy.linalg.lstsq solves with them",
        )
    return x


def answered(op: str, *operands: Any, **attrs: bool) -> Any:
    """The result of an op on matrices, of which those without an answer have what the options say."""
    return apply(op, operands, {**attrs, "or_nan": current_options().no_answer == "nan"})


def _hermitian(x: Any) -> Any:
    """The hermitian part, so that a derivative sees the matrix as the decomposition does."""
    return multiply(add(x, adjoint(x)), 0.5)


def _identity(x: Any) -> Any:
    """One identity, of the size of square matrices."""
    return eye(dim(x, -1), dtype=dtype_of(x))


@array_function()
def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """The lower triangular L with x = L @ adjoint(L), or with `upper` the adjoint of it.

    Args:
        x: [..., n, n], hermitian and positive definite; of another matrix the hermitian part is taken.

    >>> cnp.linalg.cholesky([[4.0, 2.0], [2.0, 2.0]])
    array([[2., 0.],
           [1., 1.]])
    """
    lower = answered("cholesky", _hermitian(matrices("cholesky", x, square=True)))
    return adjoint(lower) if upper else lower


@array_function()
def solve(x1: Any, x2: Any, /) -> Any:
    """The x with x1 @ x = x2.

    Args:
        x1: [..., n, n], invertible.
        x2: [n], or [..., n, k]; leading dimensions broadcast.

    >>> cnp.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0])
    array([1., 1.])
    """
    return _solved("solve", x1, x2, lambda a, b: answered("solve", a, b))


@array_function()
def solve_triangular(x1: Any, x2: Any, /, *, lower: bool, unit_diagonal: bool = False) -> Any:
    """As `solve`, by one triangle of x1, the only one that is read; a `unit_diagonal` is ones, and not read either."""
    attrs = {"lower": bool(lower), "unit_diagonal": bool(unit_diagonal)}
    return _solved("solve_triangular", x1, x2, lambda a, b: answered("triangular_solve", a, b, **attrs))


def _solved(operation: str, x1: Any, x2: Any, solver: Callable[[Any, Any], Any]) -> Any:
    a, b = matrices(operation, x1, square=True), inexact(operation, x2)
    if rank_of(b) == 0:
        raise ShapeError(
            f"{operation}: the right side is a scalar", expected="[n] or [..., n, k]", hint="such as numpy.full(n, b)"
        )
    dtype = result_type(dtype_of(a), dtype_of(b))
    a, b = cast(a, dtype), cast(b, dtype)
    return solver(a, b) if rank_of(b) > 1 else squeezed(solver(a, expanded(b, [1])), [rank_of(a) - 1])


@array_function()
def inv(x: Any, /) -> Any:
    """The inverse of square matrices.

    >>> cnp.linalg.inv([[2.0, 0.0], [0.0, 4.0]])
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    x = matrices("inv", x, square=True)
    return answered("solve", x, _identity(x))


@array_function()
def det(x: Any, /) -> Any:
    """The determinant of square matrices: [...].

    The first derivative is exact at singular matrices; the second one needs an invertible matrix.

    >>> print(round(float(cnp.linalg.det([[2.0, 0.0], [0.0, 4.0]])), 12))
    8.0
    """
    return apply("det", [matrices("det", x, square=True)])


@array_function()
def slogdet(x: Any, /) -> SlogdetResult:
    """The sign of the determinant (a number of modulus 1 for complex matrices) and the logarithm of its modulus.

    >>> print(cnp.linalg.slogdet([[1.0, 0.0], [0.0, -1.0]]).sign)
    -1.0
    """
    x = matrices("slogdet", x, square=True)
    # A real sign is constant where it is differentiable.
    sign = apply("det_sign", [x if dtype_kind(dtype_of(x)) == "c" else stop_gradient(x)])
    return SlogdetResult(sign, apply("logabsdet", [x]))


@array_function()
def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """x = Q @ R with orthonormal columns in Q and an upper triangular R.

    Args:
        x: [..., m, n]. Q is [..., m, k] and R [..., k, n] with k = min(m, n).
        mode: "reduced"; or "complete" for a Q [..., m, m] and an R [..., m, n], of matrices of known sizes where m > n.

    Derivatives exist where the first k columns are linearly independent.

    >>> abs(cnp.linalg.qr([[3.0], [4.0]]).R)
    array([[5.]])
    """
    x = matrices("qr", x)
    rows, columns = shape_of(x)[-2:]
    check_choice("qr", "mode", mode, ("reduced", "complete"))
    is_tall = mode == "complete" and _sizes_for("qr: mode 'complete'", x, "pass mode='reduced'") > 0
    if rows is not None and columns is not None and rows >= columns:
        leading = x
    else:
        # Q depends on the first columns alone.
        leading = sliced(x, rank_of(x) - 1, 0, minimum_size(x))
    q = apply("orthonormal", [leading])
    if is_tall:
        return QRResult(*complete_qr(x, q))
    return QRResult(q, triu(apply("matmul", [adjoint(q), x])))


def _sizes_for(what: str, x: Any, hint: str) -> int:
    """Number of rows minus number of columns, both of which must be known for a basis of the whole space."""
    rows, columns = shape_of(x)[-2:]
    if rows is None or columns is None:
        raise UnknownSizeError(f"{what} needs known sizes", expected="[..., m, n]", got=shown(x), hint=hint)
    return rows - columns


def minimum_size(x: Any) -> Any:
    """The smaller one of the last two sizes."""
    rows, columns = dim(x, -2), dim(x, -1)
    if isinstance(rows, Tensor) or isinstance(columns, Tensor):
        return minimum(rows, columns)
    return min(rows, columns)


@array_function()
def eigh(x: Any, /, UPLO: str = "L") -> EighResult:
    """Eigenvalues, ascending and real: [..., n], and eigenvectors as columns: [..., n, n].

    Args:
        x: [..., n, n], hermitian; of another matrix the hermitian part is taken.
        UPLO: accepted for NumPy; both triangles count.

    >>> cnp.linalg.eigh([[2.0, 0.0], [0.0, 1.0]]).eigenvalues
    array([1., 2.])
    """
    x = _hermitian(matrices("eigh", x, square=True))
    return EighResult(apply("eigenvalues", [x]), apply("eigenvectors", [x]))


@array_function()
def eigvalsh(x: Any, /, UPLO: str = "L") -> Any:
    """The eigenvalues of `eigh` alone.

    >>> cnp.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]])
    array([1., 2.])
    """
    return apply("eigenvalues", [_hermitian(matrices("eigvalsh", x, square=True))])


@array_function()
def svd(x: Any, /, *, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """x = U @ diag(S) @ Vh: the singular values S, descending, and the vectors as columns of U and rows of Vh.

    In each column of a real U the first component that is at least 0.4 times the largest is positive.

    Args:
        x: [..., m, n]. U is [..., m, k], S is [..., k], Vh is [..., k, n] with k = min(m, n).
        full_matrices: also vectors that make U [..., m, m] or Vh [..., n, n], which the matrix does not determine. The
            Array API's default is True, here it is False.
        compute_uv: False gives S alone, as in NumPy.

    >>> cnp.linalg.svd([[0.0, 2.0], [1.0, 0.0]]).S
    array([2., 1.])
    """
    x = matrices("svd", x)
    if not compute_uv:
        return apply("singular_values", [x])
    both = apply("singular_vectors", [x])
    axis, rows = rank_of(x) - 2, dim(x, -2)
    u, v = sliced(both, axis, 0, rows), sliced(both, axis, rows, None)
    if full_matrices:
        more = _sizes_for("svd: full_matrices=True", x, "pass full_matrices=False")
        u, v = completed(u) if more > 0 else u, completed(v) if more < 0 else v
    return SVDResult(u, apply("singular_values", [x]), adjoint(v))


@array_function()
def svdvals(x: Any, /) -> Any:
    """The singular values, descending: [..., min(m, n)].

    >>> cnp.linalg.svdvals([[0.0, 2.0], [1.0, 0.0]])
    array([2., 1.])
    """
    return apply("singular_values", [matrices("svdvals", x)])


@array_function()
def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """The pseudo-inverse of matrices [..., m, n]: [..., n, m].

    Args:
        rtol: a number, or one for each matrix; known or traced. Singular values up to rtol times the largest count
            as zero. By default max(m, n) * eps.

    The derivative is the one along matrices of the same rank; rtol has none.

    >>> cnp.linalg.pinv([[2.0, 0.0], [0.0, 0.0]])
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    x = matrices("pinv", x)
    return apply("pinv", [x, _relative_bound("pinv", x, rtol)])


def _relative_bound(operation: str, x: Any, rtol: Any) -> Any:
    """`rtol` in the dtype of singular values, max(m, n) * eps where it is None."""
    real = np.zeros(0, dtype_of(x)).real.dtype
    if rtol is None:
        return multiply(cast(maximum(dim(x, -2), dim(x, -1)), real), finfo(real).eps)
    return stop_gradient(to_dtype(operation, rtol, real))


@array_function()
def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    """Number of singular values above rtol (by default max(m, n) * eps) times the largest one: int64 [...].

    `rtol` is a number, or one for each matrix.

    >>> print(cnp.linalg.matrix_rank([[1.0, 1.0], [1.0, 1.0]]))
    1
    """
    x = matrices("matrix_rank", x)
    values = stop_gradient(apply("singular_values", [x]))
    rtol = _relative_bound("matrix_rank", x, rtol)
    bound = multiply(largest(values, axis=-1, keepdims=True), expanded(rtol, (rank_of(rtol),)))
    return total(greater(values, bound), axis=-1)


@array_function()
def matrix_power(x: Any, n: int, /) -> Any:
    """Square matrices to a whole power, by repeated squaring; a negative one of the inverse.

    >>> cnp.linalg.matrix_power([[1, 1], [0, 1]], 3)
    array([[1, 3],
           [0, 1]])
    """
    exponent = whole_number("matrix_power", "the exponent", n)
    x = operand("matrix_power", x)
    if rank_of(x) < 2 or dtype_kind(dtype_of(x)) not in "iu" or exponent < 0:
        x = matrices("matrix_power", x, square=True)
    if exponent < 0:
        x, exponent = inv(x), -exponent
    if exponent == 0:
        return broadcasted(_identity(x), dims(x))
    result = None
    while True:
        if exponent & 1:
            result = x if result is None else matmul(result, x)
        exponent >>= 1
        if not exponent:
            return result
        x = matmul(x, x)


# Norms of vectors and matrices. At zero, where a norm has a kink, its derivative is 0.


def _root(x: Any) -> Any:
    """The square root, with derivative 0 at 0."""
    zero = equal(x, 0)
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


def _squares(x: Any) -> Any:
    if dtype_kind(dtype_of(x)) != "c":
        return square(x)
    return add(square(apply("real", [x])), square(apply("imag", [x])))


def _known_order(operation: str, ord: Any) -> Any:
    if isinstance(ord, Tensor) or not isinstance(ord, int | float | str | np.number):
        raise TypeMismatchError(
            f"{operation}: not a known order",
            expected="a number, or a name of a norm",
            got=repr(ord),
            hint="pass ord as a Python value, such as 2 or numpy.inf",
        )
    return ord


@array_function()
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """(sum(abs(x) ** ord)) ** (1 / ord) along axes, or of all elements.

    Args:
        x: any shape; integers become float64.
        axis: an int, several, or None for all elements.
        ord: a known number; inf is the largest modulus, -inf the smallest, 0 the number of elements other than 0.

    >>> print(cnp.linalg.vector_norm([3.0, 4.0]))
    5.0
    """
    x = inexact("vector_norm", x)
    axes, order = axes_of("vector_norm", axis, rank_of(x)), _known_order("vector_norm", ord)
    if isinstance(order, str):
        raise TypeMismatchError(
            "vector_norm: the order is not a number", got=repr(ord), hint="use matrix_norm for norms that have a name"
        )
    if order == 2:
        return _root(total(_squares(x), axes, keepdims=keepdims))
    size = absolute(x)
    if order == np.inf:
        return largest(size, axes, keepdims=keepdims)
    if order == -np.inf:
        return smallest(size, axes, keepdims=keepdims)
    if order == 0:
        return total(cast(not_equal(size, 0), dtype_of(size)), axes, keepdims=keepdims)
    if order == 1:
        return total(size, axes, keepdims=keepdims)
    powers = total(power(size, float(order)), axes, keepdims=keepdims)
    if order < 0:
        return power(powers, 1.0 / float(order))
    zero = equal(powers, 0)
    return where(zero, 0.0, power(where(zero, 1.0, powers), 1.0 / float(order)))


@array_function()
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """A norm of matrices [..., m, n]: [...], or [..., 1, 1] with `keepdims`.

    Args:
        ord: "fro", "nuc" (the sum of singular values), 1 and -1 (largest and smallest column sum of moduli),
            inf and -inf (of rows), 2 and -2 (largest and smallest singular value).

    >>> print(cnp.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]]))
    5.0
    """
    x, order = inexact("matrix_norm", x), _known_order("matrix_norm", ord)
    check_rank("matrix_norm", x, 2)
    norm = _matrix_norm(x, order)
    return expanded(norm, [rank_of(x) - 2, rank_of(x) - 1]) if keepdims else norm


def _matrix_norm(x: Any, order: Any) -> Any:
    check_choice("matrix_norm", "ord", order, ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf))
    if order == "fro":
        return _root(total(_squares(x), (-2, -1)))
    if order == "nuc":
        return total(apply("singular_values", [x]), -1)
    if order in (1, -1, np.inf, -np.inf):
        sums = total(absolute(x), -2 if order in (1, -1) else -1)
        return largest(sums, -1) if order > 0 else smallest(sums, -1)
    values = apply("singular_values", [x])
    return largest(values, -1) if order > 0 else smallest(values, -1)


@array_function()
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """NumPy's norm: of a vector along one axis, of matrices along two, of all elements without axis and order.

    >>> print(cnp.linalg.norm([3.0, 4.0]))
    5.0
    """
    x = inexact("norm", x)
    rank = rank_of(x)
    if axis is None and ord is None:
        return vector_norm(x, keepdims=True) if keepdims else vector_norm(ravel(x))
    axes = axes_in_order("norm", list(range(rank)) if axis is None else axis, rank)
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ShapeError("norm: takes one axis or two", got=f"{shown(x)}, axis={axis}", hint="axis=k, or axis=(j, k)")
    value = matrix_norm(moveaxis(x, axes, (-2, -1)), ord="fro" if ord is None else ord)
    return expanded(value, sorted(axes)) if keepdims else value


@array_function()
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors of three elements along an axis; the other axes broadcast.

    >>> cnp.linalg.cross([1, 0, 0], [0, 1, 0])
    array([0, 0, 1])
    """
    a, b = same_dtype("cross", (x1, x2))
    for x in (a, b):
        size = None if rank_of(x) == 0 else shape_of(x)[axis_of("cross", axis, rank_of(x))]
        if rank_of(x) == 0 or size not in (3, None):
            raise ShapeError(
                "cross: not three elements along the axis", got=shown(x), hint="choose axis=..., or pad vectors of 2"
            )
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    parts = []
    for i, j in ((1, 2), (2, 0), (0, 1)):
        ai, aj, bi, bj = (at_index(x, rank_of(x) - 1, k) for x, k in ((a, i), (a, j), (b, i), (b, j)))
        parts.append(expanded(subtract(multiply(ai, bj), multiply(aj, bi)), [max(rank_of(ai), rank_of(bi))]))
    return moveaxis(concatenated(parts, rank_of(parts[0]) - 1), -1, axis)


_RESULTS = ("EighResult", "QRResult", "SVDResult", "SlogdetResult")
_HELPERS = "adjoint answered applied column_at complete_qr completed inexact matrices minimum_size reduced"
publish(__name__, *_RESULTS, *_HELPERS.split(), "solve_triangular")
