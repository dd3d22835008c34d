"""A machine that runs placed plans and checks every access: who reads a value must find it, of this very iteration.

It knows nothing of how places were chosen. Beside what steps mean (`tokens`: which value each name stands for now) it
keeps what memory holds (`Cell`s); a read compares the two. Which way loops and branches go, and what is computed, is a
matter of the subclasses: `checker` tries schedules without data, `machine` computes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ctrlgrad.plan.effects import defines, names_of, walk
from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    CopyStack,
    Kernel,
    Length,
    Load,
    Loop,
    Move,
    NewStack,
    Outside,
    Pack,
    Place,
    Plan,
    Pop,
    Product,
    Push,
    ReadRow,
    Register,
    Stack,
    Step,
    Value,
    View,
    WriteRow,
)
from ctrlgrad.plan.overlap import reads_only_what_it_writes
from ctrlgrad.plan.replay_memory import Cell, Content, PlanError, Pointer, RunningStack, Token, described
from ctrlgrad.plan.sizes import Size, Sizes

# Rows of a stack by their contents, the last first.
Rows = tuple[Any, ...]


class Replay:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tokens: dict[str, Token] = {}
        self.rows: dict[Token, Rows] = {}
        self.cells: dict[Place, Cell] = {}
        self.pointers: dict[Place, Pointer] = {}
        self.stacks: dict[int, RunningStack] = {}
        self.iterations: list[tuple[int, int]] = []
        self.at: list[str] = []
        self._scopes: list[list[str]] = [[]]
        pushes = [step for step in walk(plan.body) if isinstance(step, Push)]
        self.pushes = dict(enumerate(pushes))
        self.push_numbers = {step: number for number, step in enumerate(pushes)}
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
        """Whether a chunk of an outermost loop ends before this iteration."""
        raise NotImplementedError

    def row_index(self, step: ReadRow | WriteRow, length: int) -> int | None:
        """Which row is meant, from the start; None where nobody knows of any."""
        raise NotImplementedError

    def new_rows(self, step: NewStack | Outside, result: Stack) -> int:
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

    def carried(self, sources: Sequence[Register], targets: Sequence[Register]) -> None:
        """Numbers go on under other names, all at once."""

    def entered(self, step: Loop) -> None:
        """A loop begins."""

    def counted(self, step: Loop, iteration: int) -> None:
        """An iteration begins."""

    # Failing.

    def fail(self, text: str) -> NoReturn:
        where = "".join(f"\n  in {each}" for each in reversed(self.at))
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
        self.sees(count.names)
        room = (count.factor, tuple(self.tokens[name] for name in count.names))
        if cell.room != room:
            # It may have to be larger, and then it is another one.
            cell.room, cell.content = room, None

    def reserve(self, place: Place, array: Array) -> None:
        """The row that a push will count, before the push."""
        push = self.pushes.get(place.number)
        if push is None or not isinstance(push.row, View) or push.row.array is not array:
            self.fail(f"{array} is written to {place}, which is not that of its push")
        self.check_row(push.stack, array)
        stack = self.stack_at(self.handle_of(push.stack))
        self.pointers[place] = Pointer(stack.top(), stack, stack.epoch)

    def check_row(self, stack: Stack, array: Array) -> None:
        if self.plan.rows.get(stack) != array.shape or stack.dtype != array.dtype:
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
        cells, rows = list(stack.cells()), list(_listed(self.rows[stack.version]))
        if len(cells) != len(rows):
            self.fail(f"{stack.version} has {len(cells)} rows in place of {len(rows)}")
        for position, (cell, row) in enumerate(zip(cells, reversed(rows), strict=True)):
            if cell.content != row:
                self.fail(f"row {position} of {stack.version} is {described(cell.content)} in place of {described(row)}")

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

    # Running.

    def run(self) -> None:
        plan = self.plan
        self.begin()
        self.block(plan.body)
        self.moves(plan.body)
        results = {b.result: b for b in plan.buffers if b.result is not None}
        seen: dict[int, Stack] = {}
        for number, result in enumerate(plan.results):
            with self.doing(f"result {number}, {result}"):
                if isinstance(result, Array):
                    if number not in results:
                        self.fail("there is no buffer for it")
                    place = Place("buffer", results[number].number)
                    cell = self.read_at(place, result)
                    self.sees([name for size in result.shape for name in size.names])
                    self.check_room(place, cell, result)
                    if cell.content is None:
                        self.fail("its buffer has not the size of it")
                elif isinstance(result, Stack):
                    running = self.stack(result)
                    if any(running is self.stacks[h] for h in seen):
                        self.fail("it is one object with another result")
                    running.settle()
                    self.check_rows(running)
                    seen[self.handle_of(result)] = result
                else:
                    self.sees([register.name for register in result])

    def begin(self) -> None:
        plan = self.plan
        for buffer in plan.buffers:
            self.cells[Place("buffer", buffer.number)] = Cell()
        known: set[str] = set()
        for number, argument in enumerate(plan.arguments):
            if isinstance(argument, tuple):
                known.update(register.name for register in argument)
                for register in argument:
                    self.define(register)
            elif isinstance(argument, Array):
                cell = self.cells[Place("argument", number)] = Cell(self.define(argument))
                if plan.places.get(argument) != Place("argument", number):
                    self.fail(f"argument {number} is not where it is given")
                self.given(number, cell)
            else:
                self.hold(argument, self.given_rows(number, argument))
        for register, _, _ in plan.sizes:
            known.add(register.name)
            self.define(register)
        for buffer in plan.buffers:
            if buffer.is_known_at_entry and not names_of((buffer.count,)) <= known:
                self.fail(f"the size of {buffer} is not known at the start")
        for number, (array, _) in enumerate(plan.constants):
            cell = self.cells[Place("constant", number)] = Cell(self.define(array))
            self.given_constant(number, cell)

    def given(self, number: int, cell: Cell) -> None:
        """An array argument lies in a cell."""

    def given_rows(self, number: int, argument: Stack) -> Sequence[Content]:
        """The rows of a stack that is an argument."""
        return []

    def given_constant(self, number: int, cell: Cell) -> None:
        """A constant lies in a cell."""

    def block(self, block: Block) -> None:
        for step in block.steps:
            self.steps += 1
            with self.doing(_headline(step)):
                self.step(step)

    def moves(self, block: Block) -> None:
        """What is copied and exchanged when a block ends."""
        for move in block.moves:
            with self.doing(f"copy {move.array} from {move.source} to {move.target}"):
                self.move(move)
        if not block.stack_moves:
            return
        with self.doing("stacks change places"):
            found: dict[int, RunningStack] = {}
            for stack, source, target in block.stack_moves:
                if self.handle_of(stack) != source:
                    self.fail(f"{stack} is not in handle {source}")
                if source in found:
                    self.fail(f"handle {source} goes to two places")
                found[source] = self.stack(stack)
                found[source].settle()
                if target in self.stacks:
                    self.stacks[target].settle()
            targets = [target for _, _, target in block.stack_moves]
            if len(set(targets)) != len(targets):
                self.fail("two stacks go to one handle")
            replaced = [self.stacks[t] for t in targets if t not in found and t in self.stacks]
            for _, source, target in block.stack_moves:
                self.stacks[target] = found[source]
            free = [source for source in found if source not in targets]
            for source in free:
                del self.stacks[source]
            self.stacks.update(zip(free, replaced, strict=False))

    def move(self, move: Move) -> None:
        source = self.read_at(move.source, move.array)
        if move.target.kind != "buffer":
            self.fail(f"{move.target} is never written")
        target = self.cell_at(move.target, move.array)
        self.check_room(move.target, target, move.array)
        self.sees(move.array.count.names)
        if source.content is None:
            self.fail(f"{move.array} is lost where it lies, since it grows")
        self.copied(move.array, source, target)
        target.content = source.content

    # Steps.

    def step(self, step: Step) -> None:
        if isinstance(step, Loop):
            self.loop(step)
            return
        if isinstance(step, Branch):
            self.branch(step)
            return
        self.sees(_numbers_read(step))
        if isinstance(step, Kernel):
            self.kernel(step)
        elif isinstance(step, Product):
            self.product(step)
        elif isinstance(step, Pack):
            self.one_result(step, step.result, [self.read(step.view.array)])
        elif isinstance(step, Load):
            self.numbers(step, [self.read(step.view.array)])
        elif isinstance(step, Outside):
            self.outside(step)
        elif isinstance(step, Push):
            self.push(step)
        elif isinstance(step, Pop):
            self.pop(step)
        elif isinstance(step, ReadRow):
            self.read_row(step)
        elif isinstance(step, WriteRow):
            self.write_row(step)
        elif isinstance(step, Length):
            self.stack(step.stack)
            self.numbers(step, [])
        elif isinstance(step, NewStack):
            count = self.new_rows(step, step.result)
            self.hold(step.result, [Token(f"row {k} of {step.result}") for k in range(count)])
            self.computed(step, [], [])
        elif isinstance(step, CopyStack):
            self.copy_stack(step)
        else:
            self.numbers(step, [])

    def numbers(self, step: Step, reads: Sequence[Cell]) -> None:
        """A step that gives numbers."""
        self.computed(step, reads, [])
        for value in defines(step):
            self.define(value)

    def one_result(self, step: Step, result: Array, reads: Sequence[Cell]) -> None:
        """A step that reads all the time while it writes one array."""
        cell = self.written(result)
        if any(cell is other for other in reads):
            self.fail(f"{result} is written to {self.place_of(result)}, which is still read")
        self.allocated(cell, result)
        self.computed(step, reads, [cell])
        cell.content = self.define(result)

    def kernel(self, step: Kernel) -> None:
        targets: list[Cell] = []
        for write in step.writes:
            array = write.view.array
            base = None if write.base is None else self.read(write.base)
            cell = self.written(array)
            if base is None:
                targets.append(cell)
                continue
            assert write.base is not None
            if base.content is None:
                self.fail(f"{write.base} is lost where it lies, since it grows")
            if (write.base.count, write.base.dtype) != (array.count, array.dtype):
                self.fail(f"{array} is an update of {write.base}, which has another size or type")
            if cell is not base:
                self.allocated(cell, array)
                self.copied(write.base, base, cell)
                cell.content = base.content
            targets.append(cell)
        reads = [self.read(operand.view.array) for operand in step.operands]
        for k, (write, cell) in enumerate(zip(step.writes, targets, strict=True)):
            place = self.place_of(write.view.array)
            if any(cell is other for other in targets[:k]):
                self.fail(f"{write.view.array} and another result are both written to {place}")
            for operand, other in zip(step.operands, reads, strict=True):
                if other is cell and not reads_only_what_it_writes(operand, write):
                    self.fail(
                        f"{write.view.array} is written to {place} before {operand.view.array} has been read there"
                    )
        for k, (write, cell) in enumerate(zip(step.writes, targets, strict=True)):
            if write.base is not None and cell.content is not self.wanted(write.base):
                self.fail(f"{write.base}, of which {write.view.array} is an update, is overwritten in {targets[k]}")
        self.computed(step, reads, targets)
        for write, cell in zip(step.writes, targets, strict=True):
            cell.content = self.define(write.view.array)

    def product(self, step: Product) -> None:
        base = None if step.base is None else self.read(step.base)
        cell = self.written(step.result)
        if base is not None:
            assert step.base is not None
            if base.content is None:
                self.fail(f"{step.base} is lost where it lies, since it grows")
            if base is not cell:
                self.allocated(cell, step.result)
                self.copied(step.base, base, cell)
                cell.content = base.content
        else:
            self.allocated(cell, step.result)
        arrays = [step.a.array, step.b.array, *([] if step.packed is None else [step.packed])]
        reads = [self.read(array) for array in arrays]
        if any(cell is other for other in reads):
            self.fail(f"{step.result} is written to {self.place_of(step.result)}, which is still read")
        self.computed(step, reads, [cell])
        cell.content = self.define(step.result)

    def outside(self, step: Outside) -> None:
        reads: list[Cell] = []
        operands: dict[int, RunningStack] = {}
        for position, item in enumerate(step.operands):
            if isinstance(item, View):
                reads.append(self.read(item.array))
            elif isinstance(item, Stack):
                running = operands[position] = self.stack(item)
                running.settle()
                self.check_rows(running)
        arrays = [result for result in step.results if isinstance(result, Array)]
        stacks = [result for result in step.results if isinstance(result, Stack)]
        for register, _, _ in step.sizes:
            self.define(register)
        for result in step.results:
            if isinstance(result, tuple):
                for register in result:
                    self.define(register)
        taken = [operands[position] for position in step.taken]
        kept = [running for position, running in operands.items() if position not in step.taken]
        for stack in stacks:
            running = self.stacks.get(self.handle_of(stack))
            if any(running is other for other in kept):
                self.fail(f"{stack} is put in the place of a stack that is still there")
        self.operands = operands
        for running in taken:
            self.stacks = {handle: other for handle, other in self.stacks.items() if other is not running}
        self.computed(step, reads, [])
        targets: list[Cell] = []
        for result in arrays:
            cell = self.written(result)
            if any(cell is other for other in (*reads, *targets)):
                self.fail(f"{result} is written to {self.place_of(result)}, which is read or written otherwise")
            self.allocated(cell, result)
            targets.append(cell)
        for result, cell in zip(arrays, targets, strict=True):
            cell.content = self.define(result)
        for result in stacks:
            count = self.new_rows(step, result)
            self.hold(result, [Token(f"row {k} of {result}") for k in range(count)])
        self.finished(step, targets)

    def finished(self, step: Outside, targets: Sequence[Cell]) -> None:
        """The results of an outside call come to their places."""

    def push(self, step: Push) -> None:
        running = self.stack(step.stack)
        source: Cell | None = None
        content: Content
        if isinstance(step.row, View):
            array = step.row.array
            source = self.read(array)
            slot = Place("slot", self.push_numbers[step])
            target = running.top()
            if self.place_of(array) == slot:
                if source is not target or not self.pointers[slot].is_valid:
                    self.fail(f"{array} is in {slot}, which is not the next row of {step.stack}")
                content = self.wanted(array)
            else:
                if source is target:
                    self.fail(f"{array} is pushed to where it lies")
                if source is not None and not self._is_there(array):
                    self.fail(f"{array} lies in a block that this push closes")
                content = Token(f"row of {step.result}", tuple(self.iterations))
                self.put_row(step, source, target)
        else:
            target = running.top()
            content = tuple(self.wanted(register) for register in step.row)
            self.put_row(step, None, target)
        target.content = content
        running.grow()
        self.updated(running, step.stack, step.result, (content, self.rows[running.version]))

    def _is_there(self, array: Array) -> bool:
        place = self.place_of(array)
        return place.kind not in ("slot", "row") or self.pointers[place].is_valid

    def pop(self, step: Pop) -> None:
        running = self.stack(step.stack)
        rows = self.rows[running.version]
        cell = running.pop()
        if cell is None:
            if rows:
                self.fail(f"{step.stack} has no rows")
            cell, content, below = self.underflow(step), None, ()
        else:
            if not rows:
                self.fail(f"{step.stack} has rows in place of none")
            content, below = rows
            if cell.content != content:
                self.fail(f"the last row of {step.stack} is {described(cell.content)} in place of {described(content)}")
        self.updated(running, step.stack, step.result, below)
        if not isinstance(step.row, Array):
            self.got_row(step, cell, None)
            for register in step.row:
                self.define(register)
            return
        self.check_row(step.stack, step.row)
        place = self.place_of(step.row)
        token = self.define(step.row)
        if place.kind == "row":
            # The row is what was pushed, by another name.
            cell.content = self.tokens[step.row.name] = content if isinstance(content, Token) else token
            self.pointers[place] = Pointer(cell, running, running.epoch)
            self.got_row(step, cell, cell)
            return
        target = self.room_at(place, step.row)
        self.allocated(target, step.row)
        self.got_row(step, cell, target)
        target.content = token

    def underflow(self, step: Pop) -> Cell:
        """A row is popped where there is none: where nobody counts iterations, any row."""
        return Cell()

    def indexed(self, step: ReadRow | WriteRow) -> tuple[RunningStack, list[Any], int | None]:
        """The stack with its rows in one block, their contents, the first first, and which is meant."""
        running = self.stack(step.stack)
        running.gather()
        self.check_rows(running)
        rows = list(_listed(self.rows[running.version]))[::-1]
        return running, rows, self.row_index(step, len(rows))

    def read_row(self, step: ReadRow) -> None:
        running, _, index = self.indexed(step)
        cell = Cell() if index is None else list(running.cells())[index]
        if isinstance(step.row, Array):
            self.check_row(step.stack, step.row)
            target = self.written(step.row)
            self.allocated(target, step.row)
            self.got_row(step, cell, target)
            target.content = self.define(step.row)
            return
        self.got_row(step, cell, None)
        for register in step.row:
            self.define(register)

    def write_row(self, step: WriteRow) -> None:
        running, rows, index = self.indexed(step)
        source = self.read(step.row.array) if isinstance(step.row, View) else None
        content = Token(f"row of {step.result}", tuple(self.iterations))
        if index == len(rows):
            target = running.top()
            running.grow()
            rows.append(content)
        elif index is None:
            target = Cell()
        else:
            target, rows[index] = list(running.cells())[index], content
        self.put_row(step, source, target)
        target.content = content
        self.updated(running, step.stack, step.result, functools.reduce(lambda below, row: (row, below), rows, ()))

    def copy_stack(self, step: CopyStack) -> None:
        running = self.stack(step.stack)
        handle = self.handle_of(step.result)
        if handle == self.handle_of(step.stack):
            self.fail(f"{step.result} is a copy, and has the handle of {step.stack}")
        token = self.define(step.result)
        if handle in self.stacks:
            self.stacks[handle].epoch += 1
        self.stacks[handle] = running.copy(token)
        self.rows[token] = self.rows[running.version]
        self.check_rows(self.stacks[handle])

    # Control.

    def loop(self, step: Loop) -> None:
        self.sees([c.init.name for c in step.carries if isinstance(c.init, Register)])
        self.moves(step.entry)
        tokens = [self.wanted(c.init) for c in step.carries]
        numbers = [c for c in step.carries if isinstance(c.inside, Register)]
        before = [c.init for c in numbers]
        chunked = [c.inside for c in step.carries if isinstance(c.inside, Stack)] if not self.iterations else []
        iteration = 0
        self.entered(step)
        while True:
            self.iterations.append((step.number, iteration))
            with self.scope():
                for carry, token in zip(step.carries, tokens, strict=True):
                    self.define(carry.inside, token)
                    self.arrived(carry.inside)
                self.carried(before, [c.inside for c in numbers])  # type: ignore[misc]
                before = [c.next for c in numbers]
                self.define(step.counter)
                self.counted(step, iteration)
                if self.chunk_ends():
                    for stack in chunked:
                        self.stack(stack).settle()
                with self.scope():
                    self.block(step.condition)
                    self.wanted(step.test)
                    runs = self.goes_on(step, iteration)
                    if not runs:
                        self.carried([c.inside for c in numbers], [c.result for c in numbers])  # type: ignore[misc]
                if runs:
                    self.block(step.body)
                    self.moves(step.body)
                    tokens = [self.wanted(c.next) for c in step.carries]
            self.iterations.pop()
            if not runs:
                break
            iteration += 1
        for carry, token in zip(step.carries, tokens, strict=True):
            self.define(carry.result, token)
            self.arrived(carry.result)

    def arrived(self, value: Value) -> None:
        """A value that a block gives is where it is wanted."""
        if isinstance(value, Array):
            with self.doing(f"carry or result {value}"):
                self.read(value)
        elif isinstance(value, Stack):
            with self.doing(f"carry or result {value}"):
                self.check_rows(self.stack(value))

    def branch(self, step: Branch) -> None:
        self.sees([step.selector.name])
        number = self.chosen(step)
        outputs = step.outputs[number]
        with self.scope(), self.doing(f"block {number}"):
            self.block(step.blocks[number])
            self.moves(step.blocks[number])
            tokens = [self.wanted(v) for v in outputs]
            pairs = [(o, r) for o, r in zip(outputs, step.results, strict=True) if isinstance(r, Register)]
            self.carried([o for o, _ in pairs], [r for _, r in pairs])  # type: ignore[misc]
        for result, token in zip(step.results, tokens, strict=True):
            self.define(result, token)
            self.arrived(result)


def _listed(rows: Rows) -> Iterator[Any]:
    while rows:
        row, rows = rows
        yield row


@functools.cache
def _headline(step: Step) -> str:
    made = ", ".join(str(value) for value in defines(step))
    return f"{type(step).__name__.lower()}" + (f" of {made}" if made else "")


@functools.cache
def _numbers_read(step: Step) -> tuple[str, ...]:
    """The names of numbers that a step without blocks reads, those in sizes too."""
    found: dict[str, None] = {}
    made = {value.name for value in defines(step) if isinstance(value, Register)}
    _collect(step, found)
    return tuple(name for name in found if name not in made)


def _collect(item: object, found: dict[str, None]) -> None:
    if isinstance(item, Register):
        found[item.name] = None
    elif isinstance(item, Size):
        found.update(dict.fromkeys(item.names))
    elif isinstance(item, View):
        _collect((item.offset, item.shape, item.strides), found)
    elif isinstance(item, Array):
        _collect(item.shape, found)
    elif isinstance(item, tuple):
        for each in item:
            _collect(each, found)
    elif dataclasses.is_dataclass(item) and type(item).__module__ == Kernel.__module__:
        for each in dataclasses.fields(item):
            if each.name not in ("node", "nodes", "expression"):
                _collect(getattr(item, each.name), found)


__all__ = ["PlanError", "Replay", "Sizes"]
