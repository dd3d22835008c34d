"""One run of a compiled loop: chunk by chunk, with memory for its stacks.

Python runs once per chunk. It lends every stack its memory, calls the compiled function for at most so many iterations,
takes the stacks back, and looks at why the function returned. Ctrl-C is honoured between chunks.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ctrlgrad.engines.account import empty, supply
from ctrlgrad.engines.chunks import Chunk, Chunks
from ctrlgrad.engines.native.checked import CheckedFunction, buffers_of
from ctrlgrad.engines.native.compiler import blas_address
from ctrlgrad.engines.native.failures import failure, number_of
from ctrlgrad.engines.native.lending import LentStack
from ctrlgrad.engines.native.looking import Looking
from ctrlgrad.engines.native.operands import layout_of, own_array
from ctrlgrad.engines.native.outside import Outside
from ctrlgrad.engines.native.program import (
    FIRST_ENTRY,
    FIRST_LOCAL,
    LIMIT,
    PLACE,
    STATUS,
    TRIPS,
    Entry,
    StackUse,
    Status,
)
from ctrlgrad.engines.ownership import LENT_ALONE
from ctrlgrad.engines.reference.control_kernels import note, too_many_iterations
from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.replay import EntryState
from ctrlgrad.errors import CtrlgradError, ExecutionError, locate
from ctrlgrad.ir import StackType
from ctrlgrad.stacks.blocks import BlockStack, from_rows
from ctrlgrad.stacks.storage import Storage

if TYPE_CHECKING:
    from ctrlgrad.engines.native.loop import Plan

# The first chunk is short: most loops are.
FIRST_ITERATIONS = 256


@dataclass(frozen=True)
class ChunkLength:
    """The iterations that a chunk ran and those it was allowed, and the rows that blocks had room for, by position."""

    trips: int
    allowed: int
    rooms: dict[int, int]


class Execution:
    """One run of a plan, from these operands, `done` iterations having been run elsewhere.

    Takes the list of operands over, so that arrays that nobody else holds are overwritten.
    """

    def __init__(self, plan: Plan, values: list[Any], chunks: Chunks, run: Run, done: int = 0) -> None:
        self.plan, self.run_state, self.chunks = plan, run, chunks
        self.program = plan.program
        self.table = np.zeros(FIRST_ENTRY + len(plan.program.entries), np.int64)
        self.temporaries = {} if chunks.is_counted else plan.take_temporaries()
        self.lent: list[Storage] = []
        self.kept: dict[int, np.ndarray] = {}
        self.scalars: dict[int, np.ndarray] = {}
        self.states: dict[int, list[np.ndarray]] = {}
        self.stacks: dict[int, LentStack] = {}
        self.outside = Outside(plan.calls) if plan.calls else None
        self.looking: Looking | None = None
        # What was raised with the place and iteration in it.
        self.told: BaseException | None = None
        # How long each chunk was, by the iterations before it.
        self.lengths: dict[int, ChunkLength] = {}
        uses = {use.position: use for use in plan.program.stacks}
        for place, entry in enumerate(plan.program.entries, FIRST_ENTRY):
            self._fill(place, entry, values, uses)
        first = values[plan.captures] if len(values) > plan.captures else None
        self.trips_at_first = int(first) if isinstance(first, np.integer | np.ndarray) and np.ndim(first) == 0 else None
        values.clear()
        self.done = self.before = done
        # Iterations of a chunk at most: fewer once a chunk pushed more than its bytes in loops inside.
        self.most = plan.chunk

    def _fill(self, place: int, entry: Entry, values: list[Any], uses: dict[int, StackUse]) -> None:
        kind, position = entry.kind, entry.position
        if kind == "dim":
            self.table[place] = position
        elif kind == "operand":
            value = values[position]
            self.table[place] = self._address(
                place, value if layout_of(value) != "rows" else np.ascontiguousarray(value)
            )
        elif kind == "constant":
            assert entry.array is not None
            self.table[place] = self._address(place, np.ascontiguousarray(entry.array))
        elif kind == "temporary":
            if place not in self.temporaries:
                self.temporaries[place] = self._temporary(entry)
            self.table[place] = self.temporaries[place].ctypes.data
        elif kind == "routine":
            self.table[place] = blas_address(entry.name)
        elif kind == "outside":
            assert self.outside is not None
            self.table[place] = self.outside.address
        elif kind == "look":
            self.looking = Looking()
            self.table[place] = self.looking.address
        elif kind == "scalar":
            self.scalars[position] = np.array(values[position]).reshape(1)
            self.table[place] = self.scalars[position].ctypes.data
        elif kind == "state":
            value, values[position] = values[position], None
            state = own_array(value)
            del value
            self.states[position] = [state, empty(state.shape, state.dtype, "a carried value")]
            self.table[place] = state.ctypes.data
        elif kind == "other":
            self.table[place] = self.states[position][1].ctypes.data
        else:
            if position >= FIRST_LOCAL:
                if position not in self.stacks:
                    self.stacks[position] = self._stack(uses[position], [])
            elif position not in self.stacks:
                value, values[position] = values[position], None
                self.stacks[position] = self._stack(uses[position], value)
                del value
            self.stacks[position].place[kind] = place

    def _temporary(self, entry: Entry) -> np.ndarray:
        assert entry.dtype is not None
        size = max(self.plan.size(entry.size), 1)
        if not self.chunks.is_counted:
            return np.empty(size, entry.dtype)
        storage = supply().array((size,), entry.dtype, "a temporary")
        self.lent.append(storage)
        array: np.ndarray = storage.open()
        return array

    def _stack(self, use: StackUse, value: Any) -> LentStack:
        if isinstance(value, BlockStack):
            given = value if sys.getrefcount(value) <= LENT_ALONE else value.copy()
        else:
            shape = tuple(self.plan.size(d) for d in use.element)
            given = from_rows(use.dtype, shape, value, supply())
        row_bytes = self.plan.row_bytes(use)
        return LentStack(use, given, row_bytes, self.plan.label(use), self.plan.chunk_bytes // max(row_bytes, 1))

    def _address(self, place: int, array: np.ndarray) -> int:
        self.kept[place] = array
        return array.ctypes.data

    # Running.

    def run(self) -> Any:
        plan = self.plan
        maximum = plan.node.attrs.get("maximum_iterations")
        limit = min(FIRST_ITERATIONS, plan.chunk)
        try:
            while True:
                allowed = limit if maximum is None else min(limit, maximum - self.done)
                status = self._chunk(allowed)
                if status is Status.FINISHED:
                    break
                if status is Status.LIMIT and self.done == maximum:
                    self._check_maximum(maximum)
                    break
                if status is Status.EMPTY:
                    use = self._named()
                    self._join(use, use.pops)
                if status not in (Status.FULL_INSIDE, Status.EMPTY_INSIDE):
                    limit *= 2
                limit = min(limit, self.most)
            return self._results()
        except BaseException as error:
            self._tell(error)
            raise
        finally:
            self.end()

    def end(self) -> None:
        """Give the temporaries back."""
        for storage in self.lent:
            storage.close()
            storage.free()
        self.lent.clear()
        if not self.chunks.is_counted:
            self.plan.give_back(self.temporaries)
        self.temporaries = {}

    def _chunk(self, limit: int) -> Status:
        """Run at most so many iterations."""
        before = self.done
        chunk = self.chunks.begin(self._snapshot, sum(pair[0].nbytes for pair in self.states.values()))
        try:
            status = self.advance(limit, chunk)
        except BaseException:
            for stack in self.stacks.values():
                stack.abandon()
            chunk.discard()
            raise
        if status in (Status.FULL_INSIDE, Status.EMPTY_INSIDE):
            chunk.discard()
        else:
            self.lengths[before] = ChunkLength(self.done - before, limit, {i: s.room for i, s in self.stacks.items()})
            chunk.seal()
        return status

    def advance(self, limit: int, chunk: Chunk, trips: int | None = None) -> Status:
        """Lend the stacks, run, and take the stacks back; or go back to the state before, with more room.

        The stacks have room for `limit` iterations; `trips` are run at most, where given.
        """
        table = self.table
        table[LIMIT] = limit if trips is None else trips
        for stack in self.stacks.values():
            stack.lend(table, limit, chunk)
        saved = self._saved() if self.plan.may_run_again else None
        with chunk.running():
            self._call()
        status = Status(int(table[STATUS]))
        if status in (Status.FULL_INSIDE, Status.EMPTY_INSIDE):
            assert saved is not None
            self._run_again(status, saved, limit)
            return status
        if status > Status.EMPTY_INSIDE:
            raise self._failure(status)
        self.done += int(table[TRIPS])
        for stack in self.stacks.values():
            stack.take_back(table, self.run_state.counters)
        return status

    def _call(self) -> None:
        function = self.plan.function
        if isinstance(function, CheckedFunction):
            function.run(self.table, buffers_of(self))
        else:
            function(self.table)

    def _named(self) -> StackUse:
        """The use of the stack that the function named."""
        number = int(self.table[PLACE])
        return next(use for use in self.program.stacks if use.position == number)

    def _join(self, use: StackUse, rows: int) -> None:
        """See to it that the last block of a stack has so many rows: an iteration may need rows of several."""
        stack = self.stacks[use.position].stack
        if len(stack) < rows:
            raise ExecutionError("stack: popped more values than were pushed", source=self.plan.node.source)
        stack.last(rows)

    # A chunk that runs again from where it began.

    def _saved(self) -> dict[str, Any]:
        """The state that the chunk starts from, for stacks that may turn out too small inside an iteration."""
        return {
            "scalars": {i: x.copy() for i, x in self.scalars.items()},
            "states": {i: pair[0].copy() for i, pair in self.current().items()},
            "wholes": {
                i: s.block[: s.start].copy()
                for i, s in self.stacks.items()
                if s.use.mode == "whole" and s.block is not None
            },
            "written": {i: s.stack.written.copy() for i, s in self.stacks.items() if s.stack.written is not None},
        }

    def current(self) -> dict[int, list[np.ndarray]]:
        """Each carried array and its other one, as they lie now."""
        found = {}
        for place, entry in enumerate(self.program.entries, FIRST_ENTRY):
            if entry.kind == "state":
                pair = self.states[entry.position]
                if pair[0].ctypes.data != self.table[place]:
                    pair.reverse()
                found[entry.position] = pair
        return found

    def _run_again(self, status: Status, saved: dict[str, Any], limit: int) -> None:
        """Back to the state before the chunk, with more room, more rows or fewer than `limit` iterations."""
        use = self._named()
        stack = self.stacks[use.position]
        assert stack.block is not None
        for i, x in saved["scalars"].items():
            self.scalars[i][:] = x
        for i, pair in self.current().items():
            pair[0][...] = saved["states"][i]
        for i, rows in saved["wholes"].items():
            block = self.stacks[i].block
            assert block is not None
            block[: len(rows)] = rows
        for i, marks in saved["written"].items():
            self.stacks[i].stack.written = marks
        start, size = stack.start, len(stack.block)
        for other in self.stacks.values():
            other.abandon()
        if status is Status.EMPTY_INSIDE:
            self._join(use, start + 1)
        elif 2 * size > stack.most_rows and limit > 1:
            self.most = limit // 2
        else:
            stack.room = 2 * size

    # What a memory manager asks.

    def _snapshot(self) -> tuple[EntryState, int]:
        state = self.state()
        return state, state.nbytes

    def state(self) -> EntryState:
        """Copies of what is carried between two chunks."""
        states = self.current()
        carry: list[Any] = []
        for i in range(len(self.plan.node.results)):
            position = self.plan.captures + i
            if position in states:
                carry.append(states[position][0].copy())
            else:
                carry.append(None if position in self.stacks else self.scalars[position][0])
        return EntryState(tuple(carry), self.done)

    # The end.

    def _results(self) -> Any:
        results: list[Any] = []
        states = self.current()
        for i, v in enumerate(self.plan.node.results):
            position = self.plan.captures + i
            if isinstance(v.type, StackType):
                results.append(self.stacks[position].stack)
            elif position in states:
                results.append(states[position][0])
            else:
                results.append(self.scalars[position][0])
        self.run_state.counters.looped(self.plan.node, self.done)
        return results if len(results) != 1 else results[0]

    def _failure(self, status: Status) -> BaseException:
        node, sites = self.plan.node, self.program.sites
        raised = next((x.error for x in (self.outside, self.looking) if x is not None and x.error is not None), None)
        found = failure(
            node, status, self.table, sites, self.done, self.before, self.trips_at_first, self.run_state, raised
        )
        self.told = found
        return found

    def _tell(self, error: BaseException) -> None:
        """Add to what interrupted the driver between chunks how far the loop had come."""
        if error is not self.told and not isinstance(error, CtrlgradError):
            locate(error, self.plan.node.op.name, self.plan.node.source)
            iteration = number_of(self.plan.node, self.done, self.before, self.trips_at_first)
            note(error, self.plan.node, iteration, self.run_state, is_inside=False)

    def _check_maximum(self, maximum: int) -> None:
        """At the maximum the condition must be false."""
        chunk = self.chunks.begin(None)
        self.table[LIMIT] = 0
        try:
            for stack in self.stacks.values():
                stack.lend(self.table, 1, chunk)
            self._call()
        finally:
            for stack in self.stacks.values():
                stack.abandon()
            chunk.discard()
        if Status(int(self.table[STATUS])) is not Status.FINISHED:
            raise too_many_iterations(self.plan.node, maximum, maximum)


__all__ = ["ChunkLength", "Execution"]
