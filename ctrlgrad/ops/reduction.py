"""Reductions and scans along axes. `axes` is a sorted tuple counted from the front; `keepdims` a bool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.errors import ShapeError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.op import Trait, TypeRule, declare
from ctrlgrad.ir.types import RegionType, Shape, TensorType, Type
from ctrlgrad.ops.checks import axes, default_int, require_kind, tensors


def reduced_shape(shape: Shape, over: Sequence[int], keepdims: bool) -> Shape:
    """The shape after reducing over axes."""
    if keepdims:
        return tuple(1 if axis in over else d for axis, d in enumerate(shape))
    return tuple(d for axis, d in enumerate(shape) if axis not in over)


def _reduction(name: str, kinds: str, result: np.dtype | None = None, *, needs_elements: bool = False) -> TypeRule:
    def infer(operands: Sequence[Type], attrs: attributes.Reduction, regions: Sequence[RegionType]) -> Sequence[Type]:
        (x,) = tensors(name, operands)
        require_kind(name, kinds, (x,))
        over = axes(name, attrs.axes, x.rank)
        if needs_elements and any(x.shape[axis] == 0 for axis in over):
            raise ShapeError(
                f"{name}: no elements along a reduced axis",
                expected="at least one element",
                got=str(x),
                hint="concatenate a first element to it, or leave empty arrays out",
            )
        return (TensorType(result or x.dtype, reduced_shape(x.shape, over, attrs.keepdims)),)

    return infer


# The frontend widens small integers first, as NumPy does, so `sum` and `prod` keep their operand's dtype.
declare("sum", 1, _reduction("sum", "iufc"), Trait.TOTAL, attributes=attributes.Reduction)
# Products of floats are multiplied pair by pair, which makes their derivatives exact at zeros.
declare("prod", 1, _reduction("prod", "iu"), Trait.TOTAL, attributes=attributes.Reduction)
declare("any", 1, _reduction("any", "b"), Trait.TOTAL, attributes=attributes.Reduction)
declare("all", 1, _reduction("all", "b"), Trait.TOTAL, attributes=attributes.Reduction)
# An extreme fails only along an axis of size 0, which the type rule refuses where it is known. `argmax` and `argmin`
# are of one axis each: the index of the first extreme value, as int64.
for _name, _result in (("max", None), ("min", None), ("argmax", default_int()), ("argmin", default_int())):
    _infer = _reduction(_name, "biuf", _result, needs_elements=True)
    declare(_name, 1, _infer, Trait.TOTAL_IF_STATIC, Trait.SELECTS, attributes=attributes.Reduction)


def _infer_scan(name: str, kinds: str) -> TypeRule:
    def infer(operands: Sequence[Type], attrs: attributes.Axis, regions: Sequence[RegionType]) -> Sequence[Type]:
        (x,) = tensors(name, operands)
        require_kind(name, kinds, (x,))
        axes(name, (attrs.axis,), x.rank)
        return (x,)

    return infer


# `reverse=True` accumulates from the end: the transpose of the forward accumulation.
declare("cumsum", 1, _infer_scan("cumsum", "iufc"), Trait.TOTAL, Trait.SHAPE_OF_FIRST, attributes=attributes.Scan)
declare("cumprod", 1, _infer_scan("cumprod", "iu"), Trait.TOTAL, Trait.SHAPE_OF_FIRST, attributes=attributes.Scan)
