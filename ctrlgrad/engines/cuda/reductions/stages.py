"""The launches of a reduction or a scan: one, or more where blocks share the elements of a result, or of a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access, broadcast_strides, joined_axes
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.reductions.model import (
    ReductionLaunch,
    ReductionSpec,
    ReductionText,
    without_reductions,
)
from ctrlgrad.engines.cuda.reductions.tree import Tree, scan_tree, tree

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
    its = tree(*_extent(shape, kept, axes))
    if its.parts == 1:
        yield _launch(text, shape, kept, axes, inputs, stored, results, access, its)
        return
    states = [empty((its.parts, *sizes), np.dtype(state.dtype)) for state in text.states]
    yield _launch(text.partial, shape, kept, axes, inputs, stored, states, access, its)
    yield from stages(text.of_states, (its.parts, *sizes), [0], states, [], results, access, empty)


def elementwise(
    text: KernelText, shape: Shape, inputs: Sequence[Any], outputs: Sequence[Any], access: Callable[[Any], Access]
) -> Iterator[ReductionLaunch]:
    """The launch that computes each element of a shape by itself, if there are any. Arguments are those of `stages`."""
    if math.prod(shape):
        its = Tree(lanes=1, is_inner=False, parts=1, span=1)
        yield _launch(without_reductions(text), shape, range(len(shape)), (), inputs, outputs, (), access, its)


def scan(
    text: ReductionText,
    shape: Shape,
    axis: int,
    inputs: Sequence[Any],
    results: Sequence[Any],
    access: Callable[[Any], Access],
    empty: Callable[[Shape, np.dtype], Any],
) -> Iterator[ReductionLaunch]:
    """The launches that write at each element what is reduced of those up to it along an axis.

    Where blocks share a row, its parts are reduced first, and what is found of these is scanned: each part begins with
    what is before it. Arguments are those of `stages`.
    """
    kept = [other for other in range(len(shape)) if other != axis]
    if not math.prod(shape):
        return
    its = scan_tree(*_extent(shape, kept, [axis]))
    before: list[Any] = []
    if its.parts > 1:
        sizes = (its.parts, *(shape[other] for other in kept))
        states, before = ([empty(sizes, np.dtype(state.dtype)) for state in text.states] for _ in range(2))
        yield _launch(text.partial, shape, kept, [axis], inputs, [], states, access, its)
        yield from scan(text.of_states.partial, sizes, 0, states, before, access, empty)
    yield _launch(text, shape, kept, [axis], inputs, [], results, access, its, before, is_scan=True)


def _extent(shape: Shape, kept: Sequence[int], axes: Sequence[int]) -> tuple[int, int, bool]:
    """Number of results, number of elements of each, and true if the last axis is reduced."""
    last = max((axis for axis in range(len(shape)) if shape[axis] != 1), default=-1)
    results, count = (math.prod(shape[axis] for axis in chosen) for chosen in (kept, axes))
    return results, count, last < 0 or last in axes


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
    before: Sequence[Any] = (),
    is_scan: bool = False,
) -> ReductionLaunch:
    arguments = (*inputs, *before, *stored, *results)
    accesses = tuple(map(access, arguments))
    strided = (*inputs, *stored, *(results if is_scan else ()))
    strides = [broadcast_strides(x, shape) for x in strided if access(x).strides is not None]
    outer, reduced = (joined_axes(shape, chosen, strides) for chosen in (kept, axes))
    axis_counts = len(outer[0]), len(reduced[0])
    spec = ReductionSpec(text, *axis_counts, its.lanes, its.is_inner, accesses, is_scan, bool(before))
    results_count, count = (math.prod(sizes) for sizes, _ in (outer, reduced))
    numbers = [results_count, count, its.span, *outer[0], *reduced[0]]
    for mine in zip(outer[1], reduced[1], strict=True):
        numbers += [stride for part in mine for stride in part]
    return ReductionLaunch(spec, arguments, tuple(numbers), its.blocks(results_count))
