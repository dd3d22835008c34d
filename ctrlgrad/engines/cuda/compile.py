"""From a region and the places of its inputs to a program: places, groups, kernels, slots, last uses.

An op runs by the first of these that exists: a generated kernel, fused with other ops; the reference engine's kernel,
where its results are on the host; a device kernel; the reference engine's kernel between two copies.

A fused group is one kernel (`GroupStep`). Its outputs are slots of stacks, parts of concatenations, arrays of their
own, or reductions of the elements. Where all sizes are known, so is the kernel's shape. Else the operands' shapes say
whether every node of the group has the shape of the whole (a size that is not known beforehand may turn out to be 1 in
one operand alone); where not, the nodes run one by one. The answer is kept by shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernel import KernelText, kernel_text
from ctrlgrad.engines.cuda.kernels import DEVICE, Kernel, Lists, Single, at_once, commit, own_device_stack, put
from ctrlgrad.engines.cuda.placement import DEVICE as ON_DEVICE
from ctrlgrad.engines.cuda.placement import HOST, Place, Places, fetched, place
from ctrlgrad.engines.cuda.prepared.launches import part
from ctrlgrad.engines.cuda.prepared.model import View
from ctrlgrad.engines.cuda.prepared.ops import SINGLE, product_sum
from ctrlgrad.engines.cuda.prepared.reading import Values as Listed
from ctrlgrad.engines.cuda.program import NodeStep, Program, Slots, Step, Values, Where, scalar
from ctrlgrad.engines.cuda.reduction_kernels import ReductionText
from ctrlgrad.engines.cuda.reductions import check_elements, reduced_axes, reduced_shape, reduction_text
from ctrlgrad.engines.cuda.regions import (
    Item,
    ProductSum,
    RegionKernel,
    alone,
    constants_of,
    schedule,
    updated_by,
)
from ctrlgrad.engines.cuda.stacks import Stack
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.engines.reference.kernels import IN_PLACE, PURE
from ctrlgrad.engines.sizes_of_a_run import refused_types
from ctrlgrad.ir import Graph, Node, TensorType, Value, attributes

Shape = tuple[int, ...]


class GroupStep:
    """One kernel."""

    def __init__(
        self,
        kernel: RegionKernel,
        places: Mapping[Value, Place],
        constants: Mapping[Value, Node],
        slots: Slots,
        dead: tuple[int, ...] = (),
    ) -> None:
        self.kernel, self.places, self.constants, self.slots = kernel, places, constants, slots
        self.reductions = [target.reduction for target in kernel.targets if target.reduction is not None]
        self.text: KernelText | ReductionText = (reduction_text if self.reductions else kernel_text)(kernel.plan)
        self.inputs = slots.all_of(kernel.inputs)
        self.reads = slots.all_of(kernel.reads)
        self.updates: tuple[int, ...] = ()
        self.shape = None if None in kernel.shape else tuple(d for d in kernel.shape if d is not None)
        self.dead = dead
        self._fits: dict[tuple[Shape, ...], Shape | None] = {}
        self._apart: list[GroupStep] | None = None
        self._lists = Lists()
        slots.all_of(value for target in kernel.targets for value in target.values)
        if self.shape is None:
            # Where its nodes may have to run one by one, each value needs a slot.
            slots.all_of(node.result for node in kernel.nodes)

    @property
    def node(self) -> Node:
        return self.kernel.nodes[-1]

    def __call__(self, values: Values, context: Context) -> None:
        inputs = {slot: scalar(values[slot]) for slot in self.inputs}
        shape = self.shape if self.shape is not None else self._fit([*inputs.values()])
        if shape is None:
            inputs.clear()
            self._run_apart(values, context)
        else:
            self._launch(values, context, inputs, shape)

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes that all of its reductions share."""
        return reduced_axes(self.reductions[0]) if self.reductions else ()

    def _launch(self, values: Values, context: Context, inputs: dict[int, Any], shape: Shape) -> None:
        for node in self.reductions:
            check_elements(node, shape, self.axes)
        stacks = [self.slots.of(its.push.operands[0]) for its in self.kernel.targets if its.push is not None]
        held = {slot: [values[slot]] for slot in stacks}
        for slot in self.dead:
            values[slot] = None
        pushes = list[tuple[Node, Stack, Any]]()

        def pushed(push: Node, slot: int, shape: Shape, dtype: np.dtype) -> tuple[Any, object]:
            stack = own_device_stack(context, push, held[slot])
            pushes.append((push, stack, put(context, stack, shape, dtype)))
            return single.given(-len(pushes), pushes[-1][-1]), stack

        if held:
            single = Single(context, inputs)
            self.listed(single, shape, pushed)
        else:
            single = self._lists.single(context, inputs, lambda made: self.listed(made, shape, pushed))
        single.run()
        for push, stack, row in pushes:
            commit(stack)
            context.run.counters.pushed(push, row)
        for target in self.kernel.targets:
            for slot in self.slots.all_of(target.values):
                values[slot] = single.result(single.values[slot])

    def listed(self, at: Listed, shape: Shape, pushed: Callable[[Node, int, Shape, np.dtype], Any]) -> None:
        """List its launch, and give values to the slots that it writes.

        Args:
            pushed: pushes a row on the stack in a slot; gives the row's view, and the stack with it.
        """
        inputs = [at.operand(slot) for slot in self.inputs]
        outputs: list[View] = []
        wholes: dict[Node, View] = {}
        for target in self.kernel.targets:
            push, concat, result = target.push, target.concat, self.slots.of(target.result)
            if push is not None:
                output, at.values[result] = pushed(push, self.slots.of(push.operands[0]), shape, target.dtype)
            elif concat is not None:
                axis = attributes.Axis.of(concat).axis % len(shape)
                size = shape[axis]
                if concat not in wholes:
                    whole = (*shape[:axis], size * len(concat.operands), *shape[axis + 1 :])
                    wholes[concat] = at.values[result] = at.launches.buffer(whole, target.dtype)
                start = size * target.part
                output, _ = part(wholes[concat], (*(slice(None),) * axis, slice(start, start + size)))
            else:
                node = target.reduction
                space = shape if node is None else reduced_shape(node, shape)
                output = at.values[result] = at.launches.buffer(space, target.dtype)
            outputs.append(output)
            if target.value is not None:
                at.values[self.slots.of(target.value)] = output
        if isinstance(self.text, ReductionText):
            stored, results = self.separated(outputs)
            at.launches.reduction(self.text, shape, self.axes, inputs, stored, results)
        else:
            at.launches.kernel(self.text, shape, inputs, outputs)

    def separated(self, outputs: list[Any]) -> tuple[list[Any], list[Any]]:
        """Outputs that are stored at each element, and those that are reductions."""
        pairs = list(zip(self.kernel.targets, outputs, strict=True))
        return [x for its, x in pairs if its.reduction is None], [x for its, x in pairs if its.reduction]

    # Sizes that are known only now.

    def _fit(self, inputs: list[Any]) -> Shape | None:
        """The shape of all nodes; None where they differ."""
        shapes = tuple(np.shape(x) if isinstance(x, np.generic) else tuple(x.shape) for x in inputs)
        if shapes not in self._fits:
            self._fits[shapes] = self._common_shape(shapes)
        return self._fits[shapes]

    def _common_shape(self, shapes: tuple[Shape, ...]) -> Shape | None:
        found: dict[Value, Shape] = dict(zip(self.kernel.inputs, shapes, strict=True))
        kernel = self.kernel
        for node in kernel.nodes:
            # All but what is found is a scalar; a push has the shape of its row.
            is_push = any(node is target.push for target in kernel.targets)
            given = [found.get(v, ()) for v in node.operands[is_push:]]
            try:
                # A reduction's is that of what it reduces.
                found[node.result] = np.broadcast_shapes(*given)
            except ValueError:
                if len(kernel.nodes) > 1:
                    return None
                types = [TensorType(v.tensor.dtype, s) for v, s in zip(node.operands[is_push:], given, strict=True)]
                misfit = refused_types(node, types, node.attrs)
                assert misfit is not None
                raise misfit from None
        written = {found[node.result] for node in kernel.nodes}
        return written.pop() if len(written) == 1 else None

    def _run_apart(self, values: Values, context: Context) -> None:
        if self._apart is None:
            self._apart = [self._alone(node) for node in self.kernel.nodes]
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
        kept = {slot for target in self.kernel.targets for slot in self.slots.all_of(target.values)}
        for node in self.kernel.nodes:
            slot = self.slots.of(node.result)
            if slot not in kept:
                values[slot] = None

    def _alone(self, node: Node) -> GroupStep:
        kernel = alone(node, self.places, self.constants)
        stacks = [self.slots.of(target.push.operands[0]) for target in kernel.targets if target.push is not None]
        dead = tuple(slot for slot in stacks if slot in self.dead)
        return GroupStep(kernel, self.places, self.constants, self.slots, dead)


