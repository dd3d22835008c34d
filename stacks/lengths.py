"""Number of rows of a stack, if constants of the graph determine it.

The cotangent of an unused stack is a new stack of the same number of rows, none of them written. If that number is
constant, the forward side need not supply it, and in a loop nothing is pushed for it. So the stack that a scan's
gradient pops its rows off disappears, since the loop runs as often as there are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ctrlgrad.ir import Branch, Call, Counting, Graph, Loop, Node, Use, Value, definitions, view
from ctrlgrad.ir.attributes import Constant, Write
from ctrlgrad.ir.control import Number
from ctrlgrad.records import record

# Number of rows that an op with this use of a stack adds to it.
_ADDED = {Use.PUSH: 1, Use.POP: -1, Use.PASS: 0}


@record
class Length:
    """So many rows more than an input of the graph has, or than none."""

    base: Value | None
    rows: int

    def plus(self, rows: int) -> Length:
        return Length(self.base, self.rows + rows)


def known_length(
    stack: Value,
    producers: Mapping[Value, Node],
    number: Number | None = None,
    outside: Callable[[Value], int | None] = lambda stack: None,
) -> int | None:
    """The number of rows, where constants say it.

    Args:
        producers: those of the stack's graph.
        number: knows the constants; without it those of the graph alone are.
        outside: knows how many rows a stack has that the graph is given.
    """
    number = number or (lambda value: constant_of(producers, value))
    found = _length(stack, producers, number)
    if found is None or found.base is None:
        return None if found is None else found.rows
    before = outside(found.base)
    return None if before is None else before + found.rows


def is_as_long(stack: Value, other: Value, producers: Mapping[Value, Node], number: Number) -> bool:
    """Return true if a stack has as many rows as another one, which is an input of the graph."""
    return _length(stack, producers, number) == Length(other, 0)


def _length(stack: Value, producers: Mapping[Value, Node], number: Number) -> Length | None:
    node = producers.get(stack)
    if node is None:
        return Length(stack, 0)
    place, inside = node.results.index(stack), view(node)
    if isinstance(inside, Loop):
        return _carried(inside, place, producers, number)
    if isinstance(inside, Branch):
        found = {_through(side, place, inside.operands, producers, number) for side in inside.branches}
        return found.pop() if len(found) == 1 else None
    if isinstance(inside, Call):
        return _through(inside.function, place, inside.operands, producers, number)
    return _made(node, number) or _changed(node, producers, number)


def _made(node: Node, number: Number) -> Length | None:
    """Length of a new stack."""
    if node.op.name == "stack_from_tensor":
        size = node.operands[0].tensor.shape[0]
        return None if size is None else Length(None, size)
    if node.op.name != "stack_new":
        return None
    if not node.operands:
        return Length(None, 0)
    rows = number(node.operands[0])
    return None if rows is None else Length(None, int(rows))


def _changed(node: Node, producers: Mapping[Value, Node], number: Number) -> Length | None:
    """Length of the next version of a stack. An update at an index keeps the length, unless it may grow the stack."""
    if not node.operands or not node.op.use(0).goes_on:
        return None
    rows = _ADDED.get(node.op.use(0))
    if rows is None:
        write = Write.find(node)
        is_longer = node.op.has_use(Use.SIZE) or (write is not None and write.grow)
        rows = None if is_longer else 0
    before = _length(node.operands[0], producers, number)
    return None if rows is None or before is None else before.plus(rows)


def _through(
    region: Graph, place: int, operands: Sequence[Value], producers: Mapping[Value, Node], number: Number
) -> Length | None:
    """Length of an output of a region with these operands."""
    outside = dict(zip(region.inputs, operands, strict=True))
    its = _inside(region, place, outside, number)
    if its is None or its.base is None:
        return its
    before = _length(outside[its.base], producers, number)
    return None if before is None else before.plus(its.rows)


def _carried(loop: Loop, place: int, producers: Mapping[Value, Node], number: Number) -> Length | None:
    """Length of a loop's result, if every iteration adds the same number of rows."""
    carry = loop.carries[place]
    step = _inside(loop.body, place, {c.in_body: c.outer for c in loop.captures}, number)
    before = _length(carry.init, producers, number)
    if step is None or step.base is not carry.in_body or before is None:
        return None
    if not step.rows:
        return before
    counting = Counting.of(loop, number)
    trips = None if counting is None else counting.count(number)
    return None if trips is None else before.plus(step.rows * trips)


def _inside(region: Graph, place: int, outside: Mapping[Value, Value], number: Number) -> Length | None:
    """Length of a region's output relative to its inputs; `outside` has the inputs that are the same at every run."""
    producers = definitions(region)

    def known(value: Value) -> np.ndarray | None:
        return number(outside[value]) if value in outside else constant_of(producers, value)

    return _length(region.outputs[place], producers, known)


def constant_of(producers: Mapping[Value, Node], value: Value) -> np.ndarray | None:
    """The value of a constant."""
    node = producers.get(value)
    constant = None if node is None else Constant.find(node)
    return None if constant is None else constant.value
