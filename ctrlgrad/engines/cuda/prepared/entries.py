"""A launch list in the processor's memory: words, kernels as CUDA C++, and the writer of entries.

Some words are addresses that are known only when a loop runs: they are named in the list, and set when a run begins.
The sides of a branch stand one after the other: the number of the chosen side is read from the card, and tells how
many entries to skip. A loop begins with an entry that can jump behind the loop, and ends with one that jumps back to
it. Words of the host count the iterations where it knows the trip count; else the card is asked each time.

In a kernel, shapes and strides are numbers in the text. Moving addresses and numbers come from words on the card:
`words[0]` counts the iterations; other words count passes of inner regions, or hold an address or a number from a
run's beginning. The numbers of these words, and the step for each count, are parameters: kernels that differ in them
alone are one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda import reduction_kernels as tree
from ctrlgrad.engines.cuda.indexing import BLOCK as INDEX_BLOCK
from ctrlgrad.engines.cuda.indexing import IndexLaunch, IndexSpec
from ctrlgrad.engines.cuda.indexing import source as index_source
from ctrlgrad.engines.cuda.kernel import NAME, Access, KernelText, Parameter, address, declared, number
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.prepared import walker
from ctrlgrad.engines.cuda.prepared.launches import movement
from ctrlgrad.engines.cuda.prepared.model import (
    Affine,
    Become,
    Branching,
    Buffer,
    Carried,
    Counter,
    Fixed,
    GoesOn,
    Item,
    KernelLaunch,
    KernelSpec,
    Launch,
    Operand,
    PreparedBody,
    ProductLaunch,
    Repeating,
    Shape,
    View,
    all_launches,
    lists_in,
    loops_in,
    wrapped,
)
from ctrlgrad.engines.cuda.products import Factor, layout, parameters
from ctrlgrad.engines.cuda.reduction_kernels import ReductionLaunch, ReductionSpec
from ctrlgrad.engines.cuda.reduction_kernels import source as reduction_source
from ctrlgrad.engines.cuda.sites import Site
from ctrlgrad.engines.precision import Precision

# Stores the condition of a graph. NVRTC has no header that declares it.
_SET_CONDITION = 'extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);'
# Threads of a block, and the most blocks: a thread goes on with the elements behind those of the whole grid.
BLOCK, MOST_BLOCKS = 128, 1 << 16


def grid_of(spec: KernelSpec) -> int:
    """The blocks of a launch."""
    return min(-(-spec.threads // BLOCK), MOST_BLOCKS)


def source(spec: KernelSpec | ReductionSpec | IndexSpec) -> str:
    """The text of a kernel named `NAME`: its parameters are the words' address, and those of its accesses in order."""
    if isinstance(spec, ReductionSpec):
        return reduction_source(spec)
    if not isinstance(spec, KernelSpec):
        return index_source(spec)
    text = spec.text
    named = [*zip(text.inputs, spec.inputs, strict=True), *zip(text.outputs, spec.outputs, strict=True)]
    parameters = ["long long* words"] if spec.is_moving else []
    inputs = len(text.inputs)
    parameters += [text for p, access in named[:inputs] for text in declared(p, access)]
    parameters += [text for p, access in named[inputs:] for text in _target(p, access)]
    lines = ["const long long iteration = words[0];"] * spec.is_moving
    lines += [f"char* const p_{p.name} = {address(p, access)};" for p, access in named if access.strides is not None]
    lines += ["const long long stride = (long long)blockDim.x * gridDim.x;"]
    first = "(long long)blockIdx.x * blockDim.x + threadIdx.x"
    lines += [f"for (long long i = {first}; i < {spec.threads}LL; i += stride) {{"]
    lines += _indices("i", spec.shape)
    lines += [_load(p, access) for p, access in zip(text.inputs, spec.inputs, strict=True)]
    lines += [*(f"{p.dtype} {p.name};" for p in text.outputs), text.operation]
    stores = zip(text.outputs, spec.outputs, strict=True)
    lines += [_store(p, access) for p, access in stores]
    preamble = text.preamble + (_SET_CONDITION if any(access.strides is None for access in spec.outputs) else "")
    head = f'extern "C" __global__ void {NAME}({", ".join(parameters)}) {{'
    return "\n".join([preamble, head, *lines, "}", "}", ""])


def _target(p: Parameter, access: Access) -> list[str]:
    return [f"const unsigned long long h_{p.name}"] if access.strides is None else declared(p, access)


