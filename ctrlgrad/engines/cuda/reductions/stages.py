"""The launches of a reduction: one, or more where blocks share the elements of a result. A scan is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access, joined_axes
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch, ReductionSpec, ReductionText
from ctrlgrad.engines.cuda.reductions.tree import SERIAL, Tree, tree

Shape = tuple[int, ...]


def stages(
    text: ReductionText,
    shape: Shape,
    axes: Sequence[int],
    inputs: Sequence[Any],
    stored: Sequence[Any],
    results: Sequence[Any],
    access: Callable[[Any], Access],
    empty: Callable[[Shape, np.dtype], Any],
) -> Iterator[ReductionLaunch]:
    """The launches in their order.

    Args:
        shape: that of the space, to which inputs broadcast, and which is that of what is stored.
        axes: those that are reduced.
        results: contiguous, with an element for each of those of the axes that stay.
        access: how a kernel finds an argument; `empty` gives arrays for states.
    """
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    sizes = [shape[axis] for axis in kept]
    if not math.prod(sizes):
        return
    its = _tree(shape, kept, axes)
    if its.parts == 1:
        yield _launch(text, shape, kept, axes, inputs, stored, results, access, its)
        return
    states = [empty((its.parts, *sizes), np.dtype(state.dtype)) for state in text.states]
    yield _launch(text.partial, shape, kept, axes, inputs, stored, states, access, its)
    yield from stages(text.of_states, (its.parts, *sizes), [0], states, [], results, access, empty)


def scan(
    text: ReductionText, shape: Shape, axis: int, x: Any, result: Any, access: Callable[[Any], Access]
) -> Iterator[ReductionLaunch]:
    """The launch that writes at each element what is reduced of those up to it along an axis."""
    kept = [other for other in range(len(shape)) if other != axis]
    if math.prod(shape):
        its = _tree(shape, kept, [axis])
        # One block has all the elements of a row, a thread so many of them at a time.
        its = replace(its, parts=1, span=min(-(-shape[axis] // its.lanes), SERIAL))
        yield _launch(text, shape, kept, [axis], [x], [], [result], access, its, is_scan=True)


def _tree(shape: Shape, kept: Sequence[int], axes: Sequence[int]) -> Tree:
    last = max((axis for axis in range(len(shape)) if shape[axis] != 1), default=-1)
    results, count = (math.prod(shape[axis] for axis in chosen) for chosen in (kept, axes))
    return tree(results, count, last < 0 or last in axes)


def _launch(
    text: ReductionText,
    shape: Shape,
    kept: Sequence[int],
    axes: Sequence[int],
    inputs: Sequence[Any],
    stored: Sequence[Any],
    results: Sequence[Any],
    access: Callable[[Any], Access],
    its: Tree,
    is_scan: bool = False,
) -> ReductionLaunch:
    accesses = [access(x) for x in (*inputs, *stored, *results)]
    strided = (*inputs, *stored, *(results if is_scan else ()))
    strides = [_strides(x, shape) for x, a in zip(strided, accesses, strict=False) if a.strides is not None]
    outer, reduced = (joined_axes(shape, chosen, strides) for chosen in (kept, axes))
    spec = ReductionSpec(text, len(outer[0]), len(reduced[0]), its.lanes, its.is_inner, tuple(accesses), is_scan)
    results_count, count = (math.prod(sizes) for sizes, _ in (outer, reduced))
    numbers = [results_count, count, its.span, *outer[0], *reduced[0]]
    for mine in zip(outer[1], reduced[1], strict=True):
        numbers += [stride for part in mine for stride in part]
    arguments = (*inputs, *stored, *results)
    return ReductionLaunch(spec, arguments, tuple(numbers), its.blocks(results_count))


def _strides(x: Any, shape: Shape) -> list[int]:
    """Of an array that is seen with a shape that it broadcasts to."""
    lead = len(shape) - len(x.shape)
    return [0] * lead + [0 if n == 1 else step for n, step in zip(x.shape, x.strides, strict=True)]


__all__ = ["scan", "stages"]
