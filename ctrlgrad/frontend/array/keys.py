"""Keys: a user's key becomes the key of the ops `getitem`, `setitem` and `additem`.

Ints and slices of known bounds stay in the key; traced scalars and index arrays become operands. A boolean mask
turns into the positions of its true elements: their number is unknown where the mask is traced. Integers that may lie
outside of the array are moved inside, with flags that say which of them lay inside before (`Moved`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.elementwise import logical_and, maximum, minimum, where
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC, Item, Key
from ctrlgrad.ops.term import scalar_index
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
    def new_axes(self) -> tuple[int, ...] | None:
        """Positions of new axes in the result, if the key only adds axes; else None."""
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
            check_range(item, shape_of(x)[axis], axis)
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
        if dtype_kind(item.dtype) not in "biu":
            raise _no_index(str(item.type))
        return item
    if isinstance(item, np.ndarray) and (item.ndim or dtype_kind(item.dtype) == "b"):
        if dtype_kind(item.dtype) not in "biu":
            raise _no_index(f"an array of {item.dtype}")
        return item
    try:
        return operator.index(item)
    except TypeError as error:
        raise _no_index(repr(item)) from error


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
    """One item for each axis: `...` and missing items at the end become full slices."""
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
    """Give x's unknown sizes the values of the masks' sizes; other sizes are an error at run time."""
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
        scalar_index("indexing", "a slice's bound", part.type)
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


def check_range(item: Any, size: int | None, axis: int) -> None:
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


# Integers outside of an array, as the modes of JAX's `x.at[key]` treat them.


MODES = (None, "promise_in_bounds", "clip", "drop", "fill")


@record
class Moved:
    """A key whose integers lie inside of an array.

    `inside` tells which did before, over the axes of the key's integers (None: all do, or it does not matter). Of the
    part that the key selects, those are `rank` axes from `place` on. An array without elements
    (`empty`) has a further row in `x`, which is read in their place. `chosen`: as that of an `Index`.
    """

    x: Any
    key: Any
    inside: Any = None
    place: int = 0
    rank: int = 0
    empty: Any = None
    chosen: tuple[int, ...] = ()

    def over_part(self, rank: int) -> Any:
        """`inside` for a part of this rank."""
        behind = rank - self.place - self.rank
        return expanded(self.inside, range(rank_of(self.inside), rank_of(self.inside) + behind))

    def in_a_row(self, part: Any, values: Any) -> tuple[tuple[Any, ...], Any, Any, Any]:
        """The key with its integers in one row, `inside` and the values of the part along it, and its length. Behind
        the others comes an integer that counts as outside."""
        sizes = dims(part)
        end = self.place + self.rank
        own = sizes[self.place : end]
        count = times(own)

        def longer(x: Any, last: Any) -> Any:
            return concatenated([ravel(broadcasted(x, own)), np.asarray([last], dtype_of(x))], 0)

        key = tuple(longer(np.asarray(x) if isinstance(x, int) else x, 0) if is_integers(x) else x for x in self.key)
        rows = reshaped(broadcasted(values, sizes), [*sizes[: self.place], count, *sizes[end:]])
        one = broadcasted(np.zeros((), dtype_of(values)), [*sizes[: self.place], 1, *sizes[end:]])
        inside = self.inside if isinstance(self.inside, Tensor) else np.asarray(self.inside)
        return key, longer(inside, False), concatenated([rows, one], self.place), count


def is_integers(item: Any) -> bool:
    """Return true for an item that is an integer, or an array of them."""
    return isinstance(item, int) or (isinstance(item, np.ndarray | Tensor) and dtype_kind(item.dtype) in "iu")


def moved_inside(operation: str, x: Any, key: Any, mode: Any) -> Moved:
    """The key of an array with its integers moved inside, as a mode of JAX's asks for."""
    # JAX's own modes are known by their text.
    name = mode if mode is None else str(mode).removeprefix("GatherScatterMode.").lower()
    name = "drop" if name == "fill_or_drop" else name
    check_choice(operation, "mode", name, MODES)
    if name in (None, "promise_in_bounds"):
        return Moved(x, key)
    given = [_array_of(item) for item in (key if isinstance(key, tuple) else (key,))]
    whole = x
    x, masked, chosen = _scalars_as_masks(x, _without_ellipsis(given, rank_of(x), key))
    items: list[Any] = []
    for item in masked:
        items += positions(item) if _is_mask(item) else [item]
    inside: Any = None
    axis, axes, ended, empty = 0, 0, False, None
    place: int | None = None
    arrays = [rank_of(item) for item in items if is_integers(item) and not isinstance(item, int)]
    for number, item in enumerate(items):
        if not is_integers(item):
            axes += 1
            axis += item is not None
            ended |= place is not None
            continue
        size = dim(x, axis)
        if not isinstance(size, Tensor) and size == 0 and None not in shape_of(x):
            # Nothing is inside. What is read in its place lies in a further row.
            sizes = [1 if d == axis else n for d, n in enumerate(dims(x))]
            row = np.zeros(sizes, dtype_of(x))
            x, empty = concatenated([x, row], axis), whole if empty is None else empty
        axis += 1
        item = np.asarray(item) if isinstance(item, int) else item
        # The size fits no small dtype, and the largest unsigned integers become negative ones.
        item = cast(minimum(item, size) if dtype_of(item) == np.uint64 else item, np.int64)
        item = where(item < 0, item + size, item)
        flags = logical_and(item >= 0, item < size)
        inside = flags if inside is None else logical_and(inside, flags)
        items[number] = maximum(minimum(item, size - 1), 0)
        # Integers on both sides of another item come first, as in NumPy.
        place = 0 if ended else axes if place is None else place
    rank = max(arrays, default=0)
    return Moved(x, tuple(items), None if name == "clip" else inside, place or 0, rank, empty, chosen)


def filling(dtype: Any, value: Any = None) -> Any:
    """JAX's fill value: NaN, the least signed or the largest unsigned integer, or true."""
    if value is not None:
        return cast(operand("fill_value", value), dtype)
    if dtype_kind(dtype) in "fc":
        return dtype.type(np.nan)
    if dtype_kind(dtype) == "b":
        return np.True_
    return dtype.type(np.iinfo(dtype).min if dtype_kind(dtype) == "i" else np.iinfo(dtype).max)
