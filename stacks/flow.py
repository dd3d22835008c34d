"""Where a stack that a loop carries goes in its body, and what that does to it, read off the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ctrlgrad.ir import Graph, Node, StackType, Value


@dataclass(frozen=True)
class StackUse:
    """How a loop uses one of its stacks."""

    # "push": only pushes; "pop": only pops; "read": only looks; "whole": anything.
    mode: Literal["push", "pop", "read", "whole"]
    # Rows that one iteration adds outside of loops inside it.
    pushes: int
    # Whether only a run tells how many rows an iteration adds or takes: loops inside, or branches, do so.
    is_data_dependent: bool


@dataclass(frozen=True)
class _Update:
    """One op on a stack: `repeated` in a loop inside, `conditional` in a branch."""

    node: Node
    repeated: bool = False
    conditional: bool = False

    @property
    def grows(self) -> bool:
        return self.node.op.name == "stack_push" or bool(self.node.attrs.get("grow"))


def stack_use(loop: Node, position: int) -> StackUse:
    """How a `while` node uses the stack at a position of its operands."""
    cond, body = loop.regions
    updates = list(_updates(body, body.inputs[position]))
    names = {u.node.op.name for u in (*updates, *_updates(cond, cond.inputs[position]))}
    mode: Literal["push", "pop", "read", "whole"] = "whole"
    if names <= {"stack_read", "stack_length"}:
        mode = "read"
    elif names == {"stack_push"}:
        mode = "push"
    elif names == {"stack_pop"}:
        mode = "pop"
    pops = [u for u in updates if u.node.op.name == "stack_pop"]
    return StackUse(
        mode,
        pushes=sum(u.grows and not u.repeated for u in updates),
        is_data_dependent=any(u.grows and u.repeated for u in updates)
        or any(u.node.op.name == "stack_resize" for u in updates)
        or any(u.repeated or u.conditional for u in pops),
    )


def _updates(graph: Graph, value: Value, repeated: bool = False, conditional: bool = False) -> Iterator[_Update]:
    """The ops that a stack goes through in a region and in those inside."""
    following = {value}
    for node in graph.nodes:
        used = [k for k, v in enumerate(node.operands) if v in following]
        if not used:
            continue
        if node.op.name == "while":
            for region in node.regions:
                for k in used:
                    yield from _updates(region, region.inputs[k], True, conditional)
            following.update(node.results[k - node.attrs["captures"]] for k in used if k >= node.attrs["captures"])
        elif node.op.name == "cond":
            for region in node.regions:
                starts = [region.inputs[k - 1] for k in used]
                for start in starts:
                    yield from _updates(region, start, repeated, True)
                for position, out in enumerate(region.outputs):
                    if isinstance(out.type, StackType) and _comes_from(region, out, starts):
                        following.add(node.results[position])
        else:
            yield _Update(node, repeated, conditional)
            following.update(v for v in node.results if isinstance(v.type, StackType))


def _comes_from(graph: Graph, out: Value, starts: Sequence[Value]) -> bool:
    """Whether a stack of a region is one of `starts`, whatever was done to it."""
    made = {v: node for node in graph.nodes for v in node.results}
    while out in made:
        node = made[out]
        if node.op.name == "while":
            out = node.operands[node.attrs["captures"] + node.results.index(out)]
        elif node.op.name == "cond":
            inner, position = node.regions[0], node.results.index(out)
            stacks = [k for k, v in enumerate(inner.inputs) if isinstance(v.type, StackType)]
            sources = [k for k in stacks if _comes_from(inner, inner.outputs[position], [inner.inputs[k]])]
            if not sources:
                return False
            out = node.operands[1 + sources[0]]
        elif node.op.name.startswith("stack_") and node.operands and isinstance(node.operands[0].type, StackType):
            out = node.operands[0]
        else:
            return False
    return out in starts


__all__ = ["StackUse", "stack_use"]
