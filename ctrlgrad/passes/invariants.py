"""Loop invariants: what every iteration would compute alike moves in front of the loop and becomes a capture.

In: any graph. Out: in no cond or body of a loop does a total, pure node depend on captures and constants alone, but
for nodes with regions and what is in branches; no carry is passed through unchanged that starts with its result's type.
Only ops that cannot fail move, since the loop may take no iteration at all. Constants stay: a region may hold its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ctrlgrad.ir import Builder, Graph, Loop, Node, Value, copy_node, is_loop, rewrite
from ctrlgrad.ir.control import Capture
from ctrlgrad.ops.arrays import is_total
from ctrlgrad.records import record


def hoist_invariants(graph: Graph) -> Graph:
    """The graph with invariants hoisted out of all of its loops, inner loops first."""
    return rewrite(graph, _hoist)


def _hoist(node: Node, builder: Builder) -> Sequence[Value] | None:
    if not is_loop(node):
        return None
    loop = Loop.of(node)
    hoisted = _hoist_nodes(_capture_constant_carries(loop), builder)
    if hoisted is loop:
        return None
    builder.keep(hoisted.node)
    results = set(hoisted.results)
    return [c.result if c.result in results else c.init for c in loop.carries]


def _capture_constant_carries(loop: Loop) -> Loop:
    """Turn each carry that the body passes through unchanged into a capture."""
    still = [c for c in loop.carries if c.next is c.in_body and c.init.type == c.result.type]
    if not still:
        return loop
    captures = (*loop.captures, *(Capture(c.init, c.in_cond, c.in_body) for c in still))
    return loop.rebuilt(captures=captures, carries=[c for c in loop.carries if c not in still])


def _hoist_nodes(loop: Loop, builder: Builder) -> Loop:
    """Emit the invariant nodes in front of the loop; returns the loop without them."""
    added: list[Capture] = []
    cond = _hoist_from(loop.cond, {c.in_cond: c.outer for c in loop.captures}, builder)
    added += [Capture(outer, inner, Value(inner.type, inner.hint)) for outer, inner in cond.hoisted]
    body = _hoist_from(loop.body, {c.in_body: c.outer for c in loop.captures}, builder)
    added += [Capture.new(outer, inner) for outer, inner in body.hoisted]
    if not added:
        return loop
    return loop.rebuilt(captures=(*loop.captures, *added), cond=cond.kept, body=body.kept)


@record(frozen=False)
class _Hoisted:
    """The nodes that a region keeps; what left it: each value outside, and the value that it was inside."""

    kept: list[Node] = field(default_factory=list)
    hoisted: list[tuple[Value, Value]] = field(default_factory=list)


def _hoist_from(region: Graph, outside: dict[Value, Value], builder: Builder) -> _Hoisted:
    """`outside`: what stands for an input of the region in front of the loop."""
    found = _Hoisted()
    constants = {n.result: n for n in region.nodes if n.op.name == "constant"}
    for node in region.nodes:
        if not _is_invariant(node, outside, constants):
            found.kept.append(node)
            continue
        for v in node.operands:
            if v not in outside:
                copy_node(builder, constants[v], outside)
        copy_node(builder, node, outside)
        found.hoisted += [(outside[v], v) for v in node.results]
    return found


def _is_invariant(node: Node, outside: dict[Value, Value], constants: dict[Value, Node]) -> bool:
    if node.regions or node.op.name == "constant":
        return False
    if not all(v in outside or v in constants for v in node.operands):
        return False
    # Values that are recomputed behind a barrier are then recomputed once, in front of the loop.
    return node.op.name == "barrier" or is_total(node)
