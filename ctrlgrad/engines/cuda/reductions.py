"""Reductions and scans of a graph: axes, shapes, texts and launches, and their execution step by step.

An element's expression, and the combination of two states, are expressions of the plan. `reduction_kernels` has the
kernels. A scan of parts scans the blocks' states, and each block goes on from the state before its part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ctrlgrad.dtypes import COMPLEX_OF, computed_dtype, dtype_kind
from ctrlgrad.engines.cuda.kernel import (
    MOST_SHORT,
    Access,
    KernelLaunch,
    KernelText,
    Parameter,
    broadcast_strides,
    element_lines,
    joined_axes,
    leaf_of,
    literal,
    statements,
)
from ctrlgrad.engines.cuda.reduction_kernels import (
    POSITION,
    KernelSpec,
    ReductionText,
    Result,
    Tree,
    scan_tree,
    tree,
    without_reductions,
)
from ctrlgrad.ir import Node, attributes
from ctrlgrad.plan.elementwise import Operand, elementwise_expression, has_expression
from ctrlgrad.plan.expression import ExpressionBuilder, Instruction, Number, select
from ctrlgrad.plan.lowering.state import expression_of
from ctrlgrad.plan.model import Array, How, Kernel, Write
from ctrlgrad.plan.reductions import EXTREMES, HOW, neutral_of

_OPS = {"sum": "add", "product": "multiply", "max": "maximum", "min": "minimum"}
_OF_BOOLS = {"max": "logical_or", "min": "logical_and"}

INT64 = np.dtype(np.int64)


def _op(how: str, dtype: np.dtype) -> str:
    return _OF_BOOLS.get(how, "") if dtype.kind == "b" else _OPS[how]


def is_reduced(how: str, dtype: np.dtype) -> bool:
    """Return true if kernels can reduce a dtype in this way."""
    return has_expression(_op(how, dtype), [dtype, dtype], dtype)


@dataclass(frozen=True)
class _Combined:
    """One of the reductions: `how` of numbers of dtypes (two of a complex one)."""

    how: str
    dtypes: tuple[np.dtype, ...]

    @property
    def starts(self) -> list[str]:
        if len(self.dtypes) == 2:
            # A complex number's.
            real = self.dtypes[0].type(self.how == "product")
            return [literal(x, self.dtypes[0]) for x in (real, self.dtypes[0].type(0))]
        (dtype,) = self.dtypes
        return [literal(dtype.type(neutral_of(self.how, dtype)), dtype)]

    def of(self, builder: ExpressionBuilder, x: Sequence[Number], y: Sequence[Number]) -> tuple[Number, ...]:
        its = self.dtypes[0] if len(self.dtypes) == 1 else COMPLEX_OF[self.dtypes[0]]
        operands: list[Operand] = [v[0] if len(v) == 1 else (v[0], v[1]) for v in (x, y)]
        found = elementwise_expression(_op(self.how, its), [its, its], its, builder, operands)
        return found if isinstance(found, tuple) else (found,)


def _combination(reductions: Sequence[_Combined]) -> KernelText:
    """All of them at once."""
    dtypes = [dtype for reduction in reductions for dtype in reduction.dtypes]
    builder = ExpressionBuilder()
    x, y = ([builder.emit("load", (), d, (side, k)) for k, d in enumerate(dtypes)] for side in "xy")
    found: list[Number] = []
    for reduction in reductions:
        mine = slice(len(found), len(found) + len(reduction.dtypes))
        found += reduction.of(builder, x[mine], y[mine])
    return _states_text(builder, found, dtypes)


def _states_text(builder: ExpressionBuilder, found: Sequence[Number], dtypes: Sequence[np.dtype]) -> KernelText:
    def leaf(load: Instruction) -> str:
        side, k = load.value
        return f"{side}{k}"

    text = statements(builder.finish(*found), leaf)
    inputs = [Parameter(dtype.name, f"{side}{k}") for side in "xy" for k, dtype in enumerate(dtypes)]
    outputs = [Parameter(dtype.name, f"r{k}") for k, dtype in enumerate(dtypes)]
    lines = [*text.lines, *(f"r{k} = {name};" for k, name in enumerate(text.outputs))]
    return KernelText(tuple(inputs), tuple(outputs), "\n".join(lines), text.functions)


def reduction_text(kernel: Kernel) -> ReductionText:
    """The text of a plan's kernel some of whose writes are reductions, over the same axes.

    Inputs and what is stored are called as in `kernel_text`; results are in the order of the writes.
    """
    text = statements(kernel.expression, leaf_of(kernel))
    dtypes = [kernel.expression.instructions[output].dtype for output in kernel.expression.outputs]
    inputs, stored, lines = element_lines(kernel, text)
    reductions: list[_Combined] = []
    results: list[Result] = []
    states: list[Parameter] = []
    for write in kernel.writes:
        if write.how == "store":
            continue
        numbers = tuple(range(len(states), len(states) + len(write.outputs)))
        for number, output in zip(numbers, write.outputs, strict=True):
            states.append(Parameter(dtypes[output].name, f"e{number}"))
            lines.append(f"e{number} = {text.outputs[output]};")
        reductions.append(_Combined(write.how, tuple(dtypes[output] for output in write.outputs)))
        results.append(Result(write.view.dtype.name, numbers))
    element = KernelText(inputs, (*stored, *states), "\n".join([*text.lines, *lines]), text.functions)
    starts = tuple(start for reduction in reductions for start in reduction.starts)
    return ReductionText(element, _combination(reductions), starts, tuple(results))


def plain_text(how: How, dtype: np.dtype) -> ReductionText:
    """The reduction of one array."""
    array = Array("x", dtype, ())
    expression, operands, _ = expression_of(
        [array.view], lambda builder, leaf: [x.convert(computed_dtype(x.dtype)) for x in leaf]
    )
    write = Write(array.view, tuple(range(len(expression.outputs))), how)
    return reduction_text(Kernel((), operands, (), expression, (write,)))


def extreme_text(how: str, dtype: np.dtype) -> ReductionText:
    """Position of the first "max" or "min" of one array's elements. A NaN is beyond all numbers, as in NumPy.

    A state is an element and its position; that of no element is -1, which any other comes before.
    """
    builder, state = ExpressionBuilder(), computed_dtype(dtype)
    (x, i), (y, j) = (
        (builder.emit("load", (), state, (side, 0)), builder.emit("load", (), INT64, (side, 1))) for side in "xy"
    )
    beyond, equal = (y > x, x.equals(y)) if how == "max" else (y < x, x.equals(y))
    if dtype_kind(dtype) == "f":
        is_x, is_y = x.differs(x), y.differs(y)
        beyond, equal = (beyond | is_y) & ~is_x, equal | (is_x & is_y)
    is_next = (j >= 0) & ((i < 0) | beyond | (equal & (j < i)))
    combination = _states_text(builder, [select(is_next, y, x), select(is_next, j, i)], [state, INT64])
    inputs = (Parameter(dtype.name, "a0"), POSITION)
    outputs = (Parameter(state.name, "e0"), Parameter("int64", "e1"))
    value = "a0" if state == dtype else f"{state.name}(a0)"
    element = KernelText(inputs, outputs, f"e0 = {value};\ne1 = position;")
    starts = (literal(state.type(0), state), literal(np.int64(-1), INT64))
    return ReductionText(element, combination, starts, (Result("int64", (1,)),))


# The scans of the plan's kernels, by op.
SCANS: dict[str, Literal["sum", "product"]] = {"cumsum": "sum", "cumprod": "product"}

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
"""The ops that name their axes."""


def node_text(node: Node) -> ReductionText:
    """The kernel of a reduction or scan alone."""
    name, dtype = node.op.name, node.operands[0].tensor.dtype
    return extreme_text(EXTREMES[name], dtype) if name in EXTREMES else plain_text((HOW | SCANS)[name], dtype)


def reduced_axes(node: Node) -> tuple[int, ...]:
    """The axes of the operand that are reduced."""
    if node.op.name != "sum_to":
        return attributes.Axes.of(node).axes
    return summed_axes(node.operands[0].tensor.shape, node.result.tensor.shape)


def summed_axes(shape: Sequence[int | None], target: Sequence[int | None]) -> tuple[int, ...]:
    """The axes that are added up from a shape to one that broadcasts to it."""
    lead = len(shape) - len(target)
    return (*range(lead), *(lead + axis for axis, d in enumerate(target) if d == 1 != shape[lead + axis]))


def reduced_shape(node: Node, space: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what is reduced of an array, by an op that names its axes or to a known shape."""
    if node.op.name == "sum_to":
        return tuple(d for d in node.result.tensor.shape if d is not None)
    axes, keeps = attributes.Axes.of(node).axes, attributes.Reduction.of(node).keepdims
    return tuple(d if axis not in axes else 1 for axis, d in enumerate(space) if keeps or axis not in axes)


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
) -> Iterator[KernelLaunch]:
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
) -> Iterator[KernelLaunch]:
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
) -> Iterator[KernelLaunch]:
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
) -> KernelLaunch:
    arguments = (*inputs, *before, *stored, *results)
    accesses = tuple(map(access, arguments))
    strided = (*inputs, *stored, *(results if is_scan else ()))
    strides = [broadcast_strides(x, shape) for x in strided if not access(x).is_number]
    outer, reduced = (joined_axes(shape, chosen, strides) for chosen in (kept, axes))
    axis_counts = len(outer[0]), len(reduced[0])
    results_count, count = (math.prod(sizes) for sizes, _ in (outer, reduced))
    is_short = max(results_count, count) <= MOST_SHORT
    spec = KernelSpec(text, *axis_counts, its.lanes, its.is_inner, accesses, is_scan, bool(before), is_short)
    numbers = [results_count, count, its.span, *outer[0], *reduced[0]]
    for mine in zip(outer[1], reduced[1], strict=True):
        numbers += [stride for part in mine for stride in part]
    return KernelLaunch(spec, arguments, tuple(numbers), its.blocks(results_count))
