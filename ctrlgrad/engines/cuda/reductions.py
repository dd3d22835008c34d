"""Reductions, scans and elementwise kernels: texts, kernels by a fixed tree, and launches.

An element's expression, and the combination of two states, are expressions of the plan. `tree` says, by the shape
alone, how many threads share the elements of one result, so a chunk that is run again has the same bits: each goes
through at most `SERIAL` of them (the error of a sum grows with that and with the depth of the tree, not with the number
of elements), and a tree in shared memory makes their states one. A state is what is known of some of the elements:
their sum so far, or an extreme and its position. If more than one block shares a result, the blocks' states go to
memory, and another kernel reduces those (`stages`). A scan of parts scans the blocks' states, and each block goes on
from the state before its part. Neighbouring threads read neighbouring elements, whether the last axis is reduced or
stays. One compiled kernel serves all shapes of a rank.

Parameters are the address of the words (if anything moves), arrays and numbers in the order of the accesses, and
int64s: the number of results, of elements of each, of elements of one block; the sizes of the axes that stay and of
those that are reduced; and each array's strides along these, in bytes. Results lie as [part, result], and so do the
states that a part of a scan begins with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from ctrlgrad.dtypes import COMPLEX_OF, computed_dtype, dtype_kind
from ctrlgrad.engines.cuda.kernel import (
    MOST_SHORT,
    Access,
    KernelLaunch,
    KernelText,
    Parameter,
    Spec,
    broadcast_strides,
    definitions,
    element_lines,
    joined_axes,
    leaf_of,
    literal,
    number,
    preamble,
    rounded,
    statements,
)
from ctrlgrad.ir import Node, attributes
from ctrlgrad.plan.elementwise import Operand, elementwise_expression, has_expression
from ctrlgrad.plan.expression import ExpressionBuilder, Instruction, Number, select
from ctrlgrad.plan.lowering.state import expression_of
from ctrlgrad.plan.model import Array, How, Kernel, Write
from ctrlgrad.plan.reductions import EXTREMES, HOW, neutral_of

# Threads of a block, the most elements that one goes through where there are more threads, and the most blocks.
BLOCK, SERIAL, MOST_BLOCKS = 256, 32, 1 << 16
# The most bytes that a block's threads share without being asked for more.
SHARED = 48 << 10
# A thread has so many elements where they are few.
_FEW = 4
# Neighbouring results that a block reads together, at least: as many as a warp has threads.
_WARP = 32
# The most blocks of a scan that come from sharing rows: about two for each multiprocessor of a large card.
SCAN_BLOCKS = 256


@dataclass(frozen=True)
class Tree:
    """`lanes` threads share the elements of a result; `parts` blocks do, `span` elements each but the last."""

    lanes: int
    is_inner: bool
    parts: int
    span: int

    def blocks(self, results: int) -> int:
        """The blocks of a launch; those that there are too few of go on."""
        return min(-(-results // (BLOCK // self.lanes)) * self.parts, MOST_BLOCKS)


def tree(results: int, count: int, is_inner: bool) -> Tree:
    """For as many results, each of `count` elements; `is_inner`: the last axis is reduced."""
    most = BLOCK if is_inner else BLOCK // min(_power(results), _WARP)
    lanes = min(most, _power(-(-count // _FEW)))
    parts = max(-(-count // (lanes * SERIAL)), 1)
    return Tree(lanes, is_inner, parts, lanes * SERIAL if parts > 1 else count)


def scan_tree(results: int, count: int, is_inner: bool) -> Tree:
    """As `tree`, for scans: a row has several blocks where there are few rows. Each goes on through its part, a turn of
    as many elements as its threads have at once after the other."""
    its = tree(results, count, is_inner)
    turn, groups = its.lanes * SERIAL, -(-results // (BLOCK // its.lanes))
    turns = -(-count // turn)
    of_a_part = -(-turns // max(SCAN_BLOCKS // groups, 1))
    parts = -(-turns // of_a_part)
    return replace(its, parts=parts, span=of_a_part * turn if parts > 1 else count)


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


POSITION = Parameter("int64", "position")
"""The input of an element's text that is its number along the reduced axes."""


@dataclass(frozen=True)
class Result:
    """Result of a reduction: a number of a dtype, made of one state, or of two for a complex number."""

    dtype: str
    states: tuple[int, ...]


