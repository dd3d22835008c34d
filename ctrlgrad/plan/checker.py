"""The judge of plans: it replays a placed plan without data, and proves that every read finds the value that it wants.

It shares no code with placement. Every buffer, argument, constant, slot and popped row holds the name of the value in
it, with the iteration of every loop around; every read says which it wants. Loops run 0, 1, 2 and 3 times, branches
take every path, blocks of stacks are of any length, and chunks end before any iteration.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ctrlgrad.plan.checking.decisions import check_local, check_tiles, check_vectors
from ctrlgrad.plan.checking.memory import Cell, Content, RunningStack, Token
from ctrlgrad.plan.checking.steps import Steps
from ctrlgrad.plan.effects import names_of
from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Loop,
    Move,
    NewStack,
    Outside,
    Piece,
    Plan,
    ReadRow,
    Register,
    Stack,
    Step,
    ToStack,
    Value,
    WriteRow,
)
from ctrlgrad.plan.places import Place

# A machine that runs placed plans and checks every access: who reads a value must find it, of this very iteration.
#
# It knows nothing of how places were chosen. Beside what steps mean (`tokens`: which value each name stands for now)
# it keeps what memory holds (`Cell`s); a read compares the two. Trip counts, branches and what is computed are a
# matter of the subclasses: `checker` tries schedules without data, `instruments.plan_machine` of the tests computes.


# Rows of a stack by their contents, the last first.
Rows = tuple[Any, ...]


class Replay(Steps):
    """One run of a plan, with its loops and branches."""

    # Running.

    def run(self) -> None:
        plan = self.plan
        check_local(plan, self.fail)
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
        last: Step | None = None
        for number, step in enumerate(block.steps):
            self.steps += 1
            self.at.append(step)
            if (piece := self.plan.pieces.get(step)) is not None:
                if self.piece is not None or block.steps[number : number + len(piece.steps)] != piece.steps:
                    self.fail("the steps of a function do not follow one another, or another function has them")
                self.piece, last = piece, piece.steps[-1]
                self.forget_local(piece)
            self.step(step)
            self.release(step)
            if self.piece is not None and step is last:
                self.forget_local(self.piece)
                self.piece = None
            self.at.pop()

    def forget_local(self, piece: Piece) -> None:
        """Forget the memory of a function that begins or ends, and that of the plan's own function, unseen inside."""
        for number in (*piece.local, *self.plan.local):
            self.cells[Place("buffer", number)] = Cell()

    def release(self, step: Step) -> None:
        """Forget the memory that the driver may take back after a step."""
        released = self.plan.releases.get(step)
        if released is None:
            return
        for number in released.buffers:
            self.cells[Place("buffer", number)] = Cell()
        for handle in released.stacks:
            # Of a branch, one block may have released it already.
            if handle in self.stacks:
                self.stacks.pop(handle).epoch += 1

    def moves(self, block: Block) -> None:
        """Replay the copies and exchanges at the end of a block."""
        for move in block.moves:
            how = "exchange memory for" if move.exchanges else "copy"
            with self.doing(f"{how} {move.array} from {move.source} to {move.target}"):
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
        if move.exchanges:
            for place in (move.source, move.target):
                if place.kind != "buffer" or not self.plan.buffers[place.number].is_free_to_move:
                    self.fail(f"{place} has no memory of its own to exchange")
            self.cells[move.source], self.cells[move.target] = target, source
            return
        self.check_room(move.target, target, move.array)
        self.sees(move.array.count.names)
        if source.content is None:
            self.fail(f"{move.array} is lost where it lies, since it grows")
        self.copied(move.array, source, target)
        target.content = source.content

    # Control.

    def on_loop(self, step: Loop) -> None:
        if (tiles := self.plan.tiles.get(step)) is not None:
            check_tiles(tiles, self.plan.places, self.fail, step)
        self.sees([c.init.name for c in step.carries if isinstance(c.init, Register)])
        self.moves(step.entry)
        tokens = [self.wanted(c.init) for c in step.carries]
        numbers = [c for c in step.carries if isinstance(c.inside, Register)]
        before = [c.init for c in numbers]
        chunked = [c.inside for c in step.carries if isinstance(c.inside, Stack)] if step in self.in_chunks else []
        iteration = 0
        self.entered(step)
        while True:
            self.iterations.append((step.number, iteration))
            with self.scope():
                self.arrived([c.inside for c in step.carries], tokens)
                self.carried(before, [c.inside for c in numbers])
                before = [c.next for c in numbers]
                self.define(step.counter)
                self.counted(step, iteration)
                if self.chunk_ends():
                    for stack in chunked:
                        self.stack(stack).settle()
                    self.chunk_ended(step, iteration)
                with self.scope():
                    self.block(step.condition)
                    self.wanted(step.test)
                    runs = self.goes_on(step, iteration)
                    if not runs:
                        self.chunk_ended(step, iteration)
                        self.carried([c.inside for c in numbers], [c.result for c in numbers])
                if runs:
                    self.block(step.body)
                    self.moves(step.body)
                    tokens = [self.wanted(c.next) for c in step.carries]
            self.iterations.pop()
            if not runs:
                break
            iteration += 1
        self.arrived([c.result for c in step.carries], tokens)

    def arrived(self, values: Sequence[Value], tokens: Sequence[Token]) -> None:
        """Values come out of a block under other names; each is where it is wanted."""
        for value, token in zip(values, tokens, strict=True):
            self.define(value, token)
        for value in values:
            if isinstance(value, Array):
                self.read(value)
            elif isinstance(value, Stack):
                self.check_rows(self.stack(value))

    def on_branch(self, step: Branch) -> None:
        self.sees([step.selector.name])
        number = self.chosen(step)
        outputs = step.outputs[number]
        with self.scope(), self.doing(f"block {number}"):
            self.block(step.blocks[number])
            self.moves(step.blocks[number])
            tokens = [self.wanted(v) for v in outputs]
            pairs = [(o, r) for o, r in zip(outputs, step.results, strict=True) if isinstance(r, Register)]
            self.carried([o for o, _ in pairs], [r for _, r in pairs])
        self.arrived(step.results, tokens)


