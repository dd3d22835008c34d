"""Indexing: a user's key becomes the key of the ops `getitem`, `setitem` and `additem`.

Ints and slices of known bounds stay in the key; traced scalars and index arrays become operands. A boolean mask
turns into the positions of its true elements: their number is unknown where the mask is traced.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.dims import (
    along,
    at_index,
    axis_of,
    dim,
    dtype_of,
    expanded,
    iota,
    rank_of,
    reshaped,
    shape_of,
)
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import from_nested, has_tensor, operand, shown
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC, Item, Key
from ctrlgrad.records import record
from ctrlgrad.source import here


@record
class Index:
    """A key for an indexing op on `target`, and the operands of its placeholders, in order.

    `target` is the indexed array, with the sizes that a mask has told, and an axis of size 1 at `chosen` for each
    scalar boolean to choose from. `may_repeat`: an integer array takes part, so one position may be meant twice.
    `mask` is the traced mask that is all of the key, if it is.
    """

    target: Any
    key: Key
    operands: tuple[Any, ...]
    may_repeat: bool
    mask: Any = None
    chosen: tuple[int, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether the key selects the whole array as it is."""
        return all(isinstance(item, slice) and item == slice(None) for item in self.key)

    @property
    def new_axes(self) -> tuple[int, ...] | None:
        """Where the result has new axes, if the key does nothing but add them; else None."""
        if not all(item is None or (isinstance(item, slice) and item == slice(None)) for item in self.key):
            return None
        return tuple(axis for axis, item in enumerate(self.key) if item is None)


def index(x: Any, key: Any) -> Index:
    """Resolve a user's key on x, an array that `operand` made.

    Raises:
        ShapeError: more items than axes, or a mask of another shape. IndexOutOfRangeError: a known index is.
        TypeMismatchError: an item that is no index.
    """
    items = [_array_of(item) for item in (key if isinstance(key, tuple) else (key,))]
    is_one = len(items) == 1
    x, items, chosen = _scalars_as_masks(x, _without_ellipsis(items, rank_of(x), key))
    mask = items[0] if is_one and items and isinstance(items[0], Tensor) and _is_mask(items[0]) else None
    x = _sized_by_masks(x, items)
    resolved: list[Item] = []
    operands: list[Any] = []
    may_repeat, axis = False, 0
    for item in items:
        if item is None:
            resolved.append(None)
        elif isinstance(item, slice):
            resolved.append(_resolve_slice(item, operands))
            axis += 1
        elif isinstance(item, int):
            resolved.append(item)
            axis += 1
        elif _is_mask(item):
            resolved += [DYNAMIC] * item.ndim
            operands += positions(item)
            axis += item.ndim
        else:
            _check_range(item, shape_of(x)[axis], axis)
            resolved.append(DYNAMIC)
            operands.append(cast(item, np.int64))
            may_repeat |= rank_of(item) > 0
            axis += 1
    return Index(x, tuple(resolved), tuple(operands), may_repeat, mask, chosen)


def _scalars_as_masks(x: Any, items: Sequence[Any]) -> tuple[Any, list[Any], tuple[int, ...]]:
    """x with an axis of size 1 for each scalar boolean, which becomes a mask along it; and the places of those axes."""
    found: list[Any] = []
    places: list[int] = []
    axis = 0
    for item in items:
        if _is_mask(item) and item.ndim == 0:
            places.append(axis)
            item = expanded(item, (0,))
        found.append(item)
        axis += item.ndim if _is_mask(item) else item is not None
    return expanded(x, places), found, tuple(places)


