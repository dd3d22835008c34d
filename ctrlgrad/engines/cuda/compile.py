"""From a region and the places of its inputs to a program: places, groups, kernels, slots, last uses.

An op runs by the first of these that exists: a generated kernel, fused with other ops; the reference engine's kernel,
where its results are on the host; a device kernel; the reference engine's kernel between two copies.

A kernel of the region's plan is one launch (`GroupStep`). It writes rows of stacks, parts of concatenations, arrays of
their own, or reductions of the elements. Where all sizes are known, so is the kernel's shape. Else the operands' shapes
say whether every node of the kernel has the shape of the whole (a size that is not known beforehand may turn out to be
1 in one operand alone); where not, each node is a launch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelText, kernel_text
from ctrlgrad.engines.cuda.kernels import DEVICE, Lists, Single, at_once
from ctrlgrad.engines.cuda.kernels import Kernel as OpKernel
from ctrlgrad.engines.cuda.placement import DEVICE as ON_DEVICE
from ctrlgrad.engines.cuda.placement import HOST, Place, Places, fetched, place
from ctrlgrad.engines.cuda.prepared.model import Operand, View
from ctrlgrad.engines.cuda.prepared.ops import SINGLE, product_sum
from ctrlgrad.engines.cuda.prepared.reading import Values as Listed
from ctrlgrad.engines.cuda.program import Context, NodeStep, Program, Slots, Step, Values, Where, scalar
from ctrlgrad.engines.cuda.reductions import ReductionText, reduced_axes, reduced_shape, reduction_text
from ctrlgrad.engines.cuda.regions import RegionPlan, node_of
from ctrlgrad.engines.cuda.stacks import DeviceStack, Stack
from ctrlgrad.engines.reference.kernels import IN_PLACE, PURE
from ctrlgrad.engines.reference.table import own_stack
from ctrlgrad.engines.sizes_of_a_run import require_types
from ctrlgrad.ir import Graph, Node, TensorType, Use, Value, attributes
from ctrlgrad.plan.model import Kernel, Product, Write

Shape = tuple[int, ...]


# Pushes a row on the stack in a slot: gives the row's view, and the stack with it.
Pushed = Callable[[int, Shape, np.dtype], tuple[Any, object]]


class GroupStep:
    """One kernel; several, where sizes that are not known beforehand turn out to differ."""

    def __init__(self, region: RegionPlan, kernel: Kernel, slots: Slots, dead: tuple[int, ...] = ()) -> None:
        self.region, self.slots, self.dead = region, slots, dead
        self.kernel, self.joined = region.written_once(kernel)
        self.nodes = kernel.nodes
        self.makers = {write: region.makers.get(write.view.array) for write in self.kernel.writes}
        self.reductions = [node for write, node in self.makers.items() if node is not None and write.how != "store"]
        self.text: KernelText | ReductionText = (reduction_text if self.reductions else kernel_text)(self.kernel)
        self.inputs = slots.all_of(region.inputs(kernel))
        self.reads = slots.all_of(region.operands(kernel))
        self.updates: tuple[int, ...] = ()
        self.results = slots.all_of(region.value(write.view.array) for write in kernel.writes)
        self.pushes = [slots.of(region.value(write.base)) for write in kernel.writes if write.base is not None]
        self._lists = Lists()

    @property
    def node(self) -> Node:
        return self.nodes[-1]

    @functools.cached_property
    def apart(self) -> list[GroupStep]:
        """A step for each node."""
        kernels = (self.region.step(node) for node in self.nodes)
        return [GroupStep(self.region, kernel, self.slots) for kernel in kernels if isinstance(kernel, Kernel)]

    def __call__(self, values: Values, context: Context) -> None:
        inputs = {slot: scalar(values[slot]) for slot in self.inputs}
        # A stack as often as it is pushed on: all pushes but the last are on a copy.
        held = {slot: [values[slot]] * self.pushes.count(slot) for slot in self.reads if slot not in inputs}
        for slot in self.dead:
            values[slot] = None
        numbers = itertools.count(1)

        def pushed(slot: int, shape: Shape, dtype: np.dtype) -> tuple[Any, object]:
            held[slot][0] = context.stack_on_device(held[slot][0], dtype)
            stack: Stack = own_stack(held[slot])
            if isinstance(stack, DeviceStack):
                row = stack.slot(shape)
                stack.commit()
            else:
                row = context.library.empty(shape, dtype)
                stack.append(row)
            return single.given(-next(numbers), row), stack

        if held:
            single = Single(context, inputs)
            self.listed(single, pushed)
        else:
            single = self._lists.single(context, inputs, lambda made: self.listed(made, pushed))
        single.run()
        for slot in self.results:
            values[slot] = single.result(single.values[slot])

    def listed(self, at: Listed, pushed: Pushed) -> None:
        """List its launch, and give values to the slots that it writes."""
        inputs = [at.operand(slot) for slot in self.inputs]
        shape = self._shape(inputs)
        if shape is None:
            for step in self.apart:
                step.listed(at, pushed)
            return
        axes = reduced_axes(self.reductions[0]) if self.reductions else ()
        for node in self.reductions if 0 in shape else ():
            # Of no elements there is no extreme.
            require_types(node, [TensorType(node.operands[0].tensor.dtype, shape)])
        outputs = {write: self._output(at, write, shape, pushed) for write in self.kernel.writes}
        if isinstance(self.text, ReductionText):
            stored = [view for write, view in outputs.items() if write.how == "store"]
            results = [view for write, view in outputs.items() if write.how != "store"]
            at.launches.reduction(self.text, shape, axes, inputs, stored, results)
        else:
            at.launches.kernel(self.text, shape, inputs, list(outputs.values()))

    def _output(self, at: Listed, write: Write, shape: Shape, pushed: Pushed) -> View:
        """Target of a write: a row of a stack, a part of a concatenation, or an array of its own."""
        output: View
        result, maker, dtype = self.slots.of(self.region.value(write.view.array)), self.makers[write], write.view.dtype
        if write.base is not None:
            output, at.values[result] = pushed(self.slots.of(self.region.value(write.base)), shape, dtype)
        elif write.how == "store" and maker is not None:
            # Its sizes are known.
            if result not in at.values:
                at.values[result] = at.launches.buffer(tuple(size.factor for size in write.view.array.shape), dtype)
            offset = sum(size.factor for size in write.view.offset) * dtype.itemsize
            output = replace(at.values[result], shape=shape, offset=offset)
        else:
            output = at.launches.buffer(shape if maker is None else reduced_shape(maker, shape), dtype)
            at.values[result] = output
        if write in self.joined:
            at.values[self.slots.of(self.joined[write])] = output
        return output

    def _shape(self, inputs: Sequence[Operand]) -> Shape | None:
        """The shape of all nodes; None where they differ."""
        if all(size.is_known for size in self.kernel.space):
            return tuple(size.factor for size in self.kernel.space)
        shapes = (x.shape if isinstance(x, View) else () for x in inputs)
        found: dict[Value, Shape] = dict(zip(self.region.inputs(self.kernel), shapes, strict=True))
        for node in self.nodes:
            # All but what is found is a scalar; a push has the shape of its row.
            operands = node.operands[node.op.has_use(Use.PUSH) :]
            given = [found.get(v, ()) for v in operands]
            try:
                # A reduction's is that of what it reduces.
                found[node.result] = np.broadcast_shapes(*given)
            except ValueError:
                require_types(node, [TensorType(v.tensor.dtype, s) for v, s in zip(operands, given, strict=True)])
                raise
        written = {found[node.result] for node in self.nodes}
        return written.pop() if len(written) == 1 else None


# Makes the kernel of a node with regions, or of a callback, its operands living where they are said to.
Control = Callable[[Node, Places], OpKernel]


def compile_region(
    graph: Graph, inputs: Sequence[Place], control: Mapping[str, Control], wanted: Sequence[Place] | None = None
) -> Program:
    """The program of a region. Outputs that are `wanted` on the device are sent there."""
    places = place(graph, inputs)
    region = RegionPlan(graph, places)
    constants = region.constants
    slots = Slots()
    slots.all_of(graph.inputs)
    last: dict[Value, int] = {}
    # Position of the last step that may overwrite each value; see the reference engine.
    updated: dict[Value, int] = {}
    for position, its in enumerate(region.steps):
        last.update((v, position) for v in region.operands(its))
        if not isinstance(its, Kernel):
            updated.update((v, position) for v in region.updates(its))
    last.update((v, len(region.steps)) for v in graph.outputs)
    steps: list[Step] = []
    for position, its in enumerate(region.steps):
        operands = region.operands(its)
        dead = slots.all_of(v for v in dict.fromkeys(operands) if last[v] == position and v not in constants)
        if isinstance(its, Kernel):
            steps.append(GroupStep(region, its, slots, dead))
            continue
        node, is_sum = node_of(its), isinstance(its, Product) and its.base is not None
        where: Where = "device"
        if is_sum:
            kernel = at_once(product_sum, node)
        else:
            kernel, where = _kernel(node, places, control)
        if node.op.name == "getitem" and where == "device":
            is_updated = updated.get(node.operands[0], -1) > position or node.result in graph.outputs
            kernel = at_once(SINGLE["getitem"], node, is_updated)
        unused = slots.all_of(v for v in node.results if v not in last)
        read, updates = slots.all_of(operands), slots.all_of(region.updates(its))
        steps.append(NodeStep(node, kernel, read, slots.all_of(node.results), dead, unused, where, updates, is_sum))
    outputs = slots.all_of(graph.outputs)
    uploads = {
        i: v.type
        for i, v in enumerate(graph.outputs)
        if wanted is not None and wanted[i] is ON_DEVICE and places[v] is HOST
    }
    unused_inputs = slots.all_of(v for v in graph.inputs if v not in last)
    held = {slots.numbers[v]: attributes.Constant.of(node).value for v, node in constants.items() if v in slots.numbers}
    return Program(len(graph.inputs), unused_inputs, held, len(slots.numbers), steps, outputs, uploads)


def _kernel(node: Node, places: Mapping[Value, Place], control: Mapping[str, Control]) -> tuple[OpKernel, Where]:
    """Kernel of a node, and where it runs: control is on the host, wherever the steps inside run."""
    name = node.op.name
    if name in control:
        return control[name](node, tuple(places[v] for v in node.operands)), "host"
    if node.results and all(places[v] is HOST for v in node.results):
        return on_host(node, fetched(node, places)), "host"
    if name in DEVICE:
        return DEVICE[name](node), "device"
    return through_host(node), "through the host"


def on_host(node: Node, from_device: Sequence[int] = ()) -> OpKernel:
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


def through_host(node: Node) -> OpKernel:
    """The reference engine's kernel of a node, between two copies."""
    pure = PURE[node.op.name](node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        context.counts.host_ops[node.op.name] += 1
        return context.on_device(pure(*context.on_host(*operands)))

    return kernel
