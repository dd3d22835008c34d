"""Reads and updates by indices that lie on the card, as kernels: step by step, and in prepared lists.

Which element an index names is known on the card alone, so what can be said before is where the elements lie that
indices of zero name, and how far one more moves along an axis (`Chosen`). A read is one kernel. An update is several
(`scatter`), since positions may repeat and atomic additions come in any order: a chunk that is run again would have
other bits. One thread does all that happens to one element, in the order in which positions are listed: the bits are
those of `numpy.add.at`. Of few positions (`FEW`) each thread looks at all for those like its own, and the update is
one launch. More are sorted, equal ones keeping their order.

The sort is one of ranks, for any number n of positions. Each thread counts, in a run of `RUN` positions, those before
its own; then runs are merged in pairs, where a thread searches the other run by halves: n * (RUN + log(n) ** 2) steps
in all, and log2(n / RUN) launches. What one thread adds up is as long as the longest list of equal positions.

An index that is out of range is noted in the run's flag; the host raises the error at the next place where it waits.
Sizes and strides are parameters: one compiled kernel serves all shapes of a rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ctrlgrad.engines.cuda.kernel import (
    MOST_SHORT,
    Access,
    KernelLaunch,
    KernelText,
    Parameter,
    Spec,
    broadcast_strides,
    joined_axes,
    preamble,
)
from ctrlgrad.engines.cuda.sites import Site

# Threads of a block, and the most blocks: a thread goes on with what is behind the whole grid.
BLOCK, MOST_BLOCKS = 128, 1 << 16
# Updates at up to so many positions are one launch, in which a thread looks at all of them for those like its own. Of
# more, in runs of `RUN`, a thread looks at those of its run for the rank of its own.
FEW, RUN = 64, 256

FLAG = Parameter("int64", "flag")
"""Words in which an index is noted that is out of range: see `ctrlgrad.engines.cuda.sites`."""


def names(letter: str, count: int) -> tuple[str, ...]:
    """A letter with so many numbers."""
    return tuple(f"{letter}{k}" for k in range(count))


def strides_of(name: str, rank: int) -> tuple[str, ...]:
    """Names of an array's strides."""
    return names(f"t_{name}_", rank)


def choice_names(indices: int, noted: int) -> tuple[str, ...]:
    """Of each index the size and the stride of its axis, the site, and the numbers of the words that are noted."""
    chosen = tuple(name for k in range(indices) for name in (f"size{k}", f"step{k}"))
    return (*chosen, "site", *names("noted", noted)) if indices else ()


@dataclass(frozen=True)
class ChoiceSpec(Spec):
    """Elements that indices choose are read, or (`element` is None) where they lie is written: bytes, int64.

    `rank` axes, `indices` dtypes of arrays of indices, `element` the unsigned integer of as many bytes.
    """

    rank: int
    indices: tuple[str, ...]
    element: str | None
    accesses: tuple[Access, ...]
    noted: int = 0
    is_short: bool = True
    threads: ClassVar[int] = BLOCK

    @property
    def reads(self) -> tuple[Parameter, ...]:
        indices = [Parameter(dtype, f"a{k}") for k, dtype in enumerate(self.indices)]
        return (*([Parameter(self.element, "x")] if self.element else []), *indices)

    @property
    def writes(self) -> tuple[Parameter, ...]:
        return Parameter(self.element or "int64", "o"), FLAG

    @property
    def statements(self) -> list[str]:
        return self.loop("i", "count", _choice_text(self))

    @property
    def numbers(self) -> tuple[str, ...]:
        strided = [p.name for p in (*self.reads, *self.writes[: self.element is not None])]
        strides = [stride for name in strided for stride in strides_of(name, self.rank)]
        return ("count", *names("n", self.rank), *strides, *choice_names(len(self.indices), self.noted))


@dataclass(frozen=True)
class SortSpec(Spec):
    """Positions are sorted in each run, and told where they were; or two runs that are sorted become one."""

    merges: bool
    accesses: tuple[Access, ...]
    is_short: bool = True
    threads: ClassVar[int] = BLOCK

    @property
    def statements(self) -> list[str]:
        return self.loop("i", "count", _merge() if self.merges else _sort())

    @property
    def numbers(self) -> tuple[str, ...]:
        return "count", "run"

    @property
    def reads(self) -> tuple[Parameter, ...]:
        return (Parameter("int64", "places"), *([Parameter("int64", "order")] if self.merges else []))

    @property
    def writes(self) -> tuple[Parameter, ...]:
        return Parameter("int64", "sorted"), Parameter("int64", "found")


