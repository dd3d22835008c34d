"""Counted loops: loops whose number of iterations follows from values in front of the loop.

Such a loop runs while an integer carry is below a loop-invariant bound, and adds 1 to the carry (or counts down by 1
while it is above). Its trip count and the counter's final value are then known without running it: nothing outside
waits for them, and a gradient saves nothing for them. A step other than 1 is allowed if the values in front of the loop
are known; otherwise the counter could pass the bound near the end of its dtype and overflow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ctrlgrad.dtypes import dtype_kind
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
    """Counter of a loop: `carry` changes by `step` until it is `beyond` past `bound`, or further for long steps."""

    carry: Carry
    bound: Value | np.ndarray  # in front of the loop
    step: int  # below 0 for a counter that goes down
    beyond: int

    @classmethod
    def of(cls, loop: Loop, number: Number) -> Counting | None:
        """Return the counter of a loop, None if it has none; `number` knows the constants in front of the loop."""
        return cls._by(_producer(loop.cond, loop.predicate), loop, number)

    @classmethod
    def each(cls, loop: Loop, number: Number) -> tuple[Counting, ...]:
        """Return the counters of a loop that goes on while several such tests hold; empty if any test has none."""
        found: list[Counting] = []
        pending = [loop.predicate]
        while pending:
            test = _producer(loop.cond, pending.pop())
            if test is not None and test.op.name == "logical_and":
                pending += test.operands
                continue
            counting = cls._by(test, loop, number)
            if counting is None:
                return ()
            found.append(counting)
        return tuple(found)

    @classmethod
    def _by(cls, test: Node | None, loop: Loop, number: Number) -> Counting | None:
        if test is None or test.op.name not in _TURNED:
            return None
        for carry in loop.carries:
            if carry.in_cond in test.operands:
                at = test.operands.index(carry.in_cond)
                name = test.op.name if at == 0 else _TURNED[test.op.name]
                end = test.operands[1 - at]
                bound, step, down = _in_front(loop, loop.cond, end), step_of(loop, carry, number), name in _DOWN
                if bound is None or not step or (step < 0) != down or carry.init.type != end.type:
                    return None
                found = cls(carry, bound, step, (_DOWN if down else _UP)[name])
                return found if abs(step) == 1 or found.count(number) is not None else None
        return None

    def count(self, number: Number) -> int | None:
        """The number of iterations, where start and bound are constants, and the counter never leaves its dtype."""
        start = number(self.carry.init)
        bound = self.bound if isinstance(self.bound, np.ndarray) else number(self.bound)
        if start is None or bound is None:
            return None
        distance = (int(bound) - int(start)) * (1 if self.step > 0 else -1) + self.beyond
        trips = max(0, -(-distance // abs(self.step)))
        limits = np.iinfo(self.carry.init.tensor.dtype)
        return trips if limits.min <= int(start) + trips * self.step <= limits.max else None

    def last(self, builder: Builder, number: Number) -> Value:
        """The counter after the loop."""
        dtype, down = self.carry.init.tensor.dtype, self.step < 0
        start, trips = number(self.carry.init), self.count(number)
        if start is not None and trips is not None:
            return builder.constant(int(start) + trips * self.step, dtype)
        end = builder.constant(self.bound) if isinstance(self.bound, np.ndarray) else self.bound
        if self.beyond:
            end = builder.emit("subtract" if down else "add", [end, builder.constant(1, dtype)])
        return builder.emit("minimum" if down else "maximum", [self.carry.init, end], hint=self.carry.result.hint)

    def trips(self, builder: Builder, number: Number) -> Value:
        """The number of iterations."""
        count = self.count(number)
        if count is not None:
            return builder.constant(count, INDEX.dtype)
        last, start = self.last(builder, number), self.carry.init
        first = number(start)
        if first is not None and first == 0 and self.step > 0 and last.type == INDEX:
            return last
        ends = [_as_index(builder, v) for v in ((start, last) if self.step < 0 else (last, start))]
        return builder.emit("subtract", ends, hint="trips")


def step_of(loop: Loop, carry: Carry, number: Number) -> int | None:
    """Return the constant that each iteration adds to an integer carry, 0 if the carry is unchanged; else None."""
    value = carry.in_body
    if (
        not isinstance(value.type, TensorType)
        or dtype_kind(value.type.dtype) not in "iu"
        or carry.init.type != value.type
    ):
        return None
    if carry.next is value:
        return 0
    node = _producer(loop.body, carry.next)
    if node is None or node.op.name not in ("add", "subtract") or value not in node.operands:
        return None
    a, b = node.operands
    if node.op.name == "subtract" and a is not value:
        return None
    step = _in_front(loop, loop.body, b if a is value else a)
    step = number(step) if isinstance(step, Value) else step
    if step is None or step.ndim:
        return None
    return -int(step) if node.op.name == "subtract" else int(step)


def _producer(region: Graph, value: Value) -> Node | None:
    return next((n for n in region.nodes if value in n.results), None)


def _in_front(loop: Loop, region: Graph, value: Value) -> Value | np.ndarray | None:
    """A value of a region as it is in front of the loop; None where iterations may see different ones."""
    node = _producer(region, value)
    if node is not None:
        constant = attributes.Constant.find(node)
        return None if constant is None else constant.value
    return next((c.outer for c in loop.captures if value in (c.in_cond, c.in_body)), None)


def _as_index(builder: Builder, value: Value) -> Value:
    return value if value.type == INDEX else builder.emit("cast", [value], {"dtype": INDEX.dtype})
