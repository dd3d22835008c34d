"""Elements chosen by conditions and by indices, and the indices that choose them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.creation import zeros
from ctrlgrad.frontend.array.elementwise import floor_divide, minimum, remainder, where
from ctrlgrad.frontend.array.indexing import at, take
from ctrlgrad.frontend.array.keys import positions
from ctrlgrad.frontend.array.manipulation import broadcast_arrays, broadcast_to, concatenate, moveaxis, ravel, stack
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import FUNCTIONS, array_function, described, publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ops.term import require_integers, require_sizes
from ctrlgrad.source import here

# Positions of nonzero elements: of unknown number, or `size` of them.
#
# With a known size every shape is known too, so that such a search may stand in a `vmap` or in a loop of fixed
# shapes.


def first_positions(mask: Any, size: int) -> tuple[Any, Any]:
    """The first `size` positions at which a vector of booleans holds, and which of them there are; the rest is 0."""
    count = apply("cumsum", [cast(mask, np.int64)], {"axis": 0, "reverse": False})
    # False elements, and true ones beyond `size`, go to a slot behind the end.
    slots = where(mask, minimum(count - 1, size), size)
    found = at(broadcasted(np.int64(0), [size + 1]))[slots].set(iota(dim(mask, 0)))
    present = np.arange(size) < apply("sum", [cast(mask, np.int64)], {"axes": (0,), "keepdims": False})
    return where(present, sliced(found, 0, 0, size), 0), present


def known_count(operation: str, size: Any) -> int:
    """The `size` of a result."""
    count = whole_number(operation, "size", size)
    require_sizes(operation, [count])
    return count


@array_function(of=operand)
def nonzero(x: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """The positions of the elements other than zero, in C order: int64 [count] for each axis.

    The count of a traced x is unknown, unless `size` gives it, as in JAX: then surplus positions are left out, and
    missing ones are `fill_value`, 0 if it is not given (one number, or one for each axis). A scalar is a ShapeError.
    Positions have no derivative.

    >>> cnp.nonzero([0, 3, 0, 4])
    (array([1, 3]),)
    >>> cnp.nonzero([0, 3, 0, 4], size=3, fill_value=-1)
    (array([ 1,  3, -1]),)
    """
    if size is None or rank_of(x) == 0:
        return positions(x)
    found, present = first_positions(ravel(truth("nonzero", x)), known_count("nonzero", size))
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value or 0,) * rank_of(x)
    coordinates: list[Any] = []
    for axis in reversed(range(rank_of(x))):
        # An empty array has no position, but sizes to divide by.
        length = dim(x, axis) if shape_of(x)[axis] != 0 else 1
        coordinates.insert(0, remainder(found, length))
        found = floor_divide(found, length)
    return tuple(where(present, c, fill) for c, fill in zip(coordinates, fills, strict=True))


@array_function()
def argwhere(x: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of the elements other than zero, a row each; as `jax.numpy.argwhere`. See `nonzero`.

    >>> cnp.argwhere([0, 3, 5])
    array([[1],
           [2]])
    """
    return stack(nonzero(x, size=size, fill_value=fill_value), axis=1)


