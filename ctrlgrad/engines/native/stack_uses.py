"""How a loop uses each of its stacks, read off its graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ctrlgrad.engines.native.layout import Sizes
from ctrlgrad.engines.native.program import StackUse
from ctrlgrad.ir import Graph, Node, StackType, Value


@dataclass(frozen=True)
class StackUpdate:
    """One op on a stack: `repeated` in a loop inside, `conditional` in a branch."""

    node: Node
    repeated: bool = False
    conditional: bool = False


def stack_use(loop: Node, position: int, element: Sizes) -> StackUse:
    """How a loop uses the stack at a position of its operands."""
    cond, body = loop.regions
    value = body.inputs[position]
    assert isinstance(value.type, StackType)
    updates = list(_lineage(body, value))
    names = {u.node.op.name for u in (*updates, *_lineage(cond, cond.inputs[position]))}
    mode: Literal["push", "pop", "read", "whole"] = "whole"
    if names <= {"stack_read", "stack_length"}:
        mode = "read"
    elif names == {"stack_push"}:
        mode = "push"
    elif names == {"stack_pop"}:
        mode = "pop"
    grows = [u for u in updates if u.node.op.name == "stack_push" or u.node.attrs.get("grow")]
    pops = [u for u in updates if u.node.op.name == "stack_pop"]
    return StackUse(
        position,
        element,
        value.type.element.dtype,
        mode,
        pushes=sum(not u.repeated for u in grows),
        pops=sum(not u.repeated and not u.conditional for u in pops),
        marks=any(u.node.attrs.get("once") for u in updates),
        inside=any(u.repeated for u in grows)
        or any(u.node.op.name == "stack_resize" for u in updates)
        or any(u.repeated or u.conditional for u in pops),
    )


def local_use(graph: Graph, value: Value, position: int, element: Sizes) -> StackUse:
    """How a stack that is made in a region, the given value, is used there."""
    assert isinstance(value.type, StackType)
    marks = any(update.node.attrs.get("once") for update in _lineage(graph, value))
    dtype = value.type.element.dtype
    return StackUse(position, element, dtype, "whole", 0, 0, marks, inside=True, is_local=True)


def touched_later(graph: Graph) -> set[Value]:
    """The stacks whose rows a region reads, changes or takes off later on: all that it does not only push on.

    A value that is pushed on another one may lie in its row from the start.
    """
    touched: set[Value] = set()
    for node in reversed(graph.nodes):
        only_grows = node.op.name == "stack_push" and node.result not in touched
        touched.update(v for v in node.operands if isinstance(v.type, StackType) and not only_grows)
    return touched


def origin(graph: Graph, stack: Value) -> Value | None:
    """The value with which a stack begins that a region makes; None for one that comes from outside."""
    made = {v: node for node in graph.nodes for v in node.results}
    while stack in made:
        node = made[stack]
        if node.op.name == "while":
            stack = node.operands[node.attrs["captures"] + node.results.index(stack)]
        elif node.op.name != "cond" and node.operands and isinstance(node.operands[0].type, StackType):
            stack = node.operands[0]
        else:
            return stack
    return None


def _lineage(graph: Graph, value: Value, repeated: bool = False, conditional: bool = False) -> Iterator[StackUpdate]:
    """The ops that a stack goes through in a region and in those inside."""
    following = {value}
    for node in graph.nodes:
        used = [k for k, v in enumerate(node.operands) if v in following]
        if not used:
            continue
        if node.op.name == "while":
            for region in node.regions:
                for k in used:
                    yield from _lineage(region, region.inputs[k], True, conditional)
            following.update(node.results[k - node.attrs["captures"]] for k in used if k >= node.attrs["captures"])
        elif node.op.name == "cond":
            for region in node.regions:
                starts = [region.inputs[k - 1] for k in used]
                for start in starts:
                    yield from _lineage(region, start, repeated, True)
                for position, out in enumerate(region.outputs):
                    if isinstance(out.type, StackType) and _comes_from(region, out, starts):
                        following.add(node.results[position])
        else:
            yield StackUpdate(node, repeated, conditional)
            following.update(v for v in node.results if isinstance(v.type, StackType))


def _comes_from(graph: Graph, out: Value, starts: Sequence[Value]) -> bool:
    made = {v: node for node in graph.nodes for v in node.results}
    while out in made:
        node = made[out]
        if node.op.name == "while":
            out = node.operands[node.attrs["captures"] + node.results.index(out)]
        elif node.op.name == "cond":
            position = node.results.index(out)
            inner = node.regions[0]
            source = next(
                (
                    k
                    for k, v in enumerate(inner.inputs)
                    if isinstance(v.type, StackType) and _comes_from(inner, inner.outputs[position], [v])
                ),
                None,
            )
            if source is None:
                return False
            out = node.operands[1 + source]
        elif node.op.name.startswith("stack_") and node.operands and isinstance(node.operands[0].type, StackType):
            out = node.operands[0]
        else:
            return False
    return out in starts
