"""Origin of the size of a dimension, so that sizes are captured rather than saved once per iteration.

`origin(producers, Size(v, axis))` follows a dimension that is unknown until run time back through the nodes that pass
it on: the rows of a product are those of its left operand, a transpose renames axes, an elementwise op has the one
unknown size among its operands. It stops at an input or where the size is really computed.

And the number of rows of a stack, if constants of the graph determine it. The cotangent of an unused stack is a new
stack of the same number of rows, none of them written. If that number is constant, the forward side need not supply it,
and in a loop nothing is pushed for it. So the stack that a scan's gradient pops its rows off disappears, since the loop
runs as often as there are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ctrlgrad.ir import (
    Branch,
    Call,
    Counting,
    Graph,
    Loop,
    Node,
    TensorType,
    Trait,
    Use,
    Value,
    attributes,
    definitions,
    view,
)
from ctrlgrad.ir.attributes import DYNAMIC, Constant, Write
from ctrlgrad.ir.control import Number
from ctrlgrad.records import record


@record
class Size:
    """The size of one axis of a tensor."""

    value: Value
    axis: int


def origin(producers: Mapping[Value, Node], size: Size) -> Size:
    """The first size in the chain that is known to equal this one."""
    known: dict[Size, Size] = {}
    waiting = [size]
    while waiting:
        here = waiting[-1]
        node = producers.get(here.value)
        sources = [] if node is None else _sources(producers, node, here.axis)
        missing = [source for source in sources if source not in known]
        if missing:
            waiting += missing
            continue
        found = {known[source] for source in sources}
        known[waiting.pop()] = found.pop() if len(found) == 1 else here
    return known[size]


def _sources(producers: Mapping[Value, Node], node: Node, axis: int) -> list[Size]:
    """Sizes of operands that a result's size equals, if they are one size."""
    if Trait.ELEMENTWISE in node.op.traits:
        return _elementwise(node, axis)
    found = _source(producers, node, axis)
    return [] if found is None else [found]


def _source(producers: Mapping[Value, Node], node: Node, axis: int) -> Size | None:
    """Return the operand's size that a result's size equals, if the op passes one on."""
    name = node.op.name
    teller = producers.get(size) if (size := told(node, axis)) is not None else None
    if teller is not None and teller.op.name == "dim":
        return Size(teller.operands[0], attributes.Axis.of(teller).axis)
    first = node.operands[0] if node.operands else None
    if first is None or not isinstance(first.type, TensorType):
        return None
    if Trait.SHAPE_OF_FIRST in node.op.traits:
        return Size(first, axis)
    reduction = attributes.Reduction.find(node)
    if reduction is not None and reduction.keepdims:
        return Size(first, axis) if axis not in reduction.axes else None
    if reduction is not None or name == "squeeze":
        gone = attributes.Axes.of(node).axes
        return Size(first, [a for a in range(first.type.rank) if a not in gone][axis])
    if name == "transpose":
        return Size(first, attributes.Axes.of(node).axes[axis])
    if name == "expand_dims":
        new = attributes.Axes.of(node).axes
        kept = [a for a in range(node.result.tensor.rank) if a not in new]
        return Size(first, kept.index(axis)) if axis in kept else None
    if name == "matmul":
        rank = node.result.tensor.rank
        if axis == rank - 1:
            return Size(node.operands[1], node.operands[1].tensor.rank - 1)
        return Size(first, first.type.rank - 2) if axis == rank - 2 else None
    if name == "concat" and axis != attributes.Axis.of(node).axis:
        return Size(first, axis)
    if name == "getitem":
        return _whole_slice(node, axis)
    return None


def told(node: Node, axis: int) -> Value | None:
    """The operand that tells an op the size of an axis of its result, if one does."""
    given = attributes.Shape.find(node)
    if given is None:
        return None
    axes = given.axes if isinstance(given, attributes.Required) else range(len(given.shape))
    unknown = [a for a, d in zip(axes, given.shape, strict=True) if d is None]
    return node.used_as(Use.SIZE)[unknown.index(axis)] if axis in unknown else None


def _elementwise(node: Node, axis: int) -> list[Size]:
    from_end = axis - node.result.tensor.rank
    here = [v.tensor.shape[from_end] for v in node.operands if v.tensor.rank >= -from_end]
    if any(d not in (None, 1) for d in (*here, node.result.tensor.shape[axis])):
        # One size is known: an operand whose size is unknown may be of size 1.
        return []
    return [
        Size(v, v.tensor.rank + from_end)
        for v in node.operands
        if v.tensor.rank >= -from_end and v.tensor.shape[from_end] is None
    ]


def _whole_slice(node: Node, axis: int) -> Size | None:
    """For a key of scalars and slices: the axis that a whole slice takes over."""
    found = _sliced(node, axis)
    return found[0] if found is not None and found[1] == slice(None) else None


def _sliced(node: Node, axis: int) -> tuple[Size, slice] | None:
    """For a key of scalars and slices: the axis that a slice is of, and the slice, operands in their places."""
    if any(v.tensor.rank > 0 for v in node.operands[1:]):
        return None
    source, position, bounds = 0, 0, iter(node.operands[1:])
    for item in attributes.Index.of(node).key:
        kept = item is None or isinstance(item, slice)
        if isinstance(item, slice):
            item = slice(*(next(bounds) if part is DYNAMIC else part for part in (item.start, item.stop, item.step)))
        elif item is DYNAMIC:
            next(bounds)
        if kept and position == axis:
            return (Size(node.operands[0], source), item) if isinstance(item, slice) else None
        position += kept
        source += item is not None
    return None


@record
class Cut:
    """The size of a slice with steps of 1: of which size, and its bounds: numbers, operands, None for the ends."""

    of: Size
    start: Value | int | None
    stop: Value | int | None

    @staticmethod
    def find(node: Node, axis: int) -> Cut | None:
        """Return the bounds that cut a size of a node's result out of its operand's; None if it is no such slice."""
        found = _sliced(node, axis) if node.op.name == "getitem" else None
        if found is None or found[1].step not in (None, 1):
            return None
        return Cut(found[0], found[1].start, found[1].stop)


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
