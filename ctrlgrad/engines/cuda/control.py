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
from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad.engines.cuda.compile import Control, compile_region
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.loops import Loop
from ctrlgrad.engines.cuda.placement import HOST, Place, Places, place, results_of
from ctrlgrad.engines.cuda.program import Program, Regions, scalar
from ctrlgrad.engines.native.pieces import PART, planned
from ctrlgrad.engines.reference import REFERENCE
from ctrlgrad.ir import Graph, Node, Value, attributes, walk
from ctrlgrad.ir.control import is_loop
from ctrlgrad.ir.walk import has_effect
from ctrlgrad.memory.session import no_budget
from ctrlgrad.runtime.stack import BlockStack

# Order of a region with parts: how many effects came before a node, how often its operands go from host to card and
# back, and whether it works on the card. A node with effects comes first of its number.
Level = tuple[int, int, bool]
CONSTANT: Level = (-1, 0, False)


def with_host_parts(graph: Graph, inputs: Sequence[Place]) -> Graph:
    """The region with a node for each part that has a loop."""
    levels = _levels(graph, place(graph, inputs))
    members: dict[Level, list[Node]] = {}
    for node, level in levels.items():
        if not level[-1]:
            members.setdefault(level, []).append(node)
    members = {level: nodes for level, nodes in members.items() if any(map(_has_loop, nodes))}
    if not members:
        return graph
    ordered: list[Node] = []
    for node in sorted(graph.nodes, key=lambda node: levels.get(node, CONSTANT)):
        nodes = members.get(levels.get(node, CONSTANT), [])
        if not nodes:
            ordered.append(node)
        elif node is nodes[0]:
            part = _part(graph, nodes)
            source = next(filter(_has_loop, nodes)).source
            ordered.append(Node(PART, part.inputs, part.outputs, regions=(part,), source=source))
    return Graph(graph.inputs, tuple(ordered), graph.outputs, graph.name)


def _levels(region: Graph, places: dict[Value, Place]) -> dict[Node, Level]:
    """Level of each node that is no constant."""
    found: dict[Node, Level] = {}
    depth: dict[Value, tuple[int, bool]] = {}
    effects = 0
    for node in region.nodes:
        if node.op.name == "constant":
            continue
        acts = has_effect(node.op, node.regions)
        effects += acts
        is_on_card = acts or not node.results or any(places[v] is not HOST for v in (*node.operands, *node.results))
        given = [depth[v] for v in node.operands if v in depth]
        # A part that reads what comes from the card is a later one.
        its = max((n + (on_card and not is_on_card) for n, on_card in given), default=0)
        depth.update((v, (its, is_on_card)) for v in node.results)
        found[node] = effects, -1 if acts else its, is_on_card
    return found


def _part(region: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph of a part, with the constants that it reads."""
    read = dict.fromkeys(v for node in nodes for v in node.operands)
    constants = [node for node in region.nodes if node.op.name == "constant" and node.result in read]
    defined = {v for node in (*constants, *nodes) for v in node.results}
    inside, needed = set(nodes), set(region.outputs)
    needed.update(v for node in region.nodes if node not in inside for v in node.operands)
    outputs = tuple(v for node in nodes for v in node.results if v in needed)
    return Graph(tuple(v for v in read if v not in defined), (*constants, *nodes), outputs, region.name)


def _has_loop(node: Node) -> bool:
    """Return true for a loop, and for a node with one in its regions."""
    return is_loop(node) or any(is_loop(inner) for region in node.regions for inner in walk(region))


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
