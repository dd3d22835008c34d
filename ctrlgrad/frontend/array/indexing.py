"""Elements read and changed by keys: `x[key]`, `x.at[key].set(value)` and its kin, and NumPy's functions of indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice, explains_calls
from ctrlgrad.dtypes import can_cast, dtype_kind
from ctrlgrad.errors import (
    MissingAttributeError,
    ShapeError,
    TracingError,
    TypeMismatchError,
)
from ctrlgrad.frontend.apply import apply, cast, result_dtype
from ctrlgrad.frontend.array.elementwise import divide, maximum, minimum, multiply, power, remainder, where
from ctrlgrad.frontend.array.keys import Index, Moved, check_range, filling, index, is_integers, moved_inside
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import array_function, publish
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ops.term import require_integers
from ctrlgrad.records import record

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
        return Place(self.x, key)

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
    part is a TypeMismatchError. As in JAX, `mode` says what becomes of integers outside the array: "clip" takes the
    nearest element, "drop" changes nothing there ("fill" reads `fill_value`, NaN by default). Without it, or with
    "promise_in_bounds", they are an error. `unique_indices` promises that no position is meant twice;
    `indices_are_sorted` is taken for JAX's sake.

    >>> cnp.at([1, 2, 3])[cnp.asarray([2, 3])].add(10, mode="drop")
    array([ 1,  2, 13])
    """

    # Advice where a part stands in the place of a value.
    INSTEAD = "x[index] reads the part, and x.at[index].set(value) gives the changed array"
    x: Any
    key: Any

    @explains_calls
    def set(
        self, value: Any, *, mode: Any = None, unique_indices: bool = False, indices_are_sorted: bool = False
    ) -> Any:
        """With `value` there. Where an integer array names a position twice, the last value stays."""
        return self._part("set", mode, unique_indices).set(value)

    @explains_calls
    def add(
        self, value: Any, *, mode: Any = None, unique_indices: bool = False, indices_are_sorted: bool = False
    ) -> Any:
        """With `value` added. Where an integer array names a position twice, both values are added."""
        return self._part("add", mode, unique_indices).add(value)

    @explains_calls
    def multiply(
        self, value: Any, *, mode: Any = None, unique_indices: bool = False, indices_are_sorted: bool = False
    ) -> Any:
        """With `value` multiplied in. Where an integer array names a position twice, both values are."""
        return self._part("multiply", mode, unique_indices).combined(multiply, value, 1)

    @explains_calls
    def min(
        self, value: Any, *, mode: Any = None, unique_indices: bool = False, indices_are_sorted: bool = False
    ) -> Any:
        """With the minimum of the element and `value`, or of all values if a position is repeated."""
        return self._part("min", mode, unique_indices).combined(minimum, value)

    @explains_calls
    def max(
        self, value: Any, *, mode: Any = None, unique_indices: bool = False, indices_are_sorted: bool = False
    ) -> Any:
        """With the maximum of the element and `value`, or of all values if a position is repeated."""
        return self._part("max", mode, unique_indices).combined(maximum, value)

    @explains_calls
    def get(
        self,
        *,
        mode: Any = None,
        fill_value: Any = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Any:
        """Read the elements at the key; as x[key]."""
        return self._part("get", mode, unique_indices).get(fill_value)

    @explains_calls
    def subtract(
        self, value: Any, *, mode: Any = None, unique_indices: bool = False, indices_are_sorted: bool = False
    ) -> Any:
        """With `value` taken off. Where an integer array names a position twice, both values are."""
        (value,) = operands("at[...].subtract", (value,))
        return self._part("subtract", mode, unique_indices).add(-value)

    @explains_calls
    def divide(
        self, value: Any, *, mode: Any = None, unique_indices: bool = False, indices_are_sorted: bool = False
    ) -> Any:
        """Divided by `value`. Where an integer array names a position twice, by both values."""
        if dtype_kind(dtype_of(self.x)) in "biu":
            raise TypeMismatchError(
                "at[...].divide: quotients are floats, and the array holds none",
                expected="an array of floats or complex numbers",
                got=shown(self.x),
                hint="x.astype(float).at[i].divide(v), or x.at[i].set(x[i] // v)",
            )
        return self._part("divide", mode, unique_indices).combined(divide, value, 1)

    @explains_calls
    def power(
        self, value: Any, *, mode: Any = None, unique_indices: bool = False, indices_are_sorted: bool = False
    ) -> Any:
        """To the power of `value`. Where an integer array names a position twice, of both values."""
        return self._part("power", mode, unique_indices).combined(power, value, 1)

    @explains_calls
    def apply(
        self,
        function: Callable[[Any], Any],
        *,
        mode: Any = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Any:
        """With an elementwise function applied to the elements, as often as an integer array names a position."""
        return self._part("apply", mode, unique_indices).applied(function)

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

    def _part(self, method: str, mode: Any, unique_indices: bool) -> _Part:
        method = f"at[...].{method}"
        moved = moved_inside(method, self.x, self.key, mode)
        at = index(moved.x, moved.key)
        at = replace(at, chosen=moved.chosen) if moved.chosen else at
        return _Part(method, replace(at, may_repeat=False) if unique_indices else at, moved)


@record
class _Part:
    """An update of the elements at an index, some of whose integers may have been moved inside the array."""

    method: str
    index: Index
    moved: Moved

    def set(self, value: Any) -> Any:
        at, moved, value = self.index, self.moved, self._value(value)
        if moved.empty is not None:
            return moved.empty
        if moved.inside is None:
            return self._whole(self._update("setitem", value))
        there = self._read()
        if not rank_of(moved.inside):
            return self._whole(self._update("setitem", where(moved.inside, value, there)))
        # An integer outside writes once more what the last one inside does, or, if there is none, what is there.
        key, inside, values, count = moved.in_a_row(there, value)
        last = apply("max", [where(inside, iota(count + 1), -1)], {"axes": (0,), "keepdims": False})
        some, last = last >= 0, reshaped(where(last >= 0, last, count), [1])
        ends = tuple(take(item, last, 0) if is_integers(item) else item for item in key)
        end = where(some, take(values, last, moved.place), getitem(at.target, ends))
        flags = expanded(inside, range(1, rank_of(values) - moved.place))
        key = tuple(where(inside, a, b) if is_integers(a) else a for a, b in zip(key, ends, strict=True))
        place = index(at.target, key)
        return self._whole(
            apply("setitem", [place.target, where(flags, values, end), *place.operands], {"key": place.key})
        )

    def add(self, value: Any) -> Any:
        value = self._kept(self._value(value), 0)
        return self._whole(self._update("additem", value)) if self.moved.empty is None else self.moved.empty

    def combined(self, combine: Any, value: Any, neutral: Any = None) -> Any:
        """The array with values combined with its elements; `neutral` changes nothing (None: the element itself)."""
        value = self._value(value)
        if self.moved.empty is not None:
            return self.moved.empty
        if self.moved.inside is not None:
            value = self._kept(value, self._read() if neutral is None else neutral)
        return self._whole(self._combine(combine, value))

    def applied(self, function: Callable[[Any], Any]) -> Any:
        """The array with a function applied to its elements."""
        if not self.index.may_repeat or self.moved.empty is not None:
            return self.set(function(self._read()))
        flags = np.True_ if self.moved.inside is None else self.moved.over_part(rank_of(self._read()))
        return self._whole(self._one_by_one(lambda old, flag: where(flag, function(old), old), flags))

    def get(self, fill_value: Any) -> Any:
        part = self._read()
        return self._kept(part, filling(dtype_of(part), fill_value))

    def _read(self) -> Any:
        return apply("getitem", [self.index.target, *self.index.operands], {"key": self.index.key})

    def _kept(self, value: Any, other: Any) -> Any:
        """Values of integers that lie inside, and something else for those that do not."""
        if self.moved.inside is None:
            return value
        return cast(where(self.moved.over_part(rank_of(self._read())), value, other), dtype_of(value))

    def _whole(self, changed: Any) -> Any:
        """The array in its own shape: without the axes that scalar booleans choose from."""
        return squeezed(changed, self.index.chosen)

    def _value(self, value: Any) -> Any:
        (value,) = operands(self.method, (value,))
        dtype = dtype_of(self.index.target)
        if not can_cast(result_dtype(value, self.index.target), dtype, "same_kind"):
            raise TypeMismatchError(
                f"{self.method}: the value's dtype does not fit the array's",
                expected=f"a value that becomes {dtype} without loss of kind",
                got=shown(value),
                hint=f"value.astype({dtype.name}), or an array of another dtype",
            )
        return cast(value, dtype, self.method)

    def _update(self, op: str, value: Any) -> Any:
        at = self.index
        if op == "additem" and dtype_kind(dtype_of(at.target)) == "b":
            raise TypeMismatchError(f"{self.method}: booleans do not add up", got=shown(at.target), hint="use .set")
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

    def _combine(self, combine: Any, value: Any) -> Any:
        at = self.index
        if self._is_choice(value):
            return self._chosen(combine(at.target, value))
        if at.may_repeat:
            return self._one_by_one(combine, value)
        old = apply("getitem", [at.target, *at.operands], {"key": at.key})
        return self._update("setitem", combine(old, value))

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
    if all(isinstance(item, slice) and item == slice(None) for item in at.key):
        return at.target
    if at.new_axes:
        return apply("expand_dims", [at.target], {"axes": at.new_axes})
    return apply("getitem", [at.target, *at.operands], {"key": at.key})


@array_function()
def take(x: Any, indices: Any, axis: Any = None, *, mode: str | None = None, fill_value: Any = None) -> Any:
    """The elements at integer indices along an axis, or of all elements in one dimension.

    Args:
        x: any shape.
        indices: integers of any shape; negative ones count from the end.
        axis: None takes from all elements in one dimension.
        mode: what becomes of indices outside: None or "raise" is an error, "clip" takes the nearest (of a negative
            one the first), "wrap" counts on from the first again, "fill" gives `fill_value` (NaN by default).
        fill_value: a number of the array's dtype.

    >>> cnp.take([[1, 2], [3, 4]], [1, 0], axis=1)
    array([[2, 1],
           [4, 3]])
    >>> cnp.take([1.0, 2.0], [0, 5], mode="fill")
    array([ 1., nan])
    """
    x = ravel(x) if axis is None else operand("take", x)
    at = 0 if axis is None else axis_of("take", axis, rank_of(x))
    places, inside = _placed("take", _integers("take", indices), x, at, mode)
    part = apply("getitem", [x, places], {"key": along(at, rank_of(x))})
    if inside is None:
        return part
    inside = expanded(inside, range(rank_of(inside), rank_of(part) - at))
    return where(inside, part, filling(dtype_of(x), fill_value))


def _placed(operation: str, places: Any, x: Any, axis: int, mode: str | None) -> tuple[Any, Any]:
    """Indices along an axis that lie inside as a mode asks for, and, to fill the others, which did before."""
    check_choice(operation, "mode", mode, (None, "raise", "clip", "wrap", "fill"))
    size = dim(x, axis)
    if mode in (None, "raise"):
        check_range(places, shape_of(x)[axis], axis)
        return places, None
    if mode == "wrap":
        return remainder(places, size), None
    if mode == "clip":
        return maximum(minimum(places, size - 1), 0), None
    places = where(places < 0, places + size, places)
    inside = (places >= 0) & (places < size)
    return where(inside, places, 0), inside


def _integers(operation: str, indices: Any) -> Any:
    if not has_tensor(indices) and np.size(indices) == 0:
        indices = np.asarray(indices).astype(np.int64)
    indices = operand(operation, indices)
    require_integers(operation, "the indices", dtype_of(indices))
    return cast(indices, np.int64)


@array_function()
def take_along_axis(x: Any, indices: Any, axis: Any = -1, *, mode: str | None = None, fill_value: Any = None) -> Any:
    """The elements at indices along an axis, chosen for each place of the other axes on its own.

    Args:
        x: rank n.
        indices: integers of rank n whose other axes broadcast with those of x.
        axis: None takes from all elements in one dimension.
        mode, fill_value: as of `take`, but "clip" takes the first only of what counts beyond it from the end.

    >>> cnp.take_along_axis([[1, 2], [3, 4]], [[1], [0]], axis=1)
    array([[2],
           [3]])
    """
    x, places = (ravel(x) if axis is None else operand("take_along_axis", x)), _integers("take_along_axis", indices)
    at = 0 if axis is None else axis_of("take_along_axis", axis, rank_of(x))
    if rank_of(places) != rank_of(x):
        raise ShapeError(
            "take_along_axis: the ranks differ", expected=shown(x), got=shown(places), hint="use take, or expand_dims"
        )
    if mode == "clip":
        places = where(places < 0, places + dim(x, at), places)
    places, inside = _placed("take_along_axis", places, x, at, mode)
    rank = rank_of(x)
    operands = []
    for place in range(rank):
        if place == at:
            operands.append(places)
        else:
            operands.append(reshaped(iota(dim(x, place)), [dim(x, place) if a == place else 1 for a in range(rank)]))
    part = apply("getitem", [x, *operands], {"key": (DYNAMIC,) * rank})
    return part if inside is None else where(inside, part, filling(dtype_of(x), fill_value))


publish(__name__, "At", "Place", "refuse_in_place")
