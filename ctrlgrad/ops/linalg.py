"""Declarations of products, linear systems and decompositions."""

from __future__ import annotations

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir.attributes import Answer, Attributes, Product, Triangle
from ctrlgrad.ir.op import Trait
from ctrlgrad.ir.types import Dim, TensorType, broadcast_shapes
from ctrlgrad.ops.term import TensorRule, declared, require_rank

# Parts of the error for factors that do not fit, shared by the op and by its derivative rules.
DIFFER = "matmul: the sizes to sum over differ"
TURN = "transpose one operand with .mT, or sum over other axes with numpy.tensordot or numpy.einsum"


@declared("matmul", 2, Trait.TOTAL_IF_STATIC, Trait.PRODUCT, attributes=Product)
def _infer_matmul(attrs: Attributes, a: TensorType, b: TensorType) -> TensorType:
    if a.dtype != b.dtype or dtype_kind(a.dtype) not in "iufc":
        raise TypeMismatchError(
            "matmul: dtypes differ or are not numbers",
            expected="two operands of one integer, float or complex dtype",
            got=f"{a} and {b}",
            hint="cast with .astype",
        )
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(
            "matmul: operands need rank 2 or more",
            expected="[..., m, k] and [..., k, n]",
            got=f"{a} and {b}",
            hint="give a vector a dimension of size 1: x[None, :] or x[:, None]",
        )
    one, other = a.shape[-1], b.shape[-2]
    if None not in (one, other) and one != other:
        raise ShapeError(DIFFER, expected=f"{one} on both sides", got=f"{a} and {b}", hint=TURN)
    batch = broadcast_shapes((a.shape[:-2], b.shape[:-2]))
    if batch is None:
        raise ShapeError(
            "matmul: the leading dimensions do not broadcast",
            expected="sizes that are equal or 1, aligned before the matrices",
            got=f"{a} and {b}",
            hint="add dimensions of size 1 where they are missing: x[:, None]",
        )
    return TensorType(a.dtype, (*batch, a.shape[-2], b.shape[-1]))


# Linear systems, determinants and factorisations of matrices, with leading batch dimensions.
#
# Each op has one result, so that a derivative rule names exactly what it needs: the eigenvalues and the
# eigenvectors are two ops, as are the singular values and the singular vectors. A matrix that has no answer
# (singular, not positive definite) is an error at run time, or NaN where the node says so (`attributes.Answer`).
# Singular values and vectors of a matrix that is not finite are NaN.


_DTYPES = tuple(np.dtype(d) for d in (np.float32, np.float64, np.complex64, np.complex128))


def _matrix(name: str, x: TensorType, *, square: bool) -> None:
    if x.dtype not in _DTYPES:
        raise TypeMismatchError(f"{name}: dtype {x.dtype.name} is not supported", expected="f32, f64, c64 or c128")
    require_rank(name, 2, x.rank, x)
    if square and None not in x.shape[-2:] and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name}: the matrices are not square", expected="[..., n, n]", got=str(x))


def _side(x: TensorType) -> Dim:
    """The size of square matrices: either of the last two dimensions may be the one that is known."""
    return x.shape[-1] if x.shape[-2] is None else x.shape[-2]


def _square(name: str) -> TensorRule:
    """From square matrices to matrices of the same type."""

    def infer(attrs: Attributes, x: TensorType) -> TensorType:
        _matrix(name, x, square=True)
        n = _side(x)
        return TensorType(x.dtype, (*x.shape[:-2], n, n))

    return infer


def _scalar(name: str, *, real: bool) -> TensorRule:
    """From square matrices to a number each."""

    def infer(attrs: Attributes, x: TensorType) -> TensorType:
        _matrix(name, x, square=True)
        return TensorType(_real(x.dtype) if real else x.dtype, x.shape[:-2])

    return infer


def _real(dtype: np.dtype) -> np.dtype:
    return np.zeros(0, dtype).real.dtype


def _system(name: str) -> TensorRule:
    """From square matrices and right sides to the unknowns."""

    def infer(attrs: Attributes, a: TensorType, b: TensorType) -> TensorType:
        _matrix(name, a, square=True)
        _matrix(name, b, square=False)
        batch = broadcast_shapes((a.shape[:-2], b.shape[:-2]))
        sizes = {d for d in (*a.shape[-2:], b.shape[-2]) if d is not None}
        if a.dtype != b.dtype:
            raise TypeMismatchError(f"{name}: dtypes differ", got=f"{a} and {b}")
        if batch is None or len(sizes) > 1:
            fitting = "[..., n, n] and [..., n, k]"
            raise ShapeError(f"{name}: the shapes do not fit", expected=fitting, got=f"{a} and {b}")
        return TensorType(b.dtype, (*batch, sizes.pop() if sizes else None, b.shape[-1]))

    return infer


# Its derivative along a direction e of the same shape: adjugate(a + t e) differentiated by t at 0.
@declared("adjugate_along", 2, Trait.SINGULAR)
def _infer_along(attrs: Attributes, a: TensorType, e: TensorType) -> TensorType:
    _matrix("adjugate_along", a, square=True)
    joined = broadcast_shapes((a.shape, e.shape))
    if a.dtype != e.dtype or a.rank != e.rank or joined is None:
        raise ShapeError("adjugate_along: not a matrix and a direction of its type", got=f"{a} and {e}")
    return TensorType(a.dtype, joined)


