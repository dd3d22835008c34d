"""The sizes that a row which a loop collects has at its first iteration, computed before the loop.

A loop that never runs collects nothing, and its empty result still has a shape: where a size of a row is unknown until
run time, it follows from the sizes of what the loop starts with. Sizes pass through the ops of the body as in
`ctrlgrad.stacks.sizes`; beyond that, operands of an elementwise op are broadcast, and an op that is told a size is told
it here too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, Counting, Loop, Node, Trait, Use, Value, attributes, definitions, is_loop
from ctrlgrad.records import record
from ctrlgrad.stacks.sizes import Cut, Size, origin, told


@record
class RowSizes:
    """`starts` is what the inputs of a loop's body are at the first iteration, `producers` the nodes of the body; other
    values are those of the traces around it."""

    builder: Builder
    producers: Mapping[Value, Node]
    starts: Mapping[Value, Any]

    def of(self, row: Value) -> list[Any]:
        """The unknown sizes of a row, in order; none where one of them is known in the loop alone."""
        sizes = [self._size(Size(row, axis)) for axis, d in enumerate(row.tensor.shape) if d is None]
        return [] if any(n is None for n in sizes) else sizes

    def _size(self, size: Size) -> Any:
        size = origin(self.producers, size)
        value, axis = size.value, size.axis
        known = value.tensor.shape[axis]
        if known is not None:
            return np.int64(known)
        node = self.producers.get(value)
        if node is None:
            return apply("dim", [self._outside(value)], {"axis": axis})
        if Trait.ELEMENTWISE in node.op.traits:
            return self._broadcast(node, axis - value.tensor.rank)
        if node.op.name == "stack_to_tensor" and axis == 0:
            return self._collected(node.operands[0])
        if node.op.name == "concat":
            parts = [self._size(Size(v, axis)) for v in node.operands]
            return (
                None if any(n is None for n in parts) else functools.reduce(functools.partial(_computed, "add"), parts)
            )
        cut = Cut.find(node, axis)
        if cut is not None:
            return self._cut(cut)
        number = told(node, axis)
        if number is None:
            # What an op is told of a stack's rows are the last of its result's unknown sizes.
            sizes, from_end = node.used_as(Use.SIZE), value.tensor.shape[axis:].count(None)
            number = sizes[-from_end] if from_end <= len(sizes) else None
        return None if number is None else self._number(number)

    def _cut(self, cut: Cut) -> Any:
        """The size of a slice: negative bounds count from the end, and no bound leaves the array."""
        whole = self._size(cut.of)
        bounds = (0 if cut.start is None else cut.start, whole if cut.stop is None else cut.stop)
        start, stop = (self._number(x) if isinstance(x, Value) else x for x in bounds)
        if whole is None or start is None or stop is None:
            return None
        return _computed("maximum", _computed("subtract", _place(stop, whole), _place(start, whole)), 0)

    def _collected(self, stack: Value) -> Any:
        """How many rows a loop inside collects: one in each of its iterations, whose number is that of its bound."""
        node = self.producers.get(stack)
        if node is None or not is_loop(node):
            return None
        loop = Loop.of(node)
        carry = loop.carries[node.results.index(stack)]
        start, push = self.producers.get(carry.init), definitions(loop.body).get(carry.next)
        is_one_each = push is not None and push.op.has_use(Use.PUSH) and push.operands[0] is carry.in_body
        counting = Counting.of(loop, self._constant)
        if start is None or start.op.name != "stack_new" or start.operands or not is_one_each or counting is None:
            return None
        if (counting.step, counting.beyond) != (1, 0) or self._constant(counting.carry.init) != 0:
            return None
        bound = counting.bound
        count = np.int64(bound) if isinstance(bound, np.ndarray) else self._number(bound)
        return None if count is None else apply("maximum", [count, np.int64(0)])

    def _constant(self, value: Value) -> np.ndarray | None:
        node = self.producers.get(value)
        constant = None if node is None else attributes.Constant.find(node)
        return None if constant is None else constant.value

    def _broadcast(self, node: Node, from_end: int) -> Any:
        """The size of an elementwise result along an axis that is counted from the end."""
        ranks = [(v, v.tensor.rank) for v in node.operands]
        sizes = [self._size(Size(v, rank + from_end)) for v, rank in ranks if rank >= -from_end]
        if any(n is None for n in sizes):
            return None
        found, *others = sizes
        for n in others:
            found = apply("where", [apply("equal", [found, np.int64(1)]), n, found])
        return found

    def _number(self, value: Value) -> Any:
        """A size that an op of the body is told."""
        node = self.producers.get(value)
        if node is None:
            return self._outside(value)
        if node.op.name == "constant":
            return attributes.Constant.of(node).value
        if node.op.name == "dim":
            return self._size(Size(node.operands[0], attributes.Axis.of(node).axis))
        if Trait.ELEMENTWISE not in node.op.traits:
            return None
        operands = [self._number(v) for v in node.operands]
        return None if any(n is None for n in operands) else apply(node.op.name, operands, node.attrs.given())

    def _outside(self, value: Value) -> Any:
        return self.starts[value] if value in self.starts else Tensor(self.builder, value)


def _place(bound: Any, size: Any) -> Any:
    """Where in an array a bound of a slice is."""
    counted = _computed("where", _computed("less", bound, 0), _computed("add", bound, size), bound)
    return _computed("minimum", _computed("maximum", counted, 0), size)


def _computed(op: str, *sizes: Any) -> Any:
    return apply(op, [np.int64(n) if isinstance(n, int) else n for n in sizes])
