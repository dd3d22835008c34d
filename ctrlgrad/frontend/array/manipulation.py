"""Functions that move, add and drop dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.errors import ShapeError, TypeMismatchError, UnknownSizeError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.elementwise import add, equal, floor_divide, minimum, multiply, negative, remainder, where
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import array_function, described, publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import broadcast_shapes


@array_function()
def shape(x: Any) -> tuple[Any, ...]:
    """The shape: an int for each known size, a traced scalar for each unknown one.

    >>> cnp.shape([[1, 2, 3]])
    (1, 3)
    """
    return tuple(dims(operand("shape", x)))


@array_function()
def ndim(x: Any) -> int:
    """The number of dimensions.

    >>> cnp.ndim([[1, 2, 3]])
    2
    """
    return rank_of(operand("ndim", x))


@array_function(of=operand)
def size(x: Any, axis: Any = None) -> Any:
    """The number of elements, in all or along axes: an int, or a traced scalar where it is unknown.

    >>> cnp.size([[1, 2, 3]])
    3
    """
    return times([dim(x, a) for a in axes_of("size", axis, rank_of(x))])


@array_function()
def reshape(x: Any, shape: Any, *more: Any, order: str = "C", copy: bool | None = None) -> Any:
    """The same elements in another shape.

    Args:
        x: any shape.
        shape: the sizes; one may be -1 and follows from the rest, each may be a traced integer scalar.
        order: "C" only.
        copy: accepted for the Array API; arrays of a graph have no identity.

    Raises:
        ShapeError: the number of elements differs.

    >>> cnp.reshape([1, 2, 3, 4], (2, -1))
    array([[1, 2],
           [3, 4]])
    """
    if order not in ("C", "K", "A"):
        raise TypeMismatchError("reshape: only C order is supported", got=f"order={order!r}", hint="transpose first")
    x = operand("reshape", x)
    given = [shape, *more] if more else list(shape) if isinstance(shape, list | tuple | np.ndarray) else [shape]
    sizes = [size_argument("reshape", "a size", d) for d in given]
    missing = [place for place, d in enumerate(sizes) if not isinstance(d, Tensor) and d == -1]
    others = [d for place, d in enumerate(sizes) if place not in missing]
    if len(missing) > 1 or any(not isinstance(d, Tensor) and d < 0 for d in others):
        raise ShapeError(
            "reshape: at most one size may be -1", got=str(tuple(sizes)), hint="give other sizes as 0 or more"
        )
    if missing:
        sizes[missing[0]] = _remaining(x, others)
    return reshaped(x, sizes)


def _remaining(x: Any, others: Sequence[Any]) -> Any:
    """Size for -1 in a shape: an int if the known sizes determine it."""
    known_before = times([d for d in shape_of(x) if d is not None])
    known_after = times([d for d in others if not isinstance(d, Tensor)])
    traced = [d for d in others if isinstance(d, Tensor)]
    if None not in shape_of(x) and not traced:
        if known_after == 0 or known_before % known_after:
            raise ShapeError(
                "reshape: no size fits for -1",
                expected=f"sizes whose product divides {known_before}",
                got=f"{tuple(others)} for {shown(x)}",
                hint="choose the other sizes so that their product divides the number of elements",
            )
        return known_before // known_after
    unknown = [dim(x, axis) for axis, d in enumerate(shape_of(x)) if d is None]
    if known_after and known_before % known_after == 0:
        total = times([known_before // known_after, *unknown])
        return floor_divide(total, times(traced)) if traced else total
    return floor_divide(times([known_before, *unknown]), times([known_after, *traced]))


@array_function()
def ravel(x: Any, order: str = "C") -> Any:
    """All elements in one dimension.

    >>> cnp.ravel([[1, 2], [3, 4]])
    array([1, 2, 3, 4])
    """
    return reshape(x, -1, order=order) if rank_of(operand("ravel", x)) != 1 else operand("ravel", x)


@array_function()
def flatten(x: Any, order: str = "C") -> Any:
    """As `ravel`.

    >>> cnp.flatten([[1, 2], [3, 4]])
    array([1, 2, 3, 4])
    """
    return ravel(x, order)


@array_function("permute_dims", of=operand)
def transpose(x: Any, axes: Any = None, *more: Any) -> Any:
    """The dimensions in another order; reversed without `axes`.

    Raises:
        ShapeError: `axes` is not a permutation of all axes.

    >>> cnp.transpose([[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]])
    """
    rank = rank_of(x)
    if axes is None:
        return transposed(x, tuple(reversed(range(rank))))
    order = axes_in_order("transpose", (axes, *more) if more else axes, rank)
    if len(order) != rank:
        raise ShapeError(
            "transpose: one entry per axis",
            expected=f"{rank} axes",
            got=str(axes),
            hint="name all axes in their new order; ctrlgrad.numpy.swapaxes(x, a, b) exchanges two",
        )
    return transposed(x, order)


@array_function(of=operand)
def matrix_transpose(x: Any) -> Any:
    """The last two dimensions swapped.

    >>> cnp.matrix_transpose([[1, 2]])
    array([[1],
           [2]])
    """
    check_rank("matrix_transpose", x, 2)
    return swapaxes(x, -1, -2)


@array_function(of=operand)
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two dimensions swapped.

    >>> cnp.swapaxes([[1, 2]], 0, 1)
    array([[1],
           [2]])
    """
    a, b = (axis_of("swapaxes", axis, rank_of(x)) for axis in (axis1, axis2))
    order = list(range(rank_of(x)))
    order[a], order[b] = b, a
    return transposed(x, order)


