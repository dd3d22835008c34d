"""Capture of a launch list as the body of a graph's while node: the order of its entries, and the kernels that set the
conditions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ctrlgrad.engines.cuda.indexing.model import IndexSpec
from ctrlgrad.engines.cuda.library import Launcher
from ctrlgrad.engines.cuda.prepared import graphs, walker
from ctrlgrad.engines.cuda.prepared.entries import ListWriter, entries_of, parameters_of
from ctrlgrad.engines.cuda.prepared.kernel_text import BLOCK, grid_of
from ctrlgrad.engines.cuda.prepared.model import (
    Branching,
    Item,
    KernelSpec,
    ProductLaunch,
    Repeating,
    all_launches,
    lists_in,
    loops_in,
)
from ctrlgrad.engines.cuda.prepared.operands import Counter, GoesOn, Limit, RunNumber, View, Word
from ctrlgrad.engines.cuda.prepared.placement import items_in_order
from ctrlgrad.engines.cuda.prepared.words import WORD, Words
from ctrlgrad.engines.cuda.reductions.model import ReductionSpec

# Value of a body's `GoesOn` word while there is another iteration.
GOING_ON = (1,)


class Capture:
    """A list whose addresses are set.

    Args:
        walk: goes through so many entries from one on, of no half, on a stream.
        asked: the address of the predicate that is asked at the end of a turn; 0 where there is none.
        stopped: the address of the number of a run that is stopped.
    """

    def __init__(
        self,
        writer: ListWriter,
        walk: Callable[[int, int, int, int, int], None],
        launcher: Launcher,
        asked: int,
        stopped: int,
    ) -> None:
        self.body, self.list = writer.body, writer.list
        self._writer, self._walk, self._launcher, self._asked = writer, walk, launcher, asked
        self._stopped = stopped

    @property
    def kernels(self) -> list[KernelSpec | ReductionSpec | IndexSpec]:
        """Kernels that may not have been called before: those of conditions, and of the lists inside."""
        sides = {_numbers(item) for item in items_in_order(self.body.items) if isinstance(item, Branching)}
        if not self.body.is_known:
            sides.add(GOING_ON)
        specs: list[KernelSpec | ReductionSpec | IndexSpec] = [self.condition()]
        specs += [graphs.going_on()] * any(loops_in(self.body.items))
        specs += map(graphs.choice, sorted(sides - {()}))
        inside = [launch for item in self.body.items for its in lists_in(item) for launch in all_launches(its)]
        specs += [launch.spec for launch in inside if not isinstance(launch, ProductLaunch)]
        return list(dict.fromkeys(specs))

    def condition(self) -> KernelSpec:
        """The kernel behind a turn: masked iterations past the loop's end are harmless, so it asks once a turn."""
        return graphs.condition(bool(self._asked)) if self.body.is_known else graphs.going_on()

    def turn(self) -> list[graphs.Part]:
        """The body of the while node."""
        halves = [
            self._parts(self.body.items, side, self._writer.first + side * self._writer.half) for side in range(2)
        ]
        if self.body.is_known:
            return [*halves[0], *halves[1]]
        goes_on = partial(self._choose, self.body.word(GoesOn()), 0, GOING_ON)
        return [*halves[0], graphs.Fork(goes_on, (tuple(halves[1]),))]

    def _parts(self, items: Sequence[Item], side: int, start: int) -> list[graphs.Part]:
        """Items as they are captured, by the entries from one on."""
        parts: list[graphs.Part] = []
        for has_lists, group in itertools.groupby(items, lambda item: bool(lists_in(item))):
            for item in group if has_lists else ():
                inside, bodies = start + 2, []
                for its in lists_in(item):
                    bodies.append(tuple(self._parts(its, side, inside)))
                    inside += entries_of(its) + 1
                if isinstance(item, Repeating):
                    put = partial(self._go_on, item.goes_on, side)
                    parts.append(graphs.Cycle(put, *bodies))
                elif isinstance(item, Branching) and (numbers := _numbers(item)):
                    put = partial(self._choose, item.chosen, side, numbers)
                    parts.append(graphs.Fork(put, tuple(bodies[k] for k in numbers)))
                start = inside
            count = 0 if has_lists else len(list(group))
            if count:
                parts.append(graphs.Stretch(partial(self._walk, start, count, 0, 0)))
                start += count
        return parts

    def _choose(self, number: View, side: int, numbers: Sequence[int], stream: int, handles: Sequence[int]) -> None:
        """Set conditions by a number on the card: each where it is that one of `numbers`."""
        address = self.list.now(self._writer.place(number, side))
        self._set_conditions(graphs.choice(numbers), [address], stream, handles)

    def _go_on(self, number: View, side: int, stream: int, handles: Sequence[int]) -> None:
        """Set the condition of a loop inside."""
        address = self.list.now(self._writer.place(number, side))
        self._set_conditions(graphs.going_on(), [address, *self._numbers_of_runs()], stream, handles)

    def _numbers_of_runs(self) -> list[int]:
        """Addresses of this run's id, and of the id of a run that is stopped."""
        return [self.list.now(self._writer.place(self.body.word(RunNumber()), 0)), self._stopped]

    def end(self, stream: int, handle: int) -> None:
        """Set the condition of another turn."""
        words: list[Word] = [Counter(0), Limit()] if self.body.is_known else [GoesOn()]
        given = [self.list.now(self._writer.place(self.body.word(word), 0)) for word in words]
        given += [*self._numbers_of_runs(), *([self._asked] * bool(self._asked))]
        self._set_conditions(self.condition(), given, stream, [handle])

    def _set_conditions(self, spec: KernelSpec, given: Sequence[int], stream: int, handles: Sequence[int]) -> None:
        words = Words()
        signed = [int(np.uint64(handle).astype(np.int64)) for handle in handles]
        kind, arguments = self._writer.kernel(
            words, spec, parameters_of(words, [*given, *signed]), (grid_of(spec), BLOCK)
        )
        entry = words.add(kind)
        words.inner(arguments)
        made = words.made()
        going = self.list.address + WORD * self._writer.host
        walker.run(made.address + WORD * entry, 1, 0, 0, 0, going, self._launcher.functions, stream)


def _numbers(item: Branching) -> tuple[int, ...]:
    """By which numbers there is something to do: sides that launch anything."""
    return tuple(k for k, side in enumerate(item.sides) if side)
