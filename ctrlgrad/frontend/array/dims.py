"""Sizes and axes: known ones as ints, unknown ones as traced scalars, and the raw ops that move dimensions.

The functions here take arrays that `promote.operand` has made, and record nothing where nothing changes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast, shape_template, tensor_type
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import TensorType, Type
from ctrlgrad.ir.attributes import DYNAMIC, Item, Key


def shape_of(x: Any) -> tuple[int | None, ...]:
    """The shape, None where a dimension is unknown."""
    return tensor_type(x).shape


def rank_of(x: Any) -> int:
    return tensor_type(x).rank


def dtype_of(x: Any) -> np.dtype:
    return tensor_type(x).dtype


def dim(x: Any, axis: int) -> Any:
    """One size: an int, or a traced scalar."""
    known = shape_of(x)[axis]
    return apply("dim", [x], {"axis": axis % rank_of(x)}) if known is None else known


def dims(x: Any) -> list[Any]:
    """All sizes."""
    return [dim(x, axis) for axis in range(rank_of(x))]


def times(sizes: Sequence[Any]) -> Any:
    """The product of sizes: an int where all are known."""
    known = 1
    unknown = None
    for size in sizes:
        if not isinstance(size, Tensor):
            known *= size
        else:
            unknown = size if unknown is None else FUNCTIONS["multiply"](unknown, size)
    if unknown is None or known == 0:
        return known
    return unknown if known == 1 else FUNCTIONS["multiply"](unknown, known)


def whole_number(operation: str, what: str, value: Any) -> int:
    """A Python integer; an error for anything else (a traced tensor explains itself)."""
    try:
        return operator.index(value)
    except TypeError as error:
        if isinstance(value, Tensor):
            raise
        raise TypeMismatchError(
            f"{operation}: {what} is not an integer", expected="an int", got=repr(value), hint="convert it with int()"
        ) from error


def size_argument(operation: str, what: str, value: Any) -> Any:
    """An int, or a traced integer scalar."""
    if not isinstance(value, Tensor):
        return whole_number(operation, what, value)
    if value.ndim or dtype_kind(value.dtype) not in "iu":
        raise TypeMismatchError(
            f"{operation}: {what} is not a scalar integer",
            expected="i64[]",
            got=str(value.type),
            hint="cast it with .astype(int), and take one number of an array: n[0]",
        )
    return cast(value, np.int64)


def sizes_argument(operation: str, shape: Any) -> list[Any]:
    """A shape argument: one size or several."""
    several = (
        list(shape) if isinstance(shape, list | tuple) or (isinstance(shape, np.ndarray) and shape.ndim) else [shape]
    )
    sizes = [size_argument(operation, "a size", d) for d in several]
    if any(not isinstance(d, Tensor) and d < 0 for d in sizes):
        raise ShapeError(
            f"{operation}: a negative size",
            expected="sizes of 0 or more",
            got=str(shape),
            hint="-1 stands for the size that is left over in reshape alone",
        )
    return sizes


def axis_of(operation: str, axis: Any, rank: int) -> int:
    """One axis, counted from the front."""
    number = whole_number(operation, "an axis", axis)
    if not -rank <= number < rank:
        raise ShapeError(
            f"{operation}: axis {number} is out of range",
            expected=f"-{rank} <= axis < {rank}",
            got=str(number),
            hint="axes count from 0, or from the end with -1 for the last",
        )
    return number % rank


def axes_in_order(operation: str, axes: Any, rank: int) -> list[int]:
    """One axis or several, counted from the front, in the order given; an error for one that stands twice."""
    several = axes if isinstance(axes, list | tuple) else (axes,)
    result = [axis_of(operation, axis, rank) for axis in several]
    if len(set(result)) != len(result):
        raise ShapeError(
            f"{operation}: an axis stands twice",
            expected="every axis at most once",
            got=str(axes),
            hint="-1 is the last axis, which may be there by its number too",
        )
    return result


def axes_of(operation: str, axes: Any, rank: int) -> tuple[int, ...]:
    """Axes, sorted; all of them for None."""
    return tuple(range(rank)) if axes is None else tuple(sorted(axes_in_order(operation, axes, rank)))


def known_size(operation: str, size: int | None) -> int:
    """A size that a function needs when it is traced."""
    if size is None:
        raise ShapeError(
            f"{operation}: a size is not known until the program runs",
            expected="sizes that are known when the function is traced",
            got="None",
            hint="pass arrays of known sizes; ctrlgrad.scan and ctrlgrad.fori_loop go over unknown ones",
        )
    return size


# Raw ops.


def reshaped(x: Any, sizes: Sequence[Any]) -> Any:
    """x in a shape whose sizes are all given."""
    template, unknown = shape_template(sizes)
    if not unknown and template == shape_of(x):
        return x
    return apply("reshape", [x, *unknown], {"shape": template})


def unknown_axes(t: Type) -> list[int]:
    """The axes whose sizes are not known until the program runs; none of a stack."""
    return [axis for axis, d in enumerate(t.shape) if d is None] if isinstance(t, TensorType) else []


def ensured(x: Any, sizes: Mapping[int, Any], problem: str, hint: str) -> Any:
    """x, which must have these sizes along its axes: an error at once or, where sizes are unknown, at run time."""
    known = shape_of(x)
    open_axes = tuple(a for a in sorted(sizes) if isinstance(sizes[a], Tensor) or sizes[a] != known[a])
    if not open_axes:
        return x
    template, unknown = shape_template([sizes[a] for a in open_axes])
    attrs = {"shape": template, "axes": open_axes, "problem": problem, "hint": hint}
    return apply("ensure_sizes", [x, *unknown], attrs)


def broadcasted(x: Any, sizes: Sequence[Any]) -> Any:
    template, unknown = shape_template(sizes)
    if not unknown and template == shape_of(x):
        return x
    return apply("broadcast_to", [x, *unknown], {"shape": template})


def transposed(x: Any, axes: Sequence[int]) -> Any:
    if list(axes) == list(range(len(axes))):
        return x
    return apply("transpose", [x], {"axes": tuple(axes)})


def expanded(x: Any, axes: Sequence[int]) -> Any:
    """With new axes of size 1 at the given places of the result."""
    return apply("expand_dims", [x], {"axes": tuple(sorted(axes))}) if axes else x


def squeezed(x: Any, axes: Sequence[int]) -> Any:
    return apply("squeeze", [x], {"axes": tuple(sorted(axes))}) if axes else x


def concatenated(xs: Sequence[Any], axis: int) -> Any:
    return xs[0] if len(xs) == 1 else apply("concat", list(xs), {"axis": axis})


def sliced(x: Any, axis: int, start: Any, stop: Any) -> Any:
    """x[start:stop] along one axis; a bound is None, an int or a traced scalar."""
    unknown: list[Any] = []

    def part(bound: Any) -> Any:
        if not isinstance(bound, Tensor):
            return bound
        unknown.append(cast(bound, np.int64))
        return DYNAMIC

    key: list[Item] = [slice(None)] * rank_of(x)
    key[axis] = slice(part(start), part(stop), None)
    return apply("getitem", [x, *unknown], {"key": tuple(key)})


def at_index(x: Any, axis: int, index: int) -> Any:
    """x[index] along one axis."""
    key: list[Item] = [slice(None)] * rank_of(x)
    key[axis] = index
    return apply("getitem", [x], {"key": tuple(key)})


def iota(size: Any) -> Any:
    """0, 1, ..., size - 1 as int64: a NumPy array for a known size."""
    if not isinstance(size, Tensor):
        return np.arange(size)
    return apply("iota", [size], {"shape": (None,)})


def laid_along(axis: int, x: Any, rank: int) -> Any:
    """A vector as an array of this rank whose axis `axis` it lies along."""
    return reshaped(x, [dim(x, 0) if place == axis else 1 for place in range(rank)])


def along(axis: int, rank: int) -> Key:
    """The key with a placeholder at one axis and all of every other one."""
    return tuple(DYNAMIC if place == axis else slice(None) for place in range(rank))
