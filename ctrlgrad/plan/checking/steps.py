"""What each step without blocks reads and writes, and when."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ctrlgrad.plan import model
from ctrlgrad.plan.cascades import reads_as_made
from ctrlgrad.plan.checking.memory import Cell, Content, Pointer, RunningStack, Token, described
from ctrlgrad.plan.checking.overlap import reads_only_what_it_writes
from ctrlgrad.plan.checking.state import State, listed
from ctrlgrad.plan.effects import blocks_of, defines, numbers_of, reads
from ctrlgrad.plan.model import Array, Stack, Step, View
from ctrlgrad.plan.places import Place

# Rows of a stack by their contents, the last first.
Rows = tuple[Any, ...]


class Steps(State):
    """The steps of a run."""

    def step(self, step: Step) -> None:
        if not blocks_of(step):
            self.sees([register.name for register in numbers_of(step)])
        getattr(self, f"on_{step.kind}", self.plain)(step)

    def plain(self, step: Step) -> None:
        """A step that reads values all the time while it writes arrays and gives numbers."""
        if any(isinstance(value, Stack) for value in defines(step)) or blocks_of(step):
            self.fail(f"a step of a kind without a rule, {step.kind}")
        found = [self.stack(value) if isinstance(value, Stack) else self.read(value) for value in reads(step)]
        cells = [cell for cell in found if isinstance(cell, Cell)]
        arrays = [value for value in defines(step) if isinstance(value, Array)]
        targets: list[Cell] = []
        for array in arrays:
            target = self.written(array)
            if any(target is other for other in (*cells, *targets)):
                self.fail(f"{array} is written to {self.place_of(array)}, which is still read")
            self.allocated(target, array)
            targets.append(target)
        self.computed(step, cells, targets)
        for value in defines(step):
            self.define(value)
        for array, target in zip(arrays, targets, strict=True):
            target.content = self.wanted(array)

    def on_kernel(self, step: model.Kernel) -> None:
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
        columns = [self.read(operand.columns.array) for operand in step.operands if operand.columns is not None]
        for k, (write, cell) in enumerate(zip(step.writes, targets, strict=True)):
            place = self.place_of(write.view.array)
            if any(cell is other for other in columns):
                self.fail(f"{write.view.array} is written over columns in {place}, which are still read")
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
        self.computed(step, [*reads, *columns], targets)
        for write, cell in zip(step.writes, targets, strict=True):
            cell.content = self.define(write.view.array)

    def on_cascade(self, step: model.Cascade) -> None:
        for write in step.first.writes:
            if not reads_as_made(write.view, step.second):
                self.fail(f"of {write.view.array} other rows are read than the one that is there")
        self.on_kernel(step.first)
        self.on_kernel(step.second)
        for write in step.first.writes:
            self.cell_at(self.place_of(write.view.array), write.view.array).content = None

    def on_product(self, step: model.Product) -> None:
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

    def on_outside(self, step: model.Outside) -> None:
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
        consumed = [operands[position] for position in step.consumed]
        kept = [running for position, running in operands.items() if position not in step.consumed]
        for stack in stacks:
            if any(self.stacks.get(self.handle_of(stack)) is other for other in kept):
                self.fail(f"{stack} is put in the place of a stack that is still there")
        self.operands = operands
        for running in consumed:
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

    def finished(self, step: model.Outside, targets: Sequence[Cell]) -> None:
        """The results of an outside call come to their places."""

    def on_push(self, step: model.Push) -> None:
        running = self.stack(step.stack)
        source: Cell | None = None
        content: Content
        if step.stack.holds == "elements" and not (isinstance(step.row, View) and step.row.is_dense):
            self.fail(f"what is pushed on {step.stack} is no run of elements")
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

    def on_pop(self, step: model.Pop) -> None:
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

    def underflow(self, step: model.Pop) -> Cell:
        """A row is popped where there is none: where nobody counts iterations, any row."""
        return Cell()

    def indexed(self, step: model.ReadRow | model.WriteRow) -> tuple[RunningStack, list[Any], int | None]:
        """The stack with its rows in one block, their contents, the first first, and which is meant."""
        running = self.stack(step.stack)
        running.gather()
        self.check_rows(running)
        rows = list(listed(self.rows[running.version]))[::-1]
        return running, rows, self.row_index(step, len(rows))

    def on_read_row(self, step: model.ReadRow) -> None:
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

    def on_write_row(self, step: model.WriteRow) -> None:
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

    def on_new_stack(self, step: model.NewStack) -> None:
        count = self.new_rows(step, step.result)
        self.hold(step.result, [Token(f"row {k} of {step.result}") for k in range(count)])
        self.computed(step, [], [])

    def on_to_stack(self, step: model.ToStack) -> None:
        if not step.rows.is_dense or self.plan.rows[step.result] != step.rows.shape[1:]:
            self.fail(f"the rows of {step.rows.array} are not those of {step.result}")
        self.computed(step, [self.read(step.rows.array)], [])
        count = self.new_rows(step, step.result)
        self.hold(step.result, [Token(f"row {k} of {step.result}", tuple(self.iterations)) for k in range(count)])

    def on_from_stack(self, step: model.FromStack) -> None:
        running = self.stack(step.stack)
        running.gather()
        self.check_rows(running)
        fits = step.stack.holds == "elements" or self.plan.rows[step.stack] == step.result.shape[1:]
        if not fits or step.stack.dtype != step.result.dtype:
            self.fail(f"{step.result} is not of the shape and type of the rows of {step.stack}")
        place, sources = self.place_of(step.result), list(running.cells())
        if place.kind == "row":
            target = Cell()
            self.pointers[place] = Pointer(target, running, running.epoch, running.version)
        else:
            target = self.room_at(place, step.result)
        self.allocated(target, step.result)
        self.got_rows(step, sources, target)
        target.content = self.define(step.result)

    def on_copy_stack(self, step: model.CopyStack) -> None:
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
