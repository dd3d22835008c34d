"""Matrix products. `matmul` takes two operands of rank 2 or more and broadcasts their leading dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, declare
from ctrlgrad.ir.types import RegionType, TensorType, Type, broadcast_shapes
from ctrlgrad.ops.checks import tensors

# What is said of factors that do not fit, by the op and by what computes its derivatives alone.
DIFFER = "matmul: the sizes to sum over differ"
TURN = "transpose one operand with .mT, or sum over other axes with numpy.tensordot or numpy.einsum"


def _infer_matmul(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    a, b = tensors("matmul", operands)
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
    return (TensorType(a.dtype, (*batch, a.shape[-2], b.shape[-1])),)


declare("matmul", 2, _infer_matmul, Trait.TOTAL_IF_STATIC, Trait.PRODUCT)
