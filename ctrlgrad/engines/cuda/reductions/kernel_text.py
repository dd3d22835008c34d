"""A reduction as CUDA C++: which elements a thread goes through, and the tree that makes their states one.

Parameters are the words' address (where something moves), arrays and numbers in the order of the accesses, and int64s:
how many results there are, how many elements each has, how many of them are one block's; the sizes of the axes that
stay and of those that are reduced; and each array's strides along these, in bytes. What is written of all lies as
[part, result], and so does what a part of a scan begins with.
"""

from __future__ import annotations

from ctrlgrad.engines.cuda.arguments import NAME, address, declared, number
from ctrlgrad.engines.cuda.expressions import rounded
from ctrlgrad.engines.cuda.kernel import Parameter
from ctrlgrad.engines.cuda.reductions.model import POSITION, ReductionSpec, ReductionText, Result
from ctrlgrad.engines.cuda.reductions.tree import BLOCK, SERIAL


def source(spec: ReductionSpec) -> str:
    """The text of a kernel named `NAME`."""
    text = spec.text
    named = list(zip(spec.parameters, spec.accesses, strict=True))
    parameters = ["long long* words"] if spec.is_moving else []
    parameters += [text for p, access in named for text in declared(p, access)]
    parameters += [f"const long long {name}" for name in spec.numbers]
    lines = ["const long long iteration = words[0];"] * spec.is_moving
    lines += [f"char* const p_{p.name} = {address(p, access)};" for p, access in named if access.strides is not None]
    lines += _tiles(spec) if text.states else _elementwise(spec)
    head = f'extern "C" __global__ void {NAME}({", ".join(parameters)}) {{'
    return "\n".join([text.preamble, *(_combine(text) if text.states else []), head, *lines, "}", ""])


def _elementwise(spec: ReductionSpec) -> list[str]:
    """Statements of a thread where each result is an element."""
    first = f"(long long)blockIdx.x * {BLOCK} + threadIdx.x"
    return [
        f"for (long long result = {first}; result < results; result += (long long)gridDim.x * {BLOCK}) {{",
        *indices("result", range(spec.kept)),
        *_element(spec),
        "}",
    ]


def _tiles(spec: ReductionSpec) -> list[str]:
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


def _reduction(spec: ReductionSpec) -> list[str]:
    """Statements of a thread for a tile: its elements, and the tree."""
    text = spec.text
    return [
        "if (result < results) {",
        *indices("result", range(spec.kept)),
        _END,
        f"for (long long position = part * span + lane; position < end; position += {spec.lanes}) {{",
        *indices("position", range(spec.kept, spec.kept + spec.reduced)),
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


def _scan(spec: ReductionSpec) -> list[str]:
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
    where = indices("position", range(spec.kept, spec.kept + spec.reduced))
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
        *indices("result", range(spec.kept)),
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


def _continued(spec: ReductionSpec, carried: list[str]) -> list[str]:
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


def indices(flat: str, axes: range) -> list[str]:
    """The index along each axis, from the number of the result or of the element."""
    lines: list[str] = []
    rest = flat
    for axis in reversed(axes[1:]):
        lines.append(f"const long long i{axis} = {rest} % n{axis}, d{axis} = {rest} / n{axis};")
        rest = f"d{axis}"
    return lines + [f"const long long i{axis} = {rest};" for axis in axes[:1]]


def _element(spec: ReductionSpec) -> list[str]:
    """Statements for one element: loads, the operation, stores."""
    text = spec.text
    lines = []
    for p, access in zip(text.inputs, spec.accesses, strict=False):
        value = number(p, access) if access.strides is None else f"*(const {p.dtype}*){_place(spec, p)}"
        lines.append(f"const {p.dtype} {p.name} = {value};")
    assert POSITION.dtype == "int64"  # as the loop's
    lines += [f"{p.dtype} {p.name};" for p in text.element.outputs]
    lines.append(text.element.operation)
    return lines + [f"*({p.dtype}*){_place(spec, p)} = {p.name};" for p in text.stored]


def _place(spec: ReductionSpec, p: Parameter) -> str:
    terms = [f" + i{axis} * t_{p.name}_{axis}" for axis in range(spec.kept + spec.reduced)]
    return f"(p_{p.name}{''.join(terms)})"


def _tree(spec: ReductionSpec) -> list[str]:
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
