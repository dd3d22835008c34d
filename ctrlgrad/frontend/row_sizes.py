"""The sizes that a row which a loop collects has at its first iteration, computed before the loop.

A loop that never runs collects nothing, and its empty result still has a shape: where a size of a row is unknown until
run time, it follows from the sizes of what the loop starts with. Sizes pass through the ops of the body as in
`ctrlgrad.stacks.sizes`; beyond that, operands of an elementwise op are broadcast, and an op that is told a size is told
it here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, Node, Trait, Use, Value, attributes
from ctrlgrad.records import record
from ctrlgrad.stacks.sizes import Size, origin


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
        # What an op is told are the last of its result's unknown sizes.
        told = node.used_as(Use.SIZE)
        from_end = value.tensor.shape[axis:].count(None)
        return self._number(told[-from_end]) if from_end <= len(told) else None

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


__all__ = ["RowSizes"]