# Makes the kernel of a node with regions, or of a callback, its operands living where they are said to.
Control = Callable[[Node, Places], Kernel]


def compile_region(
    graph: Graph, inputs: Sequence[Place], control: Mapping[str, Control], wanted: Sequence[Place] | None = None
) -> Program:
    """The program of a region. Outputs that are `wanted` on the device are sent there."""
    places = place(graph, inputs)
    items = schedule(graph, places)
    constants = constants_of(graph)
    slots = Slots()
    slots.all_of(graph.inputs)
    last: dict[Value, int] = {}
    for position, item in enumerate(items):
        last.update((v, position) for v in _reads(item))
    last.update((v, len(items)) for v in graph.outputs)
    updated = _last_updates(items)
    steps: list[Step] = []
    for position, item in enumerate(items):
        dead = slots.all_of(v for v in _reads(item) if last[v] == position and v not in constants)
        if isinstance(item, RegionKernel):
            steps.append(GroupStep(item, places, constants, slots, dead))
            continue
        unused = slots.all_of(v for v in _results(item) if v not in last)
        operands, updates = slots.all_of(item.operands), slots.all_of(_updated(item))
        if isinstance(item, ProductSum):
            kernel, result = at_once(product_sum, item.node), slots.of(item.node.result)
            steps.append(NodeStep(item.node, kernel, operands, (result,), dead, unused, "device", updates, True))
            continue
        kernel, where = _kernel(item, places, control)
        if item.op.name == "getitem" and where == "device":
            is_updated = updated.get(item.operands[0], -1) > position or item.result in graph.outputs
            kernel = at_once(SINGLE["getitem"], item, is_updated)
        steps.append(NodeStep(item, kernel, operands, slots.all_of(item.results), dead, unused, where, updates))
    outputs = slots.all_of(graph.outputs)
    uploads = {
        i: v.type
        for i, v in enumerate(graph.outputs)
        if wanted is not None and wanted[i] is ON_DEVICE and places[v] is HOST
    }
    unused_inputs = slots.all_of(v for v in graph.inputs if v not in last)
    held = {slots.numbers[v]: attributes.Constant.of(node).value for v, node in constants.items() if v in slots.numbers}
    return Program(len(graph.inputs), unused_inputs, held, len(slots.numbers), steps, outputs, uploads)


