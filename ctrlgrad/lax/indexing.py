"""Slices, gathers and scatters with the signatures of `jax.lax`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.array.keys import filling
from ctrlgrad.frontend.functions import publish
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.lax import elements
from ctrlgrad.lax.elements import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from ctrlgrad.ops.term import require_integers

# Windows of an operand at starts that may be traced: `gather` reads them, the `scatter`s write them.
#
# A start is a row of the last axis of an array of starts. An axis that starts count along, or that operand and starts
# have in common, is indexed by an array over (the starts, the axes of the window); along every other axis a window has
# a plain slice. So a window of whole rows moves rows, and the operand itself is never transposed.


def module_of(*arrays: Any) -> Any:
    """NumPy where all is known while tracing."""
    return np if all(isinstance(a, np.ndarray | np.generic | int) for a in arrays) else cnp


@dataclass(frozen=True)
class Windows:
    """Windows of sizes `sizes` of an operand of shape `shape`."""

    shape: tuple[Any, ...]
    sizes: tuple[Any, ...]
    # Axes of the operand that a window has in the result.
    kept: tuple[int, ...]
    # The axes indexed by arrays, each with its starts: arrays of the shape `batch`, moved inside the operand.
    starts: dict[int, Any]
    batch: tuple[Any, ...]
    # True for windows that lie inside: of the shape `batch`; None if all do, or are moved inside.
    inside: Any
    # True if the caller promised that all windows lie inside.
    promised: bool

    def at(self, starts: dict[int, Any]) -> tuple[Any, ...]:
        """The key of the windows at these starts."""
        axes = [d for d in starts if d in self.kept]
        key: list[Any] = []
        for d, size in enumerate(self.sizes):
            if d not in starts:
                key.append(np.s_[:] if isinstance(size, int) and self.shape[d] == size else np.s_[:size])
                continue
            start = starts[d]
            if axes:
                start = module_of(start).reshape(start, (*start.shape, *(1 for _ in axes)))
            if d in self.kept:
                start = start + np.arange(size).reshape([size if a == d else 1 for a in axes])
            key.append(start)
        return tuple(key)

    def order(self, batch: int) -> list[Any]:
        """Order of the axes of `operand[key]`: "b0", "b1", ... of the starts, and numbers of the operand's axes."""
        joined: list[Any] = [f"b{i}" for i in range(batch)] + [d for d in self.starts if d in self.kept]
        plain = [d for d in range(len(self.sizes)) if d not in self.starts]
        indexed = list(self.starts)
        if not indexed or not joined:
            return plain
        if indexed[-1] - indexed[0] + 1 == len(indexed):
            before = [d for d in plain if d < indexed[0]]
            return [*before, *joined, *plain[len(before) :]]
        return [*joined, *plain]


def find_windows(
    operation: str,
    shape: tuple[Any, ...],
    starts: Any,
    sizes: Sequence[Any],
    components: Sequence[int],
    common: Sequence[tuple[int, int]],
    dropped: Sequence[int],
    mode: Any,
) -> Windows:
    """The windows of an operand: `common` pairs its axes with those of the starts, `dropped` are of size 1."""
    mode = GatherScatterMode.from_any(mode)
    promised = mode is GatherScatterMode.PROMISE_IN_BOUNDS
    checked = promised or mode is GatherScatterMode.FILL_OR_DROP
    require_integers(f"lax.{operation}", "the starts", starts.dtype)
    if starts.ndim == 0 or starts.shape[-1] != len(components):
        raise ShapeError(
            f"lax.{operation}: a start has not one component for each axis that it counts along",
            expected=f"starts of shape [..., {len(components)}]",
            got=str(starts.shape),
        )
    batch = tuple(starts.shape[:-1])
    xp = module_of(starts, *shape)
    starts = starts.astype(np.int64)
    found: dict[int, Any] = {}
    inside: Any = None
    for k, d in enumerate(components):
        start, last = starts[..., k], shape[d] - sizes[d]
        if checked:
            fits = (start >= 0) & (start <= last)
            inside = fits if inside is None else inside & fits
        if d in dropped or not isinstance(shape[d], int) or shape[d] != sizes[d]:
            found[d] = xp.clip(start, 0, last)
    for d, axis in common:
        along = np.arange(shape[d]).reshape([shape[d] if a == axis else 1 for a in range(len(batch))])
        found[d] = np.broadcast_to(along, batch)
    if isinstance(inside, np.ndarray | np.generic) and inside.all():
        inside = None
    if batch and shape and not found:
        found[0] = np.zeros(batch, np.int64)
    gone = {*dropped, *(d for d, _ in common)}
    kept = tuple(d for d in range(len(shape)) if d not in gone)
    return Windows(tuple(shape), tuple(sizes), kept, dict(sorted(found.items())), batch, inside, promised)