@array_function(of=operand)
def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """Dimensions moved to other places, the rest in their order.

    >>> cnp.shape(cnp.moveaxis(cnp.zeros((2, 3, 4)), 0, -1))
    (3, 4, 2)
    """
    come = axes_in_order("moveaxis", source, rank_of(x))
    go = axes_in_order("moveaxis", destination, rank_of(x))
    if len(come) != len(go):
        raise ShapeError("moveaxis: as many sources as destinations", expected=str(source), got=str(destination))
    order = [axis for axis in range(rank_of(x)) if axis not in come]
    for place, axis in sorted(zip(go, come, strict=True)):
        order.insert(place, axis)
    return transposed(x, order)


@array_function(of=operand)
def expand_dims(x: Any, axis: Any) -> Any:
    """With new dimensions of size 1 at the given places of the result.

    >>> cnp.expand_dims([1, 2], 0)
    array([[1, 2]])
    """
    count = len(axis) if isinstance(axis, list | tuple) else 1
    return expanded(x, axes_in_order("expand_dims", axis, rank_of(x) + count))


@array_function(of=operand)
def squeeze(x: Any, axis: Any = None) -> Any:
    """Without dimensions of size 1: the given ones, or all.

    Raises:
        ShapeError: a given one is not of size 1, or none is given and an unknown size might be 1.

    >>> cnp.squeeze([[1, 2]], 0)
    array([1, 2])
    """
    if axis is not None:
        return squeezed(x, axes_in_order("squeeze", axis, rank_of(x)))
    if None in shape_of(x):
        raise UnknownSizeError("squeeze: an unknown size might be 1", got=shown(x), hint="give the axis")
    return squeezed(x, [a for a, d in enumerate(shape_of(x)) if d == 1])


@array_function(of=operand)
def flip(x: Any, axis: Any = None) -> Any:
    """In reverse order along axes, or along all.

    >>> cnp.flip([1, 2, 3])
    array([3, 2, 1])
    """
    axes = axes_of("flip", axis, rank_of(x))
    return apply("flip", [x], {"axes": axes}) if axes else x


@array_function()
def broadcast_to(x: Any, shape: Any) -> Any:
    """x repeated to a shape, whose sizes may be traced integer scalars.

    Raises:
        ShapeError: x does not broadcast to the shape.

    >>> cnp.broadcast_to([1, 2], (2, 2))
    array([[1, 2],
           [1, 2]])
    """
    return broadcasted(operand("broadcast_to", x), sizes_argument("broadcast_to", shape))


