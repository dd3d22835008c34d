"""Values that show in a result: where one of them is infinite or NaN, the result is, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ctrlgrad.ir import Branch, Graph, Loop, TensorType, Value, view

# Ops whose result is infinite or NaN where an operand is, by the positions of such operands; None: all.
_SHOWS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("add", "subtract", "multiply", "matmul", "concat", "stack_push", "stack_sum")),
    **dict.fromkeys(("negative", "square", "abs", "sqrt", "log", "log1p", "log2", "log10", "sin", "cos"), (0,)),
    **dict.fromkeys(("divide", "strong_multiply", "cast", "sum", "sum_to", "cumsum", "reshape", "broadcast_to"), (0,)),
    **dict.fromkeys(("transpose", "expand_dims", "squeeze", "flip", "ensure_sizes", "forget_sizes", "barrier"), (0,)),
    **dict.fromkeys(("watch", "stack_to_tensor", "stack_from_tensor"), (0,)),
    "solve": (1,),
}


class Showing:
    """The search for such values in a graph and its regions, from results backwards; `runs`: loops that surely run."""

    def __init__(self, runs: Callable[[Loop], bool]) -> None:
        self.runs = runs
        self._asked: dict[Any, Any] = {}

    def values(self, graph: Graph, outputs: Iterable[Value]) -> set[Value]:
        shown = set(outputs)
        for node in reversed(graph.nodes):
            if shown.isdisjoint(node.results):
                continue
            control = view(node)
            if control is None:
                positions = _SHOWS.get(node.op.name, ())
                given = node.operands if positions is None else [node.operands[i] for i in positions]
                shown.update(v for v in given if _reaches_all(v, node.results[0]))
                continue
            key = (node, frozenset(i for i, v in enumerate(node.results) if v in shown))
            if key not in self._asked:
                match control:
                    case Loop() as loop:
                        self._asked[key] = self._showing_in_loop(loop, shown)
                    case Branch() as branch:
                        self._asked[key] = self._showing_in_branches(branch, shown)
                    case _:
                        self._asked[key] = ()
            shown.update(self._asked[key])
        return shown

    def _showing_in_loop(self, loop: Loop, shown: set[Value]) -> set[Value]:
        found = [c for c in loop.carries if c.result in shown]
        while True:
            inside = self.values(loop.body, [c.next for c in found])
            fewer = [c for c in found if c.in_body in inside]
            if fewer == found:
                break
            found = fewer
        if self.runs(loop):
            inside.update(c.outer for c in loop.captures if c.in_body in inside)
            inside.update(c.init for c in loop.carries if c.in_body in inside)
        else:
            inside.update(c.init for c in found)
        return inside

    def _showing_in_branches(self, branch: Branch, shown: set[Value]) -> set[Value]:
        inside: set[Value] = set()
        for region in branch.branches:
            ends = zip(region.outputs, branch.results, strict=True)
            inside |= self.values(region, [v for v, result in ends if result in shown])
        for j, operand in enumerate(branch.operands):
            if all(region.inputs[j] in inside for region in branch.branches):
                inside.add(operand)
        return inside


def _reaches_all(operand: Value, result: Value) -> bool:
    """Return true if a result is known to hold each element of an operand, or to have no dimension of size 0."""
    if not isinstance(operand.type, TensorType) or not isinstance(result.type, TensorType):
        return True
    return operand.type.shape == result.type.shape or all(d is not None and d > 0 for d in result.type.shape)
