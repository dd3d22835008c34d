"""Why a compiled loop stopped, as the error that the reference engine would raise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.engines.native.program import BOUND, FOUND, ITERATIONS, PLACE, TRIPS, Site, Status
from ctrlgrad.engines.reference.control_kernels import in_iteration, note, too_many_iterations
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.engines.reference.run import Run
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError
from ctrlgrad.ir import Node


def failure(
    node: Node,
    status: Status,
    table: np.ndarray,
    sites: Sequence[Site],
    done: int,
    before: int,
    first: int | None,
    run: Run,
    raised: BaseException | None = None,
) -> BaseException:
    """The error of a loop, from what its function left in the table.

    `done` iterations were over before this chunk, `before` of them elsewhere; `first` is the first value of the first
    carry, from which a reversed loop counts down; `raised` is what a reference kernel raised that it called.
    """
    place, found, bound = (int(table[i]) for i in (PLACE, FOUND, BOUND))
    site = sites[place]
    name, source = site.node.op.name, site.node.source
    if status is Status.WRITTEN_TWICE:
        error: BaseException = ExecutionError(
            f"TensorArray: slot {found} is written twice",
            source=source,
            expected="a slot that was not written before",
            got=f"another write at index {found}",
            hint="TensorArray(..., rewritable=True) makes an array whose slots may be written again",
        )
    elif status is Status.TOO_MANY_ITERATIONS:
        maximum = site.node.attrs["maximum_iterations"]
        error = too_many_iterations(site.node, maximum, maximum)
    elif status is Status.RAISED:
        assert raised is not None
        error = explained(raised, site.node)
    elif name.startswith("stack_"):
        error = IndexOutOfRangeError(
            f"TensorArray: index {found} is out of range",
            source=source,
            expected=f"-{bound} <= index < {bound}" if bound else "an array with at least one slot",
            got=str(found),
            hint="give the array a larger size, or none: then a write at index size() makes it grow",
        )
    else:
        error = out_of_range(site, found, bound)
    around = list(zip(site.loops, table[ITERATIONS:][: len(site.loops)], strict=True))
    if status is Status.TOO_MANY_ITERATIONS and around:
        around.pop()  # the loop itself
    for loop, passed in reversed(around):
        error.add_note(in_iteration(loop, int(passed), from_the_end=True))
    if status is not Status.TOO_MANY_ITERATIONS or site.loops:
        iteration = number_of(node, done + int(table[TRIPS]), before, first)
        note(error, node, iteration, run, is_inside=False)
    return error


def out_of_range(site: Site, found: int, bound: int) -> IndexOutOfRangeError:
    """The error of an index that is not within an axis of size `bound`."""
    name = site.node.op.name
    return IndexOutOfRangeError(
        f"{name}: index {found} is out of bounds for axis {site.axis} with size {bound}",
        source=site.node.source,
        expected=f"-{bound} <= index < {bound}",
        got=f"index {found}; operands {', '.join(str(v.type) for v in site.node.operands)}",
        hint="clip the index, or let the loop end before it leaves the array",
    )


def number_of(loop: Node, passed: int, before: int, first: int | None) -> int:
    """The number of the iteration after `passed` others; a reversed loop counts down from its number of iterations."""
    if loop.attrs.get("counts_down") and first is not None:
        return first - 1 - (passed - before)
    return passed
