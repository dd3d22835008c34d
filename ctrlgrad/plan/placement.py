"""Placement: which arrays share memory, where pushes land, and which copies are needed at the ends of blocks.

One walk in the order of execution gives each array a place when it is defined. The first of these that is possible is
taken: the place where the array is wanted (the slot of its push, the carry that it becomes, the result that it is); the
memory of a dead operand; a free buffer of its size; a new buffer. A buffer is free for an array if no array in it is
live after the step, and if the step reads each of its elements only just before it writes the same element.

Results of loops and branches have buffers that are reserved while the loop or branch runs: only the value that a buffer
is for may lie there. At the end of a block, moves bring values that lie elsewhere to their buffers, in an order that
overwrites no value that is still to be moved. Arrays in arguments, constants, slots and popped rows are never
overwritten.
"""

from __future__ import annotations

import functools
import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal

from ctrlgrad.plan.decisions import decide
from ctrlgrad.plan.effects import blocks_of, defines, names_of, reads, updates, walk, yields
from ctrlgrad.plan.liveness import Live, Liveness, kept
from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Carry,
    Factorise,
    FromStack,
    Kernel,
    Loop,
    Move,
    Operand,
    Plan,
    Pop,
    Product,
    Push,
    ReadRow,
    Release,
    Stack,
    Step,
    Transform,
    Value,
    View,
    Write,
)
from ctrlgrad.plan.places import Buffer, Place
from ctrlgrad.plan.stack_handles import assign_handles
from ctrlgrad.records import record

# Arrays that a step may overwrite: it reads them for the last time just where it writes.


def results_of(step: Step) -> list[Array]:
    """The arrays that a step makes."""
    return [value for value in defines(step) if isinstance(value, Array)]


def operands_of(step: Step) -> list[Array]:
    """The arrays over which a step may write, those that it updates first."""
    return [v for v in (*(before for _, before in updates(step)), *reads(step)) if isinstance(v, Array)]


def may_overwrite(step: Step, array: Array, other: Array) -> bool:
    """Return true if a step that reads `other` may write `array` to the same memory.

    A kernel may, if each element is read for the last time just before it is written: both at the position of the point
    itself. An update may lie over its base, if nothing else of the base is read but the elements that are written.
    """
    if isinstance(step, Kernel):
        writes, updating, reads_of = _by_array(step)
        write, reading = writes[array], reads_of.get(other, ())
        if any(w is not write for w in updating.get(other, ())):
            return False
        if write.base is not None:
            if write.base is not other:
                return False
            # An update that does not read what it updates, or reads just the element that it writes.
            return all(not o.gathered and o.view == _at(write.view, other) and not write.scattered for o in reading)
        if write.how != "store" or write.scattered or write.view != array.view:
            return False
        return all(o.view == other.view and not o.gathered and o.view.shape == write.view.shape for o in reading)
    if isinstance(step, Product):
        return step.base is other and step.a.array is not other and step.b.array is not other
    return False


@functools.lru_cache(maxsize=16)
def _by_array(kernel: Kernel) -> tuple[dict[Array, Write], dict[Array, list[Write]], dict[Array, list[Operand]]]:
    """A kernel's writes by the array that they make and by the one that they update; its operands by their array."""
    updating: dict[Array, list[Write]] = {}
    reading: dict[Array, list[Operand]] = {}
    for write in kernel.writes:
        if write.base is not None:
            updating.setdefault(write.base, []).append(write)
    for operand in kernel.operands:
        reading.setdefault(operand.view.array, []).append(operand)
    return {write.view.array: write for write in kernel.writes}, updating, reading


def _at(view: View, array: Array) -> View:
    """The same elements of another array."""
    return View(array, view.offset, view.shape, view.strides)


def origins_of(
    array: Array, producers: Mapping[Array, Step], after: Mapping[Step, Container[object]]
) -> Iterator[Array]:
    """The arrays of a block that one is an update of, the nearest first, as long as it may be written over them.

    `producers` has the steps of the block that make arrays, `after` what is needed after each step.
    """
    while isinstance(producers.get(array), Kernel | Product):
        step = producers[array]
        origin = dict(updates(step)).get(array)
        if (
            not isinstance(origin, Array)
            or not isinstance(producers.get(origin), Kernel | Product)
            or origin in after[step]
            or not may_overwrite(step, array, origin)
        ):
            return
        yield origin
        array = origin