def _store(p: Parameter, access: Access) -> str:
    if access.strides is None:
        return f"cudaGraphSetConditional(h_{p.name}, {p.name});"
    return f"*({p.dtype}*){_element(p, access)} = {p.name};"


def _load(p: Parameter, access: Access) -> str:
    if access.strides is not None:
        return f"const {p.dtype} {p.name} = *(const {p.dtype}*){_element(p, access)};"
    return f"const {p.dtype} {p.name} = {number(p, access)};"


def _element(p: Parameter, access: Access) -> str:
    assert access.strides is not None
    terms = [f" + i{axis} * {stride}LL" for axis, stride in enumerate(access.strides) if stride]
    return f"(p_{p.name}{''.join(terms)})"


def _indices(flat: str, shape: Shape) -> list[str]:
    """The index along each axis, from the number of the element."""
    lines: list[str] = []
    below = 1
    for axis in reversed(range(len(shape))):
        place = flat if below == 1 else f"({flat} / {below}LL)"
        lines.append(f"const long long i{axis} = {place}{'' if not axis else f' % {shape[axis]}LL'};")
        below *= shape[axis]
    return lines


WORD = np.dtype(np.int64).itemsize


@dataclass(frozen=True)
class Known:
    """Word that is known when a loop runs, and an amount to add to it."""

    what: Hashable
    plus: int = 0


class Words:
    """Words in one array that must not be moved: `inner` words hold addresses of other words."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._inner: list[int] = []
        self._places: dict[Hashable, list[int]] = {}

    def __len__(self) -> int:
        return len(self._words)

    def add(self, *words: int | Known) -> int:
        """Add words; the number of the first."""
        first = len(self._words)
        for word in words:
            if isinstance(word, Known):
                self._places.setdefault(word.what, []).append(len(self._words))
                word = word.plus
            self._words.append(wrapped(word))
        return first

    def inner(self, *numbers: int) -> int:
        """Add the addresses of words of these numbers; the number of the first."""
        self._inner += range(len(self._words), len(self._words) + len(numbers))
        return self.add(*(WORD * number for number in numbers))

    def made(self) -> LaunchList:
        return LaunchList(self._words, self._inner, self._places)


class LaunchList:
    """The words, of which those that stand for something known later can be set again and again."""

    def __init__(self, words: list[int], inner: list[int], places: Mapping[Hashable, list[int]]) -> None:
        self.words = np.array(words, np.int64)
        self.words[inner] += self.address
        self._places = {what: (np.array(found), self.words[found]) for what, found in places.items()}
        self._now = dict.fromkeys(places, 0)

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    @property
    def named(self) -> tuple[Hashable, ...]:
        """All that is to be set."""
        return tuple(self._places)

    @property
    def state(self) -> tuple[int, ...]:
        """All that is set."""
        return tuple(self._now.values())

    def now(self, known: Known) -> int:
        """Current value of a known word."""
        return self._now[known.what] + known.plus

    def set(self, what: Hashable, word: int) -> None:
        """From now on this is its address, or its number."""
        if word != self._now[what]:
            places, plus = self._places[what]
            self.words[places] = plus + word
            self._now[what] = word


# Words that one kernel writes: each is two of its parameters.
MOST_WORDS = 64
HANDLE, MEMORY = "handle", Buffer(0)
# The words of the host's that a list is told by: 0; whether another iteration goes on; and where branches are read to.
NOTHING, GOING, CHOSEN = range(3)
# Of a loop inside: how often it goes on in this iteration, how often it does still, and what an iteration adds to the
# first.
TRIPS, LEFT, STEP = range(3)


@dataclass(frozen=True)
class NumberWord:
    """One of the words of a number of the host's."""

    number: Fixed
    position: int


def setting(count: int) -> KernelSpec:
    """The kernel that writes so many words: their values are arguments, and so are their places."""
    inputs = tuple(Parameter("int64", f"a{k}") for k in range(count))
    outputs = tuple(Parameter("int64", f"o{k}") for k in range(count))
    text = KernelText(inputs, outputs, "\n".join(f"o{k} = a{k};" for k in range(count)))
    return KernelSpec(text, (), (Access(None),) * count, (Access(()),) * count)