def _array_of(item: Any) -> Any:
    """An item as None, Ellipsis, a slice, an int, a traced or known integer array, or a mask."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, bool | np.bool_):
        return np.asarray(item)
    if isinstance(item, list | tuple):
        item = from_nested("indexing", item) if len(item) else np.zeros(0, np.int64)
    if isinstance(item, Tensor):
        return _traced_index(item)
    if isinstance(item, np.ndarray) and (item.ndim or dtype_kind(item.dtype) == "b"):
        if dtype_kind(item.dtype) not in "biu":
            raise _no_index(f"an array of {item.dtype}")
        return item
    try:
        return operator.index(item)
    except TypeError as error:
        raise _no_index(repr(item)) from error


def _traced_index(item: Tensor) -> Tensor:
    if dtype_kind(item.dtype) not in "biu":
        raise _no_index(str(item.type))
    return item


def _no_index(got: str) -> TypeMismatchError:
    return TypeMismatchError(
        "indexing: not an index",
        expected="an int, a slice, None, ..., an integer array or a mask",
        got=got,
        hint="convert with .astype(int)",
    )


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray | Tensor) and dtype_kind(item.dtype) == "b"


def _without_ellipsis(items: list[Any], rank: int, key: Any) -> list[Any]:
    """The items with one for each axis: `...` and what is missing at the end filled with full slices."""
    places = [place for place, item in enumerate(items) if item is Ellipsis]
    used = sum(item.ndim if _is_mask(item) else item is not None and item is not Ellipsis for item in items)
    if len(places) > 1 or used > rank:
        raise ShapeError(
            "indexing: more items than axes" if used > rank else "indexing: more than one ...",
            expected=f"at most {rank} items and one ...",
            got=f"{used} items, {len(places)} ...",
            hint="leave items out, or make the axes first: x[None]",
        )
    place = places[0] if places else len(items)
    return [*items[:place], *[slice(None)] * (rank - used), *items[place + 1 :]]


def _sized_by_masks(x: Any, items: Sequence[Any]) -> Any:
    """x with the sizes that masks have where it had unknown ones, so that others are an error at run time."""
    sizes: list[Any] = list(shape_of(x))
    axis = 0
    for item in items:
        if _is_mask(item):
            known, mask = shape_of(x)[axis : axis + item.ndim], shape_of(item)
            if any(None not in (d, size) and d != size for d, size in zip(known, mask, strict=True)):
                raise ShapeError(
                    "indexing: the mask has another shape",
                    expected=str(known),
                    got=str(mask),
                    hint="make the mask from the array that it indexes: x[x > 0]",
                )
            told = [dim(item, a) if d is None else d for a, d in enumerate(known)]
            sizes[axis : axis + item.ndim] = told
            axis += item.ndim
        else:
            axis += item is not None
    if not any(map(_is_mask, items)) or None not in shape_of(x):
        return x
    return reshaped(x, [dim(x, a) if d is None else d for a, d in enumerate(sizes)])


def _resolve_slice(item: slice, operands: list[Any]) -> slice:
    start, stop, step = (_bound(part) for part in (item.start, item.stop, item.step))
    if not isinstance(step, Tensor) and step == 0:
        raise ShapeError(
            "indexing: a slice's step is zero",
            expected="a step of 1 or more, or a negative one",
            got="0",
            hint="leave the step out, or write x[::-1] to go backwards",
        )
    if not isinstance(step, Tensor) and step == 1:
        step = None
    if step is None and not isinstance(start, Tensor) and start == 0:
        start = None
    parts = []
    for part in (start, stop, step):
        if isinstance(part, Tensor):
            operands.append(cast(part, np.int64))
            part = DYNAMIC
        parts.append(part)
    return slice(*parts)


def _bound(part: Any) -> Any:
    """A slice's bound: None, an int, or a traced integer scalar."""
    if part is None:
        return None
    if isinstance(part, Tensor):
        if part.ndim or dtype_kind(part.dtype) not in "iu":
            raise TypeMismatchError(
                "indexing: a slice's bound is not a scalar integer",
                expected="i64[]",
                got=str(part.type),
                hint="take one number, n[0], and cast it with .astype(int)",
            )
        return part
    try:
        return operator.index(part)
    except TypeError as error:
        raise TypeMismatchError(
            "indexing: a slice's bound is not an integer",
            expected="an int, None or a traced integer scalar",
            got=repr(part),
            hint="round it with int(...), or .astype(int) if it is traced",
        ) from error