@array_function()
def broadcast_arrays(*xs: Any) -> list[Any]:
    """All arrays in the shape that they broadcast to together.

    >>> cnp.broadcast_arrays([1, 2], 0)[1]
    array([0, 0])
    """
    arrays = [operand("broadcast_arrays", x) for x in xs]
    joined = joined_sizes("broadcast_arrays", arrays)
    return [broadcasted(x, joined) for x in arrays]


def joined_sizes(operation: str, arrays: Sequence[Any]) -> list[Any]:
    """The sizes of the shape that arrays broadcast to."""
    joined = broadcast_shapes([shape_of(x) for x in arrays])
    if joined is None:
        raise ShapeError(
            f"{operation}: the shapes do not broadcast",
            expected="sizes that are equal or 1, aligned at the right",
            got=" and ".join(shown(x) for x in arrays),
            hint="add dimensions of size 1 where they are missing: x[:, None]",
        )
    sizes: list[Any] = list(joined)
    for place, known in enumerate(joined):
        if known is None:
            behind = len(joined) - place
            candidates = [x for x in arrays if rank_of(x) >= behind and shape_of(x)[-behind] is None]
            sizes[place] = dim(candidates[0], -behind)
            for x in candidates[1:]:
                sizes[place] = where(equal(sizes[place], 1), dim(x, -behind), sizes[place])
    return sizes


# Joining, splitting, and rotating arrays.


def _at_least(rank: int, what: str, example: str, new_axes: Mapping[int, tuple[int, ...]]) -> Callable[..., Any]:
    name = f"atleast_{rank}d"

    def function(*xs: Any) -> Any:
        arrays = [operand(name, x) for x in xs]
        found = [expanded(x, new_axes[rank_of(x)]) if rank_of(x) in new_axes else x for x in arrays]
        return found[0] if len(found) == 1 else tuple(found)

    summary = f"Arrays of rank {rank} or more{what}; as `numpy.{name}`."
    return array_function()(described(function, name, summary, f"cnp.{name}({example}"))


atleast_1d = _at_least(1, "", "2.0) -> array([2.])", {0: (0,)})
atleast_2d = _at_least(2, ", vectors as rows", "[1, 2]) -> array([[1, 2]])", {0: (0, 1), 1: (0,)})
atleast_3d = _at_least(3, "", "[1, 2]).shape -> (1, 2, 1)", {0: (0, 1, 2), 1: (0, 2), 2: (2,)})


@array_function()
def column_stack(tup: Any) -> Any:
    """Vectors as columns, and matrices, side by side; as `numpy.column_stack`.

    >>> cnp.column_stack([[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]])
    """
    arrays = [operand("column_stack", x) for x in tup]
    return concatenate([x if rank_of(x) > 1 else reshaped(x, [times(dims(x)), 1]) for x in arrays], axis=1)


@array_function()
def dstack(tup: Any) -> Any:
    """Arrays of rank 3 or more joined along axis 2; as `numpy.dstack`.

    >>> cnp.dstack([[1, 2], [3, 4]]).shape
    (1, 2, 2)
    """
    return concatenate([atleast_3d(x) for x in tup], axis=2)


def _along(axis: int, name: str, what: str, example: str) -> Callable[..., list[Any]]:
    """Function that splits along one axis."""

    def function(x: Any, indices_or_sections: Any) -> list[Any]:
        x = operand(name, x)
        return split(x, indices_or_sections, 0 if rank_of(x) == 1 and name == "hsplit" else axis)

    return array_function()(described(function, name, f"Parts along {what}; as `numpy.{name}`.", example))


