"""What a replay knows: which value each name stands for, what memory holds, and how it is read and written."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ctrlgrad.plan.checking.memory import Cell, Content, PlanError, Pointer, RunningStack, Token, described
from ctrlgrad.plan.chunks import loops_in_chunks
from ctrlgrad.plan.effects import defines, walk
from ctrlgrad.plan.model import (
    Array,
    Branch,
    FromStack,
    Kernel,
    Loop,
    NewStack,
    Outside,
    Plan,
    Pop,
    Product,
    Push,
    ReadRow,
    Stack,
    Step,
    ToStack,
    Value,
    View,
    WriteRow,
)
from ctrlgrad.plan.places import Place

# Rows of a stack by their contents, the last first.
Rows = tuple[Any, ...]


class State:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tokens: dict[str, Token] = {}
        self.rows: dict[Token, Rows] = {}
        self.cells: dict[Place, Cell] = {}
        self.pointers: dict[Place, Pointer] = {}
        self.stacks: dict[int, RunningStack] = {}
        self.iterations: list[tuple[int, int]] = []
        self.in_chunks = {found.loop for found in loops_in_chunks(plan)}
        # What is being done, outermost first.
        self.at: list[Step | str] = []
        self._scopes: list[list[str]] = [[]]
        pushes = [step for step in walk(plan.body) if isinstance(step, Push)]
        self.pushes = dict(enumerate(pushes))
        self.push_numbers = {step: number for number, step in enumerate(pushes)}
        # What arrays are updates of.
        kernels = [step for step in walk(plan.body) if isinstance(step, Kernel)]
        self.bases = {write.view.array: write.base for kernel in kernels for write in kernel.writes}
        self.bases.update({step.result: step.base for step in walk(plan.body) if isinstance(step, Product)})
        self.steps = 0
        # The stacks that an outside call reads, by position.
        self.operands: dict[int, RunningStack] = {}

    # What subclasses decide and compute.

    def goes_on(self, step: Loop, iteration: int) -> bool:
        """Whether an iteration runs, after its condition."""
        raise NotImplementedError

    def chosen(self, step: Branch) -> int:
        """The number of the block that runs."""
        raise NotImplementedError

    def capacity(self) -> int:
        """How many rows the next block of a stack takes."""
        raise NotImplementedError

    def chunk_ends(self) -> bool:
        """Whether a chunk of a loop ends before this iteration."""
        raise NotImplementedError

    def chunk_ended(self, step: Loop, iteration: int) -> None:
        """A chunk of a loop has ended before an iteration, or the loop after the last one."""

    def row_index(self, step: ReadRow | WriteRow, length: int) -> int | None:
        """Which row is meant, from the start; None where nobody knows of any."""
        raise NotImplementedError

    def new_rows(self, step: NewStack | ToStack | Outside, result: Stack) -> int:
        """How many rows a new stack has."""
        raise NotImplementedError

    def allocated(self, cell: Cell, array: Array) -> None:
        """An array is about to be written to a cell."""

    def computed(self, step: Step, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        """A step computes: it finds what it reads in cells, in the order of its fields, and leaves arrays in others."""

    def copied(self, array: Array, source: Cell, target: Cell) -> None:
        """An array is copied as it is."""

    def put_row(self, step: Push | WriteRow, source: Cell | None, target: Cell) -> None:
        """A row is written: from an array's cell, or from numbers."""

    def got_row(self, step: Pop | ReadRow, source: Cell, target: Cell | None) -> None:
        """A row is read: into an array's cell, or into numbers; in place where the cells are one."""

    def got_rows(self, step: FromStack, sources: Sequence[Cell], target: Cell) -> None:
        """All rows of a stack are read into an array's cell."""

    def carried(self, sources: Sequence[Value], targets: Sequence[Value]) -> None:
        """Numbers go on under other names, all at once."""

    def entered(self, step: Loop) -> None:
        """A loop begins."""

    def counted(self, step: Loop, iteration: int) -> None:
        """An iteration begins."""

    # Failing.

    def fail(self, text: str) -> NoReturn:
        where = "".join(f"\n  in {each if isinstance(each, str) else _headline(each)}" for each in reversed(self.at))
        run = ", ".join(f"iteration {i} of loop {loop}" for loop, i in self.iterations)
        raise PlanError(f"plan {self.plan.name}: {text}{where}" + (f"\n  {run}" if run else ""))

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        self.at.append(what)
        yield
        self.at.pop()

    # Names.

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is defined within is not seen after."""
        self._scopes.append([])
        yield
        for name in self._scopes.pop():
            del self.tokens[name]

    def define(self, value: Value, token: Token | None = None) -> Token:
        """A name stands for a value from now on, by itself for a new one."""
        if value.name in self.tokens:
            self.fail(f"{value.name} is defined twice")
        found = Token(value.name, tuple(self.iterations)) if token is None else token
        self.tokens[value.name] = found
        self._scopes[-1].append(value.name)
        return found

    def wanted(self, value: Value) -> Token:
        found = self.tokens.get(value.name)
        if found is None:
            self.fail(f"{value.name} is read where it is not defined")
        return found

    def sees(self, names: Iterator[str] | Sequence[str]) -> None:
        for name in names:
            if name not in self.tokens:
                self.fail(f"the number {name} is read where it is not defined")

    # Places.

    def place_of(self, array: Array) -> Place:
        place = self.plan.places.get(array)
        if place is None:
            self.fail(f"{array} has no place")
        return place

    def cell_at(self, place: Place, what: object) -> Cell:
        """The memory of a place."""
        if place.kind in ("slot", "row"):
            pointer = self.pointers.get(place)
            if pointer is None:
                self.fail(f"{what} is wanted in {place}, which was never reached")
            if not pointer.is_valid:
                self.fail(f"{what} is wanted in {place}, whose block its stack has closed since")
            return pointer.cell
        if place not in self.cells:
            self.fail(f"{what} is wanted in {place}, which is not there")
        return self.cells[place]

    def read(self, array: Array) -> Cell:
        """Where an array lies; it must."""
        return self.read_at(self.place_of(array), array)

    def read_at(self, place: Place, array: Array) -> Cell:
        wanted, cell = self.wanted(array), self.cell_at(place, array)
        if cell.content is not wanted:
            self.fail(f"{wanted} is wanted in {place}, where {described(cell.content)} lies")
        if place.kind == "buffer" and not self.plan.buffers[place.number].is_known_at_entry:
            # It may have come by another name, whose size was said in another way.
            cell.room = self.room_of(array)
        return cell

    def written(self, array: Array) -> Cell:
        """Where an array is about to be written."""
        return self.room_at(self.place_of(array), array)

    def room_at(self, place: Place, array: Array) -> Cell:
        """Memory for an array at a place that may be written."""
        if place.kind == "slot":
            self.reserve(place, array)
        elif place.kind != "buffer":
            self.fail(f"{array} is written to {place}, which is never written")
        cell = self.cell_at(place, array)
        if place.kind == "buffer":
            self.check_room(place, cell, array)
        return cell

    def check_room(self, place: Place, cell: Cell, array: Array) -> None:
        buffer = self.plan.buffers[place.number]
        if buffer.dtype.itemsize != array.dtype.itemsize:
            self.fail(f"{array}, {array.dtype} elements, is written to {place}, of {buffer.dtype}")
        count = array.count
        if buffer.is_known_at_entry:
            fits = count == buffer.count or (
                count.is_known and buffer.count.is_known and count.factor <= buffer.count.factor
            )
            if not fits:
                self.fail(f"{array}, {count} elements, is written to {place}, which has room for {buffer.count}")
            return
        room = self.room_of(array)
        if cell.room != room:
            # It may have to be larger, and then it is another one.
            cell.room, cell.content = room, None

    def room_of(self, array: Array) -> object:
        """How many elements an array has, in this iteration."""
        self.sees(array.count.names)
        return (array.count.factor, tuple(self.tokens[name] for name in array.count.names))

    def reserve(self, place: Place, array: Array) -> None:
        """The row that a push will count, before the push."""
        push = self.pushes.get(place.number)
        if push is None or not isinstance(push.row, View) or array not in self.versions_of(push.row.array):
            self.fail(f"{array} is written to {place}, which is not that of its push")
        self.check_row(push.stack, array)
        stack = self.stack_at(self.handle_of(push.stack))
        self.pointers[place] = Pointer(stack.top(), stack, stack.epoch)

    def versions_of(self, array: Array) -> set[Array]:
        """An array, what it is an update of, and so on."""
        found = {array}
        while (base := self.bases.get(array)) is not None and base not in found:
            found.add(base)
            array = base
        return found

    def check_row(self, stack: Stack, array: Array) -> None:
        fits = stack.holds == "elements" or self.plan.rows.get(stack) == array.shape
        if not fits or stack.dtype != array.dtype:
            self.fail(f"{array} is not of the shape and type of the rows of {stack}")

    # Stacks.

    def handle_of(self, stack: Stack) -> int:
        handle = self.plan.handles.get(stack)
        if handle is None:
            self.fail(f"{stack} has no handle")
        return handle

    def stack_at(self, handle: int) -> RunningStack:
        if handle not in self.stacks:
            self.fail(f"nothing is held by stack handle {handle}")
        return self.stacks[handle]

    def stack(self, stack: Stack) -> RunningStack:
        """What a version of a stack is now; it must be that version, and all of its rows what they were."""
        wanted, handle = self.wanted(stack), self.handle_of(stack)
        found = self.stack_at(handle)
        if found.version is not wanted:
            self.fail(f"{wanted} is wanted in stack handle {handle}, which holds {found.version}")
        return found

    def check_rows(self, stack: RunningStack) -> None:
        """Every row is what was pushed."""
        cells, rows = list(stack.cells()), list(listed(self.rows[stack.version]))
        if len(cells) != len(rows):
            self.fail(f"{stack.version} has {len(cells)} rows in place of {len(rows)}")
        for position, (cell, row) in enumerate(zip(cells, reversed(rows), strict=True)):
            if cell.content != row:
                self.fail(
                    f"row {position} of {stack.version} is {described(cell.content)} in place of {described(row)}"
                )

    def hold(self, stack: Stack, rows: Sequence[Content]) -> RunningStack:
        """A handle holds a new object with these rows."""
        token = self.define(stack)
        self.rows[token] = functools.reduce(lambda below, row: (row, below), rows, ())
        found = RunningStack(token, self.capacity)
        for row in rows:
            found.top().content = row
            found.grow()
        found.settle()
        handle = self.handle_of(stack)
        if handle in self.stacks:
            self.stacks[handle].epoch += 1
        self.stacks[handle] = found
        return found

    def updated(self, running: RunningStack, before: Stack, result: Stack, rows: Rows) -> None:
        """A stack was changed in place."""
        if self.handle_of(before) != self.handle_of(result):
            self.fail(f"{result} is {before} changed in place, and has another handle")
        running.version = self.define(result)
        self.rows[running.version] = rows


def listed(rows: Rows) -> Iterator[Any]:
    while rows:
        row, rows = rows
        yield row


def _headline(step: Step) -> str:
    results = ", ".join(str(value) for value in defines(step))
    return f"{type(step).__name__.lower()}" + (f" of {results}" if results else "")
