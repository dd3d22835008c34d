"""Loops that count: where the number of iterations follows from values in front of the loop.

Such a loop runs while an integer carry is below a bound that it leaves as it is, and adds 1 to the carry (or counts
down by 1 while it is above). What its counter ends with, and how often it runs, are then known without running it:
outside it nothing waits for them, and a gradient saves nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ctrlgrad.ir import attributes
from ctrlgrad.ir.builder import Builder
from ctrlgrad.ir.control import Carry, Loop
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.types import INDEX, TensorType
from ctrlgrad.records import record

# A comparison says how a counter moves, and whether the bound itself is passed.
_UP = {"less": 0, "less_equal": 1}
_DOWN = {"greater": 0, "greater_equal": 1}
_TURNED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}

Number = Callable[[Value], np.ndarray | None]


@record(eq=False)
class Counting:
    """How a loop counts: `carry` goes up (or down) by 1 until it has reached `bound`, or has passed it by `beyond`."""

    carry: Carry
    bound: Value | np.ndarray  # in front of the loop
    down: bool
    beyond: int

    @classmethod
    def of(cls, loop: Loop) -> Counting | None:
        """None where a loop does not count so."""
        test = _producer(loop.cond, loop.predicate)
        if test is None or test.op.name not in _TURNED:
            return None
        for carry in loop.carries:
            if carry.in_cond in test.operands:
                at = test.operands.index(carry.in_cond)
                name = test.op.name if at == 0 else _TURNED[test.op.name]
                end = test.operands[1 - at]
                bound, down = _bound(loop, end), name in _DOWN
                if bound is None or carry.init.type != end.type or not _moves_by_one(loop, carry, down):
                    return None
                return cls(carry, bound, down, (_DOWN if down else _UP)[name])
        return None

    def last(self, builder: Builder, number: Number) -> Value:
        """The counter after the loop; `number` knows the constants in front of it."""
        dtype = self.carry.init.tensor.dtype
        start = number(self.carry.init)
        bound = self.bound if isinstance(self.bound, np.ndarray) else number(self.bound)
        sign = -1 if self.down else 1
        if start is not None and bound is not None:
            last = sign * max(sign * int(start), sign * int(bound) + self.beyond)
            if np.iinfo(dtype).min <= last <= np.iinfo(dtype).max:
                return builder.constant(last, dtype)
        end = builder.constant(self.bound) if isinstance(self.bound, np.ndarray) else self.bound
        if self.beyond:
            end = builder.emit("subtract" if self.down else "add", [end, builder.constant(1, dtype)])
        return builder.emit("minimum" if self.down else "maximum", [self.carry.init, end], hint=self.carry.result.hint)

    def trips(self, builder: Builder, number: Number) -> Value:
        """The number of iterations."""
        last, start = self.last(builder, number), self.carry.init
        first = number(start)
        if first is not None and first == 0 and not self.down and last.type == INDEX:
            return last
        ends = [_as_index(builder, v) for v in ((start, last) if self.down else (last, start))]
        return builder.emit("subtract", ends, hint="trips")


def _producer(region: Graph, value: Value) -> Node | None:
    return next((n for n in region.nodes if value in n.results), None)


def _bound(loop: Loop, value: Value) -> Value | np.ndarray | None:
    """What the cond compares with, as it is in front of the loop; None where iterations may see different values."""
    node = _producer(loop.cond, value)
    if node is not None:
        constant = attributes.Constant.find(node)
        return None if constant is None else constant.value
    return next((c.outer for c in loop.captures if c.in_cond is value), None)


def _moves_by_one(loop: Loop, carry: Carry, down: bool) -> bool:
    value = carry.in_body
    if not isinstance(value.type, TensorType) or value.type.rank or value.type.dtype.kind not in "iu":
        return False
    node = _producer(loop.body, carry.next)
    if node is None or node.op.name != ("subtract" if down else "add") or value not in node.operands:
        return False
    if carry.init.type != value.type or (down and node.operands[0] is not value):
        return False
    step = _producer(loop.body, node.operands[1] if node.operands[0] is value else node.operands[0])
    constant = None if step is None else attributes.Constant.find(step)
    return constant is not None and constant.value.ndim == 0 and bool(constant.value == 1)


def _as_index(builder: Builder, value: Value) -> Value:
    return value if value.type == INDEX else builder.emit("cast", [value], {"dtype": INDEX.dtype})


__all__ = ["Counting"]
