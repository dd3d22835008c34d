"""Where a stack that a loop carries goes in its body, and what that does to it, read off the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ctrlgrad.ir import Branch, Graph, Loop, Node, StackType, Value, attributes, view
from ctrlgrad.ir.control import Capture, Carry


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
        write = attributes.Write.find(self.node)
        return self.node.op.name == "stack_push" or (write is not None and write.grow)


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
        if not any(v in following for v in node.operands):
            continue
        match view(node):
            case Loop() as loop:
                carries = [c for c in loop.carries if c.init in following]
                entered: list[Capture | Carry] = [*(c for c in loop.captures if c.outer in following), *carries]
                for c in entered:
                    yield from _updates(loop.cond, c.in_cond, True, conditional)
                    yield from _updates(loop.body, c.in_body, True, conditional)
                following.update(c.result for c in carries)
            case Branch() as branch:
                for region in branch.branches:
                    starts = [v for o, v in zip(branch.operands, region.inputs, strict=True) if o in following]
                    for start in starts:
                        yield from _updates(region, start, repeated, True)
                    for position, out in enumerate(region.outputs):
                        if isinstance(out.type, StackType) and _comes_from(region, out, starts):
                            following.add(branch.results[position])
            case _:
                yield _Update(node, repeated, conditional)
                following.update(v for v in node.results if isinstance(v.type, StackType))


def _comes_from(graph: Graph, out: Value, starts: Sequence[Value]) -> bool:
    """Whether a stack of a region is one of `starts`, whatever was done to it."""
    made = {v: node for node in graph.nodes for v in node.results}
    while out in made:
        node = made[out]
        position = node.results.index(out)
        match view(node):
            case Loop() as loop:
                out = loop.carries[position].init
            case Branch() as branch:
                inner = branch.branches[0]
                entered = zip(branch.operands, inner.inputs, strict=True)
                stacks = [(outer, v) for outer, v in entered if isinstance(v.type, StackType)]
                sources = [outer for outer, v in stacks if _comes_from(inner, inner.outputs[position], [v])]
                if not sources:
                    return False
                out = sources[0]
            case _:
                if not (node.op.name.startswith("stack_") and node.operands):
                    return False
                if not isinstance(node.operands[0].type, StackType):
                    return False
                out = node.operands[0]
    return out in starts


__all__ = ["StackUse", "stack_use"]