def turned(x: Any, permutation: list[int]) -> Any:
    """The axes in another order."""
    return x if permutation == sorted(permutation) else cnp.transpose(x, permutation)


def slice(operand: Any, start_indices: Any, limit_indices: Any, strides: Any = None) -> Any:
    """A part, from known starts to known limits.

    >>> slice(np.arange(6), (1,), (5,), (2,))
    array([1, 3])
    """
    steps = strides or [1] * len(start_indices)
    return cnp.asarray(operand)[
        tuple(np.s_[a:b:c] for a, b, c in zip(start_indices, limit_indices, steps, strict=True))
    ]


# Slices whose starts may be traced, by the names of `jax.lax`.


def slice_in_dim(operand: Any, start_index: Any, limit_index: Any, stride: int = 1, axis: int = 0) -> Any:
    """A part along one axis.

    >>> slice_in_dim(np.arange(4), 1, 3)
    array([1, 2])
    """
    x = cnp.asarray(operand)
    return x[(*[np.s_[:]] * (axis % x.ndim), np.s_[start_index:limit_index:stride])]


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """Take the element at an index along an axis.

    >>> index_in_dim(np.arange(4), 2)
    array([2])
    """
    return dynamic_index_in_dim(operand, index, axis, keepdims)


def _start(index: Any, size: Any, width: Any) -> Any:
    """A start counted from the front, moved so that the slice lies inside."""
    index = cnp.asarray(index).astype(np.int64)
    return cnp.clip(cnp.where(index < 0, index + size, index), 0, size - width)


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[int]) -> Any:
    """A part of known sizes from starts that may be traced, moved so that it lies inside; as `jax.lax.dynamic_slice`.

    >>> dynamic_slice(np.arange(5), (4,), (3,))
    array([2, 3, 4])
    """
    x = cnp.asarray(operand)
    for axis, (start, width) in enumerate(zip(start_indices, slice_sizes, strict=True)):
        if not isinstance(x.shape[axis], int) or x.shape[axis] != width:
            x = cnp.take(x, _start(start, x.shape[axis], width) + np.arange(width), axis=axis)
    return x


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Any:
    """As `dynamic_slice`, along one axis.

    >>> dynamic_slice_in_dim(np.arange(5), 1, 2)
    array([1, 2])
    """
    x = cnp.asarray(operand)
    return cnp.take(x, _start(start_index, x.shape[axis], slice_size) + np.arange(slice_size), axis=axis)


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Any:
    """Take the element at an index, which may be traced, along an axis.

    >>> int(dynamic_index_in_dim(np.arange(5), 1, keepdims=False))
    1
    """
    x = cnp.asarray(operand)
    found = cnp.take(x, _start(index, x.shape[axis], 1), axis=axis)
    return cnp.expand_dims(found, axis) if keepdims else found


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Any:
    """The operand with a part replaced, shifted so that it lies inside; as `jax.lax.dynamic_update_slice`.

    >>> dynamic_update_slice(np.arange(5), np.array([8, 9]), (4,))
    array([0, 1, 2, 8, 9])
    """
    x, update = cnp.asarray(operand), cnp.asarray(update)
    key = [
        _start(start, n, width) + cnp.reshape(cnp.arange(width), [width if b == a else 1 for b in range(x.ndim)])
        for a, (start, n, width) in enumerate(zip(start_indices, x.shape, update.shape, strict=True))
    ]
    return cnp.at(x)[tuple(key)].set(update) if key else update


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Any:
    """As `dynamic_update_slice`, along one axis.

    >>> dynamic_update_slice_in_dim(np.arange(3), np.array([9]), 1, 0)
    array([0, 9, 2])
    """
    x, update = cnp.asarray(operand), cnp.asarray(update)
    places = _start(start_index, x.shape[axis], update.shape[axis]) + cnp.arange(update.shape[axis])
    return cnp.at(x)[(*[np.s_[:]] * (axis % x.ndim), places)].set(update)


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Any:
    """The operand with the slice at an index of an axis replaced.

    >>> dynamic_update_index_in_dim(np.arange(3), 9, 1, 0)
    array([0, 9, 2])
    """
    x, update = cnp.asarray(operand), cnp.asarray(update)
    update = cnp.expand_dims(update, axis) if update.ndim < x.ndim else update
    return dynamic_update_slice_in_dim(x, update, index, axis)


