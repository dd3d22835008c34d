"""Fusion: kernels over one space become one, so that what only they pass among themselves stays in registers.

A kernel waits, and later kernels over its space join it, until one of its arrays is read by another kind of step, over
another space, or at other positions than those where it is written. Waiting does not change results: values are
immutable, so a kernel's operands stay as they are. Arrays that no later step reads are not written. A push of what a
kernel writes waits with it, until something else is done with the stack.

An engine whose kernels have bounds says which (`Limits`). An engine that decides at run time what it overwrites says
what a step may overwrite: kernels that read it go first, so that it need not be copied. So they do before a kernel that
updates it, where no other step needs it: waiting would cost the array in place of what is updated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import field, replace
from functools import cached_property

from ctrlgrad.plan.effects import count_reads, deep_reads, with_blocks
from ctrlgrad.plan.expression import ExpressionBuilder, Number
from ctrlgrad.plan.liveness import Liveness
from ctrlgrad.plan.model import (
    Array,
    Block,
    Check,
    Kernel,
    Operand,
    Plan,
    Push,
    Register,
    Step,
    View,
    Write,
)
from ctrlgrad.plan.sizes import ZERO, Sizes
from ctrlgrad.records import record


@record
class Limits:
    """The most arrays and numbers that a kernel reads, arrays that it writes, and nodes that it comes from.

    `reductions` is how much it reduces at most, all over the same axes; None: as much as it writes, over any.
    """

    reads: int
    writes: int
    nodes: int
    reductions: int | None = None


Updated = Callable[[Step], Iterable[Array]]

# The most operands of a kernel that others join: LLVM's time grows with the square of the addresses in a function.
MOST_READ = 256


def fuse(plan: Plan, limits: Limits | None = None, updated: Updated = lambda step: ()) -> Plan:
    """The plan with its kernels fused. `updated` are the arrays that a step, no kernel, may overwrite."""
    return replace(plan, body=_Fusion(plan, limits, updated).block(plan.body))


@record(frozen=False, eq=False)
class _Group:
    """Kernels of one space that have not been written yet."""

    space: Sizes
    builder: ExpressionBuilder = field(default_factory=ExpressionBuilder)
    # Each with its position.
    operands: dict[Operand, int] = field(default_factory=dict)
    numbers: dict[Register, int] = field(default_factory=dict)
    outputs: list[Number] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    nodes: list[object] = field(default_factory=list)
    # Arrays that kernels of the group write position by position: where, and the parts of an element.
    elements: dict[Array, tuple[View, tuple[Number, ...]]] = field(default_factory=dict)
    # How often arrays are read inside the group, in place of memory.
    absorbed: Counter[Array] = field(default_factory=Counter)
    # Arrays that the group writes; its operands by the array that they read, its writes by the array that they update.
    arrays: set[Array] = field(default_factory=set)
    reading: dict[Array, list[Operand]] = field(default_factory=dict)
    updates: dict[Array, list[Write]] = field(default_factory=dict)
    # Its one kernel moves elements of an array that it updates.
    moves_inside: bool = False

    def reads_any(self, arrays: Collection[Array]) -> bool:
        return not self.reading.keys().isdisjoint(arrays)

    def moves(self, kernel: Kernel) -> bool:
        """Return true if with the kernel elements of an array would go to other places of what updates it.

        The update could not be done in place then.
        """
        for write in kernel.writes:
            if write.base is not None:
                operands = (*self.reading.get(write.base, ()), *kernel.operands)
                if any(_is_moved(operand, write) for operand in operands if operand.view.array == write.base):
                    return True
        return any(_is_moved(o, write) for o in kernel.operands for write in self.updates.get(o.view.array, ()))

    def takes(self, kernel: Kernel) -> bool:
        """Return true if the kernel reads the group's arrays at the positions where they are written only."""
        mine = self.arrays
        if any(write.base in mine for write in kernel.writes):
            return False
        if self.moves_inside or self.moves(kernel):
            return False
        return all(
            operand.view.array not in mine
            or (
                operand.view.array in self.elements
                and operand.view == self.elements[operand.view.array][0]
                and not operand.gathered
            )
            for operand in kernel.operands
        )

    def is_within(self, limits: Limits, kernel: Kernel, reads: Counter[Array]) -> bool:
        """Return true if the group with one more kernel stays within an engine's limits."""
        loaded = {o for o in kernel.operands if o.view.array not in self.elements and o not in self.operands}
        numbers = {register for register in kernel.numbers if register not in self.numbers}
        if len(self.operands) + len(self.numbers) + len(loaded) + len(numbers) > limits.reads:
            return False
        if len(self.nodes) + len(kernel.nodes) > limits.nodes:
            return False
        if limits.reductions is not None:
            reduced = [axes for w in (*self.writes, *kernel.writes) if (axes := _reduced_axes(w))]
            if len(reduced) > limits.reductions or len(set(reduced)) > 1:
                return False
        if len(self.writes) + len(kernel.writes) <= limits.writes:
            return True
        inside = self.absorbed + Counter(o.view.array for o in kernel.operands if o.view.array in self.elements)
        written = [w for w in (*self.writes, *kernel.writes) if reads[w.view.array] > inside[w.view.array]]
        return len(written) <= limits.writes

    def add(self, kernel: Kernel) -> None:
        self.moves_inside = self.moves_inside or self.moves(kernel)
        places: list[int | tuple[Number, ...]] = []
        for operand in kernel.operands:
            if operand.view.array in self.elements:
                self.absorbed[operand.view.array] += 1
                places.append(self.elements[operand.view.array][1])
                continue
            if operand not in self.operands:
                self.reading.setdefault(operand.view.array, []).append(operand)
            places.append(self.operands.setdefault(operand, len(self.operands)))
        numbers = [self.numbers.setdefault(register, len(self.numbers)) for register in kernel.numbers]
        emitted: list[Number] = []
        for instruction in kernel.expression.instructions:
            args = [emitted[a] for a in instruction.args]
            value = instruction.value
            if instruction.op == "load":
                place = places[value[0]]
                if isinstance(place, tuple):
                    emitted.append(place[value[1]])
                    continue
                value = (place, value[1])
            elif instruction.op == "scalar":
                value = numbers[value]
            emitted.append(self.builder.emit(instruction.op, args, instruction.dtype, value))
        start = len(self.outputs)
        self.outputs += [emitted[o] for o in kernel.expression.outputs]
        for write in kernel.writes:
            self.writes.append(
                replace(
                    write,
                    outputs=tuple(start + o for o in write.outputs),
                    indices=tuple(start + o for o in write.indices),
                )
            )
            array = write.view.array
            self.arrays.add(array)
            if write.base is not None:
                self.updates.setdefault(write.base, []).append(write)
            if write.how == "store" and not write.scattered:
                self.elements[array] = write.view, tuple(self.outputs[start + o] for o in write.outputs)
        self.checks += [replace(c, output=start + c.output, found=start + c.found) for c in kernel.checks]
        self.nodes += kernel.nodes

    def kernel(self, reads: Counter[Array]) -> Kernel | None:
        """The fused kernel, without writes that no step reads."""
        writes = [w for w in self.writes if reads[w.view.array] > 0]
        if not writes and not self.checks:
            return None
        kept: dict[int, int] = {}

        def keep(output: int) -> int:
            return kept.setdefault(self.outputs[output].number, len(kept))

        writes = [replace(w, outputs=tuple(map(keep, w.outputs)), indices=tuple(map(keep, w.indices))) for w in writes]
        checks = [replace(c, output=keep(c.output), found=keep(c.found)) for c in self.checks]
        return _trimmed(self, list(kept), writes, checks)