@dataclass(frozen=True)
class ReductionText:
    """Reductions of one space over the same axes.

    `element` computes for one element: its first outputs are stored at once, and the remaining ones are the
    element's states. `combination` makes of states x0, x1, ... and those of later elements, y0, y1, ..., the states
    of all, r0, r1, ...; `starts` are the states of no element. Without states nothing is reduced.
    """

    element: KernelText
    combination: KernelText
    starts: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def states(self) -> tuple[Parameter, ...]:
        return self.combination.outputs

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """Inputs that are read from memory, or passed."""
        return tuple(p for p in self.element.inputs if p != POSITION)

    @property
    def stored(self) -> tuple[Parameter, ...]:
        """Outputs that are stored for each element."""
        return self.element.outputs[: len(self.element.outputs) - len(self.states)]

    @property
    def written(self) -> tuple[Parameter, ...]:
        """Outputs that are written for all elements together."""
        return tuple(Parameter(result.dtype, f"q{k}") for k, result in enumerate(self.results))

    @property
    def before(self) -> tuple[Parameter, ...]:
        """The states of all before a part, where a scan's blocks share a row."""
        return tuple(Parameter(state.dtype, f"s{k}") for k, state in enumerate(self.states))

    @property
    def partial(self) -> ReductionText:
        """The same, of which the states are written."""
        results = tuple(Result(state.dtype, (k,)) for k, state in enumerate(self.states))
        return ReductionText(self.element, self.combination, self.starts, results)

    @property
    def of_states(self) -> ReductionText:
        """The reduction of what `partial` has written."""
        inputs = tuple(Parameter(state.dtype, f"a{k}") for k, state in enumerate(self.states))
        outputs = tuple(Parameter(state.dtype, f"e{k}") for k, state in enumerate(self.states))
        text = "\n".join(f"e{k} = a{k};" for k in range(len(self.states)))
        return ReductionText(KernelText(inputs, outputs, text), self.combination, self.starts, self.results)

    @property
    def preamble(self) -> str:
        """Definitions of the functions that its text calls."""
        written = " ".join(map(str, (self.element, self.combination, *self.written)))
        return preamble(written) + definitions((*self.element.functions, *self.combination.functions))

    def __str__(self) -> str:
        starts = ", ".join(f"{state.name} = {start}" for state, start in zip(self.states, self.starts, strict=True))
        results = ", ".join(map(str, self.written))
        return f"{self.element}\nreduced from {starts} to ({results}) by\n{self.combination.operation}"


def without_reductions(text: KernelText) -> ReductionText:
    """An elementwise kernel."""
    return ReductionText(text, KernelText((), (), ""), (), ())


