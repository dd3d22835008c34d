"""How a loop runs its iterations: prepared ones as many at once as everything moves by steps, others step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.prepared.forms import Body, Form
from ctrlgrad.engines.cuda.prepared.graphs import TURN, Refused
from ctrlgrad.engines.cuda.prepared.inputs import TableInput
from ctrlgrad.engines.cuda.prepared.model import (
    CarriedArray,
    CarriedNumber,
    CarriedRows,
    CarriedTable,
    PreparedBody,
)
from ctrlgrad.engines.cuda.prepared.operands import Given, wrapped
from ctrlgrad.engines.cuda.prepared.table_rows import Table, as_stack, as_table
from ctrlgrad.engines.cuda.prepared.totals import fitting, total
from ctrlgrad.engines.cuda.program import Values
from ctrlgrad.engines.cuda.stacks import DeviceStack, own_stack
from ctrlgrad.errors import ExecutionError, MemoryBudgetError

# Iterations that are put on the stream at once: in between Python has a turn (Ctrl-C).
LONGEST_RUN = 4096
# A run of fewer iterations is no graph: to make one costs about as much as to go through the list so often.
LEAST_IN_GRAPH = 16
# Iterations of it and of loops inside together that are put on the stream at once, where the host knows these; and how
# often a list may ask the card in an iteration: by itself a loop inside asks for many of its iterations at once.
MOST_INSIDE, MOST_ASKED = 1 << 16, 16


@dataclass
class LoopState:
    """A loop between two iterations."""

    shared: Values
    carry: Values
    trips: int = 0


class Iterations:
    """Those of one run of a loop, in a block of code that lets go of the buffers at its end.

    Past the loop's end a masked body leaves everything as it is: a graph leaves such iterations out. No other body runs
    past it.
    """

    def __init__(self, body: Body, context: Context, state: LoopState) -> None:
        self.body, self.context, self.state = body, context, state
        found = body.form(context.library, state.shared, state.carry)
        self._form: Form | None = found if isinstance(found, Form) else None
        # Whether there was no memory for it.
        self._is_step_by_step = False
        # The list, while what is carried is in its buffers.
        self._binding: Binding | None = None
        # Where there was no memory for a graph.
        self._has_no_graph = False

    def advance(self, most: int, longest: int = 0) -> int:
        """Run iterations, at least one and at most so many; how many that were.

        Args:
            longest: how many may run, if more, where a graph leaves out those past the loop's end.
        """
        form = self._form
        # Which blocks stacks ask for must not depend on how iterations run: a chunk may be run again the other way.
        count = self._count(form.body, max(most, longest)) if form is not None else 0
        if form is not None and count and not self._is_step_by_step and not self._asks_too_often(form.body, count):
            try:
                binding, rows = self._ready(form)
            except MemoryBudgetError:
                # Step by step a loop needs less: a carry is gone when it has been read.
                self._refuse("the budget has no memory for its buffers")
            else:
                count = self._worth(binding, count)
                # What is called for the first time may be loaded then, which no capture allows.
                first = 0 if binding.is_warm else TURN
                is_long = self._is_long(form.body, count, first)
                in_graph = is_long and self._has_graph(binding)
                if not in_graph:
                    # How often loops inside ask is not known yet, or too often.
                    is_short = form.body.asks and (self.body.asked is None or self.body.asked > MOST_ASKED)
                    is_short |= bool(is_long and first and not self._is_refused)
                    count = min(count, TURN if is_short else most)
                return self._run(form.body, binding, rows, count, in_graph)
        self._unbind()
        state = self.state
        state.carry = [as_stack(self.context, x) if isinstance(x, Table) else x for x in state.carry]
        arguments = state.shared + state.carry
        state.carry = []
        state.carry = self.body.program(arguments, self.context)
        return 1

    def _asks_too_often(self, form: PreparedBody, count: int) -> bool:
        """Whether loops inside would ask the card again and again, and no graph does that instead."""
        found = (self.body.asked or 0) > MOST_ASKED and (self._is_refused or not self._is_long(form, count))
        if found:
            self.body.refused = "a loop inside asks the card too often"
        return found

    def _is_long(self, form: PreparedBody, count: int, first: int = 0) -> bool:
        """Whether so many iterations, behind the first ones, and those of loops inside are enough for a graph."""
        has_loops = len(form.times) > 1 or form.asks
        if count >= LEAST_IN_GRAPH + first or not has_loops or count <= TURN + first:
            return count >= LEAST_IN_GRAPH + first
        integers = self._integers()
        inside = sum(total(times, count, integers) for times in form.times.values()) + count * (self.body.asked or 0)
        return inside * (count - first) >= LEAST_IN_GRAPH * count

    def __enter__(self) -> Iterations:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._unbind()
        carry = self.state.carry
        for position, x in enumerate(carry):
            # What has failed leaves nothing.
            if isinstance(x, Table) and failure is None:
                carry[position] = as_stack(self.context, x)

    def steps(self) -> dict[int, int]:
        """What each iteration of a run adds to integers on the host, by their position in the carry."""
        carries = self._form.body.carries if self._form is not None else ()
        return {
            position: carry.step
            for position, carry in enumerate(carries)
            if isinstance(carry, CarriedNumber) and carry.step
        }

    def uncount(self, iterations: int) -> None:
        """So many iterations of those that have run were past the loop's end."""
        for transfer in self._form.body.transfers if self._form is not None else ():
            if transfer.nbytes is not None:
                self.context.run.counters.pushed_rows(transfer.node, transfer.nbytes, -iterations)

    def _count(self, form: PreparedBody, most: int) -> int:
        """For how many iterations, of at most so many, everything moves by steps."""
        count = min(most, LONGEST_RUN)
        integers = self._integers()
        for index, size in form.bounds:
            first = index.value(integers)
            if not 0 <= first < size:
                return 0
            if index.step:
                ahead = size - 1 - first if index.step > 0 else first
                count = min(count, ahead // abs(index.step) + 1)
        for position, its in enumerate(form.carries):
            if isinstance(its, CarriedRows):
                there = self._rows(position, its)
                if its.is_known:
                    needed = [(abs(rows), times) for (_, rows), times in zip(its.rows, its.times, strict=True)]
                    count = fitting(needed, there, count, integers)
                elif there < its.at_most:
                    # Else the card, which alone knows how many rows it is, ends the run when there are no more.
                    count = 0
        if len(form.times) > 1 and count > 1:
            count = max(1, fitting([(1, times) for times in form.times.values()], MOST_INSIDE, count, integers))
        return count

    def _rows(self, position: int, its: CarriedRows) -> int:
        """How many rows of a stack lie next to each other, from where the next one is pushed or popped."""
        carry = self.state.carry
        holder = [carry[position]]
        carry[position] = None
        # Nobody else has it from now on.
        stack = carry[position] = own_stack(holder)
        assert isinstance(stack, DeviceStack)
        if its.is_known:
            return stack.free_rows(its.shape) if its.pushes else stack.top_rows(its.shape)
        if self._has_spare(stack, its):
            return its.at_most
        return stack.open_rows(its.shape) if its.pushes else stack.top_rows(its.shape)

    def _has_spare(self, stack: DeviceStack, its: CarriedRows) -> bool:
        """Whether an iteration's rows lie elsewhere: those that it may push, in a stack that has no memory for them as
        long as nothing is pushed, and those that no iteration pops, of a stack without rows."""
        if its.is_known:
            return False
        return stack.open_rows(its.shape) < its.at_most if its.pushes else not len(stack)

    def _integers(self) -> dict[int, int]:
        values = (*self.state.shared, *self.state.carry)
        return {slot: int(x) for slot, x in enumerate(values) if isinstance(x, np.integer)}

    def _ready(self, form: Form) -> tuple[Binding, dict[int, int]]:
        """The list, and where the rows of each stack begin or end."""
        binding, carry = self._bound(form), self.state.carry
        rows = {
            position: self._place(binding, position, carry[position], its)
            for position, its in enumerate(form.body.carries)
            if isinstance(its, CarriedRows)
        }
        return binding, rows

    def _worth(self, binding: Binding, count: int) -> int:
        """How many of so many iterations are put on the stream at once: of a loop that may end soon not so many that a
        graph is made for them."""
        unknown = LEAST_IN_GRAPH - TURN - self.state.trips
        if not binding.body.is_asked or unknown <= 0 or binding.graph is not None:
            return count
        return min(count, unknown)

    @property
    def _is_refused(self) -> bool:
        return self._has_no_graph or self.body.has_no_graph

    def _has_graph(self, binding: Binding) -> bool:
        """Whether there is a graph of a list that has been gone through, made where there was none."""
        if not self._is_refused:
            try:
                if not binding.has_graph() and binding.is_warm:
                    binding.capture()
            except Refused as reason:
                self._refused_graph(reason)
            except MemoryBudgetError:
                self._has_no_graph, self.body.without_graph = True, "the budget has no memory for its products"
        return binding.graph is not None and not self._is_refused

    def _refused_graph(self, reason: Refused) -> None:
        self._has_no_graph, self.body.without_graph = True, str(reason)
        self.body.has_no_graph = reason.is_lasting

    def _unbind(self) -> None:
        """Let go of the buffers, but for what is carried."""
        binding, self._binding = self._binding, None
        if binding is not None and self._form is not None:
            carry = self.state.carry
            for position in binding.positions:
                # It has been taken into a buffer, and nothing was run yet.
                if carry[position] is None:
                    carry[position] = binding.carry(position)
            self._form.give_back(binding)

    def _run(self, form: PreparedBody, binding: Binding, rows: dict[int, int], count: int, in_graph: bool) -> int:
        """How many iterations there were."""
        carry = self.state.carry
        spare = {
            position
            for position, its in enumerate(form.carries)
            if isinstance(its, CarriedRows) and self._has_spare(carry[position], its)
        }
        capacities = {
            position: self._rows(position, its)
            for position, its in enumerate(form.carries)
            if isinstance(its, CarriedRows) and not its.is_known
        }
        integers = self._integers()
        launched = binding.run(count, rows, capacities, integers, in_graph)
        refused, binding.refused = binding.refused, None
        if refused is not None:
            self._refused_graph(refused)
            in_graph = False
        counts = self.context.counts
        counts.runs += 1
        counts.kernels += launched.kernels
        counts.products += launched.products
        counts.predicate_reads += launched.reads
        counts.graphs += in_graph
        self.body.is_in_graph |= in_graph
        # How often regions were gone through; iterations are one of them.
        if form.is_known:
            counted = {counter: total(times, count, integers) for counter, times in form.times.items()}
        else:
            counted = binding.counted(self.context)
        if form.asks and not in_graph:
            # The card may have ended the run before the others.
            self.body.asked = launched.reads / counted[0]
        for position, its in enumerate(form.carries):
            if isinstance(its, CarriedArray | CarriedTable):
                carry[position] = binding.carry(position)
            elif isinstance(its, CarriedNumber):
                carry[position] = np.int64(wrapped(int(carry[position]) + counted[0] * its.step))
            elif isinstance(its, CarriedRows):
                moved = sum(rows * counted[counter] for counter, rows in its.rows)
                self._moved(carry[position], its, moved, binding.spare(position) if position in spare else None)
        self._note(form, counted)
        return counted[0]

    def _moved(self, stack: DeviceStack, its: CarriedRows, rows: int, spare: Any) -> None:
        """Rows were pushed, or popped (below 0), if on spare memory then instead of the stack's."""
        if spare is not None and rows < 0:
            raise ExecutionError("stack: popped more values than were pushed")
        if spare is not None:
            for number in range(rows):
                self.context.counts.calls += 1
                # The ellipsis makes a view of a scalar's row.
                stack.slot(its.shape)[...] = spare[number, ...]
                stack.commit()
        elif rows > 0:
            stack.commit(rows)
        elif rows:
            stack.take(-rows)

    def _place(self, binding: Binding, position: int, stack: DeviceStack, its: CarriedRows) -> int:
        """The address behind the last row of a stack."""
        if self._has_spare(stack, its):
            array, count = binding.spare(position), 0 if its.pushes else its.at_most
        else:
            array, count = stack.top()
        return self.context.library.address(array) + count * its.row_bytes

    def _refuse(self, reason: str) -> None:
        """From now on iterations run step by step."""
        self._unbind()
        self._is_step_by_step, self.body.refused = True, reason

    def _bound(self, form: Form) -> Binding:
        """The list, with what is carried in its buffers."""
        state = self.state
        binding, self._binding = self._binding, None
        if binding is not None and not all(binding.has(n, state.carry[n]) for n in binding.positions):
            # What is carried lies elsewhere by now.
            form.give_back(binding)
            binding = None
        if binding is None:
            # No name is left of what is carried: what nobody else holds becomes a buffer.
            given = self._captured(form)
            first = len(state.shared)
            given |= {Given(first + n): x for n, x in enumerate(state.carry) if isinstance(x, np.generic)}
            for region, program in enumerate(form.body.programs):
                given |= {Given(slot, region): x for slot, x in program.held(self.context).items()}
            binding = form.take(self.context)
            try:
                binding.begin(self.context, given, state.carry)
            except MemoryBudgetError:
                form.give_back(binding)
                raise
        self._binding = binding
        return binding

    def _captured(self, form: Form) -> dict[Given, Any]:
        """What a loop captures, tables as arrays."""
        given: dict[Given, Any] = {}
        for slot, (x, its) in enumerate(zip(self.state.shared, form.inputs, strict=False)):
            if not isinstance(its, TableInput):
                given[Given(slot)] = x
                continue
            table = as_table(self.context, x, its)
            given[Given(slot)] = self.context.xp.ascontiguousarray(table.rows)
            given[Given(slot, is_marks=True)] = table.marks
        return given

    def _note(self, form: PreparedBody, counted: dict[int, int]) -> None:
        counters = self.context.run.counters
        for transfer in form.transfers:
            if transfer.nbytes is None:
                counters.popped(transfer.node, counted[transfer.counter])
            else:
                counters.pushed_rows(transfer.node, transfer.nbytes, counted[transfer.counter])


__all__ = ["LEAST_IN_GRAPH", "LONGEST_RUN", "Iterations", "LoopState"]
