"""From a region and the places of its inputs to a program: places, groups, kernels, slots, last uses.

An op runs by the first of these that exists: a generated kernel, fused with other ops; the reference engine's kernel,
where its results are on the host; a device kernel; the reference engine's kernel between two copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.group_step import GroupStep
from ctrlgrad.engines.cuda.kernels import DEVICE, Kernel
from ctrlgrad.engines.cuda.kernels.arrays import add_product
from ctrlgrad.engines.cuda.kernels.indexing import is_view
from ctrlgrad.engines.cuda.placement import DEVICE as ON_DEVICE
from ctrlgrad.engines.cuda.placement import HOST, Place, Places, fetched, place
from ctrlgrad.engines.cuda.program import NodeStep, Program, Slots, Step, Where, scalar
from ctrlgrad.engines.cuda.regions import Item, ProductSum, RegionKernel, constants_of, schedule, updated_by
from ctrlgrad.engines.reference.kernels import IN_PLACE, PURE
from ctrlgrad.ir import Graph, Node, Value, attributes

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
        if isinstance(item, ProductSum):
            operands, results = slots.all_of(item.operands), (slots.of(item.node.result),)
            steps.append(NodeStep(item.node, add_product, operands, results, dead, unused, "device"))
            continue
        kernel, where = _kernel(item, places, control)
        if item.op.name == "getitem" and where == "device" and is_view(item):
            source = item.operands[0]
            if updated.get(source, -1) > position or item.result in graph.outputs:
                kernel = _copied(kernel)
        operands = slots.all_of(item.operands)
        steps.append(NodeStep(item, kernel, operands, slots.all_of(item.results), dead, unused, where))
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
        if isinstance(item, ProductSum):
            updated[item.operands[0]] = position
        elif isinstance(item, Node):
            updated.update((v, position) for v in updated_by(item))
    return updated


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


def _copied(kernel: Kernel) -> Kernel:
    def copying(context: Context, operands: list[Any]) -> Any:
        context.counts.calls += 1
        return context.xp.array(kernel(context, operands))

    return copying
