"""Ops that move elements without computing on them, and `dim`, which reads a size.

A shape that is not known when the graph is built is given as a template with operands for its unknown
dimensions; see `ctrlgrad.ops.checks.template`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, Use, declare
from ctrlgrad.ir.types import INDEX, Dim, RegionType, TensorType, Type, broadcast_shapes
from ctrlgrad.ops.checks import axes, product, require_kind, template, tensors


def _infer_constant(
    operands: Sequence[Type], attrs: attributes.Constant, regions: Sequence[RegionType]
) -> Sequence[Type]:
    return (TensorType(attrs.value.dtype, attrs.value.shape),)


def _infer_dim(operands: Sequence[Type], attrs: attributes.Axis, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("dim", operands)
    axes("dim", (attrs.axis,), x.rank)
    return (INDEX,)


def _infer_iota(operands: Sequence[Type], attrs: attributes.Shape, regions: Sequence[RegionType]) -> Sequence[Type]:
    template("iota", attrs.shape, operands)
    return (TensorType(INDEX.dtype, attrs.shape),)


def _infer_reshape(operands: Sequence[Type], attrs: attributes.Shape, regions: Sequence[RegionType]) -> Sequence[Type]:
    x, *dims = tensors("reshape", operands)
    template("reshape", attrs.shape, dims)
    before, after = product(x.shape), product(attrs.shape)
    if before is not None and after is not None and before != after:
        raise ShapeError(
            "reshape: the number of elements changes",
            expected=f"{before} elements, as in {x}",
            got=f"{after} elements, {attrs.shape}",
            hint="one size may be -1 and takes what is left over",
        )
    return (TensorType(x.dtype, attrs.shape),)


def _infer_broadcast_to(
    operands: Sequence[Type], attrs: attributes.Shape, regions: Sequence[RegionType]
) -> Sequence[Type]:
    x, *dims = tensors("broadcast_to", operands)
    shape = attrs.shape
    template("broadcast_to", shape, dims)
    joined = broadcast_shapes((x.shape, shape))
    if (
        joined is None
        or len(joined) != len(shape)
        or any(d == 1 and j not in (1, None) for d, j in zip(shape, joined, strict=True))
    ):
        raise ShapeError(
            "broadcast_to: the shape does not fit",
            expected=f"a shape that {x} broadcasts to",
            got=str(shape),
            hint="add dimensions of size 1 where they are missing: x[:, None]",
        )
    return (TensorType(x.dtype, shape),)


def _infer_sum_to(operands: Sequence[Type], attrs: attributes.Shape, regions: Sequence[RegionType]) -> Sequence[Type]:
    x, *dims = tensors("sum_to", operands)
    shape = attrs.shape
    template("sum_to", shape, dims)
    require_kind("sum_to", "iufc", (x,))
    if len(shape) > x.rank or broadcast_shapes((x.shape, shape)) is None:
        raise ShapeError("sum_to: the shape does not fit", expected=f"a shape that broadcasts to {x}", got=str(shape))
    return (TensorType(x.dtype, shape),)


def _infer_transpose(operands: Sequence[Type], attrs: attributes.Axes, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("transpose", operands)
    if sorted(attrs.axes) != list(range(x.rank)):
        raise ShapeError(
            "transpose: not a permutation of the axes",
            expected=f"each of {x.rank} axes once",
            got=str(attrs.axes),
            hint="numpy.moveaxis or .swapaxes moves some and keeps the rest",
        )
    return (TensorType(x.dtype, tuple(x.shape[axis] for axis in attrs.axes)),)


def _infer_expand_dims(
    operands: Sequence[Type], attrs: attributes.Axes, regions: Sequence[RegionType]
) -> Sequence[Type]:
    (x,) = tensors("expand_dims", operands)
    rank = x.rank + len(attrs.axes)
    new = axes("expand_dims", attrs.axes, rank)
    old = iter(x.shape)
    return (TensorType(x.dtype, tuple(1 if axis in new else next(old) for axis in range(rank))),)


def _infer_squeeze(operands: Sequence[Type], attrs: attributes.Axes, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("squeeze", operands)
    over = axes("squeeze", attrs.axes, x.rank)
    for axis in over:
        if x.shape[axis] not in (1, None):
            raise ShapeError(
                f"squeeze: axis {axis} is not of size 1",
                expected="an axis of size 1",
                got=str(x),
                hint="take one element along it: x[0]",
            )
    return (TensorType(x.dtype, tuple(d for axis, d in enumerate(x.shape) if axis not in over)),)


def _infer_flip(operands: Sequence[Type], attrs: attributes.Axes, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("flip", operands)
    axes("flip", attrs.axes, x.rank)
    return (x,)


def _infer_concat(operands: Sequence[Type], attrs: attributes.Axis, regions: Sequence[RegionType]) -> Sequence[Type]:
    types = tensors("concat", operands)
    first, axis = types[0], attrs.axis
    axes("concat", (axis,), first.rank)
    shape: list[Dim] = []
    for position in range(first.rank):
        dims = [t.shape[position] if t.rank == first.rank else -1 for t in types]
        known = {d for d in dims if d is not None}
        if position == axis:
            shape.append(None if None in dims else sum(d for d in dims if d is not None))
        elif len(known) > 1:
            raise ShapeError(
                f"concat: sizes differ on axis {position}",
                expected=f"arrays like {first}, but for axis {axis}",
                got=", ".join(str(t) for t in types),
                hint="arrays may differ in the axis along which they are joined, and in no other",
            )
        else:
            shape.append(known.pop() if known else None)
    if any(t.dtype != first.dtype for t in types):
        raise TypeMismatchError(
            "concat: dtypes differ",
            expected="one dtype",
            got=", ".join(str(t) for t in types),
            hint="cast with .astype",
        )
    return (TensorType(first.dtype, tuple(shape)),)


def _infer_common_size(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("common_size", operands)
    if x.dtype != INDEX.dtype or x.rank != 1:
        raise TypeMismatchError("common_size: not a list of sizes", expected=f"{INDEX.dtype}[n]", got=str(x))
    return (INDEX,)


def _infer_forget(operands: Sequence[Type], attrs: attributes.Axes, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("forget_sizes", operands)
    over = axes("forget_sizes", attrs.axes, x.rank)
    return (TensorType(x.dtype, tuple(None if axis in over else d for axis, d in enumerate(x.shape))),)


def _infer_ensure(
    operands: Sequence[Type], attrs: attributes.Required, regions: Sequence[RegionType]
) -> Sequence[Type]:
    x, *dims = tensors("ensure_sizes", operands)
    template("ensure_sizes", attrs.shape, dims)
    wanted = dict(zip(axes("ensure_sizes", attrs.axes, x.rank), attrs.shape, strict=True))
    given = TensorType(x.dtype, tuple(x.shape[a] if wanted.get(a) is None else wanted[a] for a in range(x.rank)))
    if any(None not in (d, n) and d != n for d, n in zip(given.shape, x.shape, strict=True)):
        raise ShapeError(attrs.problem, expected=str(given), got=str(x), hint=attrs.hint)
    return (given,)


# The identity on arrays of these sizes along some axes, which are in order; an error for all others.
declare(
    "ensure_sizes",
    None,
    _infer_ensure,
    Trait.VIEW,
    Trait.CHEAP,
    Trait.TOTAL_IF_STATIC,
    Trait.SHAPE_OF_FIRST,
    attributes=attributes.Required,
    uses=(Use.PASS,),
    further=Use.SIZE,
)
# The identity, after which the sizes of some axes count as unknown.
declare(
    "forget_sizes",
    1,
    _infer_forget,
    Trait.VIEW,
    Trait.CHEAP,
    Trait.TOTAL,
    Trait.SHAPE_OF_FIRST,
    attributes=attributes.Axes,
    uses=(Use.PASS,),
)
declare("constant", 0, _infer_constant, Trait.TOTAL, Trait.CHEAP, attributes=attributes.Constant)
declare("dim", 1, _infer_dim, Trait.TOTAL, Trait.CHEAP, attributes=attributes.Axis, uses=(Use.MEASURE,))
# The size that all elements of a list of sizes are, 0 for none; an error at run time where they differ, which names
# what they are the sizes of.
declare("common_size", 1, _infer_common_size, attributes=attributes.Described)
# 0, 1, ..., n - 1 of a shape (n,).
declare("iota", None, _infer_iota, Trait.TOTAL, Trait.CHEAP, attributes=attributes.Shape, further=Use.SIZE)
for _name, _infer in (("reshape", _infer_reshape), ("broadcast_to", _infer_broadcast_to)):
    declare(
        _name,
        None,
        _infer,
        Trait.VIEW,
        Trait.CHEAP,
        Trait.TOTAL_IF_STATIC,
        attributes=attributes.Shape,
        uses=(Use.VALUE,),
        further=Use.SIZE,
    )
# Sums over the axes in which the operand was broadcast from `shape`: the transpose of `broadcast_to`.
declare(
    "sum_to",
    None,
    _infer_sum_to,
    Trait.TOTAL_IF_STATIC,
    attributes=attributes.Shape,
    uses=(Use.VALUE,),
    further=Use.SIZE,
)
declare("transpose", 1, _infer_transpose, Trait.VIEW, Trait.CHEAP, Trait.TOTAL, attributes=attributes.Axes)
declare("expand_dims", 1, _infer_expand_dims, Trait.VIEW, Trait.CHEAP, Trait.TOTAL, attributes=attributes.Axes)
declare("squeeze", 1, _infer_squeeze, Trait.VIEW, Trait.CHEAP, Trait.TOTAL_IF_STATIC, attributes=attributes.Axes)
declare("flip", 1, _infer_flip, Trait.VIEW, Trait.CHEAP, Trait.TOTAL, Trait.SHAPE_OF_FIRST, attributes=attributes.Axes)
declare("concat", None, _infer_concat, Trait.MOVES, Trait.TOTAL_IF_STATIC, attributes=attributes.Axis)
