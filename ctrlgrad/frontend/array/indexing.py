"""Indexing: a user's key becomes the key of the ops `getitem`, `setitem` and `additem`.

Ints and slices of known bounds stay in the key; traced scalars and index arrays become operands. A boolean mask
turns into the positions of its true elements: their number is unknown where the mask is traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice, explains_calls
from ctrlgrad.dtypes import can_cast, dtype_kind
from ctrlgrad.errors import (
    IndexOutOfRangeError,
    MissingAttributeError,
    ShapeError,
    TracingError,
    TypeMismatchError,
)
from ctrlgrad.frontend.apply import apply, cast, result_dtype
from ctrlgrad.frontend.array.elementwise import divide, maximum, minimum, multiply, power, remainder, where
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import array_function, publish
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC, Item, Key
from ctrlgrad.ops.term import require_integers, scalar_index
from ctrlgrad.records import record
from ctrlgrad.source import here

# `at(x)[key].set(value)` and its kin: indexed updates that return the new array.
#
# An update is done in place where the old array is not used again.


_METHODS = ("set", "add", "subtract", "multiply", "divide", "power", "min", "max", "apply", "get")


def _misused(how: str, got: str, hint: str) -> TypeMismatchError:
    return TypeMismatchError(f"at: {how}", expected="x.at[index].set(value)", got=got, hint=hint)


def _missing(name: str, got: str, hint: str) -> MissingAttributeError:
    problem = f"at: there is no {name!r}"
    return MissingAttributeError(problem, expected="x.at[index].set(value)", got=got, hint=hint)


@record
class At:
    """An array that waits for a key: `at(x)[key]`."""

    x: Any

    def __getitem__(self, key: Any) -> Place:
        return Place(index(self.x, key))

    def __call__(self, *key: Any) -> None:
        raise _misused("called in place of indexed", "x.at(...)", "write square brackets: x.at[index]")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise _misused("assigned to", "x.at[...] = value", "arrays do not change: x = x.at[index].set(value)")

    def __iter__(self) -> Any:
        raise _misused("gone through", "iteration over x.at", "go through x itself, or map over its rows")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing(name, f"x.at.{name}", f"the index comes first: x.at[index].{name}(...)")


@record
class Place:
    """A part of an array: each method returns the whole array with that part changed.

    Values broadcast to the part and take the array's dtype; a value that would lose its fraction or its imaginary
    part is a TypeMismatchError.
    """

    index: Index

    @explains_calls
    def set(self, value: Any) -> Any:
        """With `value` there. Where an integer array names a position twice, the last value stays."""
        return self._whole(self._update("setitem", "set", self._value("set", value)))

    @explains_calls
    def add(self, value: Any) -> Any:
        """With `value` added. Where an integer array names a position twice, both values are added."""
        return self._whole(self._update("additem", "add", self._value("add", value)))

    @explains_calls
    def multiply(self, value: Any) -> Any:
        """With `value` multiplied in. Where an integer array names a position twice, both values are."""
        return self._whole(self._combine("multiply", multiply, value))

    @explains_calls
    def min(self, value: Any) -> Any:
        """With the minimum of the element and `value`, or of all values if a position is repeated."""
        return self._whole(self._combine("min", minimum, value))

    @explains_calls
    def max(self, value: Any) -> Any:
        """With the maximum of the element and `value`, or of all values if a position is repeated."""
        return self._whole(self._combine("max", maximum, value))

    @explains_calls
    def get(self) -> Any:
        """Read the elements at the key; as x[key]."""
        return self._whole(apply("getitem", [self.index.target, *self.index.operands], {"key": self.index.key}))

    @explains_calls
    def subtract(self, value: Any) -> Any:
        """With `value` taken off. Where an integer array names a position twice, both values are."""
        (value,) = operands("at[...].subtract", (value,))
        return self.add(-value)

    @explains_calls
    def divide(self, value: Any) -> Any:
        """Divided by `value`. Where an integer array names a position twice, by both values."""
        return self._whole(self._combine("divide", divide, value))

    @explains_calls
    def power(self, value: Any) -> Any:
        """To the power of `value`. Where an integer array names a position twice, of both values."""
        return self._whole(self._combine("power", power, value))

    @explains_calls
    def apply(self, function: Callable[[Any], Any]) -> Any:
        """With an elementwise function applied to the elements, once even if a position is repeated."""
        return self.set(function(self.get()))

    mul = multiply

    def __getitem__(self, key: Any) -> None:
        raise _misused("indexed twice", "x.at[...][...]", "all indices stand in one pair of brackets: x.at[i, j]")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing(name, f"x.at[...].{name}", f"there are {', '.join(_METHODS)}")

    def _no_value(self, *others: Any) -> Any:
        raise _misused(
            "computed with",
            "x.at[...] as an operand",
            "x[index] is the value that is there, x.at[index].add(v) the sum",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_value
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __neg__ = __float__ = __int__ = __bool__ = _no_value
    __iter__ = __array__ = _no_value

    def _whole(self, changed: Any) -> Any:
        """The array in its own shape: without the axes that scalar booleans choose from."""
        return squeezed(changed, self.index.chosen)

    def _value(self, method: str, value: Any) -> Any:
        (value,) = operands(f"at[...].{method}", (value,))
        dtype = dtype_of(self.index.target)
        if not can_cast(result_dtype(value, self.index.target), dtype, "same_kind"):
            raise TypeMismatchError(
                f"at[...].{method}: the value's dtype does not fit the array's",
                expected=f"a value that becomes {dtype} without loss of kind",
                got=shown(value),
                hint=f"value.astype({dtype.name}), or an array of another dtype",
            )
        return cast(value, dtype, f"at[...].{method}")

    def _update(self, op: str, method: str, value: Any) -> Any:
        at = self.index
        if op == "additem" and dtype_kind(dtype_of(at.target)) == "b":
            raise TypeMismatchError(f"at[...].{method}: booleans do not add up", got=shown(at.target), hint="use .set")
        if rank_of(at.target) == 0 and rank_of(value) <= len(at.key) and all(d == 1 for d in shape_of(value)):
            # The key adds axes at most: the part is the whole.
            whole = reshaped(value, ())
            if op == "additem":
                return apply("add", [at.target, whole])
            return whole if isinstance(whole, Tensor) else np.array(whole)
        if self._is_choice(value):
            x = at.target
            return self._chosen(value if op == "setitem" else apply("add", [x, value]))
        return apply(op, [at.target, value, *at.operands], {"key": at.key})

    def _is_choice(self, value: Any) -> bool:
        """True if a traced mask is the whole key and the value has no row for each true element."""
        at = self.index
        return at.mask is not None and rank_of(value) <= rank_of(at.target) - rank_of(at.mask)

    def _chosen(self, changed: Any) -> Any:
        """`changed` where the mask holds, else the array as it was: its shape stays known."""
        mask, x = self.index.mask, self.index.target
        mask = expanded(mask, range(rank_of(mask), rank_of(x)))
        return apply("where", [mask, changed, x])

    def _combine(self, method: str, combine: Any, value: Any) -> Any:
        at = self.index
        value = self._value(method, value)
        if self._is_choice(value):
            return self._chosen(combine(at.target, value))
        if at.may_repeat:
            return self._one_by_one(combine, value)
        old = apply("getitem", [at.target, *at.operands], {"key": at.key})
        return self._update("setitem", method, combine(old, value))

    def _one_by_one(self, combine: Any, value: Any) -> Any:
        """A loop over the positions: an integer array may name one twice, and every value counts."""
        at = self.index
        numbers = reshaped(iota(times(dims(at.target))), dims(at.target))
        places = apply("getitem", [numbers, *at.operands], {"key": at.key})
        values = ravel(broadcasted(value, dims(places)))
        places, flat = ravel(places), ravel(at.target)
        one = {"key": (DYNAMIC,)}

        def body(k: Any, x: Any) -> Any:
            place = apply("getitem", [places, k], one)
            new = combine(apply("getitem", [x, place], one), apply("getitem", [values, k], one))
            return apply("setitem", [x, new, place], one)

        return reshaped(fori_loop(0, dim(places, 0), body, flat), dims(at.target))


@array_function()
def at(x: Any) -> At:
    """`at(x)[key]`, followed by `.set(v)`, `.add(v)`, `.multiply(v)` or another of JAX's names: x with a part changed.

    Keys are those of `x[key]`. x itself stays as it is.

    >>> cnp.at([1, 2, 3])[1:].add(10)
    array([ 1, 12, 13])
    """
    return At(operand("at", x))


# Elements replaced: what changes an array in NumPy returns the new one here.
#
# As in JAX `inplace` is there for programs that say `inplace=False`; the array itself never changes.


def refuse_in_place(operation: str, inplace: bool) -> None:
    if inplace:
        raise TracingError(
            f"{operation}: arrays do not change in place",
            expected="inplace=False",
            got="inplace=True",
            hint=f"x = ctrlgrad.numpy.{operation}(x, ..., inplace=False)",
        )


def _again(operation: str, values: Any, count: Any) -> Any:
    """The values, again and again, to this number."""
    values = ravel(operand(operation, values))
    size = shape_of(values)[0]
    if size == 1:
        return broadcasted(values, [count])
    return take(values, remainder(iota(count), dim(values, 0)))


@array_function()
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any, *, inplace: bool = False) -> Any:
    """arr with values at indices along an axis; as `jax.numpy.put_along_axis`, which returns the new array.

    >>> cnp.put_along_axis(cnp.zeros((1, 2)), cnp.asarray([[1]]), 5.0, axis=1)
    array([[0., 5.]])
    """
    refuse_in_place("put_along_axis", inplace)
    arr, indices = operand("put_along_axis", arr), operand("put_along_axis", indices)
    if axis is None:
        return reshaped(at(ravel(arr))[indices].set(values), dims(arr))
    axis, rank = axis_of("put_along_axis", axis, rank_of(arr)), rank_of(arr)
    key = [laid_along(a, iota(dim(arr, a)), rank) for a in range(rank)]
    key[axis] = indices
    return at(arr)[tuple(key)].set(values)


@array_function()
def put(arr: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = False) -> Any:
    """arr with values at positions of the flattened array, as `jax.numpy.put`; values are used again and again.

    Args:
        arr: any shape.
        ind: integers of any shape; negative ones count from the end.
        v: values of the array's dtype.
        mode: what becomes of positions outside: None leaves them out, "clip" takes the nearest, "wrap" counts on
            from the first again.

    >>> cnp.put([0, 0, 0], [2, 0], [5, 6])
    array([6, 0, 5])
    """
    refuse_in_place("put", inplace)
    arr, ind = operand("put", arr), ravel(operand("put", ind))
    check_choice("put", "mode", mode, (None, "clip", "wrap"))
    if 0 in shape_of(arr) or shape_of(ind)[0] == 0 or np.size(v) == 0:
        return arr
    flat, values = ravel(arr), cast(_again("put", v, dim(ind, 0)), dtype_of(arr))
    size = dim(flat, 0)
    if mode == "wrap":
        ind = remainder(ind, size)
    elif mode == "clip":
        ind = where(ind < 0, 0, minimum(ind, size - 1))
    # Indices outside the array are redirected to an extra element behind its end.
    inside = (ind >= -size) & (ind < size)
    ind = where(inside, where(ind < 0, ind + size, ind), size)
    longer = concatenated([flat, sliced(flat, 0, 0, 1)], 0)
    return reshaped(sliced(at(longer)[ind].set(values), 0, 0, size), dims(arr))


@array_function()
def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = False) -> Any:
    """arr with values, again and again, where a mask holds; as `jax.numpy.place`.

    >>> cnp.place([1, 2, 3], [True, False, True], [7, 8])
    array([7, 2, 8])
    """
    refuse_in_place("place", inplace)
    arr, flat = operand("place", arr), ravel(truth("place", mask))
    number = apply("cumsum", [cast(flat, np.int64)], {"axis": 0, "reverse": False}) - 1
    values = ravel(operand("place", vals))
    if shape_of(values)[0] == 0:
        raise ShapeError("place: no values", expected="one value or more", got="an empty array")
    chosen = take(values, remainder(number, dim(values, 0)))
    return reshaped(where(flat, cast(chosen, dtype_of(arr)), ravel(arr)), dims(arr))


@array_function()
def fill_diagonal(arr: Any, val: Any, wrap: bool = False, *, inplace: bool = False) -> Any:
    """arr with values on its main diagonal, as `jax.numpy.fill_diagonal`; values are used again and again.

    Args:
        arr: a matrix, or a higher rank with axes of one size.
        val: one value, or several.
        wrap: of a matrix with more rows than columns: begin again below each square.

    >>> cnp.fill_diagonal(cnp.zeros((2, 2)), 5.0)
    array([[5., 0.],
           [0., 5.]])
    """
    refuse_in_place("fill_diagonal", inplace)
    arr = operand("fill_diagonal", arr)
    sizes = [known_size("fill_diagonal", d) for d in shape_of(arr)]
    if len(sizes) < 2 or (len(sizes) > 2 and len(set(sizes)) > 1):
        raise ShapeError(
            "fill_diagonal: the array has no diagonal",
            expected="a matrix, or a higher rank with axes of one size",
            got=str(tuple(sizes)),
        )
    step = 1 + sum(int(np.prod(sizes[k:])) for k in range(1, len(sizes)))
    end = None if wrap or len(sizes) > 2 else sizes[1] * sizes[1]
    places = np.arange(int(np.prod(sizes)))[:end:step]
    return put(arr, places, val)


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
        """True if the key selects the whole array unchanged."""
        return all(isinstance(item, slice) and item == slice(None) for item in self.key)

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
    require_integers(operation, "the indices", dtype_of(indices))
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


publish(__name__, "At", "Index", "Place", "index", "positions", "refuse_in_place")
