"""Ops that find an order or positions; what they yield are int64 indices, and values follow by `getitem`."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, declare
from ctrlgrad.ir.types import INDEX, RegionType, TensorType, Type
from ctrlgrad.ops.checks import axes, tensors

_ORDERED = "biuf"


def _infer_argsort(operands: Sequence[Type], attrs: attributes.Axis, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("argsort", operands)
    if dtype_kind(x.dtype) not in _ORDERED:
        raise TypeMismatchError("argsort: the dtype has no order", expected="a real dtype", got=str(x))
    axes("argsort", (attrs.axis,), x.rank)
    return (TensorType(INDEX.dtype, x.shape),)


def _infer_top_k(
    operands: Sequence[Type], attrs: attributes.Selection, regions: Sequence[RegionType]
) -> Sequence[Type]:
    (x,) = tensors("top_k", operands)
    if dtype_kind(x.dtype) not in _ORDERED:
        raise TypeMismatchError("top_k: the dtype has no order", expected="a real dtype", got=str(x))
    axes("top_k", (attrs.axis,), x.rank)
    size = x.shape[attrs.axis]
    if attrs.count < 0 or (size is not None and size < attrs.count):
        raise ShapeError(
            "top_k: the axis does not have as many elements",
            expected=f"0 <= k, and {attrs.count} elements or more along axis {attrs.axis}",
            got=str(x),
        )
    shape = (*x.shape[: attrs.axis], attrs.count, *x.shape[attrs.axis + 1 :])
    return (TensorType(INDEX.dtype, shape),)


def _infer_searchsorted(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    row, values = tensors("searchsorted", operands)
    if row.rank != 1:
        raise ShapeError("searchsorted: the sorted operand is not one-dimensional", got=str(row))
    if row.dtype != values.dtype or dtype_kind(row.dtype) not in _ORDERED:
        raise TypeMismatchError("searchsorted: not two operands of one real dtype", got=f"{row} and {values}")
    return (TensorType(INDEX.dtype, values.shape),)


def _infer_nonzero(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("nonzero", operands)
    if x.rank == 0:
        raise ShapeError("nonzero: a scalar has no positions", got=str(x))
    return (TensorType(INDEX.dtype, (x.rank, None)),)


# The stable order along an axis.
declare("argsort", 1, _infer_argsort, Trait.TOTAL, Trait.SHAPE_OF_FIRST, attributes=attributes.Order)
# The first of the stable order from the largest down; a NaN counts as the largest.
declare("top_k", 1, _infer_top_k, Trait.TOTAL_IF_STATIC, attributes=attributes.Selection)
# For each of the second operand, how many of the first come before it: those below it, or with the side
# "right" those not above it.
declare("searchsorted", 2, _infer_searchsorted, Trait.TOTAL, attributes=attributes.Search)
# The positions of the elements other than zero, in C order: a row per axis, a column per element.
declare("nonzero", 1, _infer_nonzero, Trait.TOTAL)
