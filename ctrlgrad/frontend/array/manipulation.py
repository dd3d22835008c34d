"""Functions that move, add and drop dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array.arithmetic import floor_divide
from ctrlgrad.frontend.array.dims import (
    axes_in_order,
    axes_of,
    axis_of,
    broadcasted,
    dim,
    dims,
    expanded,
    rank_of,
    reshaped,
    shape_of,
    size_argument,
    sizes_argument,
    squeezed,
    times,
    transposed,
)
from ctrlgrad.frontend.array.logic import equal, where
from ctrlgrad.frontend.array.promote import operand, shown
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import broadcast_shapes


def _require_c_order(operation: str, order: str) -> None:
    if order not in ("C", "K", "A"):
        raise TypeMismatchError(
            f"{operation}: only C order is supported", got=f"order={order!r}", hint="transpose first"
        )


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


@array_function()
def size(x: Any, axis: Any = None) -> Any:
    """The number of elements, in all or along axes: an int, or a traced scalar where it is unknown.

    >>> cnp.size([[1, 2, 3]])
    3
    """
    x = operand("size", x)
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
    _require_c_order("reshape", order)
    x = operand("reshape", x)
    given = [shape, *more] if more else list(shape) if isinstance(shape, list | tuple | np.ndarray) else [shape]
    sizes = [size_argument("reshape", "a size", d) for d in given]
    missing = [place for place, d in enumerate(sizes) if not isinstance(d, Tensor) and d == -1]
    others = [d for place, d in enumerate(sizes) if place not in missing]
    if len(missing) > 1 or any(not isinstance(d, Tensor) and d < 0 for d in others):
        raise ShapeError("reshape: at most one size may be -1", got=str(tuple(sizes)))
    if missing:
        sizes[missing[0]] = _remaining(x, others)
    return reshaped(x, sizes)


def _remaining(x: Any, others: Sequence[Any]) -> Any:
    """The size that -1 stands for: an int wherever the known sizes tell."""
    known_before = times([d for d in shape_of(x) if d is not None])
    known_after = times([d for d in others if not isinstance(d, Tensor)])
    traced = [d for d in others if isinstance(d, Tensor)]
    if None not in shape_of(x) and not traced:
        if known_after == 0 or known_before % known_after:
            raise ShapeError(
                "reshape: no size fits for -1",
                expected=f"sizes whose product divides {known_before}",
                got=f"{tuple(others)} for {shown(x)}",
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


@array_function("permute_dims")
def transpose(x: Any, axes: Any = None, *more: Any) -> Any:
    """The dimensions in another order; reversed without `axes`.

    Raises:
        ShapeError: `axes` is not a permutation of all axes.

    >>> cnp.transpose([[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]])
    """
    x = operand("transpose", x)
    rank = rank_of(x)
    if axes is None:
        return transposed(x, tuple(reversed(range(rank))))
    order = axes_in_order("transpose", (axes, *more) if more else axes, rank)
    if len(order) != rank:
        raise ShapeError("transpose: one entry per axis", expected=f"{rank} axes", got=str(axes))
    return transposed(x, order)


@array_function()
def matrix_transpose(x: Any) -> Any:
    """The last two dimensions swapped.

    >>> cnp.matrix_transpose([[1, 2]])
    array([[1],
           [2]])
    """
    x = operand("matrix_transpose", x)
    if rank_of(x) < 2:
        raise ShapeError("matrix_transpose: needs rank 2 or more", got=shown(x))
    return swapaxes(x, -1, -2)


@array_function()
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two dimensions swapped.

    >>> cnp.swapaxes([[1, 2]], 0, 1)
    array([[1],
           [2]])
    """
    x = operand("swapaxes", x)
    a, b = (axis_of("swapaxes", axis, rank_of(x)) for axis in (axis1, axis2))
    order = list(range(rank_of(x)))
    order[a], order[b] = b, a
    return transposed(x, order)


@array_function()
def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """Dimensions moved to other places, the rest in their order.

    >>> cnp.shape(cnp.moveaxis(cnp.zeros((2, 3, 4)), 0, -1))
    (3, 4, 2)
    """
    x = operand("moveaxis", x)
    come = axes_in_order("moveaxis", source, rank_of(x))
    go = axes_in_order("moveaxis", destination, rank_of(x))
    if len(come) != len(go):
        raise ShapeError("moveaxis: as many sources as destinations", expected=str(source), got=str(destination))
    order = [axis for axis in range(rank_of(x)) if axis not in come]
    for place, axis in sorted(zip(go, come, strict=True)):
        order.insert(place, axis)
    return transposed(x, order)


@array_function()
def expand_dims(x: Any, axis: Any) -> Any:
    """With new dimensions of size 1 at the given places of the result.

    >>> cnp.expand_dims([1, 2], 0)
    array([[1, 2]])
    """
    x = operand("expand_dims", x)
    count = len(axis) if isinstance(axis, list | tuple) else 1
    return expanded(x, axes_in_order("expand_dims", axis, rank_of(x) + count))


@array_function()
def squeeze(x: Any, axis: Any = None) -> Any:
    """Without dimensions of size 1: the given ones, or all.

    Raises:
        ShapeError: a given one is not of size 1, or none is given and an unknown size might be 1.

    >>> cnp.squeeze([[1, 2]], 0)
    array([1, 2])
    """
    x = operand("squeeze", x)
    if axis is not None:
        return squeezed(x, axes_in_order("squeeze", axis, rank_of(x)))
    if None in shape_of(x):
        raise ShapeError("squeeze: an unknown size might be 1", got=shown(x), hint="give the axis")
    return squeezed(x, [a for a, d in enumerate(shape_of(x)) if d == 1])


@array_function()
def flip(x: Any, axis: Any = None) -> Any:
    """In reverse order along axes, or along all.

    >>> cnp.flip([1, 2, 3])
    array([3, 2, 1])
    """
    x = operand("flip", x)
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


__all__ = [
    "broadcast_arrays",
    "broadcast_to",
    "expand_dims",
    "flatten",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "ndim",
    "ravel",
    "reshape",
    "shape",
    "size",
    "squeeze",
    "swapaxes",
    "transpose",
]
