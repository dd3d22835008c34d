"""A prepared body in memory: the list of its launches in the processor's memory, and buffers on the card while it runs.

The list is written once. What another run of the loop changes (where captures and buffers lie, numbers of the host, the
stream) is named in it, and set when the run begins. Between two runs it has no memory on the card.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.library import Launcher
from ctrlgrad.engines.cuda.prepared import graphs, walker
from ctrlgrad.engines.cuda.prepared.buffers import array_buffers, table_buffers
from ctrlgrad.engines.cuda.prepared.captures import Capture
from ctrlgrad.engines.cuda.prepared.entries import (
    GOING,
    MEMORY,
    TRIPS,
    ListWriter,
    NumberWord,
    bits_of,
)
from ctrlgrad.engines.cuda.prepared.inputs import Input
from ctrlgrad.engines.cuda.prepared.model import (
    CarriedArray,
    CarriedRows,
    CarriedTable,
    PreparedBody,
)
from ctrlgrad.engines.cuda.prepared.operands import (
    ENDLESS,
    Affine,
    Before,
    Began,
    Capacity,
    Carried,
    Counter,
    Fixed,
    Flag,
    Given,
    GoesOn,
    LastSlot,
    Limit,
    Most,
    Rows,
    RunNumber,
    Short,
    View,
    Word,
    wrapped,
)
from ctrlgrad.engines.cuda.prepared.row_memory import RowMemory
from ctrlgrad.engines.cuda.prepared.table_rows import Table
from ctrlgrad.engines.cuda.prepared.words import WORD
from ctrlgrad.engines.cuda.sites import Site

# Graphs of a list that are kept: calls whose arrays lie here and there by turns find theirs again.
GRAPHS = 4
_BYTE = np.dtype(np.uint8)


class Binding:
    """The list of a loop's launches. One run of the loop has it at a time, between `begin` and `end`."""

    def __init__(self, body: PreparedBody, inputs: Sequence[Input], context: Context) -> None:
        self.body, self.library, self.precision = body, context.library, context.precision
        # Of what is carried, what the body is told of it.
        self._inputs = inputs[len(inputs) - len(body.carries) :]
        # The two buffers of each array that is carried; twice the same where there is one.
        self.carried: dict[Carried, list[Any]] = {}
        # 1 if the next iteration reads the second buffers, else 0.
        self.odd = 0
        self._given: Mapping[Given, Any] = {}
        self._memory: Any = None
        # Where an index that is out of range is noted, if any may be.
        self._flag: Any = None
        self._launcher: Launcher | None = None
        # True once all of the list has been called: everything that CUDA loads at a first call is loaded.
        self.is_warm = False
        # That of the list as it is, if there is one; and those that are kept, what was asked for last at the end.
        # Each has the list as it was, and the address of the memory that its products have while it runs.
        self.graph: graphs.LoopGraph | None = None
        self._graphs: OrderedDict[tuple[tuple[int, ...], int], graphs.LoopGraph] = OrderedDict()
        # Why its last launch was not.
        self.refused: graphs.Refused | None = None
        self._workspace: Any = None
        # Launches of the run under way, and the side of the buffers that it began with.
        self._launched, self._begun = walker.Counts(), 0
        self._moment = self._number = 0
        self._writer = ListWriter(body, self.library, self.precision)
        self.list = self._writer.list

    def begin(self, context: Context, given: Mapping[Given, Any], carry: list[Any]) -> None:
        """Have memory, and name it in the list.

        Args:
            given: captures, constants and numbers of the host.
            carry: the loop's carry. An array with no other reference becomes a buffer; a shared one is copied into one.

        Raises `MemoryError` where there is no memory for the buffers; what is carried is in `carry` then.
        """
        self._given, self.carried, self.odd, self._number = given, {}, 0, context.run_number
        try:
            # Products have a workspace, which counts in a session.
            self._launcher = self.library.launcher(self.body.products > 0)
            self._memory = self.library.empty((self.body.placement.nbytes,), _BYTE)
            if Flag() in self.list.named:
                self._flag = context.index_flag()
            for position, its in enumerate(self.body.carries):
                if isinstance(its, CarriedArray):
                    self.carried[Carried(position)] = array_buffers(context, its, carry, position)
                elif isinstance(its, CarriedTable):
                    rows, marks = table_buffers(context, its, self._inputs[position], carry, position)
                    self.carried |= {Carried(position): rows, Carried(position, is_marks=True): marks}
        except MemoryError:
            for position in self.positions:
                if Carried(position) in self.carried:
                    carry[position] = self.carry(position)
            self.end()
            raise
        for named in self.list.named:
            self.list.set(named, self._word(named, context))
        self.graph = None

    @property
    def positions(self) -> list[int]:
        """Of what lies in buffers."""
        return [n for n, its in enumerate(self.body.carries) if isinstance(its, CarriedArray | CarriedTable)]

    def end(self) -> None:
        """Let go of all memory."""
        self._given, self.carried, self._memory, self._workspace, self._flag = {}, {}, None, None, None

    @property
    def _called(self) -> Launcher:
        assert self._launcher is not None
        return self._launcher

    def carry(self, position: int) -> Any:
        """The array, or the table, that is carried at a position now."""
        array = self.carried[Carried(position)][self.odd]
        if isinstance(self.body.carries[position], CarriedArray):
            return array
        return Table(array, self.carried[Carried(position, is_marks=True)][self.odd])

    def has(self, position: int, value: Any) -> bool:
        """Return true if `value` is the current carry at a position."""
        found = self.carry(position)
        if isinstance(found, Table) and isinstance(value, Table):
            return found.rows is value.rows and found.marks is value.marks
        return found is value

    def run(
        self,
        iterations: int,
        rows: Mapping[int, RowMemory],
        integers: Mapping[int, int],
        in_graph: bool = False,
        moment: int = 0,
    ) -> walker.Counts:
        """Put iterations on the library's stream; what was launched by itself.

        Where only the card knows how many rows an iteration has (`is_known` is false), there may be fewer of them: see
        `counted`.

        Args:
            rows: of each stack that is pushed on or popped off, where its rows lie.
            integers: those of the host, by their slots.
            moment: the number of now, which is noted with an index that is out of range.
            in_graph: by the graph, which begins with an even one, but for one at either end. A graph that asks the
                predicate leaves out those past the loop's end.
        """
        self._moment = moment
        values = [self._value(word, iterations, rows, integers) for word in self.body.words]
        for number, count, start in self._writer.set:
            its = values[start : start + count]
            self.list.words[number : number + count] = its + its[-1:] * (count - len(its))
        self.list.words[self._writer.host + GOING] = 1
        self._launched, self._begun = walker.Counts(), self.odd
        self._walk(0, self._writer.first, 0, 0)
        self._have_trips(integers, 0)
        listed = self.odd if in_graph else iterations
        self._iterate(listed)
        if in_graph and self.list.words[self._writer.host + GOING]:
            assert self.graph is not None and iterations - listed >= (graphs.TURN if self.body.is_known else 1)
            try:
                self.graph.launch(self._called.stream)
                left = (iterations - listed) % graphs.TURN if self.body.is_known else 0
            except graphs.Refused as refused:
                # Nothing of it has run: the list does the same.
                self._forget()
                self.refused, left = refused.with_traceback(None), iterations - listed
            except graphs.GraphFailed as failed:
                self._forget()
                raise self._called.error(walker.KERNEL, failed.status) from None
            self._have_trips(integers, iterations - left)
            self._iterate(left)
        self.is_warm = self.is_warm or iterations >= graphs.TURN
        return self._launched

    def counted(self, context: Context) -> dict[Word, int]:
        """The words behind a run that the card has ended: how often regions have been gone through, and more."""
        (words,) = context.on_host(self._memory[: WORD * len(self.body.words)])
        found = dict(zip(self.body.words, map(int, words.view(np.int64)), strict=True))
        self.odd = (self._begun + found[Counter(0)]) & 1
        return found

    def saved(self) -> list[tuple[Any, Any]]:
        """The current carry and the run's flag, each with a copy. Raises `MemoryError`."""
        found = [buffers[self.odd] for buffers in self.carried.values()]
        return [(x, self.library.xp.array(x)) for x in (*found, *([] if self._flag is None else [self._flag]))]

    def restore(self, saved: Sequence[tuple[Any, Any]]) -> None:
        """Have what was carried when the run began, where it lay, and what had been noted by then."""
        self.odd = self._begun
        for target, array in saved:
            target[...] = array

    def _value(self, word: Word, iterations: int, rows: Mapping[int, RowMemory], integers: Mapping[int, int]) -> int:
        match word:
            case Counter() | Before() | Short():
                return 0
            case Limit():
                return iterations
            case GoesOn():
                return 1
            case RunNumber():
                return self._number
            case Began():
                return self._moment
            case Capacity(position):
                its = rows[position]
                return ENDLESS if its.is_whole else self._rows(position).usable(its.capacity)
            case LastSlot(position):
                return rows[position].capacity - self._rows(position).at_least
            case Most(position):
                return rows[position].most
            case Affine():
                return wrapped(word.value(integers))
            case View(Rows(position)):
                return rows[position].address + word.offset + word.moved.value(integers)
        raise AssertionError(word)

    def _rows(self, position: int) -> CarriedRows:
        its = self.body.carries[position]
        assert isinstance(its, CarriedRows)
        return its

    def _have_trips(self, integers: Mapping[int, int], before: int) -> None:
        """Write the trip counts of the inner loops in the next iteration, before which `before` iterations ran."""
        for first, trips in self._writer.counted.values():
            if isinstance(trips, Affine):
                self.list.words[first + TRIPS] = trips.value(integers) + before * trips.step

    def _iterate(self, iterations: int) -> None:
        self._walk(self._writer.first, 0, iterations, self.odd)
        self.odd = (self.odd + iterations) & 1

    def _walk(self, start: int, once: int, iterations: int, odd: int, stream: int | None = None) -> None:
        """Go through the list from an entry on."""
        called, half = self._called, self._writer.half
        address = self.list.address + WORD * (self._writer.begin + start * walker.ENTRY)
        going = self.list.address + WORD * (self._writer.host + GOING)
        try:
            found = walker.run(address, once, half, odd, iterations, going, called.functions, stream or called.stream)
        except walker.Failed as failed:
            if stream is not None:
                raise
            raise called.error(failed.kind, failed.status) from None
        if stream is None:
            self._launched.kernels += found.kernels
            self._launched.products += found.products
            self._launched.reads += found.reads

    # The graph.

    def has_graph(self) -> bool:
        """Return true if there is a graph of the list in its current state.

        Raises `MemoryError` where there is no memory for the products' workspace.
        """
        key = self.list.state, self._have_workspace()
        self.graph = self._graphs.get(key)
        if self.graph is not None:
            self._graphs.move_to_end(key)
        return self.graph is not None

    @property
    def may_have_graph(self) -> bool:
        """Return true if there is a graph of this list, whatever the address of its products' workspace."""
        return any(state == self.list.state for state, _ in self._graphs)

    @property
    def kept_graphs(self) -> int:
        return len(self._graphs)

    def _forget(self) -> None:
        """The graph is of no use."""
        self._graphs = OrderedDict((key, its) for key, its in self._graphs.items() if its is not self.graph)
        self.graph = None

    def _have_workspace(self) -> int:
        """Products have memory from now on until the run ends; its address, or 0 where there are no products."""
        if not self.body.products:
            return 0
        if self._workspace is None:
            self._workspace = self.library.empty((self._called.workspace_bytes,), _BYTE)
        return self.library.address(self._workspace)

    def capture(self) -> None:
        """Have a graph of the list, which ends where the loop does.

        Raises `graphs.Refused`, and `MemoryError` where there is no memory for the products' workspace.
        """
        addresses = self._called.graphs()
        if isinstance(addresses, str):
            raise graphs.Refused(addresses)
        stopped = self.library.address(self.library.stopped())
        driver = graphs.GraphDriver(addresses)
        capture = Capture(self._writer, self._walk, self._called, self._asked, stopped)
        # A capture may neither compile nor load them.
        self.library.prepare(capture.kernels, self.precision != "ieee")
        functions = [self.library.function(spec, self.precision != "ieee") for spec in capture.kernels]
        place = self._have_workspace()
        try:
            for function in functions:
                driver.call("cuFuncLoad", function)
            with self._called.capturing(self._workspace) as stream:
                self.graph = graphs.LoopGraph(driver, stream, capture.turn(), capture.end)
            self._graphs[self.list.state, place] = self.graph
            while len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
        except graphs.GraphFailed as failed:
            raise self._called.error(walker.KERNEL, failed.status) from None
        except walker.Failed as failed:
            raise self._called.error(failed.kind, failed.status) from None

    @property
    def _asked(self) -> int:
        """The address of what masked iterations say at the end of a turn: whether another one counts; else 0."""
        ending = self.body.ending
        if ending is None or not ending.is_masked:
            return 0
        return self.library.address(self.carried[Carried(ending.position)][0])

    def _word(self, named: object, context: Context) -> int:
        """Current value of a named word of the list."""
        match named:
            case Given():
                return self.library.address(self._given[named])
            case Carried():
                return self.library.address(self.carried[replace(named, is_next=False)][named.is_next])
            case NumberWord(Fixed(dtype, _, slot), position):
                assert slot is not None
                return bits_of(dtype, self._given[Given(slot)])[position]
            case Site():
                return context.sites.listed(named)
            case Flag():
                return self.library.address(context.index_flag())
        if named is MEMORY:
            return self.library.address(self._memory)
        return self._called.handle
