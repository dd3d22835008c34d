"""Execution of a loop's iterations: prepared ones in runs in which everything moves by steps, all other ones step by
step.

A body has a prepared form for each set of shapes that it runs with, and a form has its lists (`Form`, `Body`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.prepared.binding import (
    Binding,
    RowMemory,
    StackRows,
    Table,
    as_stack,
    captured,
    inputs_of,
    pushed_too_many,
)
from ctrlgrad.engines.cuda.prepared.body import prepared
from ctrlgrad.engines.cuda.prepared.graphs import Refused
from ctrlgrad.engines.cuda.prepared.model import (
    Affine,
    Branching,
    CannotPrepare,
    CarriedNumber,
    CarriedRows,
    Given,
    PreparedBody,
    Register,
    items_in_order,
    loops_in,
    wrapped,
)
from ctrlgrad.engines.cuda.prepared.model import (
    count as count_of,
)
from ctrlgrad.engines.cuda.prepared.reading import Input
from ctrlgrad.engines.cuda.program import Context, Program, Values
from ctrlgrad.engines.precision import Precision
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError, UserInputError
from ctrlgrad.ir import TensorType
from ctrlgrad.ir.caching import Recent


@dataclass(frozen=True)
class Way:
    """So many iterations, from a list or step by step."""

    iterations: int
    is_listed: bool


@dataclass
class LoopState:
    """A loop between two iterations."""

    shared: Values
    carry: Values
    trips: int = 0
    # Ways in which iterations ran since this was last cleared.
    ways: list[Way] = field(default_factory=list)

    def note(self, way: Way) -> None:
        """The next iterations ran so."""
        if self.ways and self.ways[-1].is_listed == way.is_listed:
            way = Way(self.ways.pop().iterations + way.iterations, way.is_listed)
        self.ways.append(way)


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
    `is_asked`: the last carry is the predicate, which the body computes.
    """

    program: Program
    tables: Mapping[int, TensorType] = field(default_factory=dict)
    is_asked: bool = False
    forms: Recent[tuple[Input, ...], Form | str] = field(default_factory=lambda: Recent(FORMS))
    # Why a prepared form was not run.
    refused: str = ""
    # True if some runs launched a graph; the reason why other long runs did not; true if that reason is permanent.
    is_in_graph: bool = False
    without_graph: str = ""
    has_no_graph: bool = False

    def form(self, library: ArrayLibrary, shared: Sequence[Any], carry: Sequence[Any]) -> Form | str:
        """The prepared form for what a loop runs on now, or why there is none."""
        given = inputs_of(library, self.program, shared, carry, self.tables)
        return self.forms.get(given, lambda: self._made(given, len(shared)))

    def _made(self, inputs: tuple[Input, ...], captures: int) -> Form | str:
        try:
            return Form(prepared(self.program, inputs, captures, self.is_asked), inputs)
        except (CannotPrepare, IndexOutOfRangeError, ShapeError, UserInputError) as error:
            # Step by step an error of the program is raised where it happens.
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
            found.append("in a graph" + f", one of {kept} that are kept" * (kept > 1))
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
    loops = loops_in(body.items)
    asked_for = sum(not isinstance(loop.trips, Affine) for loop in loops)
    waits += [f"{asked_for} {'loop' if asked_for == 1 else 'loops'}"] * bool(asked_for)
    waits += ["how many rows there are"] * any(isinstance(x, CarriedRows) and not x.is_known for x in body.carries)
    waits += ["the loop's end"] * body.is_asked
    asked = f", which waits for {', '.join([*waits[:-2], ' and '.join(waits[-2:])])}" if waits else ""
    inside = f" with {len(loops)} {'loop' if len(loops) == 1 else 'loops'} inside" if loops else ""
    return f"from a list of {len(body.launches)} an iteration{inside}{asked}"


# Iterations that are put on the stream at once: in between Python has a turn (Ctrl-C).
LONGEST_RUN = 4096
# A run of fewer iterations is no graph: to make one costs about as much as to go through the list so often.
LEAST_IN_GRAPH = 16
# Iterations of it and of loops inside together that are put on the stream at once, where the host knows these.
MOST_INSIDE = 1 << 16