@dataclass(frozen=True)
class KernelSpec(Spec):
    """A kernel: the text, how many axes stay and are reduced, and who goes through which elements.

    `lanes` threads of a block share the elements of one result. Neighbours among them are neighbouring elements where
    `is_inner`, else neighbouring results. The accesses are those of the parameters. A scan writes at each element what
    is reduced of those up to it; where it `continues`, each part of a row begins with the states of all up to it.
    """

    text: ReductionText
    kept: int
    reduced: int
    lanes: int
    is_inner: bool
    accesses: tuple[Access, ...]
    is_scan: bool = False
    continues: bool = False
    is_short: bool = True
    threads: ClassVar[int] = BLOCK

    @property
    def is_elementwise(self) -> bool:
        """Return true if nothing is reduced."""
        return not self.text.states

    @property
    def reads(self) -> tuple[Parameter, ...]:
        """The parameters that are read."""
        return (*self.text.inputs, *(self.text.before if self.continues else ()))

    @property
    def writes(self) -> tuple[Parameter, ...]:
        """The parameters that are written."""
        return (*self.text.stored, *self.text.written)

    @property
    def by_part(self) -> tuple[Parameter, ...]:
        """Parameters whose arrays have the shape [part, result], contiguous; the other arrays have the elements'
        sizes."""
        return self.text.before if self.is_scan else self.text.written

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the parameters behind the arrays, int64 each: see the module."""
        sizes = [f"n{axis}" for axis in range(self.kept + self.reduced)]
        strided = [
            p.name
            for p, access in zip(self.parameters, self.accesses, strict=True)
            if not access.is_number and p not in self.by_part
        ]
        strides = [f"t_{name}_{axis}" for name in strided for axis in range(self.kept + self.reduced)]
        return ("results", "count", "span", *sizes, *strides)

    @property
    def preamble(self) -> str:
        extra = ([_SET_CONDITION] * bool(self.conditions)) if self.is_elementwise else _combine(self.text)
        return "\n".join([self.text.preamble, *extra])

    @property
    def statements(self) -> list[str]:
        if not self.is_elementwise:
            return _tiles(self)
        return self.loop("result", "results", [*_indices(self, "result", range(self.kept)), *_element(self)])


def of_numbers(text: KernelText, *accesses: Access) -> KernelSpec:
    """An elementwise kernel of one element, whose `numbers` are `ONE`."""
    return KernelSpec(without_reductions(text), 0, 0, 1, False, accesses)


ONE = (1, 1, 1)


# Stores the condition of a graph. NVRTC has no header that declares it.
_SET_CONDITION = 'extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);'


def _tiles(spec: KernelSpec) -> list[str]:
    """Statements of a thread where elements become states: for some results, or rows, at a time."""
    text, lines = spec.text, list[str]()
    if spec.lanes > 1:
        lines += [f"__shared__ {state.dtype} h{k}[{BLOCK}];" for k, state in enumerate(text.states)]
    along, across = f"(int)threadIdx.x % {spec.lanes}", f"(int)threadIdx.x / {spec.lanes}"
    groups = BLOCK // spec.lanes
    if not spec.is_inner:
        along, across = f"(int)threadIdx.x / {groups}", f"(int)threadIdx.x % {groups}"
    return lines + [
        f"const int lane = {along}, group = {across};",
        f"const long long wide = (results + {groups - 1}) / {groups};",
        "const long long tiles = wide * (count > span ? (count + span - 1) / span : 1);",
        "for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {",
        f"const long long part = tile / wide, result = tile % wide * {groups} + group;",
        *(f"{state.dtype} {state.name} = {start};" for state, start in zip(text.states, text.starts, strict=True)),
        *(_scan(spec) if spec.is_scan else _reduction(spec)),
        "}",
    ]


# Where a block's part ends.
_END = "const long long end = count - part * span < span ? count : (part + 1) * span;"


def _reduction(spec: KernelSpec) -> list[str]:
    """Statements of a thread for a tile: its elements, and the tree."""
    text = spec.text
    return [
        "if (result < results) {",
        *_indices(spec, "result", range(spec.kept)),
        _END,
        f"for (long long position = part * span + lane; position < end; position += {spec.lanes}) {{",
        *_indices(spec, "position", range(spec.kept, spec.kept + spec.reduced)),
        *_element(spec),
        f"combine({', '.join(_pairs(text, 'e{}'))});",
        "}",
        "}",
        *(_tree(spec) if spec.lanes > 1 else []),
        "if (lane == 0 && result < results) {",
        *(
            f"(({p.dtype}*)p_{p.name})[part * results + result] = {_value(text, result)};"
            for p, result in zip(text.written, text.results, strict=True)
        ),
        "}",
    ]


def _scan(spec: KernelSpec) -> list[str]:
    """Statements of a thread for a tile: at most `SERIAL` elements of a row at a time, beside those of the other
    lanes.

    The state of its elements becomes that of all up to the last of them, in as many steps as the number of lanes has
    bits. Then it goes through them again, from the state of all before them: that of the row so far, c0, c1, ..., and
    of the lanes before it.
    """
    text, pitch = spec.text, 1 if spec.is_inner else BLOCK // spec.lanes
    carried, wholes, before = ([f"{name}{k}" for k in range(len(text.states))] for name in "clw")
    own = [state.name for state in text.states]
    shared = [f"h{k}[threadIdx.x] = {name};" for k, name in enumerate(own)]
    where = _indices(spec, "position", range(spec.kept, spec.kept + spec.reduced))
    elements = "for (long long position = begin; position < last; position++) {"
    added = f"combine({', '.join(_pairs(text, 'e{}'))});"
    stored = [
        f"*({p.dtype}*){_place(spec, p)} = {rounded(p.dtype, ', '.join(own[k] for k in result.states))};"
        for p, result in zip(text.written, text.results, strict=True)
    ]

    def read(names: list[str], lane: str) -> list[str]:
        return [f"{name} = h{k}[{lane}];" for k, name in enumerate(names)]

    def combined(names: list[str], others: list[str]) -> str:
        return f"combine({', '.join([*names, *others])});"

    steps = [
        *shared,
        f"for (int step = 1; step < {spec.lanes}; step *= 2) {{",
        "__syncthreads();",
        "if (lane >= step) {",
        *read(before, f"threadIdx.x - step * {pitch}"),
        combined(before, own),
        *(f"{mine} = {name};" for mine, name in zip(own, before, strict=True)),
        "}",
        # All have read.
        "__syncthreads();",
        *shared,
        "}",
        "__syncthreads();",
        *read(wholes, f"threadIdx.x + ({spec.lanes - 1} - lane) * {pitch}"),
        *_started(text, own),
        *([f"if (lane > 0) {{ {' '.join(read(own, f'threadIdx.x - {pitch}'))} }}"]),
        # No thread writes for the next elements before all have read.
        "__syncthreads();",
    ]
    alone = [*(f"{whole} = {mine};" for whole, mine in zip(wholes, own, strict=True)), *_started(text, own)]
    return [
        *(
            f"{state.dtype} {name};"
            for names in (carried, wholes, before)
            for state, name in zip(text.states, names, strict=True)
        ),
        *_started(text, carried),
        *(_continued(spec, carried) if spec.continues else []),
        *_indices(spec, "result", range(spec.kept)),
        _END,
        f"const long long turn = span < {spec.lanes * SERIAL} ? (span + {spec.lanes - 1}) / {spec.lanes} : {SERIAL};",
        f"for (long long first = part * span; first < end; first += {spec.lanes} * turn) {{",
        "const long long begin = first + lane * turn, next = begin + turn < end ? begin + turn : end;",
        "const long long last = result < results ? next : begin;",
        *_started(text, own),
        *(elements, *where, *_element(spec), added, "}"),
        *(steps if spec.lanes > 1 else alone),
        *(f"{name} = {c};" for name, c in zip(before, carried, strict=True)),
        combined(before, own),
        *(f"{mine} = {name};" for mine, name in zip(own, before, strict=True)),
        *(elements, *where, *_element(spec), added, *stored, "}"),
        combined(carried, wholes),
        "}",
    ]


def _continued(spec: KernelSpec, carried: list[str]) -> list[str]:
    """A part begins with the states of all before it."""
    places = [f"(({p.dtype}*)p_{p.name})[(part - 1) * results + result]" for p in spec.text.before]
    read = " ".join(f"{name} = {place};" for name, place in zip(carried, places, strict=True))
    return [f"if (part && result < results) {{ {read} }}"]


def _started(text: ReductionText, names: list[str]) -> list[str]:
    """States of no element."""
    return [f"{name} = {start};" for name, start in zip(names, text.starts, strict=True)]


def _pairs(text: ReductionText, other: str) -> list[str]:
    """Arguments of a combination: the states so far, and the states named by the format `other`."""
    return [*(state.name for state in text.states), *(other.format(k) for k in range(len(text.states)))]


def _combine(text: ReductionText) -> list[str]:
    """The function that makes states the states of more elements."""
    states = list(enumerate(text.states))
    given = [f"{state.dtype}& {state.name}" for _, state in states]
    given += [f"const {state.dtype} y{k}" for k, state in states]
    before = [f"const {state.dtype} x{k} = {state.name};" for k, state in states]
    return [f"__device__ inline void combine({', '.join(given)}) {{", *before, text.combination.operation, "}"]


def _indices(spec: KernelSpec, flat: str, axes: range) -> list[str]:
    return spec.unravel(flat, [f"i{axis}" for axis in axes], [f"n{axis}" for axis in axes])


def _element(spec: KernelSpec) -> list[str]:
    """Statements for one element: loads, the operation, stores."""
    text, lines, conditions = spec.text, list[str](), spec.conditions
    for p, access in zip(text.inputs, spec.accesses, strict=False):
        value = number(p, access) if access.is_number else f"*(const {p.dtype}*){_place(spec, p)}"
        lines.append(f"const {p.dtype} {p.name} = {value};")
    assert POSITION.dtype == "int64"  # as the loop's
    lines += [f"{p.dtype} {p.name};" for p in text.element.outputs]
    lines.append(text.element.operation)
    lines += [f"*({p.dtype}*){_place(spec, p)} = {p.name};" for p in text.stored if p not in conditions]
    return lines + [f"cudaGraphSetConditional(h_{p.name}, {p.name});" for p in conditions]


def _place(spec: KernelSpec, p: Parameter) -> str:
    terms = [f" + i{axis} * t_{p.name}_{axis}" for axis in range(spec.kept + spec.reduced)]
    return f"(p_{p.name}{''.join(terms)})"


def _tree(spec: KernelSpec) -> list[str]:
    """The states of a result's lanes become those of its first one, halves at a time."""
    text, pitch = spec.text, 1 if spec.is_inner else BLOCK // spec.lanes
    kept = [f"h{k}[threadIdx.x] = {state.name};" for k, state in enumerate(text.states)]
    other = f"h{{}}[threadIdx.x + step * {pitch}]"
    return [
        # Of the tile before, all have read.
        "__syncthreads();",
        *kept,
        f"for (int step = {spec.lanes // 2}; step; step /= 2) {{",
        "__syncthreads();",
        "if (lane < step) {",
        f"combine({', '.join(_pairs(text, other))});",
        *kept,
        "}",
        "}",
    ]


def _value(text: ReductionText, result: Result) -> str:
    return rounded(result.dtype, ", ".join(text.states[k].name for k in result.states))


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
        for k, output in zip(numbers, write.outputs, strict=True):
            states.append(Parameter(dtypes[output].name, f"e{k}"))
            lines.append(f"e{k} = {text.outputs[output]};")
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
