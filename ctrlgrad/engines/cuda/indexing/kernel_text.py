"""A kernel of `ctrlgrad.engines.cuda.indexing` as CUDA C++.

Parameters are the words' address (where something moves), arrays in the order of the accesses, and int64s: see the
specs' `numbers`. Strides are in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.engines.cuda.arguments import NAME, address, declared
from ctrlgrad.engines.cuda.indexing.model import ChoiceSpec, IndexSpec, SortSpec, UpdateSpec, names, strides_of

# An index that is out of range is noted: the first in the stream's order, and of several in one kernel any one. The
# thread that changes the site from zero, which is no site, notes the rest, so all words are about one index.
_CHECK = """\
if (index < -n || index >= n) {{
unsigned long long* word = reinterpret_cast<unsigned long long*>(&flag[0]);
if (atomicCAS(word, 0ULL, (unsigned long long)site) == 0ULL) {{ flag[1] = index; flag[2] = n;{} }}
index = 0;
}}
if (index < 0) index += n;"""


def _check(noted: int) -> str:
    """With so many words of the list's."""
    return _CHECK.format("".join(f" flag[{3 + k}] = words[{name}];" for k, name in enumerate(names("noted", noted))))


def source(spec: IndexSpec) -> str:
    """The text of a kernel named `NAME`."""
    named = list(zip(spec.parameters, spec.accesses, strict=True))
    parameters = ["long long* words"] if spec.is_moving else []
    parameters += [text for p, access in named for text in declared(p, access)]
    parameters += [f"const long long {name}" for name in spec.numbers]
    lines = ["const long long iteration = words[0];"] * spec.is_moving
    lines += [f"char* const p_{p.name} = {address(p, access)};" for p, access in named]
    lines += ["const long long stride = (long long)blockDim.x * gridDim.x;"]
    first = "(long long)blockIdx.x * blockDim.x + threadIdx.x"
    match spec:
        case ChoiceSpec():
            total, body = "count", _choice(spec)
        case SortSpec():
            total, body = "count", _merge() if spec.merges else _sort()
        case UpdateSpec():
            total, body = "count * width", _update(spec)
    lines += [f"for (long long i = {first}; i < {total}; i += stride) {{", *body]
    head = f'extern "C" __global__ void {NAME}({", ".join(parameters)}) {{'
    return "\n".join([spec.preamble, head, *lines, "}", "}", ""])


def _indices(flat: str, letter: str, sizes: Sequence[str]) -> list[str]:
    """The index along each axis, from the number of an element."""
    lines: list[str] = []
    for axis in reversed(range(1, len(sizes))):
        rest = f"{letter}d{axis}"
        lines.append(f"const long long {letter}{axis} = {flat} % {sizes[axis]}, {rest} = {flat} / {sizes[axis]};")
        flat = rest
    return lines + [f"const long long {letter}0 = {flat};" for _ in sizes[:1]]


def _terms(letter: str, strides: Sequence[str]) -> str:
    return "".join(f" + {letter}{axis} * {stride}" for axis, stride in enumerate(strides))


def _array(name: str, element: str = "long long") -> str:
    """A parameter that is an array of which the elements lie next to each other."""
    return f"{element}* const {name} = ({element}*)p_{name};"


def _chosen(indices: Sequence[str], letter: str, rank: int, noted: int) -> list[str]:
    """Statements that add up the offset of the indices, in bytes; each index is checked."""
    lines = ["long long chosen = 0;"]
    for k, dtype in enumerate(indices):
        place = f"(p_a{k}{_terms(letter, strides_of(f'a{k}', rank))})"
        lines += [
            f"{{ long long index = (long long)*(const {dtype}*){place}; const long long n = size{k};",
            _check(noted),
        ]
        lines += [f"chosen += index * step{k}; }}"]
    return lines


def _choice(spec: ChoiceSpec) -> list[str]:
    lines = [
        *_indices("i", "i", names("n", spec.rank)),
        _array("flag"),
        *_chosen(spec.indices, "i", spec.rank, spec.noted),
    ]
    if spec.element is None:
        return [*lines, "((long long*)p_o)[i] = chosen;"]
    written, read = (f"(p_{name}{_terms('i', strides_of(name, spec.rank))}{plus})" for name, plus in _CHOSEN)
    return [*lines, f"*({spec.element}*){written} = *(const {spec.element}*){read};"]


