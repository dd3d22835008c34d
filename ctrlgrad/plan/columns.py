"""Matrices whose short rows a loop reduces again and again, laid out column after column before the loop.

A row of few elements fills a vector badly, and the lanes of each have to be added up. With the elements of a column
side by side, a vector has a lane for each row and every lane adds up its own: distances to some points that stay, sums
of short products. A kernel keeps its matrix beside the columns, for runs whose rows turn out to be long or many.

Out: kernels that reduce the rows of matrices which a loop leaves as they are have columns of all of these; they are
laid out before the outermost such loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.plan.effects import defined_inside, names_of, with_blocks
from ctrlgrad.plan.model import Array, Block, Columns, Kernel, Loop, Operand, Plan, Step, View
from ctrlgrad.plan.sizes import ONE, ZERO, Size
from ctrlgrad.records import record

# Rows of at most so many elements are short; matrices of at most so many elements are near when they are read again;
# of fewer rows, where that is known, there is no vector.
LONGEST, MOST_ELEMENTS, FEWEST_ROWS = 16, 1 << 14, 8


def lay_out_columns(plan: Plan) -> Plan:
    """The plan with columns of such matrices."""
    return replace(plan, body=_Layout().block(plan.body, ()))


def matrix_of(view: View) -> tuple[Size, Size]:
    """Of columns that a view shows: how many rows there are, and how many elements a row has."""
    rows, terms = (n for n, stride in zip(view.shape, view.strides, strict=True) if stride != ZERO)
    return rows, terms


def is_laid_out(terms: int, rows: int, capacity: int) -> bool:
    """Return true if a run lays a matrix out, in an array of `capacity` elements."""
    return terms <= LONGEST and rows * terms <= capacity


@record(frozen=False)
class _Around:
    """A loop around a step: what it defines, and what is laid out before it."""

    defined: set[object]
    columns: dict[View, Columns]


class _Layout:
    def __init__(self) -> None:
        self.count = 0

    def block(self, block: Block, around: Sequence[_Around]) -> Block:
        steps: list[Step] = []
        for step in block.steps:
            if isinstance(step, Loop):
                loop = _Around(defined_inside(step), {})
                inside = (*around, loop)
                step = with_blocks(step, partial(self.block, around=inside))
                steps += loop.columns.values()
            elif isinstance(step, Kernel):
                step = self.kernel(step, around)
            else:
                # Nothing is laid out for a branch's blocks from outside, since they may not run.
                step = with_blocks(step, partial(self.block, around=()))
            steps.append(step)
        return replace(block, steps=tuple(steps))

    def kernel(self, kernel: Kernel, around: Sequence[_Around]) -> Kernel:
        axes = _rows_of(kernel)
        if axes is None:
            return kernel
        row, _ = axes
        loops: dict[Operand, _Around] = {}
        for operand in kernel.operands:
            if operand.view.strides[row] in (ZERO, ONE):
                continue
            loop = _outermost(operand.view, around)
            if loop is None or operand.gathered or not _is_matrix(operand.view, axes):
                return kernel
            loops[operand] = loop
        if not loops:
            return kernel
        found = [self.with_columns(o, axes, loops[o]) if o in loops else o for o in kernel.operands]
        return replace(kernel, operands=tuple(found))

    def with_columns(self, operand: Operand, axes: tuple[int, int], loop: _Around) -> Operand:
        view = operand.view
        rows, terms = (view.shape[axis] for axis in axes)
        matrix = View(view.array, view.offset, (rows, terms), tuple(view.strides[axis] for axis in axes))
        if matrix not in loop.columns:
            self.count += 1
            elements = rows * terms
            size = elements if elements.is_known else Size(MOST_ELEMENTS)
            loop.columns[matrix] = Columns(Array(f"c{self.count}", view.dtype, (size,)), matrix)
        strides = [ZERO] * len(view.shape)
        strides[axes[0]], strides[axes[1]] = ONE, rows
        return replace(operand, columns=View(loop.columns[matrix].result, (), view.shape, tuple(strides)))


def _rows_of(kernel: Kernel) -> tuple[int, int] | None:
    """The axes of rows and of their elements, in a kernel that only reduces short rows; else None."""
    axes = [axis for axis, size in enumerate(kernel.space) if size != ONE]
    if len(axes) < 2 or kernel.checks or any(size == ZERO for size in kernel.space):
        return None
    row, along = axes[-2:]
    for write in kernel.writes:
        strides = write.view.strides
        if write.how == "store" or write.scattered or write.base is not None or dtype_kind(write.view.dtype) == "c":
            return None
        if (strides[row], strides[along]) != (ONE, ZERO) or any(strides[axis] == ZERO for axis in axes[:-1]):
            return None
    rows, terms = kernel.space[row], kernel.space[along]
    if (terms.is_known and terms.factor > LONGEST) or (rows.is_known and rows.factor < FEWEST_ROWS):
        return None
    elements = rows * terms
    return None if elements.is_known and elements.factor > MOST_ELEMENTS else (row, along)


def _is_matrix(view: View, axes: tuple[int, int]) -> bool:
    """Return true if a view is of real numbers, and varies along these axes only."""
    return dtype_kind(view.dtype) != "c" and all(
        (stride != ZERO) == (axis in axes) or size == ONE
        for axis, (stride, size) in enumerate(zip(view.strides, view.shape, strict=True))
    )


def _outermost(view: View, around: Sequence[_Around]) -> _Around | None:
    """The outermost loop that leaves a view as it is, with all loops inside it."""
    needed = {view.array, *names_of((*view.offset, *view.strides, *view.shape))}
    found = None
    for loop in reversed(around):
        if not needed.isdisjoint(loop.defined):
            break
        found = loop
    return found
