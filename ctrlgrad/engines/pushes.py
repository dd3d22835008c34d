"""What a loop pushes, and why: for reports, profiles and errors."""

from __future__ import annotations

from dataclasses import dataclass

from ctrlgrad.ir import Node, definitions


@dataclass(frozen=True)
class Pushed:
    """The values that go on one stack: a name, why they are saved, and where the user wrote them."""

    name: str
    reason: str
    source: str

    @property
    def label(self) -> str:
        return f"{self.name}{self.source}"


def describe(loop: Node, position: int) -> Pushed:
    """What stands behind the stack at a position of a loop's operands."""
    body = loop.regions[1]
    stack = body.inputs[position]
    name = stack.hint or "stack"
    made = definitions(body)
    for node in body.nodes:
        if node.op.name == "stack_push" and node.operands[0] is stack:
            maker = made.get(node.operands[1])
            if maker is None:
                return Pushed(name, "a value that the loop carries, needed backwards", _at(node))
            return Pushed(name, f"the result of {maker.op.name}, needed backwards", _at(maker))
    return Pushed(name, "pushed in a branch or a loop inside", _at(loop))


def _at(node: Node) -> str:
    return f" (at {node.source})" if node.source is not None else ""


__all__ = ["Pushed", "describe"]