class Iterations:
    """Iterations of one run of a loop: a context manager that releases the buffers at its end."""

    def __init__(self, body: Body, context: Context, state: LoopState) -> None:
        self.body, self.context, self.state = body, context, state
        found = body.form(context.library, state.shared, state.carry)
        self._form: Form | None = found if isinstance(found, Form) else None
        # True if there was no memory for the prepared form.
        self._is_step_by_step = False
        # The list, while what is carried is in its buffers.
        self._binding: Binding | None = None
        # Where there was no memory for a graph.
        self._has_no_graph = body.has_no_graph
        # Iterations of the last run, and how many rows it pushed on each stack, or popped off it.
        self._ran = 0
        self._counted: dict[int, int] = {}
        # True if a run popped more rows than there were: its results are meaningless.
        self._is_short = False
        self._stacks: dict[int, StackRows] = {}

    def advance(self, most: int) -> int:
        """Run iterations, at least one and at most so many; how many that were."""
        listed = self._listed(most)
        ran = listed or self._step()
        if self.context.memory is not None:
            self.state.note(Way(ran, bool(listed)))
        return ran

    def again(self, ways: Sequence[Way]) -> None:
        """Run iterations that have run from this state before, so that stacks ask for the same blocks.

        Where as many rows are pushed as the data says, loops inside would ask for more step by step.
        """
        is_told = self._form is not None and self._form.body.endless
        for way in ways if is_told else [Way(sum(way.iterations for way in ways), True)]:
            end = self.state.trips + way.iterations
            while left := end - self.state.trips:
                ran = self._listed(left, is_again=bool(is_told)) if way.is_listed else 0
                self.state.trips += ran or self._step()

    def _listed(self, most: int, is_again: bool = False) -> int:
        """Run iterations from the list; none where that cannot be.

        Of those that run again `MemoryError` is raised where there is no memory for that.
        """
        form = self._form
        # The blocks that stacks ask for must not depend on how iterations run: a chunk may be run again the other way.
        count = self._count(form.body, most) if form is not None else 0
        if form is None or not count or self._is_step_by_step:
            return 0
        try:
            binding = self._bound(form)
            count = self._worth(binding, count)
            # CUDA may load a function at its first call, which no capture allows.
            first = 0 if binding.is_warm else 1
            is_long = self._is_long(form.body, count, first)
            in_graph = is_long and self._has_graph(binding)
            if is_long and first and not self._has_no_graph:
                count = first
            rows, saved = self._lent(form.body, count), binding.saved() if form.body.endless else []
            self.context.counts.calls += len(saved)
            self._launch(form.body, binding, rows, count, in_graph)
            while self._is_short or pushed_too_many(form.body, rows, self._counted):
                # The same iterations once more, with memory for all of their rows.
                binding.restore(saved)
                self.context.counts.calls += len(saved)
                if not (more := self._more(form.body, rows)):
                    return 0
                rows |= more
                count = self._ran
                self._launch(form.body, binding, rows, count, in_graph)
        except MemoryError:
            if is_again:
                raise
            # Step by step a loop needs less: a carry is gone when it has been read.
            self._refuse("there is no memory for its buffers")
            return 0
        return self._moved(form.body, binding)

    def _refuse(self, reason: str) -> None:
        """From now on iterations run step by step."""
        self._unbind()
        self._is_step_by_step, self.body.refused = True, reason

    def _step(self) -> int:
        """Run one iteration step by step."""
        self._unbind()
        state = self.state
        state.carry = [as_stack(self.context, x) if isinstance(x, Table) else x for x in state.carry]
        arguments = state.shared + state.carry
        state.carry = []
        state.carry = self.body.program(arguments, self.context)
        return 1

    def _is_long(self, form: PreparedBody, count: int, first: int) -> bool:
        """Return true if `count` iterations, after the `first` ones, with those of inner loops, are enough for a
        graph. Where inner loops ask the card, a list waits each time."""
        if count <= first + 1:
            return False
        return form.asks or form.passes(count, self._integers()) * (count - first) >= LEAST_IN_GRAPH * count

    def __enter__(self) -> Iterations:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._unbind()
        carry = self.state.carry
        for position, x in enumerate(carry):
            # A failed run leaves no results.
            if isinstance(x, Table) and failure is None:
                carry[position] = as_stack(self.context, x)

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
        # Those of loops inside together are no more than are put on the stream at once.
        while count > 1 and form.passes(count, integers) > MOST_INSIDE:
            count //= 2
        return self._with_rows(form, count, integers)

    def _with_rows(self, form: PreparedBody, count: int, integers: dict[int, int]) -> int:
        """At most so many iterations, those for which there are rows."""
        for position, its in enumerate(form.carries):
            if isinstance(its, CarriedRows):
                rows = self._stack(position, its)
                if not its.is_known:
                    # Else the card, which alone knows how many rows it is, ends the run when there are no more.
                    count = count if rows.there(self.state.carry) >= its.at_least else 0
                elif (needed := its.needed(count, integers)).any():
                    # A block is asked for by the first iteration that needs it, however iterations run.
                    there = rows.there(self.state.carry, bool(needed[0]))
                    count = int(np.searchsorted(np.cumsum(needed), there, side="right"))
        return count

    def _needed(self, its: CarriedRows, count: int) -> int:
        """Number of rows that `count` iterations push or pop, where the host knows it; else 0."""
        return int(its.needed(count, self._integers()).sum()) if its.is_known else 0

    def _stack(self, position: int, its: CarriedRows) -> StackRows:
        if position not in self._stacks:
            self._stacks[position] = StackRows(self.context, position, its)
        return self._stacks[position]

    def _integers(self) -> dict[int, int]:
        values = (*self.state.shared, *self.state.carry)
        return {slot: int(x) for slot, x in enumerate(values) if isinstance(x, np.integer)}

    def _worth(self, binding: Binding, count: int) -> int:
        """Number of iterations, of `count`, to put on the stream at once. For a loop that may end soon they are too
        few for a graph."""
        unknown = LEAST_IN_GRAPH - 1 - self.state.trips
        if not binding.body.is_asked or unknown <= 0 or binding.may_have_graph:
            return count
        return min(count, unknown)

    def _has_graph(self, binding: Binding) -> bool:
        """Return true if there is a graph of a list that has been called before; capture it if needed."""
        if not self._has_no_graph:
            try:
                if not binding.has_graph() and binding.is_warm:
                    binding.capture()
            except Refused as reason:
                self._refused_graph(reason)
            except MemoryError:
                self._has_no_graph, self.body.without_graph = True, "there is no memory for its products"
        return binding.graph is not None and not self._has_no_graph

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

    def _lent(self, form: PreparedBody, count: int) -> dict[int, RowMemory]:
        """Memory of the rows of `count` iterations, by the positions of their stacks."""
        return {
            position: self._stack(position, its).lent(self.state.carry, self._needed(its, count))
            for position, its in enumerate(form.carries)
            if isinstance(its, CarriedRows)
        }

    def _more(self, form: PreparedBody, rows: dict[int, RowMemory]) -> dict[int, RowMemory]:
        """Memory for more rows; none where more were popped than there are."""
        if not self._is_short:
            return {n: self._stacks[n].more(count) for n, count in pushed_too_many(form, rows, self._counted).items()}
        # How many that were follows from rows that were not there.
        popped = [n for n, its in form.endless.items() if not its.pushes and not rows[n].is_whole]
        return {n: self._stacks[n].taken_aside(self.state.carry[n], 2 * rows[n].capacity) for n in popped}

    def _launch(
        self, form: PreparedBody, binding: Binding, rows: dict[int, RowMemory], count: int, in_graph: bool
    ) -> None:
        """Put iterations on the stream, and count how often regions are gone through: iterations are one of them."""
        moment = self.context.moment() if Register("began") in form.words else 0
        launched = binding.run(count, rows, self._integers(), in_graph, moment)
        refused, binding.refused = binding.refused, None
        if refused is not None:
            self._refused_graph(refused)
            in_graph = False
        if in_graph:
            self.context.launched_graph(form.asks)
        counts = self.context.counts
        counts.runs += 1
        counts.kernels += launched.kernels
        counts.products += launched.products
        counts.predicate_reads += launched.reads
        counts.graphs += in_graph
        self.body.is_in_graph |= in_graph
        words = {} if form.is_known else binding.counted(self.context)
        self._ran = words.get(Register("counter"), count)
        stacks = {position: its for position, its in enumerate(form.carries) if isinstance(its, CarriedRows)}
        self._counted = {
            position: self._needed(its, self._ran) if its.is_known else words[Register("counter", count_of(position))]
            for position, its in stacks.items()
        }
        self._is_short = bool(words.get(Register("short"), 0))
        for position in () if self._is_short else form.endless:
            self._stacks[position].most = words[Register("most", position)]

    def _moved(self, form: PreparedBody, binding: Binding) -> int:
        """Update the carry after a run, and return the number of iterations that it had."""
        carry, ran = self.state.carry, self._ran
        for position in binding.positions:
            carry[position] = binding.carry(position)
        for position, its in enumerate(form.carries):
            if isinstance(its, CarriedNumber):
                carry[position] = np.int64(wrapped(int(carry[position]) + ran * its.step))
            elif isinstance(its, CarriedRows):
                self._stacks[position].moved(carry, self._counted[position] * (1 if its.pushes else -1))
        return ran

    def _bound(self, form: Form) -> Binding:
        """The list, with what is carried in its buffers."""
        state = self.state
        binding, self._binding = self._binding, None
        if binding is not None and not all(binding.has(n, state.carry[n]) for n in binding.positions):
            # The carry lies elsewhere by now.
            form.give_back(binding)
            binding = None
        if binding is None:
            # The carry has no other name here: an array with no other reference becomes a buffer.
            given = captured(self.context, state.shared, form.inputs)
            first = len(state.shared)
            given |= {Given(first + n): x for n, x in enumerate(state.carry) if isinstance(x, np.generic)}
            for region, program in enumerate(form.body.programs):
                given |= {Given(slot, region): x for slot, x in program.held(self.context).items()}
            binding = form.take(self.context)
            try:
                binding.begin(self.context, given, state.carry)
            except MemoryError:
                form.give_back(binding)
                raise
        self._binding = binding
        return binding