def origins_in(block: Block) -> dict[Value, Value | None]:
    """For each value that a block defines what it is an update of; None: of nothing."""
    origins: dict[Value, Value | None] = {}
    for step in block.steps:
        origins.update(dict.fromkeys(defines(step)))
        origins.update(updates(step))
    return origins


def root_of(origins: Mapping[Value, Value | None], value: Value) -> Array | None:
    """The array from outside of a block that a value of it is an update of, or is itself."""
    while value in origins:
        origin = origins[value]
        if origin is None:
            return None
        value = origin
    return value if isinstance(value, Array) else None


# Copies from place to place that happen at once, as at the end of a loop body, in an order that keeps all of them.


def ordered(moves: Iterable[tuple[Array, Place, Place]], spare_for: Callable[[Array], Place]) -> tuple[Move, ...]:
    """Copies in an order in which nothing is overwritten before it was copied; a circle goes by a spare place."""
    pending = [Move(array, source, target) for array, source, target in moves if source != target]
    by_source: dict[Place, set[int]] = {}
    by_target: dict[Place, list[int]] = {}
    for number, move in enumerate(pending):
        by_source.setdefault(move.source, set()).add(number)
        by_target.setdefault(move.target, []).append(number)
    # The first of several that may go goes first.
    ready = [number for number, move in enumerate(pending) if move.target not in by_source]
    left, done = dict.fromkeys(range(len(pending))), []
    while left:
        if ready:
            number = heapq.heappop(ready)
            move = pending[number]
            del left[number]
            done.append(move)
            by_source[move.source].discard(number)
            if by_source[move.source]:
                continue
        else:
            move = pending[next(iter(left))]
            spare = spare_for(move.array)
            done.append(Move(move.array, move.source, spare))
            waiting = by_source[spare] = by_source[move.source]
            by_source[move.source] = set()
            for number in waiting:
                pending[number] = replace(pending[number], source=spare)
        for number in by_target.get(move.source, ()):
            if number in left:
                heapq.heappush(ready, number)
    return tuple(done)


# Memory that is dead after a step, so that the driver may take it back where bytes are short.
#
# Only buffers that are sized when they are needed, and stacks, are worth telling: all other buffers are one piece of
# memory that a call has from beginning to end. A row that is read or made in place keeps the stack that it lies in.


Memory = tuple[Literal["buffer", "stack"], int]


def releases(plan: Plan) -> dict[Step, Release]:
    """For each step of a placed plan that is the last to use some memory: which."""
    return _Releases(plan).found


class _Releases:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.live = Liveness(plan)
        self.late = {b.number for b in plan.buffers if b.is_free_to_move}
        steps = list(walk(plan.body))
        self.pushes = [s.stack for s in steps if isinstance(s, Push)]
        self.pops = [s.stack for s in steps if isinstance(s, Pop | FromStack)]
        # Values in each memory. The checker, not this pass, verifies that every value has a place.
        self.memory: dict[Value, Memory] = {}
        self.values: dict[Memory, set[Value]] = {}
        values: list[Array | Stack] = [*plan.handles, *plan.places]
        for value in values:
            found = self.memory_of(value)
            if found is not None:
                self.memory[value] = found
                self.values.setdefault(found, set()).add(value)
        self.found: dict[Step, Release] = {}
        self.block(plan.body)

    def block(self, block: Block) -> None:
        for step in block.steps:
            for inner in blocks_of(step):
                self.block(inner)
            after, memory = self.live.after[step], self.memory
            used = {memory[v] for v in (*self.live.reads[step], *defines(step)) if v in memory}
            idle = sorted(m for m in used if after.isdisjoint(self.values[m]))
            if idle:
                self.found[step] = Release(
                    tuple(number for kind, number in idle if kind == "buffer"),
                    tuple(number for kind, number in idle if kind == "stack"),
                )

    def memory_of(self, value: Array | Stack) -> Memory | None:
        """Memory of a value, if its release is reported."""
        handles = self.plan.handles
        if isinstance(value, Stack):
            return "stack", handles[value]
        place = self.plan.places[value]
        if place.kind == "buffer":
            return ("buffer", place.number) if place.number in self.late else None
        if place.kind in ("slot", "row"):
            return "stack", handles[(self.pushes if place.kind == "slot" else self.pops)[place.number]]
        return None