def _check_range(item: Any, size: int | None, axis: int) -> None:
    """Refuse known index arrays that are out of a known range."""
    if size is None or isinstance(item, Tensor) or item.size == 0:
        return
    low, high = item.min(), item.max()
    if low < -size or high >= size:
        raise IndexOutOfRangeError(
            f"indexing: an index is out of range on axis {axis}",
            source=here(),
            expected=f"-{size} <= index < {size}",
            got=str(low if low < -size else high),
            hint="clip the index, or take x[-1] for the last",
        )


def positions(x: Any) -> tuple[Any, ...]:
    """The positions of the elements other than zero, for each axis, however many there are."""
    found = apply("nonzero", [x])
    return tuple(at_index(found, 0, axis) for axis in range(rank_of(x)))


@array_function()
def getitem(x: Any, key: Any) -> Any:
    """x[key] with NumPy's meaning.

    Args:
        x: any shape.
        key: ints, slices, None, ..., integer arrays or lists, boolean masks, traced integer scalars (as slice
            bounds too) and arrays, or a tuple of them. A traced mask makes a dimension of unknown size; one that is
            a scalar boolean, a dimension of size 1 or 0.

    Raises:
        ShapeError, TypeMismatchError: the key does not fit. IndexOutOfRangeError: an index does not, at once
            where it is known, else at run time.

    >>> cnp.getitem([1, 2, 3], [2, 0])
    array([3, 1])
    """
    at = index(operand("getitem", x), key)
    if at.is_everything:
        return at.target
    if at.new_axes:
        return apply("expand_dims", [at.target], {"axes": at.new_axes})
    return apply("getitem", [at.target, *at.operands], {"key": at.key})


@array_function()
def take(x: Any, indices: Any, axis: Any = None) -> Any:
    """The elements at integer indices along an axis, or of all elements in one dimension.

    >>> cnp.take([[1, 2], [3, 4]], [1, 0], axis=1)
    array([[2, 1],
           [4, 3]])
    """
    x = ravel(x) if axis is None else operand("take", x)
    at = 0 if axis is None else axis_of("take", axis, rank_of(x))
    where = _integers("take", indices)
    _check_range(where, shape_of(x)[at], at)
    return apply("getitem", [x, where], {"key": along(at, rank_of(x))})


def _integers(operation: str, indices: Any) -> Any:
    if not has_tensor(indices) and np.size(indices) == 0:
        indices = np.asarray(indices).astype(np.int64)
    indices = operand(operation, indices)
    if dtype_kind(dtype_of(indices)) not in "iu":
        raise TypeMismatchError(
            f"{operation}: the indices are not integers", expected="an integer dtype", got=shown(indices)
        )
    return cast(indices, np.int64)


@array_function()
def take_along_axis(x: Any, indices: Any, axis: Any = -1) -> Any:
    """The elements at indices along an axis, chosen for each place of the other axes on its own.

    Args:
        x: rank n.
        indices: integers of rank n whose other axes broadcast with those of x.
        axis: None takes from all elements in one dimension.

    >>> cnp.take_along_axis([[1, 2], [3, 4]], [[1], [0]], axis=1)
    array([[2],
           [3]])
    """
    x, where = (ravel(x) if axis is None else operand("take_along_axis", x)), _integers("take_along_axis", indices)
    at = 0 if axis is None else axis_of("take_along_axis", axis, rank_of(x))
    if rank_of(where) != rank_of(x):
        raise ShapeError("take_along_axis: the ranks differ", expected=shown(x), got=shown(where))
    _check_range(where, shape_of(x)[at], at)
    rank = rank_of(x)
    operands = []
    for place in range(rank):
        if place == at:
            operands.append(where)
        else:
            operands.append(reshaped(iota(dim(x, place)), [dim(x, place) if a == place else 1 for a in range(rank)]))
    return apply("getitem", [x, *operands], {"key": (DYNAMIC,) * rank})


__all__ = [
    "getitem",
    "take",
    "take_along_axis",
]