# q of the reduced decomposition a = q @ r, for matrices with no more columns than rows.
@declared("orthonormal", 1, Trait.SINGULAR)
def _infer_qr(attrs: Attributes, x: TensorType) -> TensorType:
    _matrix("orthonormal", x, square=False)
    rows, columns = x.shape[-2:]
    if rows is not None and columns is not None and rows < columns:
        raise ShapeError("orthonormal: more columns than rows", expected="[..., m, n] with m >= n", got=str(x))
    return x


# Of hermitian matrices, ascending; the vectors are the columns.
@declared("eigenvalues", 1)
def _infer_eigenvalues(attrs: Attributes, x: TensorType) -> TensorType:
    _matrix("eigenvalues", x, square=True)
    return TensorType(_real(x.dtype), (*x.shape[:-2], _side(x)))


def _infer_general(values: bool) -> TensorRule:
    """Complex numbers, whether the matrices are complex or real."""
    name = "general_eigenvalues" if values else "general_eigenvectors"

    def infer(attrs: Attributes, x: TensorType) -> TensorType:
        _matrix(name, x, square=True)
        n = _side(x)
        dtype = np.result_type(x.dtype, np.complex64)
        return TensorType(dtype, (*x.shape[:-2], n) if values else (*x.shape[:-2], n, n))

    return infer


def _smaller(rows: Dim, columns: Dim) -> Dim:
    return None if rows is None or columns is None else min(rows, columns)


# Descending. The vectors are the columns of [u; v]: the left ones above the right ones, a = u @ diag(s) @ v^H.
@declared("singular_values", 1)
def _infer_singular_values(attrs: Attributes, x: TensorType) -> TensorType:
    _matrix("singular_values", x, square=False)
    return TensorType(_real(x.dtype), (*x.shape[:-2], _smaller(*x.shape[-2:])))


@declared("singular_vectors", 1, Trait.SINGULAR)
def _infer_singular_vectors(attrs: Attributes, x: TensorType) -> TensorType:
    _matrix("singular_vectors", x, square=False)
    rows, columns = x.shape[-2:]
    both = None if rows is None or columns is None else rows + columns
    return TensorType(x.dtype, (*x.shape[:-2], both, _smaller(rows, columns)))


# The pseudo-inverse; singular values up to the second operand times the largest count as zero. That operand has a
# number for each matrix, or broadcasts to them.
@declared("pinv", 2, Trait.SINGULAR)
def _infer_pinv(attrs: Attributes, x: TensorType, rtol: TensorType) -> TensorType:
    _matrix("pinv", x, square=False)
    *batch, rows, columns = x.shape
    # The bound broadcasts to the matrices, not the other way round.
    joined = broadcast_shapes((tuple(batch), rtol.shape))
    fits = (
        joined is not None
        and len(joined) == len(batch)
        and all(b in (None, j) for b, j in zip(batch, joined, strict=True))
    )
    if rtol.dtype != _real(x.dtype) or not fits:
        raise ShapeError("pinv: not matrices and one bound for each, or for all", got=f"{x} and {rtol}")
    return TensorType(x.dtype, (*batch, columns, rows))


# Sign of a pair of real singular vectors: the first component of the left one that is at least so many times the
# largest is positive. Components of one modulus, which rounding would put in one order or the other, count alike.
SIGN_OF = 0.4


def signed(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Singular vectors [..., m, k] and [..., n, k] with the signs that the op `singular_vectors` has."""
    if 0 in u.shape or dtype_kind(u.dtype) == "c":
        return u, v
    size = np.abs(u)
    first = np.argmax(size >= SIGN_OF * size.max(-2, keepdims=True), -2)[..., None, :]
    sign = np.copysign(1, np.take_along_axis(u, first, -2))
    return u * sign, v * sign


# x with a @ x = b.
declared("solve", 2, Trait.SINGULAR, attributes=Answer)(_system("solve"))
# The same by one triangle of a, the only one that is read.
declared("triangular_solve", 2, Trait.SINGULAR, attributes=Triangle)(_system("triangular_solve"))
# The lower triangular l with l @ l^H = a, of hermitian positive definite a.
declared("cholesky", 1, Trait.SINGULAR, attributes=Answer)(_square("cholesky"))
declared("det", 1)(_scalar("det", real=False))
# The transposed cofactors: a @ adjugate(a) = det(a) * identity, at singular matrices too.
declared("adjugate", 1)(_square("adjugate"))
# log(abs(det(a))), and det(a) / abs(det(a)).
declared("logabsdet", 1, Trait.SINGULAR)(_scalar("logabsdet", real=True))
declared("det_sign", 1)(_scalar("det_sign", real=False))
declared("eigenvectors", 1, Trait.SINGULAR)(_square("eigenvectors"))
# Of any square matrices, as complex numbers, in LAPACK's order. The columns have norm 1, and the largest component of
# each is real.
declared("general_eigenvalues", 1, Trait.SINGULAR)(_infer_general(values=True))
declared("general_eigenvectors", 1, Trait.SINGULAR)(_infer_general(values=False))
