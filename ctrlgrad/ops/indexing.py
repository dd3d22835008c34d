"""Indexing with NumPy's meaning: `getitem` reads, `setitem` replaces, `additem` adds (repeated indices add up).

The key is a tuple of items in the order of the axes: an int, a `slice`, None (a new axis) or `DYNAMIC`,
which stands for the next operand: a scalar integer or an integer array. A slice's bounds may be `DYNAMIC` too.
An index that is out of range is an error at run time; negative indices count from the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError, TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import DYNAMIC, Item, Key
from ctrlgrad.ir.op import Trait, Use, declare
from ctrlgrad.ir.types import Dim, RegionType, Shape, TensorType, Type, broadcast_shapes
from ctrlgrad.ops.checks import require_kind, scalar_index, tensors


def fill(key: Key, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The key with its placeholders replaced by operands, ready for `array[key]`."""
    rest = iter(operands)
    return tuple(_fill_item(item, rest) for item in key)


def _fill_item(item: Item, rest: Iterator[Any]) -> Any:
    if item is DYNAMIC:
        return next(rest)
    if isinstance(item, slice):
        return slice(*(next(rest) if part is DYNAMIC else part for part in (item.start, item.stop, item.step)))
    return item


def is_advanced(key: Key, operands: Sequence[Type]) -> bool:
    """Whether an array of rank 1 or more takes part, so that positions may repeat."""
    return any(isinstance(t, TensorType) and t.rank > 0 for t in operands)


def indexed_shape(shape: Shape, key: Key, operands: Sequence[Type]) -> Shape:
    """The shape of `array[key]`: basic indexing, and advanced indexing as in NumPy.

    Arrays broadcast together; their dimensions stand where the first of them stood, or in front when a
    slice or a new axis separates them.
    """
    filled = fill(key, operands)
    if sum(item is not None for item in filled) != len(shape):
        raise ShapeError(
            "indexing: one item per axis", expected=f"{len(shape)} items", got=str(key), hint="x.ndim is the rank"
        )
    advanced = any(isinstance(item, TensorType) and item.rank > 0 for item in filled)
    result: list[Dim] = []
    arrays: list[Shape] = []
    places: list[int] = []
    first, axis = 0, 0
    for position, item in enumerate(filled):
        if item is None:
            result.append(1)
            continue
        dim, axis = shape[axis], axis + 1
        if isinstance(item, slice):
            result.append(_sliced(dim, item))
            continue
        if isinstance(item, int):
            _check_range(item, dim, axis - 1)
        if advanced:
            if not places:
                first = len(result)
            places.append(position)
            arrays.append(item.shape if isinstance(item, TensorType) else ())
    joined = broadcast_shapes(arrays)
    if joined is None:
        raise ShapeError(
            "indexing: the index arrays do not broadcast",
            expected="index arrays of one shape, or shapes that broadcast",
            got=", ".join(str(a) for a in arrays),
            hint="x[i[:, None], j] takes every pair of i and j",
        )
    adjacent = not places or places[-1] - places[0] + 1 == len(places)
    at = first if adjacent else 0
    return (*result[:at], *joined, *result[at:])


def _sliced(dim: Dim, item: slice) -> Dim:
    parts = (item.start, item.stop, item.step)
    if parts == (None, None, None) or parts == (None, None, -1):
        return dim
    if any(isinstance(part, TensorType) for part in parts) or dim is None:
        return None
    return len(range(*item.indices(dim)))


def _check_range(index: int, dim: Dim, axis: int) -> None:
    if dim is not None and not -dim <= index < dim:
        raise IndexOutOfRangeError(
            f"indexing: index {index} is out of range on axis {axis}",
            expected=f"-{dim} <= index < {dim}",
            got=str(index),
            hint="clip the index, or take x[-1] for the last",
        )


def _check_operands(operation: str, key: Key, operands: Sequence[Type]) -> None:
    inside_slice = []
    for item in key:
        parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
        inside_slice += [isinstance(item, slice) for part in parts if part is DYNAMIC]
    if len(inside_slice) != len(operands):
        raise ShapeError(
            f"{operation}: one operand per placeholder", expected=str(len(inside_slice)), got=str(len(operands))
        )
    for t, in_slice in zip(tensors(operation, operands), inside_slice, strict=True):
        if dtype_kind(t.dtype) not in "iu":
            raise TypeMismatchError(
                f"{operation}: an index is not an integer",
                expected="an integer dtype",
                got=str(t),
                hint="cast it with .astype(int)",
            )
        if in_slice:
            scalar_index(operation, "a slice's bound", t)


def _infer_getitem(operands: Sequence[Type], attrs: attributes.Index, regions: Sequence[RegionType]) -> Sequence[Type]:
    x, *indices = tensors("getitem", operands)
    _check_operands("getitem", attrs.key, indices)
    return (TensorType(x.dtype, indexed_shape(x.shape, attrs.key, indices)),)


def _infer_update(operands: Sequence[Type], attrs: attributes.Index, regions: Sequence[RegionType]) -> Sequence[Type]:
    x, value, *indices = tensors("an indexed update", operands)
    _check_operands("an indexed update", attrs.key, indices)
    region = indexed_shape(x.shape, attrs.key, indices)
    joined = broadcast_shapes((region, value.shape))
    if x.dtype != value.dtype:
        raise TypeMismatchError(
            "an indexed update: dtypes differ",
            expected=str(x.dtype),
            got=str(value.dtype),
            hint="cast the value with .astype(x.dtype)",
        )
    if (
        joined is None
        or len(joined) != len(region)
        or any(r == 1 and j not in (1, None) for r, j in zip(region, joined, strict=True))
    ):
        raise ShapeError(
            "an indexed update: the value does not fit",
            expected=f"a shape that broadcasts to {region}",
            got=str(value),
            hint="reshape the value, or choose the index so that x[index] has the value's shape",
        )
    return (x,)


declare(
    "getitem",
    None,
    _infer_getitem,
    Trait.MOVES,
    attributes=attributes.Index,
    uses=(Use.READ,),
    further=Use.INDEX,
)


def _infer_added(operands: Sequence[Type], attrs: attributes.Index, regions: Sequence[RegionType]) -> Sequence[Type]:
    # What does not add up is not added to a part either: `add` takes no booleans.
    require_kind("additem", "iufc", tensors("additem", operands[:1]))
    return _infer_update(operands, attrs, regions)


for _name, _infer, _traits in (("setitem", _infer_update, ()), ("additem", _infer_added, (Trait.WHOLE,))):
    declare(
        _name,
        None,
        _infer,
        Trait.SHAPE_OF_FIRST,
        *_traits,
        attributes=attributes.Index,
        uses=(Use.UPDATE, Use.VALUE),
        further=Use.INDEX,
    )


def is_static(key: Key) -> bool:
    """Whether a key has no placeholder: then an index that fits the shape cannot fail."""
    return not any(
        item is DYNAMIC or (isinstance(item, slice) and DYNAMIC in (item.start, item.stop, item.step)) for item in key
    )