_CHOSEN = ("o", ""), ("x", " + chosen")


def _sort() -> list[str]:
    """Statements that count the positions before one in its run, and write the position to that place."""
    return [
        *map(_array, ("places", "sorted", "found")),
        "const long long mine = places[i], begin = i / run * run;",
        "const long long end = count - begin < run ? count : begin + run;",
        "long long rank = begin;",
        "for (long long k = begin; k < end; k++) rank += places[k] < mine || (places[k] == mine && k < i);",
        "sorted[rank] = mine;",
        "found[rank] = i;",
    ]


def _merge() -> list[str]:
    """The same in two runs, of which the first one's positions come before equal ones of the second."""
    return [
        *map(_array, ("places", "order", "sorted", "found")),
        "const long long mine = places[i], begin = i / (2 * run) * (2 * run);",
        "const long long middle = count - begin < run ? count : begin + run;",
        "const long long end = count - middle < run ? count : middle + run;",
        "const bool is_first = i < middle;",
        "long long low = is_first ? middle : begin, high = is_first ? end : middle;",
        "while (low < high) {",
        "const long long half = (low + high) / 2;",
        "if (places[half] < mine || (!is_first && places[half] == mine)) low = half + 1; else high = half;",
        "}",
        # Positions of its own run, and of the other one, that come before it.
        "const long long rank = i - middle + low;",
        "sorted[rank] = mine;",
        "found[rank] = order[i];",
    ]


def _update(spec: UpdateSpec) -> list[str]:
    """The first thread of a row computes with all values for it, or the last one writes its own."""
    columns, rows = (names(letter, count) for letter, count in (("n", spec.columns), ("r", spec.rows)))
    at = f"({spec.element}*)(p_x + place{_terms('c', strides_of('x', spec.columns))})"
    value = f"(p_v{_terms('c', strides_of('v', spec.columns))}{_terms('k', strides_of('row', spec.rows))})"

    def read(row: str) -> list[str]:
        return [
            f"const long long row = {row};",
            *_indices("row", "k", rows),
            f"const {spec.element} a1 = *(const {spec.element}*){value};",
        ]

    lines = ["const long long j = i / width, column = i % width;"]
    if spec.indices:
        # Each thread finds the places of other rows by itself.
        place_of = [*_indices("row", "k", rows), *_chosen(spec.indices, "k", spec.rows, spec.noted), "return chosen;"]
        lines += [_array("flag"), "const auto place_of = [&](const long long row) -> long long {", *place_of, "};"]
        lines += ["const long long place = place_of(j);", "bool is_mine = true;"]
        search = "for (long long k = {0}; k < {1} && is_mine; k++) is_mine = place_of(k) != place;"
        is_first, is_last = search.format("0", "j"), search.format("j + 1", "count")
        goes_on, is_like, row_of = "k < count", "if (place_of(k) != place) continue;", "{0}"
    else:
        lines += [*map(_array, ("places", "order")), "const long long place = places[j];"]
        is_first, is_last = (
            "const bool is_mine = j == 0 || places[j - 1] != place;",
            "const bool is_mine = j == count - 1 || places[j + 1] != place;",
        )
        goes_on, is_like, row_of = "k < count && places[k] == place", "", "order[{0}]"
    if spec.text is None:
        lines += [is_last, "if (is_mine) {", *_indices("column", "c", columns)]
        return [*lines, *read(row_of.format("j")), f"*{at} = a1;", "}"]
    return [
        *lines,
        is_first,
        "if (is_mine) {",
        *_indices("column", "c", columns),
        f"{spec.element}* const at = {at};",
        f"{spec.element} o0 = *at;",
        f"for (long long k = j; {goes_on}; k++) {{",
        is_like,
        *read(row_of.format("k")),
        f"const {spec.element} a0 = o0;",
        spec.text.operation,
        "}",
        "*at = o0;",
        "}",
    ]