@array_function()
def flatnonzero(x: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of the elements other than zero in the flattened array; as `jax.numpy.flatnonzero`.

    >>> cnp.flatnonzero([[0, 3], [5, 0]])
    array([1, 2])
    """
    return nonzero(ravel(operand("flatnonzero", x)), size=size, fill_value=fill_value)[0]


@array_function()
def extract(condition: Any, x: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements where a condition holds, in one dimension; as `jax.numpy.extract`.

    >>> cnp.extract([True, False, True], [1, 2, 3])
    array([1, 3])
    """
    condition, x = operand("extract", condition), operand("extract", x)
    return compress(ravel(condition), ravel(x), size=size, fill_value=fill_value)


@array_function()
def compress(condition: Any, x: Any, axis: Any = None, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """Select the elements along an axis at which a condition holds; as `jax.numpy.compress`.

    `size` fixes the number of elements; missing ones are `fill_value`.

    >>> cnp.compress([True, False, True], [1, 2, 3])
    array([1, 3])
    """
    x = operand("compress", x)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    if size is None:
        return take(x, flatnonzero(condition), axis)
    found, present = first_positions(truth("compress", condition), known_count("compress", size))
    return filled(take(x, found, axis), present, axis, fill_value)


def filled(x: Any, present: Any, axis: int, fill_value: Any) -> Any:
    """x, with a value in the places along an axis that are not present."""
    place = axis % rank_of(x)
    present = reshaped(present, [dim(present, 0) if a == place else 1 for a in range(rank_of(x))])
    return where(present, x, cast(operand("fill_value", fill_value), dtype_of(x)))


@array_function()
def choose(a: Any, choices: Any, *, mode: str = "raise") -> Any:
    """For each element the choice whose number it is; as `numpy.choose`.

    Args:
        a: integers.
        choices: arrays that broadcast with `a`, or an array of them.
        mode: what a number stands for that no choice has: "wrap" counts on from the first again, "clip" takes the
            nearest, and so does "raise" for traced numbers, which nothing can be raised for.

    >>> cnp.choose([1, 0], [[1, 2], [3, 4]])
    array([3, 2])
    """
    a, arrays, found = operand("choose", a), operands("choose", list(choices)), None
    if mode == "raise" and isinstance(a, np.ndarray) and ((a < 0) | (a >= len(arrays))).any():
        raise IndexOutOfRangeError(
            "choose: a number that no choice has",
            source=here(),
            expected=f"0 <= a < {len(arrays)}",
            got=str(a),
            hint="mode='clip' or mode='wrap'",
        )
    if mode == "wrap":
        a = a % len(arrays)
    for number, choice in reversed(list(enumerate(arrays))):
        found = choice if found is None else where(a <= number, choice, found)
    return broadcast_arrays(a, found)[1]


@array_function()
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each element the choice of the first condition that holds, else `default`; as `numpy.select`.

    >>> cnp.select([cnp.asarray([True, False])], [cnp.asarray([1.0, 2.0])], 9.0)
    array([1., 9.])
    """
    found = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = where(condition, choice, found)
    return found


@array_function(of=operand)
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """For each element the function, or number, of the last condition that holds; as `numpy.piecewise`.

    All functions are computed for all elements, as in JAX.

    >>> x, first = cnp.asarray([-1.0, 2.0]), cnp.asarray([True, False])
    >>> cnp.piecewise(x, [first], [0.0, lambda x: x * x])
    array([0., 4.])
    """
    values = [f(x, *args, **kw) if callable(f) else f for f in funclist]
    found: Any = values.pop() if len(values) == len(condlist) + 1 else 0
    for condition, value in zip(condlist, values, strict=True):
        found = where(condition, value, found)
    return found.astype(dtype_of(x))


def ix_(*args: Any) -> tuple[Any, ...]:
    """Vectors of indices, or of booleans, each along an axis of its own; as `numpy.ix_`.

    >>> [part.shape for part in cnp.ix_([0, 1], [2, 3, 4])]
    [(2, 1), (1, 3)]
    """
    vectors = [operand("ix_", x) for x in args]
    vectors = [positions(x)[0] if dtype_kind(dtype_of(x)) == "b" else x for x in vectors]
    return tuple(laid_along(place, x, len(vectors)) for place, x in enumerate(vectors))


def indices(dimensions: Any, dtype: Any = np.int64, sparse: bool = False) -> Any:
    """The position along each axis of an array of this shape; as `numpy.indices`.

    >>> cnp.indices((2, 2)).shape
    (2, 2, 2)
    """
    grids = [laid_along(place, iota(n).astype(dtype), len(dimensions)) for place, n in enumerate(dimensions)]
    return tuple(grids) if sparse else stack([broadcast_to(g, tuple(dimensions)) for g in grids])


def diag_indices(n: Any, ndim: int = 2) -> tuple[Any, ...]:
    """The indices of the main diagonal of an array of size n along each axis; as `numpy.diag_indices`.

    >>> cnp.diag_indices(2)
    (array([0, 1]), array([0, 1]))
    """
    return (iota(n),) * ndim


@array_function()
def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """The indices of the main diagonal of an array; as `numpy.diag_indices_from`.

    >>> cnp.diag_indices_from(cnp.ones((2, 2)))
    (array([0, 1]), array([0, 1]))
    """
    return diag_indices(dim(arr, 0), rank_of(arr))


def _triangle(name: str, part: str, example: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    """`tril_indices` or `triu_indices`, and the function of an array of this shape."""
    numpys = getattr(np, name)

    def of_size(n: int, k: int = 0, m: int | None = None) -> tuple[Any, ...]:
        found: tuple[Any, ...] = numpys(n, k, m)
        return found

    def of_array(arr: Any, k: int = 0) -> tuple[Any, ...]:
        rows, columns = (known_size(f"{name}_from", d) for d in shape_of(arr))
        return of_size(rows, k, columns)

    summary = f"The indices of the {part} triangle of a matrix of known size; as `numpy.{name}"
    shown_example = f"cnp.{name}{{}} -> {example}"
    described(of_size, name, f"{summary}`.", shown_example.format("(2)"))
    described(of_array, f"{name}_from", f"{summary}_from`.", shown_example.format("_from(cnp.ones((2, 2)))"))
    return of_size, array_function()(of_array)


tril_indices, tril_indices_from = _triangle("tril_indices", "lower", "(array([0, 1, 1]), array([0, 0, 1]))")
triu_indices, triu_indices_from = _triangle("triu_indices", "upper", "(array([0, 0, 1]), array([0, 1, 1]))")


@array_function()
def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """The position along each axis of indices into the flattened array; as `numpy.unravel_index`.

    >>> [int(i) for i in cnp.unravel_index(5, (2, 3))]
    [1, 2]
    """
    rest, found = operand("unravel_index", indices), []
    for size in reversed((shape,) if isinstance(shape, int) else tuple(shape)):
        found.append(rest % size)
        rest = rest // size
    return tuple(reversed(found))


@array_function()
def ravel_multi_index(multi_index: Any, dims: Any, mode: str = "raise") -> Any:
    """The index into the flattened array of positions along its axes; as `numpy.ravel_multi_index`.

    With mode "raise" positions out of range are not looked for; "wrap" and "clip" are NumPy's.

    >>> cnp.ravel_multi_index(([1, 0], [2, 1]), (2, 3))
    array([5, 1])
    """
    total: Any = np.int64(0)
    for position, size in zip(multi_index, dims, strict=True):
        position = operand("ravel_multi_index", position)
        if mode == "wrap":
            position = position % size
        if mode == "clip":
            position = where(position < 0, 0, where(position >= size, size - 1, position))
        total = total * size + position
    return total


def mask_indices(n: int, mask_func: Any, k: Any = 0, *, size: int | None = None) -> tuple[Any, ...]:
    """The indices at which `mask_func(x, k)` keeps an element of a square matrix; as `jax.numpy.mask_indices`.

    `size` as for `nonzero`.

    >>> cnp.mask_indices(2, cnp.triu)
    (array([0, 0, 1]), array([0, 1, 1]))
    """
    return nonzero(mask_func(np.ones((n, n), np.int64), k), size=size)


# Functions that repeat elements and arrays.


@array_function()
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> list[Any]:
    """Every combination of the elements of vectors, an array for each vector.

    Args:
        arrays: vectors, or scalars, which promote to one dtype.
        indexing: "ij" gives the shape of the vectors' sizes in order, "xy" that with the first two swapped.
        sparse: leave the axes that an array does not lie along at size 1.
        copy: False may give arrays over the memory of the vectors.

    >>> cnp.meshgrid([1, 2], [3, 4])[0]
    array([[1, 2],
           [1, 2]])
    """
    check_choice("meshgrid", "indexing", indexing, ("xy", "ij"))
    given = same_dtype("meshgrid", arrays) if arrays else []
    given = list(map(FUNCTIONS["copy"], given)) if copy else given
    vectors = [expanded(x, [0]) if rank_of(x) == 0 else x for x in given]
    if any(rank_of(x) != 1 for x in vectors):
        raise ShapeError(
            "meshgrid: takes vectors", got=", ".join(map(shown, vectors)), hint="x.ravel() makes a vector of an array"
        )
    places = list(range(len(vectors)))
    if indexing == "xy" and len(places) > 1:
        places[:2] = [1, 0]
    sizes: list[Any] = [None] * len(vectors)
    for x, place in zip(vectors, places, strict=True):
        sizes[place] = dim(x, 0)
    grids = [
        expanded(x, [a for a in range(len(places)) if a != place]) for x, place in zip(vectors, places, strict=True)
    ]
    return grids if sparse else [broadcasted(grid, sizes) for grid in grids]


@array_function(of=operand)
def tile(x: Any, reps: Any) -> Any:
    """x repeated as a whole, `reps` times along each axis (aligned at the right).

    >>> cnp.tile([1, 2], 2)
    array([1, 2, 1, 2])
    """
    counts = sizes_argument("tile", reps)
    rank = max(len(counts), rank_of(x))
    counts = [1] * (rank - len(counts)) + counts
    x = expanded(x, range(rank - rank_of(x)))
    sizes = dims(x)
    # Each repeated axis gets a new axis before it, which is broadcast and then merged with it.
    new: list[int] = []
    wide: list[Any] = []
    merged: list[Any] = []
    for size_before, count in zip(sizes, counts, strict=True):
        if isinstance(count, Tensor) or count != 1:
            new.append(len(wide))
            wide.append(count)
        wide.append(size_before)
        merged.append(size_before if not isinstance(count, Tensor) and count == 1 else _scaled(size_before, count))
    return reshaped(broadcasted(expanded(x, new), wide), merged)


def _scaled(size: Any, count: Any) -> Any:
    if isinstance(size, Tensor) or isinstance(count, Tensor):
        return times([size, count])
    return size * count


@array_function()
def repeat(x: Any, repeats: Any, axis: Any = None, *, total_repeat_length: int | None = None) -> Any:
    """Each element repeated, in place, along an axis (or all elements, flattened).

    Args:
        x: any shape.
        repeats: an int, a traced integer scalar, or integers, one for each element of the axis or one for all, known
            or traced.
        axis: None flattens.
        total_repeat_length: the size of the result, as in JAX: surplus elements are left out, and the last element
            fills the missing ones. Without it traced repeats make a dimension of unknown size.

    >>> cnp.repeat([1, 2], 2)
    array([1, 1, 2, 2])
    """
    x = ravel(x) if axis is None else operand("repeat", x)
    at = 0 if axis is None else axis_of("repeat", axis, rank_of(x))
    if total_repeat_length is not None:
        repeats = broadcasted(_integer_counts(repeats), [dim(x, at)])
        return _repeat_by_counts(x, repeats, at, whole_number("repeat", "total_repeat_length", total_repeat_length))
    if isinstance(repeats, Tensor) and repeats.ndim == 1:
        return _repeat_by_counts(x, repeats, at)
    if not isinstance(repeats, Tensor) and np.ndim(repeats) == 1 and np.size(repeats) != 1:
        counts = np.asarray(repeats)
        return _repeat_by_counts(x, counts, at) if shape_of(x)[at] is None else _repeat_each(x, counts, at)
    if not isinstance(repeats, Tensor) and np.ndim(repeats) == 1:
        repeats = np.asarray(repeats)[0]
    count = size_argument("repeat", "the number of repeats", repeats)
    require_sizes("repeat", [count])
    sizes = dims(x)
    wide = [*sizes[: at + 1], count, *sizes[at + 1 :]]
    return reshaped(
        broadcasted(expanded(x, [at + 1]), wide), [*sizes[:at], _scaled(sizes[at], count), *sizes[at + 1 :]]
    )


def _integer_counts(repeats: Any) -> Any:
    counts = operand("repeat", repeats)
    require_integers("repeat", "the counts", dtype_of(counts))
    return cast(counts, np.int64)


def _repeat_by_counts(x: Any, counts: Any, axis: int, length: int | None = None) -> Any:
    """As `_repeat_each` for traced counts, or an unknown size, or a result of a known one.

    The k-th result is the first element whose running count exceeds k.
    """
    known, given = shape_of(x)[axis], shape_of(counts)[0]
    if dtype_kind(dtype_of(counts)) not in "iu" or (None not in (known, given) and given not in (1, known)):
        raise ShapeError("repeat: one integer for each element", expected=f"i64[{known}]", got=shown(counts))
    # One count is for all elements; this fails at run time where there are not as many counts as elements.
    counts = broadcasted(cast(counts, np.int64), [dim(x, axis)])
    ends = apply("cumsum", [counts], {"axis": 0, "reverse": False})
    total = apply("sum", [counts], {"axes": (0,), "keepdims": False})
    positions = apply("searchsorted", [ends, iota(total if length is None else length)], {"side": "right"})
    if length is not None:
        positions = FUNCTIONS["minimum"](positions, dim(x, axis) - 1)
    return apply("getitem", [x, positions], {"key": along(axis, rank_of(x))})


def _repeat_each(x: Any, repeats: np.ndarray, axis: int) -> Any:
    known = shape_of(x)[axis]
    if known != len(repeats) or dtype_kind(repeats.dtype) not in "iu" or (repeats < 0).any():
        raise ShapeError(
            "repeat: one count of zero or more for each element",
            expected=f"{'a known size' if known is None else known} counts",
            got=f"{len(repeats)} of {repeats.dtype}",
            hint="give one integer for all elements, or one for each along the axis",
        )
    from_where = np.repeat(np.arange(known), repeats)
    return apply("getitem", [x, from_where], {"key": along(axis, rank_of(x))})


# Insertion and deletion of elements along an axis.


@array_function()
def append(x: Any, values: Any, axis: Any = None) -> Any:
    """x with values appended along an axis, or both flattened; as `numpy.append`.

    >>> cnp.append([1, 2], 3)
    array([1, 2, 3])
    """
    arrays = [operand("append", x), operand("append", values)]
    return concatenate([ravel(a) for a in arrays], 0) if axis is None else concatenate(arrays, axis)


@array_function()
def insert(x: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    """x with values inserted before known positions along an axis; as `numpy.insert`.

    >>> cnp.insert([1, 3], 1, 2)
    array([1, 2, 3])
    """
    x, values = operand("insert", x), operand("insert", values)
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("insert", axis, rank_of(x)))
    size = known_size("insert", shape_of(x)[axis])
    # NumPy puts the numbers of the new elements between those of the old ones.
    single = np.ndim(obj) == 0 and not isinstance(obj, slice)
    if single and rank_of(values) == rank_of(x):
        values = moveaxis(values, 0, axis)
    count = dim(values, axis) if single and rank_of(values) == rank_of(x) else np.size(np.arange(size)[obj])
    new = size + np.arange(count) if single else size + np.arange(np.size(np.arange(size + 1)[obj]))
    order = np.insert(np.arange(size), obj, new)
    if single and rank_of(values) == rank_of(x) - 1:
        values = expanded(values, (axis,))
    sizes = [len(new) if a == axis else d for a, d in enumerate(dims(x))]
    return take(concatenate([x, broadcast_to(values, tuple(sizes)).astype(dtype_of(x))], axis), order, axis)


@array_function(of=operand)
def delete(x: Any, obj: Any, axis: Any = None) -> Any:
    """x without the elements at known positions along an axis; as `numpy.delete`.

    >>> cnp.delete([1, 2, 3], 1)
    array([1, 3])
    """
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("delete", axis, rank_of(x)))
    return take(x, np.delete(np.arange(known_size("delete", shape_of(x)[axis])), obj), axis)


@array_function()
def resize(x: Any, new_shape: Any) -> Any:
    """The elements of x, again and again, in a known shape; as `numpy.resize`.

    >>> cnp.resize([1, 2, 3], (2, 2))
    array([[1, 2],
           [3, 1]])
    """
    x = ravel(operand("resize", x))
    sizes = (new_shape,) if isinstance(new_shape, int) else tuple(new_shape)
    count, wanted = known_size("resize", shape_of(x)[0]), math.prod(sizes)
    return reshaped(sliced(tile(x, -(-wanted // count)), 0, 0, wanted), sizes) if count else zeros(sizes, dtype_of(x))


publish(__name__, "filled", "first_positions", "known_count")