_EXAMPLE = "cnp.hsplit(cnp.arange(4), 2) -> [array([0, 1]), array([2, 3])]"
hsplit = _along(1, "hsplit", "axis 1, of a vector along axis 0", _EXAMPLE)
_EXAMPLE = "[part.shape for part in cnp.vsplit(cnp.ones((4, 1)), 2)] -> [(2, 1), (2, 1)]"
vsplit = _along(0, "vsplit", "axis 0", _EXAMPLE)
_EXAMPLE = "[part.shape for part in cnp.dsplit(cnp.ones((1, 2, 4)), 2)] -> [(1, 2, 2), (1, 2, 2)]"
dsplit = _along(2, "dsplit", "axis 2", _EXAMPLE)


@array_function()
def block(arrays: Any) -> Any:
    """Nested lists of arrays as blocks of one array; as `numpy.block`.

    >>> cnp.block([[cnp.ones((1, 1)), cnp.zeros((1, 1))]])
    array([[1., 0.]])
    """
    depth = _depth(arrays)
    rank = max([depth, *(rank_of(operand("block", x)) for x in _flat(arrays))])
    return _block(arrays, depth, rank)


def _depth(x: Any) -> int:
    return 1 + max(map(_depth, x)) if isinstance(x, list) and x else 0


def _flat(x: Any) -> list[Any]:
    return [leaf for item in x for leaf in _flat(item)] if isinstance(x, list) else [x]


def _block(x: Any, depth: int, rank: int) -> Any:
    if isinstance(x, list):
        return concatenate([_block(item, depth - 1, rank) for item in x], axis=-depth)
    x = operand("block", x)
    return expanded(x, range(rank - rank_of(x))) if rank_of(x) < rank else x


def _flipped(name: str, axis: int, example: str) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = lambda x: flip(x, axis)
    return array_function()(described(function, name, f"x with axis {axis} reversed; as `numpy.{name}`.", example))


fliplr = _flipped("fliplr", 1, "cnp.fliplr([[1, 2]]) -> array([[2, 1]])")
flipud = _flipped("flipud", 0, "cnp.flipud([1, 2]) -> array([2, 1])")


@array_function(of=operand)
def rot90(x: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """x turned by quarters in the plane of two axes; as `numpy.rot90`.

    >>> cnp.rot90([[1, 2], [3, 4]])
    array([[2, 4],
           [1, 3]])
    """
    first, second = (axis_of("rot90", a, rank_of(x)) for a in axes)
    turns = whole_number("rot90", "k", k) % 4
    if turns == 2:
        return flip(x, (first, second))
    if turns == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second) if turns else x


