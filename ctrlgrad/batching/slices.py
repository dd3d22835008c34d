"""Slices whose bounds differ from row to row, but whose length plainly does not: `x[i : i + 3]`.

Such a slice is an index array, `x[i + arange(3)]`, which rows may have each of their own. A slice that the end of the
array would cut short has no such form: it fails when the program runs, as an index that is out of range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Builder, Graph, Node, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.records import record

# Behind the end of every array.
_NOWHERE = np.int64(2**62)


@record
class _Offset:
    """A scalar as another one plus a number."""

    base: Value
    number: int


def _offset(value: Value, producers: Mapping[Value, Node]) -> _Offset:
    """What a scalar integer is counted from: sums with constants, and casts between integers, are seen through."""
    node = producers.get(value)
    if node is None or value.tensor.rank:
        return _Offset(value, 0)
    if node.op.name == "cast" and dtype_kind(node.operands[0].tensor.dtype) in "iu":
        return _offset(node.operands[0], producers)
    if node.op.name in ("add", "subtract"):
        left, right = node.operands
        number = _number(right, producers)
        if number is not None:
            found = _offset(left, producers)
            return _Offset(found.base, found.number + (number if node.op.name == "add" else -number))
        number = _number(left, producers) if node.op.name == "add" else None
        if number is not None:
            found = _offset(right, producers)
            return _Offset(found.base, found.number + number)
    return _Offset(value, 0)


def _number(value: Value, producers: Mapping[Value, Node]) -> int | None:
    node = producers.get(value)
    if node is None or node.op.name != "constant" or value.tensor.rank:
        return None
    return int(attributes.Constant.of(node).value)


@record
class _Part:
    """A slice of a key: the axis that it takes, its start, and its length."""

    axis: int
    start: Value
    length: int


def with_positions(node: Node, first: int, producers: Mapping[Value, Node]) -> Graph | None:
    """The node's operands -> its result, each slice with two traced bounds an index array; None where one has no
    known length. `first` operands stand before those of the key."""
    key: Key = attributes.Index.of(node).key
    given = iter(node.operands[first:])
    parts: list[_Part] = []
    rest: list[object] = []
    others: list[Value] = []
    axis = 0
    for item in key:
        if isinstance(item, slice) and DYNAMIC in (item.start, item.stop, item.step):
            if (item.start, item.stop, item.step) != (DYNAMIC, DYNAMIC, None):
                return None
            start, stop = next(given), next(given)
            from_start, from_stop = _offset(start, producers), _offset(stop, producers)
            if from_start.base is not from_stop.base:
                return None
            parts.append(_Part(axis, start, max(from_stop.number - from_start.number, 0)))
            item = slice(None)
        elif item is DYNAMIC:
            others.append(next(given))
        rest.append(item)
        axis += item is not None
    return _rewritten(node, first, parts, tuple(rest), others)  # type: ignore[arg-type]


def _rewritten(node: Node, first: int, parts: Sequence[_Part], rest: Key, others: Sequence[Value]) -> Graph:
    builder = Builder()
    inputs = {v: builder.input(v.type) for v in dict.fromkeys(node.operands)}
    # Read part by part, then what the rest of the key takes of it; an update is written back the same way.
    wholes = [inputs[node.operands[0]]]
    keys: list[tuple[Value, Key]] = []
    for part in parts:
        positions = _positions(builder, inputs[part.start], part.length)
        key: Key = tuple(DYNAMIC if a == part.axis else slice(None) for a in range(wholes[-1].tensor.rank))
        keys.append((positions, key))
        wholes.append(builder.emit("getitem", [wholes[-1], positions], {"key": key}))
    operands = [inputs[v] for v in others]
    part_of = wholes.pop()
    if node.op.name == "getitem":
        return builder.finish([builder.emit("getitem", [part_of, *operands], {"key": rest})])
    values = [inputs[v] for v in node.operands[1:first]]
    changed = builder.emit(node.op.name, [part_of, *values, *operands], {"key": rest})
    for whole, (positions, key) in zip(reversed(wholes), reversed(keys), strict=True):
        changed = builder.emit("setitem", [whole, changed, positions], {"key": key})
    return builder.finish([changed])


def _positions(builder: Builder, start: Value, length: int) -> Value:
    """start, start + 1, ...; nowhere for a slice that would begin before the end and stop after the beginning."""
    begin = builder.emit("cast", [start], {"dtype": np.dtype(np.int64)})
    zero, end = builder.constant(np.int64(0)), builder.emit("add", [begin, builder.constant(np.int64(length))])
    from_end = builder.emit("less", [begin, zero])
    round_the_end = builder.emit("logical_and", [from_end, builder.emit("greater_equal", [end, zero])])
    positions = builder.emit("add", [begin, builder.constant(np.arange(length))])
    return builder.emit("where", [round_the_end, builder.constant(_NOWHERE), positions])
