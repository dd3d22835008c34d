"""The prepared forms of a loop's body: one for each set of shapes that it runs with, and their lists."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.prepared.body import prepared
from ctrlgrad.engines.cuda.prepared.graphs import TURN
from ctrlgrad.engines.cuda.prepared.inputs import ArrayInput, Input, NumberInput, NumbersInput, StackInput
from ctrlgrad.engines.cuda.prepared.model import Branching, CannotPrepare, CarriedRows, Ending, PreparedBody, loops_in
from ctrlgrad.engines.cuda.prepared.operands import Affine
from ctrlgrad.engines.cuda.prepared.placement import items_in_order
from ctrlgrad.engines.cuda.prepared.table_rows import table_input
from ctrlgrad.engines.cuda.program import Program
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.precision import Precision
from ctrlgrad.ir import TensorType
from ctrlgrad.ir.caching import Recent

# Prepared forms of a body that are kept: one for each set of shapes. And lists of a form, for runs at the same time.
FORMS, LISTS = 16, 2


@dataclass(eq=False)
class Form:
    """A prepared body and its lists that no run has now, by how products and sums are rounded.

    They have no memory on the card, but for code. Threads take lists and give them back.
    """

    body: PreparedBody
    inputs: tuple[Input, ...]
    idle: dict[Precision, deque[Binding]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=LISTS)))

    def take(self, context: Context) -> Binding:
        try:
            return self.idle[context.precision].pop()
        except IndexError:
            return Binding(self.body, self.inputs, context)

    @property
    def kept_graphs(self) -> int:
        """Number of graphs kept by lists that are in no run."""
        return sum(binding.kept_graphs for bindings in list(self.idle.values()) for binding in list(bindings))

    def give_back(self, binding: Binding) -> None:
        binding.end()
        self.idle[binding.precision].append(binding)


@dataclass(eq=False)
class Body:
    """The body of a loop and its prepared forms, by what they run on.

    `tables` are the elements of stacks whose rows are read and written by index, by their slots.
    """

    program: Program
    tables: Mapping[int, TensorType] = field(default_factory=dict)
    ending: Ending | None = None
    forms: Recent[tuple[Input, ...], Form | str] = field(default_factory=lambda: Recent(FORMS))
    # Why a prepared form was not run.
    refused: str = ""
    # How often the card was asked in an iteration when it was run from the list last, if loops inside ask.
    asked: float | None = None
    # True if some runs launched a graph; the reason why other long runs did not; true if that reason is permanent.
    is_in_graph: bool = False
    without_graph: str = ""
    has_no_graph: bool = False

    def form(self, library: ArrayLibrary, shared: Sequence[Any], carry: Sequence[Any]) -> Form | str:
        """The prepared form for what a loop runs on now, or why there is none."""
        captures = len(shared)
        given = [
            table_input(x, self.tables[slot]) if slot in self.tables else _input(library, x, slot >= captures)
            for slot, x in enumerate((*shared, *carry))
        ]
        return self.forms.get(tuple(given), lambda: self._made(given, captures))

    def _made(self, inputs: list[Input], captures: int) -> Form | str:
        try:
            return Form(prepared(self.program, inputs, captures, self.ending), tuple(inputs))
        except CannotPrepare as error:
            return str(error)

    @property
    def is_prepared(self) -> bool:
        """Return true if there is a launch list of an iteration."""
        return any(isinstance(form, Form) for form in self.forms.values())

    @property
    def launching(self) -> str:
        """Description, for people, of how the launches were put on the stream so far."""
        forms = [*self.forms.values(), *([self.refused] if self.refused else [])]
        found = ["; ".join(sorted(set(map(_said, forms))))]
        if self.is_in_graph:
            kept = sum(form.kept_graphs for form in self.forms.values() if isinstance(form, Form))
            found.append(f"in a graph, {TURN} iterations a turn" + f", one of {kept} that are kept" * (kept > 1))
        if self.without_graph:
            found.append(f"not in a graph ({self.without_graph})")
        return ", ".join(found)


def _said(form: Form | str) -> str:
    if isinstance(form, str):
        return f"one by one ({form})"
    body = form.body
    branches = sum(isinstance(item, Branching) for item in items_in_order(body.items))
    # A graph does not wait for them.
    waits = [f"{branches} {'branch' if branches == 1 else 'branches'}"] * bool(branches)
    loops = list(loops_in(body.items))
    asked_for = sum(not isinstance(loop.trips, Affine) for loop in loops)
    waits += [f"{asked_for} {'loop' if asked_for == 1 else 'loops'}"] * bool(asked_for)
    waits += ["how many rows there are"] * any(isinstance(x, CarriedRows) and not x.is_known for x in body.carries)
    waits += ["the loop's end"] * body.is_asked
    asked = f", which waits for {', '.join([*waits[:-2], ' and '.join(waits[-2:])])}" if waits else ""
    inside = f" with {len(loops)} {'loop' if len(loops) == 1 else 'loops'} inside" if loops else ""
    return f"from a list of {len(body.launches)} an iteration{inside}{asked}"


def _input(library: ArrayLibrary, x: Any, is_carried: bool) -> Input:
    if library.is_array(x):
        # A carry lies in buffers, which are contiguous.
        return ArrayInput(x.dtype, tuple(x.shape), () if is_carried else tuple(x.strides))
    if isinstance(x, np.generic):
        return NumberInput(x.dtype)
    # On the device a stack is blocks, or rows that are arrays.
    return NumbersInput() if type(x) is list else StackInput(isinstance(x, DeviceStack))
