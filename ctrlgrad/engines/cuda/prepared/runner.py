"""How a loop runs its iterations: prepared ones as many at once as everything moves by steps, others step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.prepared.body import prepared
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
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir.caching import Recent

# Iterations that are put on the stream at once: in between Python has a turn (Ctrl-C).
LONGEST_RUN = 4096
# Prepared forms of a body that are kept: one for each set of shapes.
FORMS = 16


@dataclass
class LoopState:
    """A loop between two iterations."""

    shared: Values
    carry: Values
    trips: int = 0


@dataclass(eq=False)
class Body:
    """The body of a loop and its prepared forms, by what they run on."""

    program: Program
    forms: Recent[tuple[Input, ...], PreparedBody | str] = field(default_factory=lambda: Recent(FORMS))
    # Why a prepared form was not run.
    refused: str = ""

    def form(self, library: ArrayLibrary, state: LoopState) -> PreparedBody | str:
        """The prepared form for what a loop runs on now, or why there is none."""
        given = [*(_input(library, x) for x in state.shared), *(_input(library, x, True) for x in state.carry)]
        return self.forms.get(tuple(given), lambda: self._made(given, len(state.shared)))

    def _made(self, inputs: list[Input], captures: int) -> PreparedBody | str:
        try:
            return prepared(self.program, inputs, captures)
        except CannotPrepare as error:
            return str(error)

    @property
    def launching(self) -> str:
        """How its launches were put on the stream so far, for people."""
        forms = [*self.forms.values(), *([self.refused] if self.refused else [])]
        said = {
            f"one by one ({form})" if isinstance(form, str) else f"from a list of {len(form.launches)} an iteration"
            for form in forms
        }
        return "; ".join(sorted(said))


def _input(library: ArrayLibrary, x: Any, is_carried: bool = False) -> Input:
    if library.is_array(x):
        # What is carried lies in buffers.
        return ArrayInput(x.dtype, tuple(x.shape), () if is_carried else tuple(x.strides))
    if isinstance(x, np.generic):
        return NumberInput(x.dtype)
    return StackInput(isinstance(x, DeviceStack))


class Iterations:
    """Those of one run of a loop."""

    def __init__(self, body: Body, context: Context, state: LoopState) -> None:
        self.body, self.context, self.state = body, context, state
        self._form = body.form(context.library, state)
        self._binding: Binding | None = None

    def advance(self, most: int) -> int:
        """Run iterations, at least one and at most so many; how many that were."""
        count = self._count(self._form, most) if isinstance(self._form, PreparedBody) else 0
        if count:
            assert isinstance(self._form, PreparedBody)
            try:
                binding, rows = self._ready(self._form)
            except MemoryBudgetError:
                # Step by step a loop needs less: a temporary is gone when it has been read.
                self._unbind()
                self.body.refused = self._form = "the budget has no memory for its buffers"
            else:
                self._run(self._form, binding, rows, count)
                return count
        self._binding = None
        state = self.state
        arguments = state.shared + state.carry
        state.carry = []
        state.carry = self.body.program(arguments, self.context)
        return 1

    def steps(self) -> dict[int, int]:
        """What each iteration of a run adds to integers on the host, by their position in the carry."""
        carries = self._form.carries if isinstance(self._form, PreparedBody) else ()
        return {
            position: carry.step
            for position, carry in enumerate(carries)
            if isinstance(carry, CarriedNumber) and carry.step
        }

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

    def _ready(self, form: PreparedBody) -> tuple[Binding, dict[int, int]]:
        """The list, and where the rows of each stack begin or end."""
        binding, carry = self._bound(form), self.state.carry
        rows = {
            position: self._place(carry[position], its)
            for position, its in enumerate(form.carries)
            if isinstance(its, CarriedRows)
        }
        return binding, rows

    def _unbind(self) -> None:
        """Let go of the buffers, but for what is carried."""
        if self._binding is not None:
            for position in self._binding.carried:
                self.state.carry[position] = self._binding.carry(position)
        self._binding = None

    def _run(self, form: PreparedBody, binding: Binding, rows: dict[int, int], count: int) -> None:
        carry = self.state.carry
        binding.run(count, rows, self._integers())
        for position, its in enumerate(form.carries):
            if isinstance(its, CarriedArray):
                carry[position] = binding.carry(position)
            elif isinstance(its, CarriedNumber):
                carry[position] = np.int64(carry[position] + count * its.step)
            elif isinstance(its, CarriedRows) and its.rows > 0:
                carry[position].commit(count * its.rows)
            elif isinstance(its, CarriedRows):
                carry[position].take(-count * its.rows)
        self._note(form, count)

    def _place(self, stack: DeviceStack, its: CarriedRows) -> int:
        """The address behind the last row of a stack."""
        array, count = stack.top()
        return self.context.library.address(array) + count * its.row_bytes

    def _bound(self, form: PreparedBody) -> Binding:
        """The list, made anew where what is carried is no longer in its buffers."""
        state, binding = self.state, self._binding
        if binding is None or any(binding.carry(n) is not state.carry[n] for n in binding.carried):
            given = dict(enumerate(state.shared)) | self.body.program.held(self.context)
            numbers = {len(state.shared) + n: x for n, x in enumerate(state.carry) if isinstance(x, np.generic)}
            self._binding = None
            self._binding = binding = Binding(form, self.context, given | numbers, state.carry)
        return binding

    def _note(self, form: PreparedBody, count: int) -> None:
        counts, counters = self.context.counts, self.context.run.counters
        counts.runs += 1
        counts.kernels += count * (len(form.launches) - form.products) + 1
        counts.products += count * form.products
        for node, nbytes in form.pushes:
            counters.pushed_rows(node, nbytes, count)
        for node in form.pops:
            counters.popped(node, count)


__all__ = ["LONGEST_RUN", "Body", "Iterations", "LoopState"]