@dataclass(frozen=True)
class UpdateSpec(Spec):
    """Rows of an array are written, or (`text`) what `text` computes of them, a0, and of values, a1.

    Where rows lie is told by `indices`, dtypes of arrays of them; without these it is sorted, and `order` tells which
    row of the values is for each. A row of values, and of indices, is found by `rows` axes, a column by `columns` ones.
    """

    rows: int
    columns: int
    indices: tuple[str, ...]
    element: str
    text: KernelText | None
    accesses: tuple[Access, ...]
    noted: int = 0
    is_short: bool = True
    threads: ClassVar[int] = BLOCK

    @property
    def reads(self) -> tuple[Parameter, ...]:
        listed = [Parameter(dtype, f"a{k}") for k, dtype in enumerate(self.indices)]
        listed = listed or [Parameter("int64", name) for name in ("places", "order")]
        return (*listed, Parameter(self.element, "v"))

    @property
    def writes(self) -> tuple[Parameter, ...]:
        return (Parameter(self.element, "x"), *([FLAG] if self.indices else []))

    @property
    def statements(self) -> list[str]:
        return self.loop("i", "count * width", _update_text(self))

    @property
    def numbers(self) -> tuple[str, ...]:
        indices = range(len(self.indices))
        rows = *names("r", self.rows), *strides_of("row", self.rows)
        rows += tuple(stride for k in indices for stride in strides_of(f"a{k}", self.rows))
        columns = *names("n", self.columns), *strides_of("v", self.columns), *strides_of("x", self.columns)
        return ("count", "width", *rows, *columns, *choice_names(len(indices), self.noted))

    @property
    def keeps(self) -> bool:
        """Rows that no index chooses stay as they were."""
        return True

    @property
    def preamble(self) -> str:
        return preamble("") if self.text is None else self.text.preamble


IndexSpec = ChoiceSpec | SortSpec | UpdateSpec
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Chosen:
    """Elements of an array that indices choose: an array of the library, or a view.

    `whole` is what a key names that has all of an axis in place of each index; along `axes` the indices choose, which
    broadcast to `index_shape`. In what is named their axes stand from `first` on, before those of the rest behind it.
    """

    whole: Any
    axes: tuple[int, ...]
    first: int
    indices: tuple[Any, ...]

    @property
    def index_shape(self) -> Shape:
        return np.broadcast_shapes(*(tuple(x.shape) for x in self.indices))

    def _rest(self, of_axes: Sequence[int]) -> Shape:
        return tuple(x for axis, x in enumerate(of_axes) if axis not in self.axes)

    @property
    def rest_shape(self) -> Shape:
        return self._rest(self.whole.shape)

    @property
    def rest_strides(self) -> Shape:
        return self._rest(self.whole.strides)

    @property
    def shape(self) -> Shape:
        """Of what is named."""
        rest = self.rest_shape
        return (*rest[: self.first], *self.index_shape, *rest[self.first :])

    @property
    def has_elements(self) -> bool:
        """Return true if the key names at least one element, whatever the indices are."""
        return 0 not in self.shape and 0 not in (self.whole.shape[axis] for axis in self.axes)

    # Strides of what is named: of the elements that indices of zero choose, of an index, and of a value by its axes.

    @property
    def part_strides(self) -> Shape:
        rest = self.rest_strides
        return (*rest[: self.first], *(0 for _ in self.index_shape), *rest[self.first :])

    def spread(self, strides: Sequence[int]) -> Shape:
        before, behind = self.first, len(self.rest_shape) - self.first
        return (*(0 for _ in range(before)), *strides, *(0 for _ in range(behind)))

    def rows_of(self, strides: Sequence[int]) -> Shape:
        return tuple(strides[self.first : self.first + len(self.index_shape)])

    def columns_of(self, strides: Sequence[int]) -> Shape:
        return (*strides[: self.first], *strides[self.first + len(self.index_shape) :])


def chosen(
    rank: int, key: Sequence[Any], is_index: Callable[[Any], bool], whole_of: Callable[[tuple[Any, ...]], Any]
) -> Chosen:
    """Resolve a key of numbers, slices, Nones and at least one index, for an array of this rank.

    Args:
        whole_of: what a key without indices names.
    """
    key = (*key, *(slice(None),) * (rank - sum(item is not None for item in key)))
    whole = whole_of(tuple(slice(None) if is_index(item) else item for item in key))
    kept = [item for item in key if item is None or isinstance(item, slice) or is_index(item)]
    axes = tuple(axis for axis, item in enumerate(kept) if is_index(item))
    # As in NumPy, numbers count as index arrays, and the axes of index arrays that are adjacent stay in their place.
    advanced = [n for n, item in enumerate(key) if item is not None and not isinstance(item, slice)]
    first = advanced[0] if advanced[-1] - advanced[0] + 1 == len(advanced) else 0
    return Chosen(whole, axes, first, tuple(item for item in key if is_index(item)))


