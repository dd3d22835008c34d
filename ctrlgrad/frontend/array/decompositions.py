"""Linear systems, determinants and factorisations of matrices, as in the Array API's linear algebra.

All take leading batch dimensions, float32, float64 and their complex dtypes (integers become float64), and are
differentiable in both modes. A matrix that has no answer (singular, not positive definite) is an ExecutionError at
run time. Derivatives of eigenvectors and singular vectors exist where the values are distinct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo, result_type
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.arithmetic import add, maximum, minimum, multiply
from ctrlgrad.frontend.array.dims import (
    broadcasted,
    dim,
    dims,
    dtype_of,
    expanded,
    rank_of,
    shape_of,
    sliced,
    squeezed,
    whole_number,
)
from ctrlgrad.frontend.array.elementwise import stop_gradient
from ctrlgrad.frontend.array.householder import adjoint, complete_qr, completed
from ctrlgrad.frontend.array.linalg import matmul
from ctrlgrad.frontend.array.logic import greater
from ctrlgrad.frontend.array.promote import operand, shown, to_dtype
from ctrlgrad.frontend.array.ranges import eye, triu
from ctrlgrad.frontend.array.reduction import max as largest
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import current_options, default_float


class QRResult(NamedTuple):
    """What `qr` returns: x = Q @ R."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """What `slogdet` returns: det(x) = sign * exp(logabsdet)."""

    sign: Any
    logabsdet: Any


class EighResult(NamedTuple):
    """What `eigh` returns: x = eigenvectors @ diag(eigenvalues) @ adjoint(eigenvectors)."""

    eigenvalues: Any
    eigenvectors: Any


class SVDResult(NamedTuple):
    """What `svd` returns: x = U @ diag(S) @ Vh."""

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
    if rank_of(x) < 2:
        raise ShapeError(f"{operation}: needs rank 2 or more", got=shown(x))
    if square and None not in shape[-2:] and shape[-1] != shape[-2]:
        raise ShapeError(f"{operation}: the matrices are not square", expected="[..., n, n]", got=shown(x))
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
        raise ShapeError(f"{operation}: the right side is a scalar", expected="[n] or [..., n, k]")
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
    if mode not in ("reduced", "complete"):
        raise TypeMismatchError(f"qr: mode {mode!r} is not supported", expected="'reduced' or 'complete'", got=shown(x))
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
    """How many more rows than columns there are, which has to be known for a basis of the whole space."""
    rows, columns = shape_of(x)[-2:]
    if rows is None or columns is None:
        raise ShapeError(f"{what} needs known sizes", expected="[..., m, n]", got=shown(x), hint=hint)
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
    """How many singular values exceed rtol (by default max(m, n) * eps) times the largest: int64 [...].

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
