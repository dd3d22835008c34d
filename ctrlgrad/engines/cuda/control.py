"""Kernels of nodes with regions, and of callbacks, and native plans for parts of a graph that use only host numbers.

Control is on the host; `loops` has the loops. A loop whose carry and captures are all on the host needs no card, and
an interpreter takes microseconds for each of its ops. Such a loop, with the nodes of its region that only use numbers
of the host, becomes a plan of the native engine: a node `PART`, whose region is that part of the graph
(`with_host_parts`). In: a region and the places of its inputs. Out: a region with the same inputs and outputs. The
order of nodes that depend on each other stays: no node of a part depends on another one through nodes outside. A node
with effects is in no part, and no part spans it. Loops inside loops that work on the card stay there, in launch lists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ctrlgrad.engines.cuda.compile import Control, compile_region
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.loops import Loop
from ctrlgrad.engines.cuda.placement import HOST, Place, Places, place, results_of
from ctrlgrad.engines.cuda.program import Program, Regions, scalar
from ctrlgrad.engines.native.pieces import PART, planned
from ctrlgrad.engines.reference import REFERENCE
from ctrlgrad.ir import Graph, Node, Value, attributes, view, walk
from ctrlgrad.ir import Loop as LoopView
from ctrlgrad.ir.walk import has_effect
from ctrlgrad.memory.session import no_budget
from ctrlgrad.runtime.stack import BlockStack

# How many effects came before a node, and how often its operands go from host to card and back.
Level = tuple[int, int]


def with_host_parts(graph: Graph, inputs: Sequence[Place]) -> Graph:
    """The region with a node for each part that has a loop."""
    parts = _Parts(graph, inputs)
    return graph if not parts.members else parts.graph()


class _Parts:
    """Assignment of a region's nodes to parts."""

    def __init__(self, region: Graph, inputs: Sequence[Place]) -> None:
        self.region = region
        self.producer_of = {v: node for node in region.nodes for v in node.results}
        self.constants = {node for node in region.nodes if node.op.name == "constant"}
        levels = self._levels(place(region, inputs))
        looping = {levels[node] for node in levels if any(isinstance(view(n), LoopView) for n in _within(node))}
        # The nodes of each part, in the region's order.
        self.members: dict[Level, list[Node]] = {}
        for node, level in levels.items():
            if level in looping:
                self.members.setdefault(level, []).append(node)
        self.part_of = {node: level for level, nodes in self.members.items() for node in nodes}

    def _levels(self, places: dict[Value, Place]) -> dict[Node, Level]:
        """Level of each node that works on the host alone."""
        found: dict[Node, Level] = {}
        depth: dict[Node, int] = {}
        effects = 0
        for node in self.region.nodes:
            if node in self.constants:
                continue
            is_hosted = bool(node.results) and all(places[v] is HOST for v in (*node.operands, *node.results))
            acts = has_effect(node.op, node.regions)
            effects += acts
            producers = [p for p in map(self.producer_of.get, node.operands) if p is not None and p in depth]
            if is_hosted and not acts:
                depth[node] = max((depth[p] + (p not in found) for p in producers), default=0)
                found[node] = effects, depth[node]
            else:
                depth[node] = max((depth[p] for p in producers), default=0)
        return found

    def graph(self) -> Graph:
        """The region with its parts, each as early as it was begun."""
        units: dict[Node, Node] = {}
        for level, nodes in self.members.items():
            part = self._part(level, nodes)
            whole = Node(PART, part.inputs, part.outputs, regions=(part,), source=_first_loop(nodes).source)
            units.update(dict.fromkeys(nodes, whole))
        ordered: dict[Node, None] = {}
        for node in self.region.nodes:
            pending = [units.get(node, node)]
            while pending:
                unit = pending[-1]
                producers = (self.producer_of.get(v) for v in unit.operands)
                waits = [u for p in producers if p is not None and (u := units.get(p, p)) not in ordered]
                if waits and unit not in ordered:
                    pending += waits
                else:
                    ordered[pending.pop()] = None
        return Graph(self.region.inputs, tuple(ordered), self.region.outputs, self.region.name)

    def _part(self, level: Level, nodes: Sequence[Node]) -> Graph:
        """The graph of a part, with the constants that it reads."""
        read = dict.fromkeys(v for node in nodes for v in node.operands)
        constants = [p for p in dict.fromkeys(map(self.producer_of.get, read)) if p is not None and p in self.constants]
        defined = {v for node in (*constants, *nodes) for v in node.results}
        needed = set(self.region.outputs)
        needed.update(v for node in self.region.nodes if self.part_of.get(node) != level for v in node.operands)
        outputs = tuple(v for node in nodes for v in node.results if v in needed)
        inputs = tuple(v for v in read if v not in defined)
        return Graph(inputs, (*constants, *nodes), outputs, self.region.name)


def _within(node: Node) -> Iterator[Node]:
    """A node, and those in its regions."""
    yield node
    for region in node.regions:
        yield from walk(region)


def _first_loop(nodes: Sequence[Node]) -> Node:
    return next(n for node in nodes for n in _within(node) if isinstance(view(n), LoopView))


class HostPart:
    """Kernel of a node `PART`: its native plan; its steps, where no plan fits or the plan fails, since they raise the
    error."""

    def __init__(self, node: Node, given: Places, control: dict[str, Control]) -> None:
        (self.region,) = node.regions
        self._given, self._control = given, control
        # True if the last run used the plan.
        self.is_planned = True

    @functools.cached_property
    def steps(self) -> Program:
        """The part step by step."""
        return compile_region(self.region, self._given, self._control)

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        with no_budget():
            found = planned(self.region, operands)
        self.is_planned = found is not None
        results = self.steps(operands, context) if found is None else [_on_host(x) for x in found]
        return results[0] if len(results) == 1 else results


def _on_host(x: Any) -> Any:
    """A result as the host has it: a scalar, or a list of them."""
    if not isinstance(x, BlockStack):
        return scalar(x)
    return list(x.tensor()) if x.written is None else [None if row is None else scalar(row) for row in x.rows()]


class Branches(Regions):
    """A `cond` node: a selector on the device is read."""

    def __init__(self, node: Node, given: Places) -> None:
        wanted = results_of(node, given)
        self.programs = [compile_region(region, given[1:], CONTROL, wanted) for region in node.regions]

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        selector = operands.pop(0)
        if context.library.is_array(selector):
            (selector,) = context.predicate(selector)
        chosen = min(max(int(selector), 0), len(self.programs) - 1)
        arguments = list(operands)
        operands.clear()
        results = self.programs[chosen](arguments, context)
        return results if len(results) != 1 else results[0]


def _callback(node: Node, given: Places) -> Callable[[Context, list[Any]], Any]:
    fn = attributes.Hook.of(node).fn

    def kernel(context: Context, operands: list[Any]) -> Any:
        fn(context.on_host(*operands), tuple(context.run.iterations))
        return ()

    return kernel


def _pure_callback(node: Node, given: Places) -> Callable[[Context, list[Any]], Any]:
    compute = REFERENCE.pure["pure_callback"](node)
    return lambda context, operands: compute(*context.on_host(*operands))


CONTROL: dict[str, Control] = {
    "while": lambda node, given: Loop(node, given, CONTROL),
    "cond": Branches,
    "callback": _callback,
    "pure_callback": _pure_callback,
    PART.name: lambda node, given: HostPart(node, given, CONTROL),
}