# Reads of windows at starts that may be traced: `jax.lax.gather`.


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Any:
    """Slices of `slice_sizes` at starts that may be traced; as `jax.lax.gather`.

    Args:
        operand: the array.
        start_indices: integers [..., n], a start per row of the last axis.
        dimension_numbers: a `GatherDimensionNumbers`, or JAX's.
        slice_sizes: along each axis of the operand.
        mode: treatment of slices outside of the operand: a `GatherScatterMode` or its name, "fill" if not given.
        fill_value: value of the mode "fill"; by default NaN, the least signed or largest unsigned integer, or true.

    >>> rows = GatherDimensionNumbers((1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    >>> gather(np.arange(6).reshape(3, 2), np.array([[2], [0]]), rows, (1, 2))
    array([[4, 5],
           [0, 1]])
    """
    x, starts, numbers = cnp.asarray(operand), cnp.asarray(start_indices), dimension_numbers
    common = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    dropped, components = numbers.collapsed_slice_dims, numbers.start_index_map
    windows = find_windows("gather", x.shape, starts, slice_sizes, components, common, dropped, mode)
    rank = len(windows.batch)
    part, order = x[windows.at(windows.starts)], windows.order(rank)
    alone = [i for i, axis in enumerate(order) if axis in dropped]
    part = cnp.squeeze(part, tuple(alone)) if alone else part
    order = [axis for axis in order if axis not in dropped]
    if not windows.starts and rank:
        part = cnp.broadcast_to(part, (*windows.batch, *part.shape))
        order = [*(f"b{i}" for i in range(rank)), *order]
    offsets = set(numbers.offset_dims)
    of_windows, of_starts = iter(windows.kept), iter(range(rank))
    wanted = [next(of_windows) if a in offsets else f"b{next(of_starts)}" for a in range(len(order))]
    part = turned(part, [order.index(axis) for axis in wanted])
    if windows.inside is None:
        return part
    # The sizes at the axes that take one, else 1.
    takes = [a not in offsets for a in range(len(order))]
    rest = iter(windows.batch)
    inside = cnp.reshape(windows.inside, [next(rest) if take else 1 for take in takes])
    if windows.promised:
        return elements.read(part, inside) if dtype_kind(x.dtype) in "fc" else part
    return cnp.where(inside, part, filling(x.dtype, fill_value))


# Writes of windows at starts that may be traced: the scatters of `jax.lax`.
#
# Windows are written one after the other: where two meet, the later one counts.


