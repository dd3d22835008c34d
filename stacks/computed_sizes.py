"""Sizes that the backward side computes again, from those that it has: of slices, of what was joined, of what was told.

A size that is neither kept by a loop nor that of something outside of it would be saved once per iteration; and
where rows are mapped, each would then have one of its own.
"""

from __future__ import annotations

import functools
from typing import Protocol

from ctrlgrad.ir import INDEX, Builder, Node, Value
from ctrlgrad.stacks.sizes import Cut, Size, told


class Resolving(Protocol):
    """The part of a scope that brings forward values to its backward side."""

    backward: Builder
    producers: dict[Value, Node]

    def resolve(self, value: Value | Size) -> Value: ...


def computed_again(scope: Resolving, size: Size) -> Value | None:
    """The size on the backward side; None where it is known, or not computed of others."""
    node = scope.producers.get(size.value)
    if node is None or size.value.tensor.shape[size.axis] is not None:
        return None
    emit = functools.partial(_emitted, scope.backward)
    number = told(node, size.axis)
    if number is not None:
        return _index(scope, number)
    if node.op.name == "concat":
        return functools.reduce(
            functools.partial(emit, "add"), [scope.resolve(Size(v, size.axis)) for v in node.operands]
        )
    cut = Cut.find(node, size.axis)
    if cut is None:
        return None
    start, stop = (_index(scope, bound) if isinstance(bound, Value) else bound for bound in (cut.start, cut.stop))
    return cut.length(emit, scope.resolve(cut.of), start, stop)


def _index(scope: Resolving, number: Value) -> Value:
    found = scope.resolve(number)
    return found if found.type == INDEX else scope.backward.emit("cast", [found], {"dtype": INDEX.dtype})


def _emitted(builder: Builder, op: str, *numbers: Value | int) -> Value:
    return builder.emit(op, [builder.constant(n, INDEX.dtype) if isinstance(n, int) else n for n in numbers])


__all__ = ["computed_again"]
