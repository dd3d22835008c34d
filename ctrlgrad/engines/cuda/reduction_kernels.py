"""Reductions as kernels: each by a fixed tree, so that a chunk that is run again has the same bits.

`tree` says, by the shape alone, how many threads share the elements of one result: each goes through at most `SERIAL`
of them (the error of a sum grows with that and with the depth of the tree, not with the number of elements), and a
tree in shared memory makes their states one. A state is what is known of some of the elements: their sum so far, or an
extreme and its position. If more than one block shares a result, the blocks' states go to memory, and another kernel
reduces those (`reductions.stages`). Neighbouring threads read neighbouring elements, whether the last axis is reduced
or stays. One compiled kernel serves all shapes of a rank.

Parameters are the address of the words (if anything moves), arrays and numbers in the order of the accesses, and
int64s: the number of results, of elements of each, of elements of one block; the sizes of the axes that stay and of
those that are reduced; and each array's strides along these, in bytes. Results lie as [part, result], and so do the
states that a part of a scan begins with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ctrlgrad.engines.cuda.kernel import (
    Access,
    KernelText,
    Parameter,
    Spec,
    definitions,
    number,
    preamble,
    rounded,
)

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
