"""How a loop runs its iterations: prepared ones as many at once as everything moves by steps, others step by step."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.prepared.body import prepared
from ctrlgrad.engines.cuda.prepared.graphs import TURN, Refused
from ctrlgrad.engines.cuda.prepared.model import (
    CannotPrepare,
    CarriedArray,
    CarriedNumber,
    CarriedRows,
    PreparedBody,
)
from ctrlgrad.engines.cuda.prepared.reading import ArrayInput, Input, NumberInput, StackInput
from ctrlgrad.engines.cuda.program import Program, Values
from ctrlgrad.engines.cuda.stacks import DeviceStack, own_stack
from ctrlgrad.engines.precision import Precision
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir.caching import Recent

# Iterations that are put on the stream at once: in between Python has a turn (Ctrl-C).
LONGEST_RUN = 4096
# A run of fewer iterations is no graph: to make one costs about as much as to go through the list so often.
LEAST_IN_GRAPH = 16
# Prepared forms of a body that are kept: one for each set of shapes. And lists of a form, for runs at the same time.
FORMS, LISTS = 16, 2


@dataclass
class LoopState:
    """A loop between two iterations."""

    shared: Values
    carry: Values
    trips: int = 0


@dataclass(eq=False)
class Form:
    """A prepared body and its lists that no run has now, by how products and sums are rounded.

    They have no memory on the card, but for code. Threads take lists and give them back.
    """

    body: PreparedBody
    idle: dict[Precision, deque[Binding]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=LISTS)))

    def take(self, context: Context) -> Binding:
        try:
            return self.idle[context.precision].pop()
        except IndexError:
            return Binding(self.body, context)

    def give_back(self, binding: Binding) -> None:
        binding.end()
        self.idle[binding.precision].append(binding)


@dataclass(eq=False)
class Body:
    """The body of a loop and its prepared forms, by what they run on."""

    program: Program
    forms: Recent[tuple[Input, ...], Form | str] = field(default_factory=lambda: Recent(FORMS))
    # Why a prepared form was not run.
    refused: str = ""
    # Whether some runs were by a graph; why others were not, though long enough; and whether that is so for good.
    is_in_graph: bool = False
    without_graph: str = ""
    has_no_graph: bool = False

    def form(self, library: ArrayLibrary, state: LoopState) -> Form | str:
        """The prepared form for what a loop runs on now, or why there is none."""
        given = [*(_input(library, x) for x in state.shared), *(_input(library, x, True) for x in state.carry)]
        return self.forms.get(tuple(given), lambda: self._made(given, len(state.shared)))

    def _made(self, inputs: list[Input], captures: int) -> Form | str:
        try:
            return Form(prepared(self.program, inputs, captures))
        except CannotPrepare as error:
            return str(error)

    @property
    def launching(self) -> str:
        """How its launches were put on the stream so far, for people."""
        forms = [*self.forms.values(), *([self.refused] if self.refused else [])]
        found = ["; ".join(sorted(set(map(_said, forms))))]
        if self.is_in_graph:
            found.append(f"in a graph, {TURN} iterations a turn")
        if self.without_graph:
            found.append(f"not in a graph ({self.without_graph})")
        return ", ".join(found)


def _said(form: Form | str) -> str:
    if isinstance(form, str):
        return f"one by one ({form})"
    return f"from a list of {len(form.body.launches)} an iteration"


def _input(library: ArrayLibrary, x: Any, is_carried: bool = False) -> Input:
    if library.is_array(x):
        # What is carried lies in buffers.
        return ArrayInput(x.dtype, tuple(x.shape), () if is_carried else tuple(x.strides))
    if isinstance(x, np.generic):
        return NumberInput(x.dtype)
    return StackInput(isinstance(x, DeviceStack))


class Iterations:
    """Those of one run of a loop, in a block of code that lets go of the buffers at its end.

    Args:
        predicate: where iterations past the loop's end leave everything as it is, the carry that says whether the next
            one counts. A graph leaves them out.
    """

    def __init__(self, body: Body, context: Context, state: LoopState, predicate: int | None = None) -> None:
        self.body, self.context, self.state, self.predicate = body, context, state, predicate
        found = body.form(context.library, state)
        self._form: Form | None = found if isinstance(found, Form) else None
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
        count = self._count(form.body, max(most, longest)) if form is not None else 0
        if count:
            assert form is not None
            try:
                binding, rows = self._ready(form)
            except MemoryBudgetError:
                # Step by step a loop needs less: a carry is gone when it has been read.
                self._refuse("the budget has no memory for its buffers")
            else:
                # What is called for the first time may be loaded then, which no capture allows.
                first = 0 if binding.is_warm else TURN
                is_long = count >= LEAST_IN_GRAPH + first
                in_graph = is_long and self._has_graph(binding)
                if not in_graph:
                    count = min(count, first if is_long and first and not self._is_refused else most)
                self._run(form.body, binding, rows, count, in_graph)
                return count
        self._unbind()
        state = self.state
        arguments = state.shared + state.carry
        state.carry = []
        state.carry = self.body.program(arguments, self.context)
        return 1

    def __enter__(self) -> Iterations:
        return self

    def __exit__(self, *_: object) -> None:
        self._unbind()

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
        for node, nbytes in self._form.body.pushes if self._form is not None else ():
            self.context.run.counters.pushed_rows(node, nbytes, -iterations)

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
                count = min(count, self._rows(position, its) // abs(its.rows)) if its.rows else count
        return count

    def _rows(self, position: int, its: CarriedRows) -> int:
        """How many rows of a stack lie next to each other, from where the next one is pushed or popped."""
        carry = self.state.carry
        holder = [carry[position]]
        carry[position] = None
        # Nobody else has it from now on.
        stack = carry[position] = own_stack(holder)
        assert isinstance(stack, DeviceStack)
        return stack.free_rows(its.shape) if its.rows > 0 else stack.top_rows(its.shape)

    def _integers(self) -> dict[int, int]:
        values = (*self.state.shared, *self.state.carry)
        return {slot: int(x) for slot, x in enumerate(values) if isinstance(x, np.integer)}

    def _ready(self, form: Form) -> tuple[Binding, dict[int, int]]:
        """The list, and where the rows of each stack begin or end."""
        binding, carry = self._bound(form), self.state.carry
        rows = {
            position: self._place(carry[position], its)
            for position, its in enumerate(form.body.carries)
            if isinstance(its, CarriedRows)
        }
        return binding, rows

    @property
    def _is_refused(self) -> bool:
        return self._has_no_graph or self.body.has_no_graph

    def _has_graph(self, binding: Binding) -> bool:
        """Whether there is a graph of a list that has been gone through, made where there was none."""
        if binding.graph is None and binding.is_warm and not self._is_refused:
            try:
                binding.capture(self.predicate)
            except Refused as reason:
                self._has_no_graph, self.body.without_graph = True, str(reason)
                self.body.has_no_graph = reason.is_lasting
            except MemoryBudgetError:
                self._has_no_graph, self.body.without_graph = True, "the budget has no memory for its products"
        return binding.graph is not None

    def _unbind(self) -> None:
        """Let go of the buffers, but for what is carried."""
        binding, self._binding = self._binding, None
        if binding is not None and self._form is not None:
            carry = self.state.carry
            for position in binding.carried:
                # It has been taken into a buffer, and nothing was run yet.
                if carry[position] is None:
                    carry[position] = binding.carry(position)
            self._form.give_back(binding)

    def _run(self, form: PreparedBody, binding: Binding, rows: dict[int, int], count: int, in_graph: bool) -> None:
        carry = self.state.carry
        self._note(form, count, (count - binding.odd) % TURN + binding.odd if in_graph else count)
        binding.run(count, rows, self._integers(), in_graph)
        for position, its in enumerate(form.carries):
            if isinstance(its, CarriedArray):
                carry[position] = binding.carry(position)
            elif isinstance(its, CarriedNumber):
                carry[position] = np.int64(carry[position] + count * its.step)
            elif isinstance(its, CarriedRows) and its.rows > 0:
                carry[position].commit(count * its.rows)
            elif isinstance(its, CarriedRows):
                carry[position].take(-count * its.rows)

    def _place(self, stack: DeviceStack, its: CarriedRows) -> int:
        """The address behind the last row of a stack."""
        array, count = stack.top()
        return self.context.library.address(array) + count * its.row_bytes

    def _refuse(self, reason: str) -> None:
        """From now on iterations run step by step."""
        self._unbind()
        self._form, self.body.refused = None, reason

    def _bound(self, form: Form) -> Binding:
        """The list, with what is carried in its buffers."""
        state = self.state
        binding, self._binding = self._binding, None
        if binding is not None and any(binding.carry(n) is not state.carry[n] for n in binding.carried):
            # What is carried lies elsewhere by now.
            form.give_back(binding)
            binding = None
        if binding is None:
            given = dict(enumerate(state.shared)) | self.body.program.held(self.context)
            numbers = {len(state.shared) + n: x for n, x in enumerate(state.carry) if isinstance(x, np.generic)}
            binding = form.take(self.context)
            try:
                binding.begin(self.context, given | numbers, state.carry)
            except MemoryBudgetError:
                form.give_back(binding)
                raise
        self._binding = binding
        return binding

    def _note(self, form: PreparedBody, count: int, listed: int) -> None:
        counts, counters = self.context.counts, self.context.run.counters
        counts.runs += 1
        counts.kernels += listed * (len(form.launches) - form.products) + 1
        counts.products += listed * form.products
        if listed < count:
            counts.graphs += 1
            self.body.is_in_graph = True
        for node, nbytes in form.pushes:
            counters.pushed_rows(node, nbytes, count)
        for node in form.pops:
            counters.popped(node, count)


__all__ = ["LEAST_IN_GRAPH", "LONGEST_RUN", "Body", "Iterations", "LoopState"]
