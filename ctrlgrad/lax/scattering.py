"""Writes of windows at starts that may be traced: the scatters of `jax.lax`.

Windows are written one after the other: where two meet, the later one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.lax import promises
from ctrlgrad.lax.numbers import ScatterDimensionNumbers
from ctrlgrad.lax.windows import Windows, find_windows, module_of, turned
from ctrlgrad.source import here


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
        """Of the windows in `operand[key]`."""
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
            return promises.written(self.updates, inside)
        return cnp.where(inside, self.updates, self.updates.dtype.type(0))

    def written(self, x: Any, values: Any) -> Any:
        """x with values in the windows, in their order; those that lie outside write nothing.

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
    """What stands at a place of an axis, with that axis."""
    return cnp.expand_dims(cnp.take(values, k, axis=axis), axis)


def _scatter(
    operation: str, x: Any, indices: Any, updates: Any, numbers: ScatterDimensionNumbers, mode: Any, unique: bool
) -> _Scatter:
    if updates.dtype != x.dtype:
        raise TypeMismatchError(
            f"lax.{operation}: the updates' dtype is not the operand's",
            source=here(),
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


def scatter(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """The operand with windows replaced at starts that may be traced; as `jax.lax.scatter`.

    Where two windows meet, the later one counts. A window that does not lie inside is dropped, or with the mode "clip"
    moved inside.

    >>> import numpy as np
    >>> rows = ScatterDimensionNumbers((1,), (0,), (0,))
    >>> scatter(np.zeros((3, 2)), np.array([[2]]), np.ones((1, 2)), rows)[2]
    array([1., 1.])
    """
    write = lambda s, x: s.written(x, s.updates)
    return _scattered("scatter", operand, scatter_indices, updates, dimension_numbers, mode, unique_indices, write)


def scatter_add(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """As `scatter`, with updates added; where windows meet, all are.

    >>> import numpy as np
    >>> scatter_add(np.zeros(3), np.array([[1], [1]]), np.ones(2), ScatterDimensionNumbers((), (0,), (0,)))
    array([0., 2., 0.])
    """
    write = lambda s, x: cnp.at(x)[s.windows.at(s.starts)].add(s.summands)
    return _scattered("scatter_add", operand, scatter_indices, updates, dimension_numbers, mode, unique_indices, write)


def scatter_sub(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """As `scatter`, with updates subtracted; where windows meet, all are.

    >>> import numpy as np
    >>> scatter_sub(np.zeros(3), np.array([[1], [1]]), np.ones(2), ScatterDimensionNumbers((), (0,), (0,)))
    array([ 0., -2.,  0.])
    """
    updates = cnp.negative(updates)
    return scatter_add(operand, scatter_indices, updates, dimension_numbers, unique_indices=unique_indices, mode=mode)


def scatter_mul(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """As `scatter`, with updates multiplied in; where windows meet, all are.

    >>> import numpy as np
    >>> scatter_mul(np.ones(3), np.array([[1], [1]]), np.full(2, 3.0), ScatterDimensionNumbers((), (0,), (0,)))
    array([1., 9., 1.])
    """
    write = lambda s, x: s.combined(x, cnp.multiply)
    return _scattered("scatter_mul", operand, scatter_indices, updates, dimension_numbers, mode, unique_indices, write)


def scatter_min(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """As `scatter`, with the smaller one of what is there and the update.

    >>> import numpy as np
    >>> scatter_min(np.ones(2), np.array([[1]]), np.zeros(1), ScatterDimensionNumbers((), (0,), (0,)))
    array([1., 0.])
    """
    write = lambda s, x: s.combined(x, cnp.minimum)
    return _scattered("scatter_min", operand, scatter_indices, updates, dimension_numbers, mode, unique_indices, write)


def scatter_max(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """As `scatter`, with the larger one of what is there and the update.

    >>> import numpy as np
    >>> scatter_max(np.ones(2), np.array([[1]]), np.full(1, 3.0), ScatterDimensionNumbers((), (0,), (0,)))
    array([1., 3.])
    """
    write = lambda s, x: s.combined(x, cnp.maximum)
    return _scattered("scatter_max", operand, scatter_indices, updates, dimension_numbers, mode, unique_indices, write)


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

    >>> import numpy as np
    >>> numbers = ScatterDimensionNumbers((), (0,), (0,))
    >>> scatter_apply(np.ones(2), np.array([[1]]), np.negative, numbers, update_shape=(1,))
    array([ 1., -1.])
    """
    updates = cnp.zeros(update_shape, cnp.asarray(operand).dtype)
    write = lambda s, x: s.combined(x, lambda old, update: func(old))
    return _scattered(
        "scatter_apply", operand, scatter_indices, updates, dimension_numbers, mode, unique_indices, write
    )


__all__ = [
    "scatter",
    "scatter_add",
    "scatter_apply",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_sub",
]