def _trimmed(group: _Group, outputs: list[int], writes: list[Write], checks: list[Check]) -> Kernel:
    """The kernel with the instructions and operands that its outputs need."""
    instructions = group.builder.instructions
    needed = set(outputs)
    for number in range(len(instructions) - 1, -1, -1):
        if number in needed:
            needed.update(instructions[number].args)
    builder = ExpressionBuilder()
    given, registers = list(group.operands), list(group.numbers)
    operands: dict[Operand, int] = {}
    numbers: dict[Register, int] = {}
    emitted: dict[int, Number] = {}
    for number in sorted(needed):
        instruction = instructions[number]
        value = instruction.value
        if instruction.op == "load":
            value = (operands.setdefault(given[value[0]], len(operands)), value[1])
        elif instruction.op == "scalar":
            value = numbers.setdefault(registers[value], len(numbers))
        emitted[number] = builder.emit(instruction.op, [emitted[a] for a in instruction.args], instruction.dtype, value)
    expression = builder.finish(*(emitted[o] for o in outputs))
    nodes = tuple(dict.fromkeys(group.nodes))
    return Kernel(group.space, tuple(operands), tuple(numbers), expression, tuple(writes), tuple(checks), nodes)  # type: ignore[arg-type]


def _reduced_axes(write: Write) -> tuple[int, ...]:
    if write.how == "store":
        return ()
    return tuple(axis for axis, stride in enumerate(write.view.strides) if stride == ZERO)


