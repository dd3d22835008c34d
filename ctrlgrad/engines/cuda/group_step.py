"""How a group runs: its kernel's outputs are slots of stacks, parts of concatenations, or arrays of their own.

Where all sizes are known, so is the kernel's shape. Else the operands' shapes say whether every node of the group has
the shape of the whole (a size that is not known beforehand may turn out to be 1 in one operand alone); where not, the
nodes run one by one. The answer is kept by shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.groups import Group
from ctrlgrad.engines.cuda.kernel import KernelText, Target, group_kernel
from ctrlgrad.engines.cuda.kernels.stacks import commit, own_device_stack, put
from ctrlgrad.engines.cuda.library import Kernel
from ctrlgrad.engines.cuda.program import Slots, Values, explained, scalar
from ctrlgrad.engines.cuda.stacks import Stack
from ctrlgrad.ir import Node, Value, attributes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Write:
    """One output of the kernel, in slots. `value` is where the array itself is kept, if it is read later."""

    target: Target
    dtype: np.dtype
    stack: int | None
    result: int
    value: int | None


class GroupStep:
    """One kernel."""

    def __init__(
        self,
        group: Group,
        needed: set[Value],
        constants: Mapping[Value, Node],
        slots: Slots,
        dead: tuple[int, ...] = (),
        unused: tuple[int, ...] = (),
    ) -> None:
        planned = group_kernel(group, needed, constants)
        self.group, self.constants, self.slots = group, constants, slots
        self.text: KernelText = planned.text
        self.values = planned.reads
        self.reads = slots.all_of(planned.reads)
        self.shape = None if None in group.shape else tuple(d for d in group.shape if d is not None)
        self.writes = list(_writes(planned.targets, group, needed, slots))
        self.dead, self.unused = dead, unused
        # By whether a product and a sum may be rounded once.
        self._compiled: dict[bool, Kernel] = {}
        self._fits: dict[tuple[Shape, ...], Shape | None] = {}
        self._apart: list[GroupStep] | None = None
        if self.shape is None:
            # Where its nodes may have to run one by one, each value needs a slot.
            slots.all_of(node.result for node in group.nodes)

    @property
    def node(self) -> Node:
        return self.group.members[-1]

    def __call__(self, values: Values, context: Context) -> None:
        inputs = [scalar(values[slot]) for slot in self.reads]
        shape = self.shape if self.shape is not None else self._fit(inputs)
        if shape is None:
            del inputs
            self._run_apart(values, context)
        else:
            self._launch(values, context, inputs, shape)
        for slot in self.unused:
            values[slot] = None

    def _launch(self, values: Values, context: Context, inputs: list[Any], shape: Shape) -> None:
        held = [[values[write.stack]] if write.stack is not None else [] for write in self.writes]
        for slot in self.dead:
            values[slot] = None
        contracts = context.precision != "ieee"
        if contracts not in self._compiled:
            self._compiled[contracts] = context.library.kernel(self.text, contracts)
        wholes: dict[Node, Any] = {}
        stacks: dict[Node, Stack] = {}
        outputs: list[Any] = []
        for write, holder in zip(self.writes, held, strict=True):
            push, concat = write.target.push, write.target.concat
            if push is not None:
                stacks[push] = own_device_stack(context, push, holder)
                outputs.append(put(context, stacks[push], shape, write.dtype))
            elif concat is not None:
                outputs.append(_part(context, wholes, concat, write, shape))
            else:
                outputs.append(context.library.empty(shape, write.dtype))
        context.counts.kernels += 1
        self._compiled[contracts](inputs, outputs)
        for write, array in zip(self.writes, outputs, strict=True):
            push, concat = write.target.push, write.target.concat
            if push is not None:
                commit(stacks[push])
                context.run.counters.pushed(push, array)
                values[write.result] = stacks[push]
            else:
                values[write.result] = array if concat is None else wholes[concat]
            if write.value is not None:
                values[write.value] = array

    # Sizes that are known only now.

    def _fit(self, inputs: list[Any]) -> Shape | None:
        """The shape of all nodes; None where they differ."""
        shapes = tuple(np.shape(x) if isinstance(x, np.generic) else tuple(x.shape) for x in inputs)
        if shapes not in self._fits:
            self._fits[shapes] = self._common_shape(shapes)
        return self._fits[shapes]

    def _common_shape(self, shapes: tuple[Shape, ...]) -> Shape | None:
        found: dict[Value, Shape] = dict(zip(self.values, shapes, strict=True))
        group = self.group
        for node in group.nodes:
            # Constants that are written into the text are scalars.
            try:
                found[node.result] = np.broadcast_shapes(*(found.get(v, ()) for v in node.operands))
            except ValueError:
                if len(group.members) > 1:
                    return None
                given = " ".join(str(found.get(v, ())) for v in node.operands)
                raise ValueError(f"operands could not be broadcast together with shapes {given}") from None
        written = [found[node.result] for node in group.nodes] + [found.get(p.operands[1], ()) for p in group.pushes]
        return written[0] if len(set(written)) == 1 else None

    def _run_apart(self, values: Values, context: Context) -> None:
        if self._apart is None:
            self._apart = [self._alone(node, "nodes") for node in self.group.nodes]
            self._apart += [self._alone(node, "pushes") for node in self.group.pushes]
        for step in self._apart:
            try:
                step(values, context)
            except Exception as error:
                found = explained(error, step.node)
                if found is error:
                    raise
                raise found from error
        for slot in self.dead:
            values[slot] = None
        for node in self.group.nodes:
            slot = self.slots.of(node.result)
            if all(slot != write.value and slot != write.result for write in self.writes):
                values[slot] = None

    def _alone(self, node: Node, kind: str) -> GroupStep:
        group = Group(self.group.shape)
        getattr(group, kind).append(node)
        group.reads.update(dict.fromkeys(node.operands))
        dead: tuple[int, ...] = ()
        if kind == "pushes":
            dead = tuple(slot for slot in (self.slots.of(node.operands[0]),) if slot in self.dead)
        return GroupStep(group, {node.result}, self.constants, self.slots, dead)


def _writes(targets: tuple[Target, ...], group: Group, needed: set[Value], slots: Slots) -> list[_Write]:
    defined = {node.result for node in group.nodes}
    kept: set[Value] = set()
    writes = []
    for target in targets:
        v = target.value
        own = target.push or target.concat
        result = slots.of(own.result if own is not None else v)
        # A value that is pushed, or a part of something, and read later too, is read where it was written.
        is_kept = own is not None and v in defined and v in needed and v not in kept
        if is_kept:
            kept.add(v)
        stack = slots.of(target.push.operands[0]) if target.push is not None else None
        writes.append(_Write(target, v.tensor.dtype, stack, result, slots.of(v) if is_kept else None))
    return writes


def _part(context: Context, wholes: dict[Node, Any], concat: Node, write: _Write, shape: Shape) -> Any:
    """A part of a concatenation, whose parts all have one shape."""
    axis = attributes.Axis.of(concat).axis
    size = shape[axis]
    if concat not in wholes:
        whole = (*shape[:axis], size * len(concat.operands), *shape[axis + 1 :])
        wholes[concat] = context.library.empty(whole, write.dtype)
    start = size * write.target.part
    return wholes[concat][(*(slice(None),) * axis, slice(start, start + size))]


__all__ = ["GroupStep"]