_INT64 = np.dtype(np.int64)
# Elements that are moved as they are, by their bytes; larger ones as two.
_LARGEST = 8


@dataclass(frozen=True)
class Surroundings:
    """Context of launches: the access of a kernel to an argument, the allocator of arrays, the flag, and the node's
    site; in a list also the numbers of the words that are noted with the site."""

    access: Callable[[Any], Access]
    empty: Callable[[Shape, np.dtype], Any]
    flag: Any
    site: int | Site
    noted: tuple[int, ...] = ()


def gather(its: Chosen, out: Any, around: Surroundings) -> Iterator[KernelLaunch]:
    """Read what indices choose into `out`."""
    if not its.has_elements:
        yield from _check(its, around)
        return
    element, parts = _moved_as(out.dtype)
    shape = its.shape + parts
    indices = [(*its.spread(broadcast_strides(x, its.index_shape)), *(0 for _ in parts)) for x in its.indices]
    part = tuple(_LARGEST for _ in parts)
    x = (*its.part_strides, *part)
    sizes, strides = joined_axes(shape, range(len(shape)), [x, *indices, (*out.strides, *part)])
    yield _choice(its, element, sizes, strides, [its.whole, *its.indices, out], around)


def scatter(its: Chosen, value: Any, text: KernelText | None, around: Surroundings) -> Iterator[KernelLaunch]:
    """Write values where indices choose, the last one where they repeat; or what `text` computes, one by one.

    Args:
        value: broadcasts to what the key names.
        text: of what is there, and a value, what is to be there; None for the value.
    """
    if not its.has_elements:
        yield from _check(its, around)
        return
    count = math.prod(its.index_shape)
    if count <= FEW:
        yield _update(its, value, text, None, around)
        return
    places = around.empty((count,), _INT64)
    yield from _places(its, places, around)
    yield _update(its, value, text, (yield from _sorted(places, count, around)), around)