def _is_moved(operand: Operand, write: Write) -> bool:
    """Return true if an operand reads the array that a write updates at other positions than it writes."""
    assert write.base is not None
    return operand.view != replace(write.view, array=write.base) or bool(operand.gathered or write.scattered)


def _is_of(push: Push, groups: Iterable[_Group]) -> bool:
    """Return true if a group writes the pushed row."""
    return isinstance(push.row, View) and any(push.row.array in group.arrays for group in groups)


class _Fusion:
    def __init__(self, plan: Plan, limits: Limits | None, updated: Updated) -> None:
        self.plan, self.limits, self.updated = plan, limits, updated
        self.reads = count_reads(plan)

    @cached_property
    def live(self) -> Liveness:
        return Liveness(self.plan)

    def block(self, block: Block) -> Block:
        groups: list[_Group] = []
        steps: list[Step] = []
        pushes: list[Push] = []
        # Groups that are being closed; the groups that read what they update go before them.
        closing: list[_Group] = []
        # The step that comes next.
        ahead: Step | None = None

        def close(group: _Group) -> None:
            if group not in groups:
                return
            groups.remove(group)
            reading = [g for g in groups if g.reads_any(group.updates)]
            if reading:
                overwritten = {array for array in group.updates if not self.is_needed(array, block, ahead)}
                closing.append(group)
                for other in reading:
                    if other.reads_any(overwritten):
                        close(other)
                closing.pop()
            steps.extend(self.kernels(group))
            for push in list(pushes):
                if not _is_of(push, (*groups, *closing)):
                    pushes.remove(push)
                    steps.append(push)

        for step in block.steps:
            ahead = step
            stacks = {push.result for push in pushes}
            if stacks and not stacks.isdisjoint(deep_reads(step)):
                for group in [g for g in groups if any(_is_of(push, [g]) for push in pushes)]:
                    close(group)
            if isinstance(step, Push) and _is_of(step, groups):
                pushes.append(step)
                continue
            if isinstance(step, Kernel):
                read = deep_reads(step)
                mine = next((g for g in groups if self.joins(step, g)), None)
                for group in list(groups):
                    if group is not mine and group.arrays & read:
                        close(group)
                if mine is None or mine not in groups:
                    mine = _Group(step.space)
                    groups.append(mine)
                mine.add(step)
                continue
            read, updated = deep_reads(step), set(self.updated(step))
            for group in list(groups):
                if group.arrays & read or group.reads_any(updated):
                    close(group)
            steps.append(with_blocks(step, self.block))
        ahead = None
        for group in list(groups):
            close(group)
        # An update that no step reads does not read its base: kernels before it may have no reader left either.
        for number in range(len(steps) - 1, -1, -1):
            step = steps[number]
            if isinstance(step, Kernel) and any(self.reads[write.view.array] <= 0 for write in step.writes):
                group = _Group(step.space)
                group.add(step)
                steps[number : number + 1] = self.kernels(group)
        return Block(tuple(steps))

    def is_needed(self, array: Array, block: Block, ahead: Step | None) -> bool:
        """Return true if this step or a later one reads an array; without a step, if one after the block does."""
        if ahead is None:
            return array in self.live.after[block.steps[-1]]
        return array in self.live.after[ahead] or array in self.live.reads[ahead]

    def joins(self, kernel: Kernel, group: _Group) -> bool:
        if group.space != kernel.space or len(group.operands) + len(kernel.operands) > MOST_READ:
            return False
        return group.takes(kernel) and (self.limits is None or group.is_within(self.limits, kernel, self.reads))

    def kernels(self, group: _Group) -> list[Kernel]:
        """The kernel of a group, if any of its writes is read. Dropped writes no longer count as reads of their
        bases."""
        self.reads.subtract(group.absorbed)
        kernel = group.kernel(self.reads)
        left = () if kernel is None else {write.view.array for write in kernel.writes}
        self.reads.subtract(w.base for w in group.writes if w.base is not None and w.view.array not in left)
        return [] if kernel is None else [kernel]