class ListWriter:
    """Writes the list of a body. What it is called with is the number of words, of entries, or of both."""

    def __init__(self, body: PreparedBody, library: ArrayLibrary, precision: Precision) -> None:
        self.body, self.library, self.precision = body, library, precision
        self._words = Words()
        self._numbers = {word: number for number, word in enumerate(body.words)}
        # The words that another run of iterations changes: the number of the first, how many, and the first value.
        self.set: list[tuple[int, int, int]] = []
        self.host = self._words.add(0, 1, 0)
        # Of loops inside of which the host is told how often they go on, by their counters: the first of their words,
        # and, where it knows that beforehand, how often.
        self.counted = {
            loop.counter: (self._words.add(0, 0, loop.trips.step if isinstance(loop.trips, Affine) else 0), loop.trips)
            for loop in loops_in(body.items)
            if loop.trips is not None
        }
        launches = (launch for launch in all_launches(body.items) if not isinstance(launch, ProductLaunch))
        library.prepare(list(dict.fromkeys(launch.spec for launch in launches)), precision != "ieee")
        first = [self._setting(start) for start in range(0, len(body.words), MOST_WORDS)]
        halves = [[*self._entries(body.items, side), *self._steps()] for side in range(2)]
        for half in halves if not body.is_known else ():
            half.append(self._reading(body.word(GoesOn()), self.host + GOING, 0))
        # How many entries are gone through once, and are an iteration, and where the first one is.
        self.first, self.half, self.begin = len(first), len(halves[0]), len(self._words)
        for kind, arguments in (*first, *itertools.chain(*halves)):
            self._words.add(kind)
            self._words.inner(arguments)
        self.list = self._words.made()

    # The list: of an entry the kind, and the number of the first word of what it is called with.

    def _setting(self, start: int) -> tuple[int, int]:
        wanted = min(MOST_WORDS, len(self.body.words) - start)
        # Few different kernels: the last word is written again.
        count = 1 << (wanted - 1).bit_length()
        places = [Known(MEMORY, WORD * (start + min(k, wanted - 1))) for k in range(count)]
        parameters = parameters_of(self._words, [*[0] * count, *places])
        self.set.append((parameters[0], count, start))
        spec = setting(count)
        return self.kernel(self._words, spec, parameters, (grid_of(spec), BLOCK))

    def _entries(self, items: Sequence[Item], side: int) -> list[tuple[int, int]]:
        """Of branches the sides follow the number of entries that it is to the one that is chosen."""
        found: list[tuple[int, int]] = []
        for item in items:
            if isinstance(item, Become):
                continue
            if isinstance(item, Repeating):
                found += self._repeated(item, side)
                continue
            if not isinstance(item, Branching):
                found.append(self._entry(item, side))
                continue
            sides = [self._entries(inside, side) for inside in item.sides]
            ends = list(itertools.accumulate((len(inside) + 1 for inside in sides), initial=1))
            found += [self._reading(item.chosen, self.host + CHOSEN, side), self._switch(CHOSEN, ends[:-1])]
            for inside, end in zip(sides, ends[1:], strict=True):
                found += [*inside, self._switch(NOTHING, [ends[-1] - end + 1])]
        return found

    def _repeated(self, item: Repeating, side: int) -> list[tuple[int, int]]:
        """A loop: in front of it two entries, and behind it one that goes back."""
        inside = self._entries(item.items, side)
        behind = len(inside) + 2
        if item.trips is None:
            head = self._reading(item.goes_on, self.host + CHOSEN, side)
            return [head, self._switch(CHOSEN, [behind, 1]), *inside, self._switch(NOTHING, [-behind])]
        first, trips = self.counted[item.counter]
        if isinstance(trips, View):
            begins = self._reading(trips, first + LEFT, side)
        else:
            begins = self._sum(first + LEFT, first + TRIPS, self.host + NOTHING)
        counts = self._words.inner(first + LEFT)
        self._words.add(behind)
        return [begins, (walker.COUNT, counts), *inside, self._switch(NOTHING, [1 - behind])]

    def _steps(self) -> list[tuple[int, int]]:
        """Behind an iteration: how often loops inside go on in the next one."""
        return [
            self._sum(first + TRIPS, first + TRIPS, first + STEP)
            for first, trips in self.counted.values()
            if isinstance(trips, Affine) and trips.step
        ]

    def _sum(self, *words: int) -> tuple[int, int]:
        return walker.ADD, self._words.inner(*words)

    def _reading(self, number: View, word: int, side: int) -> tuple[int, int]:
        """Read a number on the card into a word."""
        first = self._words.inner(word)
        self._words.add(self.place(number, side))
        return walker.READ, first

    def _switch(self, word: int, deltas: Sequence[int]) -> tuple[int, int]:
        first = self._words.inner(self.host + word)
        self._words.add(*deltas)
        return walker.SWITCH, first

    def _entry(self, launch: Launch, side: int) -> tuple[int, int]:
        if isinstance(launch, ProductLaunch):
            return walker.PRODUCT, self._words.add(Known(HANDLE), *self._product(launch, side))
        spec = launch.spec
        given: list[int | Known | tuple[int | Known, ...]] = [Known(MEMORY)] if spec.is_moving else []
        for access, argument in zip(spec.accesses, launch.arguments, strict=True):
            if access.has_parameter:
                given.append(self._argument(argument, side))
            if (moved := movement(argument)) is not None:
                given += [self._numbers[moved.word], moved.step]
                for counter, step in moved.others:
                    given += [self._numbers[Counter(counter)], step]
        match launch:
            case ReductionLaunch():
                given += launch.numbers
                grid = launch.blocks, tree.BLOCK
            case IndexLaunch():
                given += [Known(number) if isinstance(number, Site) else number for number in launch.numbers]
                grid = launch.blocks, INDEX_BLOCK
            case KernelLaunch():
                grid = grid_of(launch.spec), BLOCK
        return self.kernel(self._words, spec, parameters_of(self._words, given), grid)

    def kernel(
        self,
        words: Words,
        spec: KernelSpec | ReductionSpec | IndexSpec,
        parameters: Sequence[int],
        grid: tuple[int, int],
    ) -> tuple[int, int]:
        """An entry of a kernel whose parameters begin with the words of these numbers, on blocks of so many threads."""
        function = self.library.function(spec, self.precision != "ieee")
        pointers = words.inner(*parameters)
        called = words.add(function, *grid)
        words.inner(pointers)
        return walker.KERNEL, called

    def _product(self, launch: ProductLaunch, side: int) -> tuple[int | Known, ...]:
        *batch, m, n = launch.out.shape
        a, b = (_factor(view, self.place(view, side)) for view in (launch.a, launch.b))
        sizes, count, out = (m, n, launch.a.shape[-1]), math.prod(batch), self.place(launch.out, side)
        return parameters(launch.out.dtype, sizes, a, b, out, count, launch.adds, self.precision)

    def _argument(self, argument: Operand, side: int) -> int | Known | tuple[int | Known, ...]:
        if isinstance(argument, View):
            return self.place(argument, side)
        if isinstance(argument, Affine):
            return argument.constant
        if isinstance(argument, Site):
            return Known(argument)
        assert isinstance(argument, Fixed)
        if argument.slot is None:
            return tuple(bits_of(argument.dtype, argument.value))
        return tuple(Known(NumberWord(argument, k)) for k in range(-(-argument.dtype.itemsize // WORD)))

    def place(self, view: View, side: int) -> Known:
        """Place of a view's beginning (source and offset), for iterations that read the buffers of `side`."""
        source, offset = view.source, view.offset
        if isinstance(source, Buffer):
            place = self.body.placement.places[source.number]
            assert place is not None
            source, offset = place[0], place[1] + offset
        if isinstance(source, Carried):
            source = replace(source, is_next=bool(side) != source.is_next)
        return Known(source, offset)


def entries_of(items: Sequence[Item]) -> int:
    """Number of list entries of the items."""
    # Of branches and loops two before their lists, and one behind each of these.
    each = (2 + sum(entries_of(x) + 1 for x in lists_in(item)) if lists_in(item) else 1 for item in items)
    return sum(each) - sum(isinstance(item, Become) for item in items)


def _factor(view: View, place: Known) -> Factor[Known]:
    found = layout(view.shape[-2:], view.strides[-2:], view.dtype.itemsize)
    assert found is not None
    return Factor(place, *found, view.strides[0] // view.dtype.itemsize if len(view.shape) > 2 else 0)


def bits_of(dtype: np.dtype, value: Any) -> list[int]:
    """A number as words."""
    words = np.zeros(-(-dtype.itemsize // WORD), np.int64)
    words.view(np.uint8)[: dtype.itemsize] = np.asarray(value, dtype).reshape(1).view(np.uint8)
    return [int(word) for word in words]


def parameters_of(words: Words, given: Sequence[int | Known | tuple[int | Known, ...]]) -> list[int]:
    """Add a kernel's parameters, which are a word or several; the number of the first of each."""
    return [words.add(*(x if isinstance(x, tuple) else (x,))) for x in given]