def _moved_as(dtype: np.dtype) -> tuple[str, Shape]:
    """The type that elements are moved as, and how many of them they are: another axis."""
    size = dtype.itemsize
    return f"uint{8 * min(size, _LARGEST)}", () if size <= _LARGEST else (size // _LARGEST,)


def _launch(spec: IndexSpec, arguments: Sequence[Any], numbers: Sequence[int | Site], count: int) -> KernelLaunch:
    spec = replace(spec, is_short=count <= MOST_SHORT)
    return KernelLaunch(spec, tuple(arguments), tuple(numbers), min(-(-count // BLOCK), MOST_BLOCKS))


def _choice(
    its: Chosen,
    element: str | None,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    arguments: Sequence[Any],
    around: Surroundings,
) -> KernelLaunch:
    count = math.prod(sizes)
    dtypes = tuple(x.dtype.name for x in its.indices)
    arguments = (*arguments, around.flag)
    spec = ChoiceSpec(len(sizes), dtypes, element, tuple(map(around.access, arguments)), len(around.noted))
    numbers = [count, *sizes, *(step for its_own in strides for step in its_own)]
    return _launch(spec, arguments, (*numbers, *_axes(its, around)), count)


def _axes(its: Chosen, around: Surroundings) -> list[Any]:
    """Of each index the size and the stride of its axis, the site, and the words that are noted."""
    sizes = ((its.whole.shape[axis], its.whole.strides[axis]) for axis in its.axes)
    return [*(number for its_own in sizes for number in its_own), around.site, *around.noted]


def _places(its: Chosen, places: Any, around: Surroundings) -> Iterator[KernelLaunch]:
    """Launch that computes the offset, from the array's beginning, of each row that indices choose."""
    shape = its.index_shape
    indices = [broadcast_strides(x, shape) for x in its.indices]
    sizes, strides = joined_axes(shape, range(len(shape)), indices)
    yield _choice(its, None, sizes, strides, [*its.indices, places], around)


def _check(its: Chosen, around: Surroundings) -> Iterator[KernelLaunch]:
    """Nothing is read or written, but indices may be out of range all the same."""
    if count := math.prod(its.index_shape):
        yield from _places(its, around.empty((count,), _INT64), around)


def _sorted(places: Any, count: int, around: Surroundings) -> Generator[KernelLaunch, None, tuple[Any, Any]]:
    """Positions in ascending order, and where they were."""
    order, run = None, RUN
    while True:
        found = [around.empty((count,), _INT64) for _ in range(2)]
        given = [places, *([] if order is None else [order]), *found]
        spec = SortSpec(order is not None, tuple(map(around.access, given)))
        yield _launch(spec, given, (count, run), count)
        run *= 1 if order is None else 2
        places, order = found
        if run >= count:
            return places, order


def _update(
    its: Chosen, value: Any, text: KernelText | None, listed: tuple[Any, Any] | None, around: Surroundings
) -> KernelLaunch:
    """The update by positions that are sorted, and where they were; or by the indices."""
    dtype = its.whole.dtype
    element, parts = _moved_as(dtype) if text is None else (dtype.name, ())
    part = tuple(_LARGEST for _ in parts)
    values, shape = broadcast_strides(value, its.shape), its.index_shape
    indices = its.indices if listed is None else ()
    by_row = [its.rows_of(values), *(broadcast_strides(x, shape) for x in indices)]
    rows, row_strides = joined_axes(shape, range(len(shape)), by_row)
    rest = its.rest_shape + parts
    ours = [(*its.columns_of(values), *part), (*its.rest_strides, *part)]
    columns, column_strides = joined_axes(rest, range(len(rest)), ours)
    read = (*indices, value) if listed is None else (*listed, value)
    arguments = (*read, its.whole, *([around.flag] if listed is None else []))
    accesses = tuple(map(around.access, arguments))
    dtypes, noted = tuple(x.dtype.name for x in indices), len(around.noted) if listed is None else 0
    spec = UpdateSpec(len(rows), len(columns), dtypes, element, text, accesses, noted)
    count, width = math.prod(shape), math.prod(rest)
    numbers = [count, width, *rows, *(step for its_own in row_strides for step in its_own)]
    numbers += [*columns, *column_strides[0], *column_strides[1]]
    return _launch(spec, arguments, [*numbers, *(_axes(its, around) if listed is None else [])], count * width)


# An index that is out of range is noted: the first in the stream's order, and of several in one kernel any one. The
# thread that changes the site from zero, which is no site, notes the rest, so all words are about one index.
_CHECK = """\
if (index < -n || index >= n) {{
unsigned long long* word = reinterpret_cast<unsigned long long*>(&flag[0]);
if (atomicCAS(word, 0ULL, (unsigned long long)site) == 0ULL) {{ flag[1] = index; flag[2] = n;{} }}
index = 0;
}}
if (index < 0) index += n;"""


def _check_text(noted: int) -> str:
    """With so many words of the list's."""
    return _CHECK.format("".join(f" flag[{3 + k}] = words[{name}];" for k, name in enumerate(names("noted", noted))))


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
            _check_text(noted),
        ]
        lines += [f"chosen += index * step{k}; }}"]
    return lines


def _choice_text(spec: ChoiceSpec) -> list[str]:
    lines = [
        *spec.unravel("i", names("i", spec.rank), names("n", spec.rank)),
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


def _update_text(spec: UpdateSpec) -> list[str]:
    """The first thread of a row computes with all values for it, or the last one writes its own."""
    columns, rows = (names(letter, count) for letter, count in (("n", spec.columns), ("r", spec.rows)))
    at = f"({spec.element}*)(p_x + place{_terms('c', strides_of('x', spec.columns))})"
    value = f"(p_v{_terms('c', strides_of('v', spec.columns))}{_terms('k', strides_of('row', spec.rows))})"

    def read(row: str) -> list[str]:
        return [
            f"const long long row = {row};",
            *spec.unravel("row", names("k", spec.rows), rows),
            f"const {spec.element} a1 = *(const {spec.element}*){value};",
        ]

    lines = spec.unravel("i", ["j", "column"], ["count", "width"])
    if spec.indices:
        # Each thread finds the places of other rows by itself.
        place_of = [
            *spec.unravel("row", names("k", spec.rows), rows),
            *_chosen(spec.indices, "k", spec.rows, spec.noted),
            "return chosen;",
        ]
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
        lines += [is_last, "if (is_mine) {", *spec.unravel("column", names("c", spec.columns), columns)]
        return [*lines, *read(row_of.format("j")), f"*{at} = a1;", "}"]
    return [
        *lines,
        is_first,
        "if (is_mine) {",
        *spec.unravel("column", names("c", spec.columns), columns),
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