# Rows where they lie: which arrays are made in the slot of their push, and which rows are read in place.
#
# A row stays where it is as long as nothing touches its stack.


class Slots:
    """Of a plan over values: which rows need no place of their own."""

    def __init__(self, plan: Plan, live: Liveness) -> None:
        self.plan, self.live = plan, live
        # Arrays that are made in the slot of a push: which push, and the handle of its stack.
        self.numbers: dict[Array, int] = {}
        self.handles: dict[Array, int] = {}
        # Where the steps of a block use the stack of a handle, and where they make rows in its slots.
        self.used: dict[Block, dict[int, list[int]]] = {}
        self.made: dict[tuple[Block, int], list[int]] = {}
        self.pushes = {step: number for number, step in enumerate(s for s in walk(plan.body) if isinstance(s, Push))}
        # Steps that read rows where they lie.
        reads = (s for s in walk(plan.body) if isinstance(s, Pop | FromStack))
        self.pops = {step: number for number, step in enumerate(reads)}

    def find(self, block: Block) -> None:
        """Arrays that are made and pushed in one block are made in their slot, if nothing uses that stack meanwhile; so
        is what they are updates of."""
        producers: dict[Array, int] = {}
        for position, step in enumerate(block.steps):
            if isinstance(step, Kernel | Product | Factorise | Transform | ReadRow):
                producers.update((a, position) for a in results_of(step))
        makers = {array: block.steps[position] for array, position in producers.items()}
        # The arrays in the slot of each push.
        found: dict[Push, list[Array]] = {}
        for position, step in enumerate(block.steps):
            if not isinstance(step, Push) or isinstance(step.row, tuple):
                continue
            array = step.row.array
            if (
                not step.row.is_whole
                or array not in producers
                or array in self.numbers
                or not (step.stack.holds == "elements" or array.shape == self.plan.rows[step.stack])
            ):
                continue
            handle, end = self.plan.handles[step.stack], position
            for each in (array, *origins_of(array, makers, self.live.after)):
                if self._is_touched(block, producers[each], end, handle):
                    break
                if each in self.numbers:
                    self.made[block, self.handles[each]].remove(producers[each])
                self.numbers[each], self.handles[each], end = self.pushes[step], handle, producers[each]
                self.made.setdefault((block, handle), []).append(producers[each])
                found.setdefault(step, []).append(each)
        for position, step in enumerate(block.steps):
            if isinstance(step, Push) and isinstance(step.row, View):
                array, number = step.row.array, self.pushes[step]
                if self.numbers.get(array) == number and not self.is_still(block, position, array, self.handles[array]):
                    for each in [a for a in found[step] if self.numbers.get(a) == number]:
                        self.made[block, self.handles[each]].remove(producers[each])
                        del self.numbers[each], self.handles[each]

    def is_still(self, block: Block, position: int, array: Array, handle: int) -> bool:
        """Return true if no step touches a stack as long as an array is read: then its rows do not move."""
        after = self.live.after[block.steps[position]]
        if position + 1 == len(block.steps) or array not in after:
            return True
        last = after.last_read(array)
        return not self._is_touched(block, position + 1, len(block.steps) if last is None else last + 1, handle)

    def is_last(self, block: Block, position: int, step: FromStack) -> bool:
        """Return true if a stack is dead after this step: then its rows may be gathered where they are read."""
        if step.stack in self.live.after[step]:
            return False
        return self.is_still(block, position, step.result, self.plan.handles[step.stack])

    def _is_touched(self, block: Block, start: int, end: int, handle: int) -> bool:
        """Return true if a block uses the stack of a handle, puts another one there, or makes a row in its slot."""
        used = self.used.get(block)
        if used is None:
            used = self.used[block] = {}
            for position, step in enumerate(block.steps):
                found = (*self.live.reads[step], *defines(step))
                for each in {self.plan.handles[v] for v in found if isinstance(v, Stack)}:
                    used.setdefault(each, []).append(position)
        positions = used.get(handle, [])
        first = bisect_left(positions, start)
        if first < len(positions) and positions[first] < end:
            return True
        return any(start <= position < end for position in self.made.get((block, handle), ()))


