"""Kernels over arrays that were put together of parts, split where the parts meet.

What concatenates writes each part to its place, and a kernel over the whole has another space than those: it would read
what they have just written. Split at the joints it becomes one with each of them (`fusion`), and the whole is written
only if others read it.

Out: kernels that are the first to read a whole of few parts, which lie one behind the other, are one kernel for each
part, right behind the one that makes the part; the parts of what they write are put together in the same way. Where a
loop carries on what such a kernel writes over what it reads, the parts update that; where that cannot be, since a later
part needs the old value elsewhere, the kernel stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ctrlgrad.plan.effects import deep_reads
from ctrlgrad.plan.fusion import fuse
from ctrlgrad.plan.liveness import Liveness
from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Compute,
    Guard,
    Kernel,
    Load,
    Loop,
    Operand,
    Plan,
    Push,
    Stack,
    Step,
    View,
    Write,
)
from ctrlgrad.plan.sizes import ONE, ZERO, Size, product
from ctrlgrad.records import record

# Parts that are worth a kernel each: how many at most, and how many points the whole has at least where that is known.
MOST_PARTS, FEWEST_POINTS = 4, 256


def split_at_joints(plan: Plan) -> Plan:
    """The plan with such kernels split, and fused again."""
    splitting = _Splitting(plan)
    body = splitting.block(plan.body, {})
    return fuse(replace(plan, body=body)) if splitting.has_split else plan


@record(frozen=False)
class _Joint:
    """Kernels that write the parts of an array, one behind the other along an axis."""

    axis: int
    kernels: list[Kernel]

    @property
    def arrays(self) -> list[Array]:
        """The array with the first part, with the first two, and so on."""
        return [kernel.writes[0].view.array for kernel in self.kernels]

    @property
    def sizes(self) -> list[Size]:
        return [kernel.space[self.axis] for kernel in self.kernels]

    def goes_on(self, kernel: Kernel) -> bool:
        """Whether a kernel writes the next part."""
        whole, axis = self.arrays[-1], _axis_of(kernel)
        if axis != self.axis or kernel.writes[0].base != whole:
            return False
        view = kernel.writes[0].view
        return view == _part(view.array.view, axis, [*self.sizes, view.shape[axis]], len(self.kernels))


def _axis_of(kernel: Kernel) -> int | None:
    """Along which axis a kernel that writes a part of one array and nothing else does so."""
    if len(kernel.writes) != 1 or kernel.writes[0].how != "store" or kernel.writes[0].scattered or kernel.checks:
        return None
    view = kernel.writes[0].view
    if len(view.shape) != len(view.array.shape):
        return None
    axes = [a for a, sizes in enumerate(zip(view.shape, view.array.shape, strict=True)) if sizes[0] != sizes[1]]
    return axes[0] if len(axes) == 1 else None


def _part(view: View, axis: int, sizes: Sequence[Size], number: int) -> View:
    """The part of a view behind so many others along an axis."""
    stride = view.strides[axis]
    further = tuple(size * stride for size in sizes[:number]) if stride != ZERO else ()
    shape = (*view.shape[:axis], sizes[number], *view.shape[axis + 1 :])
    return View(view.array, (*view.offset, *further), shape, view.strides)


def _is_whole(operand: Operand) -> bool:
    return operand.view == operand.view.array.view and not operand.gathered


class _Splitting:
    def __init__(self, plan: Plan) -> None:
        self.live = Liveness(plan)
        self.known: dict[Step, frozenset[Array | Stack]] = {}
        self.has_split = False

    def block(self, block: Block, carried: Mapping[Array, Array]) -> Block:
        """A block, in which some arrays become the next values of what a loop carries: those that it carries now."""
        steps: list[Step] = []
        joints: list[_Joint] = []
        for step in block.steps:
            read = deep_reads(step, self.known)
            mine: _Joint | None = None
            if isinstance(step, Kernel):
                mine = next((j for j in joints if j.goes_on(step) or self.splits(step, j, carried)), None)
            for joint in list(joints):
                if joint is not mine and not self.may_wait(joint, step, read):
                    joints.remove(joint)
                    steps += joint.kernels
            if mine is not None and isinstance(step, Kernel):
                if mine.goes_on(step):
                    mine.kernels.append(step)
                else:
                    joints.remove(mine)
                    steps += self.split(step, mine, carried)
            elif isinstance(step, Kernel) and self.begins(step):
                axis = _axis_of(step)
                assert axis is not None
                joints.append(_Joint(axis, [step]))
            else:
                steps.append(self.inside(step))
        return Block((*steps, *(kernel for joint in joints for kernel in joint.kernels)))

    def inside(self, step: Step) -> Step:
        if isinstance(step, Loop):
            carried = {
                c.next: c.inside for c in step.carries if isinstance(c.next, Array) and isinstance(c.inside, Array)
            }
            return replace(step, condition=self.block(step.condition, {}), body=self.block(step.body, carried))
        if isinstance(step, Branch):
            return replace(step, blocks=tuple(self.block(each, {}) for each in step.blocks))
        return step

    def begins(self, kernel: Kernel) -> bool:
        """Whether a kernel writes the first part of an array that has nothing else yet."""
        axis = _axis_of(kernel)
        if axis is None or kernel.writes[0].base is not None or kernel.space != kernel.writes[0].view.shape:
            return False
        view = kernel.writes[0].view
        return view == _part(view.array.view, axis, view.shape[axis : axis + 1], 0)

    def may_wait(self, joint: _Joint, step: Step, read: frozenset[Array | Stack]) -> bool:
        """Whether the parts may be written after a step: it reads none, and updates nothing that they are made of."""
        if not isinstance(step, Compute | Load | Guard | Push | Kernel) or read.intersection(joint.arrays):
            return False
        made_of = {operand.view.array for kernel in joint.kernels for operand in kernel.operands}
        return not (isinstance(step, Kernel) and any(write.base in made_of for write in step.writes))

    def splits(self, kernel: Kernel, joint: _Joint, carried: Mapping[Array, Array]) -> bool:
        """Whether a kernel reads the whole and nothing else of it, point by point, and can be split."""
        whole, *others = reversed(joint.arrays)
        first = next((a for a, size in enumerate(whole.shape) if size != ONE), None)
        points = product(whole.shape)
        if not 1 < len(joint.kernels) <= MOST_PARTS or joint.axis != first or kernel.space != whole.shape:
            return False
        if points.is_known and points.factor < FEWEST_POINTS:
            return False
        if kernel.checks or any(i.op == "index" for i in kernel.expression.instructions):
            return False
        if any(w.how != "store" or w.scattered or w.base is not None for w in kernel.writes):
            return False
        if any(w.view != w.view.array.view or w.view.shape != kernel.space for w in kernel.writes):
            return False
        if any(o.view.array in others or (o.view.array == whole and not _is_whole(o)) for o in kernel.operands):
            return False
        if not any(o.view.array == whole for o in kernel.operands):
            return False
        # What is carried on is written over from the first part on.
        later = {operand.view.array for each in joint.kernels[1:] for operand in each.operands}
        return not any(carried.get(write.view.array) in later for write in kernel.writes)

    def updated(self, kernel: Kernel, write: Write, carried: Mapping[Array, Array]) -> Array | None:
        """The carried array that a kernel may write over, element by element, when it reads it for the last time."""
        array = carried.get(write.view.array)
        reading = [o for o in kernel.operands if o.view.array == array]
        if array is None or not reading or not all(map(_is_whole, reading)) or array in self.live.after[kernel]:
            return None
        return array if (array.dtype, array.shape) == (write.view.dtype, kernel.space) else None

    def split(self, kernel: Kernel, joint: _Joint, carried: Mapping[Array, Array]) -> list[Kernel]:
        """The kernels of the parts, each followed by the same part of what reads the whole."""
        self.has_split = True
        axis, sizes, steps = joint.axis, joint.sizes, list[Kernel]()
        bases = [self.updated(kernel, write, carried) for write in kernel.writes]
        # Which array has the elements of a part: of the whole, and of what is updated.
        where = {joint.arrays[-1]: joint.arrays[0]} | {array: array for array in bases if array is not None}
        for number, making in enumerate(joint.kernels):
            where[joint.arrays[-1]] = joint.arrays[number]
            operands = []
            for operand in kernel.operands:
                view = _part(operand.view, axis, sizes, number)
                operands.append(replace(operand, view=replace(view, array=where.get(view.array, view.array))))
            writes = []
            for k, write in enumerate(kernel.writes):
                result = write.view.array
                if number < len(sizes) - 1:
                    result = replace(result, name=f"{result.name}.{number}")
                before, base = bases[k], bases[k] if number == 0 else steps[-1].writes[k].view.array
                if before is not None:
                    where[before] = result
                writes.append(replace(write, view=_part(result.view, axis, sizes, number), base=base))
            space = (*kernel.space[:axis], sizes[number], *kernel.space[axis + 1 :])
            part = replace(kernel, space=space, operands=tuple(operands), writes=tuple(writes))
            steps += (making, part)
        return steps


__all__ = ["split_at_joints"]