def _reads(item: Item) -> list[Value]:
    return list(item.reads) if isinstance(item, RegionKernel) else list(dict.fromkeys(item.operands))


def _results(item: Node | ProductSum) -> tuple[Value, ...]:
    return (item.node.result,) if isinstance(item, ProductSum) else item.results


def _last_updates(items: Sequence[Item]) -> dict[Value, int]:
    """Position of the last op that may overwrite each value; see the reference engine."""
    updated: dict[Value, int] = {}
    for position, item in enumerate(items):
        if not isinstance(item, RegionKernel):
            updated.update((v, position) for v in _updated(item))
    return updated


def _updated(item: Node | ProductSum) -> tuple[Value, ...]:
    return item.operands[:1] if isinstance(item, ProductSum) else updated_by(item)


def _kernel(node: Node, places: Mapping[Value, Place], control: Mapping[str, Control]) -> tuple[Kernel, Where]:
    """Kernel of a node, and where it runs: control is on the host, wherever the steps inside run."""
    name = node.op.name
    if name in control:
        return control[name](node, tuple(places[v] for v in node.operands)), "host"
    if node.results and all(places[v] is HOST for v in node.results):
        return on_host(node, fetched(node, places)), "host"
    if name in DEVICE:
        return DEVICE[name](node), "device"
    return through_host(node), "through the host"


def on_host(node: Node, from_device: Sequence[int] = ()) -> Kernel:
    """The reference engine's kernel of a node whose results are on the host, some of its operands not.

    A scalar is never an array of rank 0.
    """
    if node.op.name in PURE:
        pure = PURE[node.op.name](node)
        return lambda context, operands: scalar(pure(*_fetch(context, operands, from_device)))
    in_place = IN_PLACE[node.op.name](node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        result = in_place(_fetch(context, operands, from_device), context.run)
        return tuple(map(scalar, result)) if isinstance(result, tuple) else result

    return kernel


def _fetch(context: Context, operands: list[Any], places: Sequence[int]) -> list[Any]:
    """Have some operands on the host, in the same list."""
    if places:
        for place, x in zip(places, context.on_host(*(operands[i] for i in places)), strict=True):
            operands[place] = scalar(x)
    return operands


def through_host(node: Node) -> Kernel:
    """The reference engine's kernel of a node, between two copies."""
    pure = PURE[node.op.name](node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        context.counts.host_ops[node.op.name] += 1
        return context.on_device(pure(*context.on_host(*operands)))

    return kernel