# After so many steps of one run loops take no further iterations.
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Schedule:
    """The path of a run: iterations by how deep a loop is, and the branch; what is None is drawn."""

    counts: tuple[int, ...] | None = None
    choice: int | None = None
    seed: int = 0


SCHEDULES = (
    *(Schedule((k,), k % 2, seed=k) for k in (0, 1, 2, 3)),
    Schedule((1, 2, 3), 1, seed=4),
    Schedule((3, 2, 1), 0, seed=5),
    Schedule((2,), 2, seed=6),
    Schedule((2,), None, seed=7),
    *(Schedule(None, None, seed) for seed in (8, 9, 10)),
)


def check(plan: Plan, schedules: Sequence[Schedule] = SCHEDULES) -> None:
    """Raise `PlanError` if a read of a placed plan could find another value than it wants."""
    check_vectors(plan, _Checker(plan, schedules[0]).fail)
    for schedule in schedules:
        _Checker(plan, schedule).run()


class _Checker(Replay):
    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        super().__init__(plan)
        self.schedule = schedule
        self.random = random.Random(schedule.seed)
        self.counts: list[int] = []

    def entered(self, step: Loop) -> None:
        counts, depth = self.schedule.counts, len(self.iterations)
        count = self.random.randint(0, 3) if counts is None else counts[min(depth, len(counts) - 1)]
        self.counts.append(count if self.steps < MOST_STEPS else min(count, 1))

    def goes_on(self, step: Loop, iteration: int) -> bool:
        if iteration < self.counts[-1] and (step.maximum is None or iteration < step.maximum):
            return True
        self.counts.pop()
        return False

    def chosen(self, step: Branch) -> int:
        last = len(step.blocks) - 1
        return self.random.randint(0, last) if self.schedule.choice is None else min(self.schedule.choice, last)

    def capacity(self) -> int:
        return self.random.randint(1, 3)

    def chunk_ends(self) -> bool:
        return self.random.random() < 0.3

    def row_index(self, step: ReadRow | WriteRow, length: int) -> int | None:
        most = length if isinstance(step, WriteRow) and step.grow else length - 1
        return self.random.randint(0, most) if most >= 0 else None

    def new_rows(self, step: NewStack | ToStack | Outside, result: Stack) -> int:
        return 0 if isinstance(step, NewStack) and step.size is None else self.random.randint(0, 3)

    def given_rows(self, number: int, argument: Stack) -> Sequence[Content]:
        return [Token(f"row {k} of {argument}") for k in range(self.random.randint(0, 4))]