def place(plan: Plan) -> Plan:
    """The plan with a place for each array, a handle for each stack, releases, and decisions about execution."""
    placed = _Placement(assign_handles(plan)).run()
    return decide(replace(placed, releases=releases(placed)))


@record(frozen=False)
class _Wanted:
    """A buffer that an array should lie in, once nothing of `blocked` is needed any more."""

    buffer: int
    blocked: frozenset[Array] = field(default_factory=frozenset)


class _Placement:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.live = Liveness(plan)
        self.places: dict[Array, Place] = {}
        self.buffers: list[Buffer] = []
        # Arrays in each buffer that may still be needed.
        self.holds: dict[int, set[Array]] = {}
        # The last step of which a result was put into each buffer.
        self.filled: dict[int, Step] = {}
        # A step, and the buffers of its operands that are free after it.
        self.leaving: tuple[Step | None, list[int]] = None, []
        self.reserved: set[int] = set()
        # By the sizes that fit, in order: buffers that may be free. Another one waits for an array that lies in it, or
        # is reserved.
        self.idle: dict[Hashable, list[int]] = {}
        self.waiting: dict[object, list[int]] = {}
        # Reads of each enclosing branch: another block of it may need values that this block does not.
        self.branches: list[Live] = []
        self.wanted: dict[Array, _Wanted] = {}
        self.slots = Slots(plan, self.live)
        self.entry_names = {register.name for register, _, _ in plan.sizes}
        for argument in plan.arguments:
            if isinstance(argument, tuple):
                self.entry_names.update(register.name for register in argument)

    def run(self) -> Plan:
        plan = self.plan
        for number, argument in enumerate(plan.arguments):
            if isinstance(argument, Array):
                self.places[argument] = Place("argument", number)
        for number, (array, _) in enumerate(plan.constants):
            self.places[array] = Place("constant", number)
        targets: list[tuple[Array, Place]] = []
        for number, result in enumerate(plan.results):
            if isinstance(result, Array):
                buffer = self.new_buffer(result, result=number)
                self.reserved.add(buffer)
                if result not in self.places:
                    self.wanted.setdefault(result, _Wanted(buffer))
                targets.append((result, Place("buffer", buffer)))
        body = self.block(plan.body)
        moves = [(array, self.places[array], target) for array, target in targets]
        body = replace(body, moves=self.ordered(moves))
        return replace(plan, body=body, buffers=tuple(self.buffers), places=self.places)

    # Buffers.

    def new_buffer(self, array: Array, result: int | None = None) -> int:
        known = self.is_known_at_entry(array)
        number = len(self.buffers)
        self.buffers.append(Buffer(number, array.dtype, array.count, known, result))
        self.holds[number] = set()
        self.make_idle(number)
        return number

    def is_known_at_entry(self, array: Array | Buffer) -> bool:
        return names_of((array.count,)) <= self.entry_names

    def put(self, array: Array, buffer: int) -> None:
        self.places[array] = Place("buffer", buffer)
        self.holds[buffer].add(array)
        self.waiting.setdefault(array, []).append(buffer)

    def sizes_that_fit(self, array: Array | Buffer) -> Hashable:
        """Common sizes of the arrays of one buffer: one that is sized when it is needed has any."""
        return array.dtype.itemsize, array.count if self.is_known_at_entry(array) else None

    def fits(self, array: Array, buffer: int) -> bool:
        return self.sizes_that_fit(array) == self.sizes_that_fit(self.buffers[buffer])

    def make_idle(self, buffer: int) -> None:
        heapq.heappush(self.idle.setdefault(self.sizes_that_fit(self.buffers[buffer]), []), buffer)

    def end(self, values: Iterable[object]) -> None:
        """Values that a step reads or makes, or a block gives: the buffers that wait for them may be free now."""
        for value in values:
            for buffer in self.waiting.pop(value, ()):
                self.make_idle(buffer)

    def first_idle(self, array: Array, step: Step, others: Container[int], is_free: Callable[[int], bool]) -> int:
        """The first buffer that has the size of an array and is free, else a new one."""
        idle = self.idle.get(self.sizes_that_fit(array), [])
        passed: list[int] = []
        last = found = -1
        while idle:
            buffer = heapq.heappop(idle)
            if buffer == last or buffer in self.reserved or buffer in others:
                continue
            last = buffer
            self.forget(buffer, step)
            after = self.live.after[step]
            needed = next((other for other in self.holds[buffer] if other in after), None)
            if needed is not None:
                self.waiting.setdefault(needed, []).append(buffer)
            elif is_free(buffer):
                found = buffer
                break
            else:
                passed.append(buffer)
        for buffer in passed:
            heapq.heappush(idle, buffer)
        return self.new_buffer(array) if found < 0 else found

    def forget(self, buffer: int, step: Step) -> None:
        """Leave out what lies in a buffer and is no longer needed, by another block of a branch neither."""
        after, read = self.live.after[step], self.live.reads[step]
        holds = self.holds[buffer]
        over = [
            other
            for other in holds
            if not (other in read or other in after or any(other in reads for reads in self.branches))
        ]
        holds.difference_update(over)

    def is_free(self, buffer: int, array: Array, step: Step) -> bool:
        """Return true if the step may write the array to a buffer."""
        after, read = self.live.after[step], self.live.reads[step]
        for other in self.holds[buffer]:
            if other in after:
                return False
            if other in read and not may_overwrite(step, array, other):
                return False
        # Two results of one step are not one.
        return self.filled.get(buffer) is not step

    def choose(self, array: Array, step: Step) -> None:
        """Give an array that the step defines a place."""
        if array in self.slots.numbers:
            self.places[array] = Place("slot", self.slots.numbers[array])
            return
        wanted = self.wanted.get(array)
        is_wanted = wanted is not None and self.is_wanted_free(wanted, array, step)
        buffer = wanted.buffer if wanted is not None and is_wanted else self.find(array, step)
        self.put(array, buffer)
        self.filled[buffer] = step

    def is_wanted_free(self, wanted: _Wanted, array: Array, step: Step) -> bool:
        if not self.fits(array, wanted.buffer):
            return False
        self.forget(wanted.buffer, step)
        if not self.is_free(wanted.buffer, array, step):
            return False
        after, read = self.live.after[step], self.live.reads[step]
        return not any(
            other in after or (other in read and not may_overwrite(step, array, other)) for other in wanted.blocked
        )

    def find(self, array: Array, step: Step) -> int:
        """A buffer for an array: one that the step's own operands leave, else another free one, else a new one."""
        for buffer in self.left_by(step):
            if self.filled.get(buffer) is not step and self.fits(array, buffer) and self.is_free(buffer, array, step):
                return buffer
        return self.first_idle(array, step, (), lambda buffer: self.is_free(buffer, array, step))

    def left_by(self, step: Step) -> list[int]:
        """The buffers of a step's operands that nothing needs after it; asked for each of its results."""
        if self.leaving[0] is not step:
            found: list[int] = []
            after = self.live.after[step]
            for array in operands_of(step):
                place = self.places.get(array)
                if place is not None and place.kind == "buffer" and place.number not in self.reserved:
                    self.forget(place.number, step)
                    if after.isdisjoint(self.holds[place.number]):
                        found.append(place.number)
            self.leaving = step, found
        return self.leaving[1]

    # Blocks.

    def block(self, block: Block) -> Block:
        self.slots.find(block)
        self.pass_wishes_on(block)
        steps: list[Step] = []
        for position, step in enumerate(block.steps):
            if isinstance(step, Loop):
                steps.append(self.loop(step))
            elif isinstance(step, Branch):
                steps.append(self.branch(step))
            elif isinstance(step, Pop) and isinstance(step.row, Array):
                if self.slots.is_still(block, position, step.row, self.plan.handles[step.stack]):
                    self.places[step.row] = Place("row", self.slots.pops[step])
                else:
                    self.choose(step.row, step)
                steps.append(step)
            elif isinstance(step, FromStack) and self.slots.is_last(block, position, step):
                self.places[step.result] = Place("row", self.slots.pops[step])
                steps.append(step)
            else:
                for array in results_of(step):
                    self.choose(array, step)
                steps.append(step)
            after = self.live.after[step]
            self.end(v for v in (*self.live.reads[step], *defines(step)) if v not in after)
            self.end(yields(step))
        return replace(block, steps=tuple(steps))

    def pass_wishes_on(self, block: Block) -> None:
        """Pass wishes for a place from a value on to what it updates: the base of an update, the initial value of a
        loop's result, the values that the blocks of a branch update or pass on."""
        for step in reversed(block.steps):
            pairs: list[tuple[object, object]] = list(updates(step))
            if isinstance(step, Branch):
                for inner, outputs in zip(step.blocks, step.outputs, strict=True):
                    origins = origins_in(inner)
                    pairs += [(r, root_of(origins, o)) for r, o in zip(step.results, outputs, strict=True)]
            for result, origin in pairs:
                if isinstance(result, Array) and isinstance(origin, Array) and result in self.wanted:
                    self.wanted.setdefault(origin, self.wanted[result])

    def loop(self, step: Loop) -> Loop:
        arrays = [c for c in step.carries if isinstance(c.inside, Array)]
        buffers: dict[int, None] = {}
        inner, starts = self.captured(step), Counter[Value](c.init for c in step.carries)
        for carry in arrays:
            buffers[self.carry_buffer(step, carry, buffers, inner, starts)] = None
        entry = []
        for carry, buffer in zip(arrays, buffers, strict=True):
            init, inside, following, result = _four(carry)
            target = Place("buffer", buffer)
            entry.append((init, self.places[init], target))
            # While the loop runs it belongs to this carry; a result's buffer is reserved already.
            self.holds[buffer].add(inside)
            self.places[inside] = self.places[result] = target
            self.wanted[following] = _Wanted(buffer, frozenset({inside}))
        added = self.reserve(buffers)
        moves = self.ordered(entry)
        self.end(self.live.reads[step])
        condition = self.block(step.condition)
        body = self.block(step.body)
        ends = []
        for carry, buffer in zip(arrays, buffers, strict=True):
            _, inside, following, _ = _four(carry)
            if following is not inside:
                ends.append((following, self.places[following], Place("buffer", buffer)))
        body = replace(body, moves=self.handed_over(body, self.ordered(ends)))
        self.unreserve(added)
        for carry, buffer in zip(arrays, buffers, strict=True):
            self.holds[buffer].add(_four(carry)[3])
        found = replace(step, condition=condition, body=body, entry=replace(step.entry, moves=moves))
        self.rename(step, found)
        return found

    def reserve(self, buffers: Iterable[int]) -> set[int]:
        """Reserve buffers; return the ones that were not reserved before."""
        added = set(buffers) - self.reserved
        self.reserved |= added
        return added

    def unreserve(self, buffers: set[int]) -> None:
        self.reserved -= buffers
        for buffer in buffers:
            self.make_idle(buffer)

    def carry_buffer(
        self, step: Loop, carry: Carry, others: Container[int], inner: Live, starts: Counter[Value]
    ) -> int:
        """Buffer of a carry: that of its initial value, if only the loop needs that; else the one where the result is
        wanted; else a free one."""
        init, inside, _, result = _four(carry)
        after = self.live.after[step]
        place = self.places[init]
        mine = starts[init] == 1
        if place.kind == "buffer" and place.number not in others and mine and self.fits(inside, place.number):
            holds = self.holds[place.number]
            is_over = not any(other in after or other in inner for other in holds)
            if is_over and self._is_mine(place.number, result):
                return place.number
        return self.unused_buffer(step, inside, result, others)

    def unused_buffer(self, step: Loop | Branch, array: Array, result: Array, others: Container[int]) -> int:
        """A buffer for an array of a loop or branch that becomes its result, nothing of it needed in the step or after
        it: the one where the result is wanted, else another that is free, else a new one."""
        after, read = self.live.after[step], self.live.reads[step]

        def is_unused(values: Collection[Array]) -> bool:
            return read.isdisjoint(values) and after.isdisjoint(values)

        wanted = self.wanted.get(result)
        if wanted is not None and wanted.buffer not in others and self.fits(array, wanted.buffer):
            blocked = self.holds[wanted.buffer] | wanted.blocked
            if is_unused(blocked):
                return wanted.buffer
        return self.first_idle(array, step, others, lambda buffer: is_unused(self.holds[buffer]))

    def _is_mine(self, buffer: int, result: Array) -> bool:
        """Return true if a buffer is not reserved, or reserved for this value."""
        wanted = self.wanted.get(result)
        return buffer not in self.reserved or (wanted is not None and wanted.buffer == buffer)

    def captured(self, step: Loop) -> Live:
        """Values from outside that the blocks of a loop read."""
        found: set[Array | Stack] = set()
        for block in (step.condition, step.body):
            for inner in block.steps:
                found |= self.live.reads[inner]
        return kept((*found, *(c.next for c in step.carries)))

    def branch(self, step: Branch) -> Branch:
        results = [(k, r) for k, r in enumerate(step.results) if isinstance(r, Array)]
        buffers: dict[int, None] = {}
        origins = [origins_in(block) for block in step.blocks]
        given = Counter(v for values in step.outputs for v in values)
        for position, result in results:
            buffers[self.branch_buffer(step, position, result, buffers, origins, given)] = None
        added = self.reserve(buffers)
        self.branches.append(self.live.reads[step])
        blocks = []
        for block, outputs in zip(step.blocks, step.outputs, strict=True):
            for (position, _), buffer in zip(results, buffers, strict=True):
                output = outputs[position]
                assert isinstance(output, Array)
                if output not in self.places:
                    self.wanted[output] = _Wanted(buffer)
            held = {buffer: set(self.holds[buffer]) for buffer in buffers}
            self.end(self.live.reads[step])
            inner = self.block(block)
            ends = []
            for (position, _), buffer in zip(results, buffers, strict=True):
                output = outputs[position]
                assert isinstance(output, Array)
                ends.append((output, self.places[output], Place("buffer", buffer)))
            blocks.append(replace(inner, moves=self.handed_over(inner, self.ordered(ends))))
            # The other branches do not run as well.
            for buffer, arrays in held.items():
                self.holds[buffer] = arrays
        self.branches.pop()
        self.unreserve(added)
        for (_, result), buffer in zip(results, buffers, strict=True):
            self.put(result, buffer)
        found = replace(step, blocks=tuple(blocks))
        self.rename(step, found)
        return found

    def branch_buffer(
        self,
        step: Branch,
        position: int,
        result: Array,
        others: Container[int],
        origins: Sequence[Mapping[Value, Value | None]],
        given: Mapping[Value, int],
    ) -> int:
        """Buffer of a branch's result: that of an array that a branch updates or passes on, else the one where the
        result is wanted, else a free one."""
        after, read = self.live.after[step], self.live.reads[step]
        mine = [outputs[position] for outputs in step.outputs]
        for found, output in zip(origins, mine, strict=True):
            root = root_of(found, output)
            if root is None or root not in self.places or self.places[root].kind != "buffer":
                continue
            buffer = self.places[root].number
            if buffer in others or not self.fits(result, buffer) or not self._is_mine(buffer, result):
                continue
            holds = self.holds[buffer]
            # Given at other positions as well.
            if any(other in after or given[other] > mine.count(other) for other in holds):
                continue
            # All other arrays that lie there must not be needed in the branches at all.
            if all(other is root or other not in read for other in holds):
                return buffer
        return self.unused_buffer(step, result, result, others)

    def handed_over(self, block: Block, moves: Sequence[Move]) -> tuple[Move, ...]:
        """Moves at the end of a block, without copies of what is the only thing needed of its memory."""
        uses = Counter(place for m in moves for place in (m.source, m.target))
        defined = {value for step in block.steps for value in defines(step)} if moves else set()
        return tuple(replace(m, exchanges=True) if self.is_handed_over(block, m, uses, defined) else m for m in moves)

    def is_handed_over(self, block: Block, move: Move, uses: Mapping[Place, int], defined: Container[Value]) -> bool:
        source, target = move.source, move.target
        if not all(p.kind == "buffer" and self.buffers[p.number].is_free_to_move for p in (source, target)):
            return False
        if source.number in self.reserved or uses[source] > 1 or uses[target] > 1 or move.array not in defined:
            return False
        after = self.live.after[block.steps[-1]]
        return after.isdisjoint(self.holds[source.number] - {move.array})

    def rename(self, old: Step, new: Step) -> None:
        """A step was rebuilt: what is known of it holds for the new one."""
        self.live.after[new], self.live.reads[new] = self.live.after[old], self.live.reads[old]

    def ordered(self, moves: Iterable[tuple[Array, Place, Place]]) -> tuple[Move, ...]:
        return ordered(moves, lambda array: Place("buffer", self.new_buffer(array)))


def _four(carry: Carry) -> tuple[Array, Array, Array, Array]:
    values = (carry.init, carry.inside, carry.next, carry.result)
    assert all(isinstance(v, Array) for v in values)
    return values  # type: ignore[return-value]