@array_function(of=operand)
def rollaxis(x: Any, axis: int, start: int = 0) -> Any:
    """x with an axis moved before another; as `numpy.rollaxis`.

    >>> cnp.rollaxis(cnp.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    axis = axis_of("rollaxis", axis, rank_of(x))
    start = start + rank_of(x) if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


def _several(operation: str, xs: Any) -> list[Any]:
    """The arrays to join, promoted to one dtype; a single array counts as the sequence of its rows."""
    if isinstance(xs, Tensor | np.ndarray):
        xs = list(xs)
    if not isinstance(xs, list | tuple) or not xs:
        raise TypeMismatchError(
            f"{operation}: takes a list of one array or more",
            expected="a list or a tuple of arrays, or one array, which stands for its rows",
            got=f"{type(xs).__name__} {xs!r}"[:60],
            hint=f"numpy.{operation}([x, y])",
        )
    return same_dtype(operation, xs)


def _check_fit(operation: str, arrays: Sequence[Any], axis: int | None) -> None:
    """Refuse arrays whose sizes differ elsewhere than on `axis`."""
    if len({rank_of(x) for x in arrays}) > 1:
        raise ShapeError(
            f"{operation}: the ranks differ",
            expected="arrays of one rank",
            got=", ".join(map(shown, arrays)),
            hint="add a dimension with x[None], or join along a new one with numpy.stack",
        )
    for place in range(rank_of(arrays[0])):
        if place != axis and len({shape_of(x)[place] for x in arrays} - {None}) > 1:
            raise ShapeError(
                f"{operation}: sizes differ on axis {place}",
                expected="arrays that differ at most in the axis along which they are joined",
                got=", ".join(map(shown, arrays)),
                hint="join along the axis that differs, or pad the smaller ones",
            )


@array_function("concat")
def concatenate(arrays: Any, axis: Any = 0, dtype: Any = None) -> Any:
    """Arrays one after the other along an axis; flattened first where it is None.

    Raises:
        ShapeError: sizes differ on another axis, or the arrays are scalars.

    >>> cnp.concatenate([[1, 2], [3.5]])
    array([1. , 2. , 3.5])
    """
    parts = _several("concatenate", arrays)
    if axis is None:
        parts, axis = [ravel(x) for x in parts], 0
    if rank_of(parts[0]) == 0:
        raise ShapeError(
            "concatenate: scalars have no axis",
            expected="arrays of rank 1 or more, in a list",
            got=", ".join(map(shown, parts)),
            hint="numpy.stack([a, b]) makes an array of scalars; numpy.concatenate([x, y]) takes arrays as a list",
        )
    place = axis_of("concatenate", axis, rank_of(parts[0]))
    _check_fit("concatenate", parts, place)
    if dtype is not None:
        parts = [to_dtype("concatenate", x, dtype) for x in parts]
    return concatenated(parts, place)


@array_function()
def stack(arrays: Any, axis: Any = 0, *, dtype: Any = None) -> Any:
    """Arrays of one shape side by side along a new axis.

    >>> cnp.stack([[1, 2], [3, 4]], axis=1)
    array([[1, 3],
           [2, 4]])
    """
    parts = _several("stack", arrays)
    _check_fit("stack", parts, None)
    place = axis_of("stack", axis, rank_of(parts[0]) + 1)
    if dtype is not None:
        parts = [to_dtype("stack", x, dtype) for x in parts]
    return concatenated([expanded(x, [place]) for x in parts], place)


def _lifted(x: Any, rank: int) -> Any:
    return expanded(x, range(max(rank - rank_of(x), 0)))


@array_function("row_stack")
def vstack(arrays: Any) -> Any:
    """Arrays below each other; vectors are rows.

    >>> cnp.vstack([[1, 2], [3, 4]])
    array([[1, 2],
           [3, 4]])
    """
    return concatenate([_lifted(x, 2) for x in _several("vstack", arrays)])


@array_function()
def hstack(arrays: Any) -> Any:
    """Arrays beside each other: along the second axis, or the first for vectors.

    >>> cnp.hstack([[1, 2], [3, 4]])
    array([1, 2, 3, 4])
    """
    parts = [_lifted(x, 1) for x in _several("hstack", arrays)]
    return concatenate(parts, 0 if rank_of(parts[0]) == 1 else 1)


@array_function(of=operand)
def unstack(x: Any, *, axis: Any = 0) -> tuple[Any, ...]:
    """The slices along an axis of known size, without that axis.

    >>> cnp.unstack([[1, 2], [3, 4]])[1]
    array([3, 4])
    """
    place = axis_of("unstack", axis, rank_of(x))
    count = shape_of(x)[place]
    if count is None:
        raise UnknownSizeError(
            "unstack: the axis has an unknown size", got=shown(x), hint="use ctrlgrad.scan to loop over it"
        )
    return tuple(at_index(x, place, i) for i in range(count))


def _cut(x: Any, axis: int, bounds: Sequence[Any]) -> list[Any]:
    """x cut at the given places along an axis."""
    starts, stops = [None, *bounds], [*bounds, None]
    return [sliced(x, axis, start, stop) for start, stop in zip(starts, stops, strict=True)]


def _places(operation: str, indices_or_sections: Any) -> list[Any] | None:
    """The places to cut at, or None for a number of equal parts."""
    if isinstance(indices_or_sections, list | tuple) or np.ndim(_known(indices_or_sections)) == 1:
        return [size_argument(operation, "a place to cut", place) for place in indices_or_sections]
    return None


def _known(x: Any) -> Any:
    return 0 if isinstance(x, Tensor) and x.ndim == 0 else () if isinstance(x, Tensor) else x


def _sections(operation: str, count: Any) -> int:
    number = whole_number(operation, "the number of parts", count)
    if number <= 0:
        raise ShapeError(f"{operation}: at least one part", expected="1 or more", got=str(number))
    return number


@array_function(of=operand)
def split(x: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]:
    """x cut into equal parts along an axis, or at the given places (which may be traced).

    Raises:
        ShapeError: the size does not divide.

    >>> cnp.split([1, 2, 3, 4], 2)[1]
    array([3, 4])
    """
    place = axis_of("split", axis, rank_of(x))
    cuts = _places("split", indices_or_sections)
    if cuts is not None:
        return _cut(x, place, cuts)
    count, size = _sections("split", indices_or_sections), shape_of(x)[place]
    if size is not None:
        if size % count:
            raise ShapeError(
                "split: the parts are not equal",
                expected=f"a size that {count} divides",
                got=shown(x),
                hint="use array_split",
            )
        return _cut(x, place, range(size // count, size, size // count) if size else [0] * (count - 1))
    # A reshape fails at run time where the size does not divide.
    sizes = dims(x)
    rows = reshaped(x, [*sizes[:place], count, floor_divide(sizes[place], count), *sizes[place + 1 :]])
    return [at_index(rows, place, i) for i in range(count)]


@array_function(of=operand)
def array_split(x: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]:
    """As `split`, but the parts may differ by one element, the larger ones first.

    >>> cnp.array_split([1, 2, 3], 2)[1]
    array([3])
    """
    place = axis_of("array_split", axis, rank_of(x))
    cuts = _places("array_split", indices_or_sections)
    if cuts is None:
        count, size = _sections("array_split", indices_or_sections), dim(x, place)
        if isinstance(size, Tensor):
            small, extra = floor_divide(size, count), remainder(size, count)
            cuts = [add(multiply(small, i), minimum(extra, i)) for i in range(1, count)]
        else:
            cuts = [size // count * i + min(size % count, i) for i in range(1, count)]
    return _cut(x, place, cuts)


@array_function(of=operand)
def roll(x: Any, shift: Any, axis: Any = None) -> Any:
    """Elements moved along axes by `shift` places (which may be traced), around the end.

    Without an axis, all elements in one dimension are moved.

    >>> cnp.roll([1, 2, 3], 1)
    array([3, 1, 2])
    """
    if axis is None:
        return reshaped(_rolled(ravel(x), _total(shift), 0, times(dims(x))), dims(x))
    places = [axis_of("roll", a, rank_of(x)) for a in (axis if isinstance(axis, list | tuple) else (axis,))]
    shifts = list(shift) if isinstance(shift, list | tuple) else [shift] * len(places)
    if len(shifts) != len(places) and len(places) == 1:
        places = places * len(shifts)
    if len(shifts) != len(places):
        raise ShapeError("roll: as many shifts as axes", expected=f"{len(places)} shifts", got=str(shift))
    for place, by in zip(places, shifts, strict=True):
        x = _rolled(x, size_argument("roll", "the shift", by), place, dim(x, place))
    return x


def _total(shift: Any) -> Any:
    several = shift if isinstance(shift, list | tuple) else (shift,)
    total: Any = 0
    for by in several:
        by = size_argument("roll", "the shift", by)
        total = add(total, by) if isinstance(total, Tensor) or isinstance(by, Tensor) else total + by
    return total


def _rolled(x: Any, shift: Any, axis: int, size: Any) -> Any:
    if not isinstance(size, Tensor) and not isinstance(shift, Tensor):
        first = -shift % size if size else 0
        return x if first == 0 else concatenated([sliced(x, axis, first, None), sliced(x, axis, None, first)], axis)
    if not isinstance(shift, Tensor) and shift == 0:
        return x
    first = remainder(negative(cast(shift, np.int64)), size)
    rolled = concatenated([sliced(x, axis, first, None), sliced(x, axis, None, first)], axis)
    # Cutting at a traced place loses the size.
    return reshaped(rolled, [size if place == axis else dim(x, place) for place in range(rank_of(x))])


publish(__name__, "joined_sizes")