@dataclass(frozen=True)
class _Scatter:
    """The windows of a scatter, their starts in one row, and the updates with the axes of `operand[key]`."""

    windows: Windows
    # 0 for one window whose start has no axis, else 1.
    rank: int
    count: Any
    starts: dict[int, Any]
    # None where each window lies inside.
    inside: Any
    updates: Any
    # No two windows meet: there is one, or the caller says so.
    unique: bool

    @property
    def axis(self) -> int:
        """Axis of the windows in `operand[key]`."""
        return self.windows.order(1).index("b0")

    def over(self, flags: Any) -> Any:
        """Flags of the windows over the updates."""
        return cnp.reshape(flags, [self.count if axis == "b0" else 1 for axis in self.windows.order(self.rank)])

    @property
    def summands(self) -> Any:
        """The updates, with zeros for windows outside."""
        if self.inside is None:
            return self.updates
        inside = self.over(self.inside)
        if self.windows.promised and dtype_kind(self.updates.dtype) in "fc":
            return elements.written(self.updates, inside)
        return cnp.where(inside, self.updates, self.updates.dtype.type(0))

    def written(self, x: Any, values: Any) -> Any:
        """Write values into the windows of x, in their order; a window outside of x writes nothing.

        An outside one writes once more what the last inside one does: nothing changes by it, and the operand needs no
        extra place for it. Where none lies inside, what is there is written.
        """
        key = self.windows.at(self.starts)
        if self.inside is None:
            return cnp.at(x)[key].set(values)
        if not self.rank:
            return cnp.at(x)[key].set(cnp.where(self.inside, values, x[key]))
        last = self.count - 1 - cnp.argmax(cnp.flip(self.inside, 0), 0)
        lasts = {d: _row(start, last, 0) for d, start in self.starts.items()}
        starts = {d: cnp.where(self.inside, start, lasts[d]) for d, start in self.starts.items()}
        there = x[self.windows.at(lasts)]
        there = cnp.where(cnp.any(self.inside), _row(values, last, self.axis), there)
        return cnp.at(x)[self.windows.at(starts)].set(cnp.where(self.over(self.inside), values, there))

    def combined(self, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """x with each window's part combined with its update, one window after the other where they may meet."""
        if self.unique:
            return self.written(x, combine(x[self.windows.at(self.starts)], self.updates))

        def one(k: Any, x: Any) -> Any:
            key = self.windows.at({d: _row(start, k, 0) for d, start in self.starts.items()})
            old = x[key]
            new = combine(old, _row(self.updates, k, self.axis))
            return cnp.at(x)[key].set(new if self.inside is None else cnp.where(cnp.take(self.inside, k), new, old))

        return fori_loop(0, self.count, one, x)


def _row(values: Any, k: Any, axis: int) -> Any:
    """Take the element at an index of an axis, and keep the axis."""
    return cnp.expand_dims(cnp.take(values, k, axis=axis), axis)


def _scatter(
    operation: str, x: Any, indices: Any, updates: Any, numbers: ScatterDimensionNumbers, mode: Any, unique: bool
) -> _Scatter:
    if updates.dtype != x.dtype:
        raise TypeMismatchError(
            f"lax.{operation}: the updates' dtype is not the operand's",
            expected=x.dtype.name,
            got=updates.dtype.name,
            hint="updates.astype(operand.dtype)",
        )
    dropped, along = numbers.inserted_window_dims, list(numbers.update_window_dims)
    common = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    gone = {*dropped, *numbers.operand_batching_dims}
    rest = iter([updates.shape[a] for a in along])
    sizes = [1 if d in gone else next(rest) for d in range(x.ndim)]
    components = numbers.scatter_dims_to_operand_dims
    windows = find_windows(operation, x.shape, cnp.asarray(indices), sizes, components, common, dropped, mode)
    count: Any = 1
    for n in windows.batch:
        count = count * n
    rank = 1 if windows.batch else 0
    row = (count,) if rank else ()
    # First the axes of the starts in one row, then those of the windows.
    updates = turned(updates, [*(a for a in range(updates.ndim) if a not in along), *along])
    updates = cnp.reshape(updates, (*row, *updates.shape[len(windows.batch) :]))
    places: dict[Any, int] = {"b0": 0} if rank else {}
    places |= {d: rank + i for i, d in enumerate(windows.kept)}
    order = windows.order(rank)
    updates = turned(updates, [places[axis] for axis in order if axis in places])
    missing = tuple(i for i, axis in enumerate(order) if axis not in places)
    return _Scatter(
        windows=windows,
        rank=rank,
        count=count,
        starts={d: module_of(s).reshape(s, row) for d, s in windows.starts.items()},
        inside=None if windows.inside is None else module_of(windows.inside).reshape(windows.inside, row),
        updates=cnp.expand_dims(updates, missing) if missing else updates,
        unique=unique or not rank or (isinstance(count, int) and count == 1),
    )


def _scattered(
    operation: str,
    operand: Any,
    indices: Any,
    updates: Any,
    numbers: ScatterDimensionNumbers,
    mode: Any,
    unique: bool,
    write: Callable[[_Scatter, Any], Any],
) -> Any:
    x, updates = cnp.asarray(operand), cnp.asarray(updates)
    if not x.ndim:
        # A number is an array of one row.
        numbers = ScatterDimensionNumbers((), (0,), ())
        return write(_scatter(operation, x[None], indices, updates, numbers, mode, unique), x[None])[0]
    return write(_scatter(operation, x, indices, updates, numbers, mode, unique), x)


def _public(write: Callable[[_Scatter, Any], Any]) -> Callable[..., Any]:
    """Public function of a scatter, from its action on the windows, whose name and docstring it takes."""

    def function(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
    ) -> Any:
        name = write.__name__
        return _scattered(name, operand, scatter_indices, updates, dimension_numbers, mode, unique_indices, write)

    function.__name__ = function.__qualname__ = write.__name__
    function.__doc__ = write.__doc__
    return function


@_public
def scatter(s: _Scatter, x: Any) -> Any:
    """The operand with windows replaced at starts that may be traced; as `jax.lax.scatter`.

    Where two windows meet, the later one counts. A window that does not lie inside is dropped, or with the mode "clip"
    moved inside.

    >>> rows = ScatterDimensionNumbers((1,), (0,), (0,))
    >>> scatter(np.zeros((3, 2)), np.array([[2]]), np.ones((1, 2)), rows)[2]
    array([1., 1.])
    """
    return s.written(x, s.updates)


@_public
def scatter_add(s: _Scatter, x: Any) -> Any:
    """As `scatter`, with updates added; where windows meet, all are.

    >>> numbers = ScatterDimensionNumbers((), (0,), (0,))
    >>> scatter_add(np.zeros(3), np.array([[1], [1]]), np.ones(2), numbers)
    array([0., 2., 0.])
    """
    return cnp.at(x)[s.windows.at(s.starts)].add(s.summands)


@_public
def scatter_sub(s: _Scatter, x: Any) -> Any:
    """As `scatter`, with updates subtracted; where windows meet, all are.

    >>> numbers = ScatterDimensionNumbers((), (0,), (0,))
    >>> scatter_sub(np.zeros(3), np.array([[1], [1]]), np.ones(2), numbers)
    array([ 0., -2.,  0.])
    """
    return cnp.at(x)[s.windows.at(s.starts)].add(cnp.negative(s.summands))


@_public
def scatter_mul(s: _Scatter, x: Any) -> Any:
    """As `scatter`, with updates multiplied in; where windows meet, all are.

    >>> numbers = ScatterDimensionNumbers((), (0,), (0,))
    >>> scatter_mul(np.ones(3), np.array([[1], [1]]), np.full(2, 3.0), numbers)
    array([1., 9., 1.])
    """
    return s.combined(x, cnp.multiply)


@_public
def scatter_min(s: _Scatter, x: Any) -> Any:
    """As `scatter`, with the minimum of the element and the update.

    >>> numbers = ScatterDimensionNumbers((), (0,), (0,))
    >>> scatter_min(np.ones(2), np.array([[1]]), np.zeros(1), numbers)
    array([1., 0.])
    """
    return s.combined(x, cnp.minimum)


@_public
def scatter_max(s: _Scatter, x: Any) -> Any:
    """As `scatter`, with the maximum of the element and the update.

    >>> numbers = ScatterDimensionNumbers((), (0,), (0,))
    >>> scatter_max(np.ones(2), np.array([[1]]), np.full(1, 3.0), numbers)
    array([1., 3.])
    """
    return s.combined(x, cnp.maximum)


def scatter_apply(
    operand: Any,
    scatter_indices: Any,
    func: Callable[[Any], Any],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Any = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """As `scatter`, with an elementwise function applied to windows of `update_shape`, once for each.

    >>> numbers = ScatterDimensionNumbers((), (0,), (0,))
    >>> scatter_apply(np.ones(2), np.array([[1]]), np.negative, numbers, update_shape=(1,))
    array([ 1., -1.])
    """
    updates = cnp.zeros(update_shape, cnp.asarray(operand).dtype)
    write = lambda s, x: s.combined(x, lambda old, update: func(old))
    return _scattered(
        "scatter_apply", operand, scatter_indices, updates, dimension_numbers, mode, unique_indices, write
    )


publish(__name__, "Windows", "find_windows", "module_of", "turned")
