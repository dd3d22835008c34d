"""A launch list in the processor's memory: words, kernels as CUDA C++, and the writer of entries.

Some words are addresses that are known only when a loop runs: they are named in the list, and set when a run begins.
The sides of a branch stand one after the other: the number of the chosen side is read from the card, and tells how
many entries to skip. A loop begins with an entry that can jump behind the loop, and ends with one that jumps back to
it. Words of the host count the iterations where it knows the trip count; else the card is asked each time.

In a kernel, moving addresses and numbers come from words on the card: these count iterations or rows of stacks, or hold
an address or a number from a run's beginning. The numbers of these words, and the step for each count, are parameters,
and so are sizes and strides: kernels that differ in them alone are one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import Access, KernelText, Parameter, Spec
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.prepared import walker
from ctrlgrad.engines.cuda.prepared.model import (
    Affine,
    Become,
    Branching,
    Buffer,
    Fixed,
    Item,
    Launch,
    Operand,
    PreparedBody,
    ProductLaunch,
    Repeating,
    View,
    all_launches,
    lists_in,
    loops_in,
    wrapped,
)
from ctrlgrad.engines.cuda.prepared.reading import moved_by
from ctrlgrad.engines.cuda.products import Address, Factor, layout, parameters
from ctrlgrad.engines.cuda.reductions import ONE, KernelSpec, of_numbers
from ctrlgrad.engines.cuda.sites import Site
from ctrlgrad.engines.precision import Precision

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
# Words of a list in the host's memory: a zero, and the word to which branches and loop predicates are read.
NOTHING, CHOSEN = range(2)
# Words of a loop: its trip count in this iteration, the iterations that are left, and what an iteration adds to the
# trip count.
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
    return of_numbers(text, *[Access(is_number=True)] * count, *[Access()] * count)


class ListWriter:
    """Writes the list of a body. What it is called with is the number of words, of entries, or of both."""

    def __init__(self, body: PreparedBody, library: ArrayLibrary, precision: Precision) -> None:
        self.body, self.library, self.precision = body, library, precision
        self._words = Words()
        self._numbers = {word: number for number, word in enumerate(body.words)}
        # The words that another run of iterations changes: the number of the first, how many, and the first value.
        self.set: list[tuple[int, int, int]] = []
        self.host = self._words.add(0, 0)
        # Of loops of which the host is told how often they go on, by their counters: the first of their words,
        # and, where it knows that beforehand, how often.
        self.counted = {
            loop.counter: (self._words.add(0, 0, loop.trips.step if isinstance(loop.trips, Affine) else 0), loop.trips)
            for loop in (body.loop, *loops_in(body.items))
            if loop.trips is not None
        }
        launches = (launch for launch in all_launches(body.items) if not isinstance(launch, ProductLaunch))
        library.prepare(list(dict.fromkeys(launch.spec for launch in launches)), precision != "ieee")
        first = [self._setting(start) for start in range(0, len(body.words), MOST_WORDS)]
        entries = self._repeated(body.loop, self._steps())
        # The number of entries that are gone through once, and with those of iterations.
        self.first, self.last = len(first), len(first) + len(entries)
        self.begin = len(self._words)
        for kind, arguments in (*first, *entries):
            self._words.add(kind)
            self._words.inner(arguments)
        self.list = self._words.made()

    # The list: of an entry the kind, and the number of the first word of what it is called with.

    def _setting(self, start: int) -> tuple[int, int]:
        wanted = min(MOST_WORDS, len(self.body.words) - start)
        # Few different kernels: the last word is written again.
        count = 1 << (wanted - 1).bit_length()
        places = [Known(MEMORY, WORD * (start + min(k, wanted - 1))) for k in range(count)]
        parameters = parameters_of(self._words, [*[0] * count, *places, *ONE])
        self.set.append((parameters[0], count, start))
        spec = setting(count)
        return self.kernel(self._words, spec, parameters, 1)

    def _entries(self, items: Sequence[Item]) -> list[tuple[int, int]]:
        """Of branches the sides follow the number of entries that it is to the one that is chosen."""
        found: list[tuple[int, int]] = []
        for item in items:
            if isinstance(item, Become):
                continue
            if isinstance(item, Repeating):
                found += self._repeated(item)
                continue
            if not isinstance(item, Branching):
                found.append(self._entry(item))
                continue
            sides = [self._entries(inside) for inside in item.sides]
            ends = list(itertools.accumulate((len(inside) + 1 for inside in sides), initial=1))
            found += [self._reading(item.chosen, self.host + CHOSEN), self._switch(CHOSEN, ends[:-1])]
            for inside, end in zip(sides, ends[1:], strict=True):
                found += [*inside, self._switch(NOTHING, [ends[-1] - end + 1])]
        return found

    def _repeated(self, item: Repeating, steps: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
        """A loop: in front of it two entries, and behind it one that goes back."""
        inside = [*self._entries(item.items), *steps]
        behind = len(inside) + 2
        if item.trips is None:
            head = self._reading(item.goes_on, self.host + CHOSEN)
            return [head, self._switch(CHOSEN, [behind, 1]), *inside, self._switch(NOTHING, [-behind])]
        first, trips = self.counted[item.counter]
        if isinstance(trips, View):
            begins = self._reading(trips, first + LEFT)
        else:
            begins = self._sum(first + LEFT, first + TRIPS, self.host + NOTHING)
        return [begins, self._counted(first + LEFT, behind), *inside, self._switch(NOTHING, [1 - behind])]

    def _counted(self, word: int, behind: int) -> tuple[int, int]:
        """Take 1 off a word of the host; where it is 0, go on so many entries further."""
        counts = self._words.inner(word)
        self._words.add(behind)
        return walker.COUNT, counts

    def _steps(self) -> list[tuple[int, int]]:
        """Behind an iteration: how often loops inside go on in the next one."""
        return [
            self._sum(first + TRIPS, first + TRIPS, first + STEP)
            for first, trips in self.counted.values()
            if isinstance(trips, Affine) and trips.step
        ]

    def _sum(self, *words: int) -> tuple[int, int]:
        return walker.ADD, self._words.inner(*words)

    def _reading(self, number: View, word: int) -> tuple[int, int]:
        """Read a number on the card into a word."""
        first = self._words.inner(word)
        self._words.add(self.place(number))
        return walker.READ, first

    def _switch(self, word: int, deltas: Sequence[int]) -> tuple[int, int]:
        first = self._words.inner(self.host + word)
        self._words.add(*deltas)
        return walker.SWITCH, first

    def _entry(self, launch: Launch) -> tuple[int, int]:
        if isinstance(launch, ProductLaunch):
            product = product_parameters(launch, self.place, self.precision)
            return walker.PRODUCT, self._words.add(Known(HANDLE), *product)
        spec = launch.spec
        given: list[int | Known | tuple[int | Known, ...]] = [Known(MEMORY)] if spec.is_moving else []
        for access, argument in zip(spec.accesses, launch.arguments, strict=True):
            if access.has_parameter:
                given.append(self._argument(argument))
            given += [number for word, factor in moved_by(argument) for number in (self._numbers[word], factor)]
        given += [Known(number) if isinstance(number, Site) else number for number in launch.numbers]
        return self.kernel(self._words, spec, parameters_of(self._words, given), launch.blocks)

    def kernel(self, words: Words, spec: Spec, parameters: Sequence[int], blocks: int) -> tuple[int, int]:
        """An entry of a kernel whose parameters begin with the words of these numbers."""
        function = self.library.function(spec, self.precision != "ieee")
        pointers = words.inner(*parameters)
        called = words.add(function, blocks, spec.threads)
        words.inner(pointers)
        return walker.KERNEL, called

    def _argument(self, argument: Operand) -> int | Known | tuple[int | Known, ...]:
        if isinstance(argument, View):
            return self.place(argument)
        if isinstance(argument, Affine):
            return argument.constant
        if isinstance(argument, Site):
            return Known(argument)
        assert isinstance(argument, Fixed)
        if argument.slot is None:
            return tuple(bits_of(argument.dtype, argument.value))
        return tuple(Known(NumberWord(argument, k)) for k in range(-(-argument.dtype.itemsize // WORD)))

    def place(self, view: View) -> Known:
        """Place of a view's beginning: source and offset."""
        source, offset = view.source, view.offset
        if isinstance(source, Buffer):
            place = self.body.placement.places[source.number]
            assert place is not None
            source, offset = place[0], place[1] + offset
        return Known(source, offset)


def entries_of(items: Sequence[Item]) -> int:
    """Number of list entries of the items."""
    # Of branches and loops two before their lists, and one behind each of these.
    each = (2 + sum(entries_of(x) + 1 for x in lists_in(item)) if lists_in(item) else 1 for item in items)
    return sum(each) - sum(isinstance(item, Become) for item in items)


def product_parameters(
    launch: ProductLaunch, place: Callable[[View], Address], precision: Precision
) -> tuple[int | Address, ...]:
    """Arguments of cuBLAS after the handle; `place` gives the address of a view's beginning."""
    *batch, m, n = launch.out.shape
    a, b = (_factor(view, place(view)) for view in (launch.a, launch.b))
    sizes, count = (m, n, launch.a.shape[-1]), math.prod(batch)
    return parameters(launch.out.dtype, sizes, a, b, place(launch.out), count, launch.adds, precision)


def _factor(view: View, place: Address) -> Factor[Address]:
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
