"""Numbers that a loop carries: which of those that could be computed on the host the card has.

A number of the host that goes by whole steps (a counter) is a word that the card adds up by itself. Any other one that
changes (a learning rate that decays, a time that goes by `dt`) would have each iteration wait for Python. So where a
loop has work on the card the card computes such a number, unless the host needs it: to say sizes and places, or how
often a loop inside goes on. How often the loop itself goes on the card knows as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ctrlgrad.engines.cuda.prepared.operands import Affine
from ctrlgrad.engines.cuda.prepared.steps import is_integer, stepping
from ctrlgrad.ir import Branch, Call, Graph, Loop, TensorType, Trait, Use, Value, view


def computed_carries(loop: Loop, positions: Iterable[int]) -> list[int]:
    """Positions, among the given ones, of carries that do not change by a constant integer step and that the host does
    not need."""
    entering = [*loop.shared, *loop.carried]
    integers = {v: Affine(0, ((slot, 1),)) for slot, v in enumerate(entering) if is_integer(v)}
    found = stepping(loop.body, integers)

    def is_steady(before: Value, after: Value) -> bool:
        if after is before:
            return True
        return before in integers and after in found and found[after].terms == integers[before].terms

    carries = {n: loop.carries[n] for n in positions}
    changing = [
        n for n, c in carries.items() if isinstance(c.in_body.type, TensorType) and not is_steady(c.in_body, c.next)
    ]
    if not changing:
        return []
    needed = _needed_inside(loop, (), ())
    return [n for n in changing if needed.isdisjoint((carries[n].in_cond, carries[n].in_body))]


def _needed_inside(loop: Loop, results: Collection[int], asked: Sequence[Value]) -> set[Value]:
    """Values in a loop's regions that the host needs in order to have these results, and these values of the cond."""
    carried = set(results)
    while True:
        values = _needed(loop.cond, asked) | _needed(loop.body, [loop.carries[n].next for n in carried])
        found = {n for n, c in enumerate(loop.carries) if c.in_body in values or c.in_cond in values}
        if found <= carried:
            return values
        carried |= found


def _needed(graph: Graph, wanted: Sequence[Value]) -> set[Value]:
    """Values in a region that the host needs in order to have the wanted ones."""
    needed = set(wanted)
    for node in reversed(graph.nodes):
        results = [n for n, v in enumerate(node.results) if v in needed]
        needed.update(node.used_as(Use.SIZE, Use.INDEX))
        match view(node):
            case Loop() as loop:
                inside = _needed_inside(loop, results, loop.cond.outputs)
                needed.update(c.outer for c in loop.captures if c.in_body in inside or c.in_cond in inside)
                needed.update(c.init for c in loop.carries if c.in_body in inside or c.in_cond in inside)
                needed.update(loop.carries[n].init for n in results)
            case Branch() as branch:
                for side in branch.branches:
                    inside = _needed(side, [side.outputs[n] for n in results])
                    needed.update(v for v, own in zip(branch.operands, side.inputs, strict=True) if own in inside)
            case Call() as call:
                inside = _needed(call.function, [call.function.outputs[n] for n in results])
                needed.update(v for v, own in zip(node.operands, call.function.inputs, strict=True) if own in inside)
            case _:
                if results or Trait.EFFECT in node.op.traits:
                    needed.update(node.operands)
    return needed
