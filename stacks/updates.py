"""Differences between two values: the indices of the updates between them.

After an update at `i`, `next` differs from `cache` there alone. The same holds under a mask, `where(mask, updated,
cache)`, also if the update's operand is itself `where(mask, cache, anything)`. And it holds for one part of an array if
a loop takes the rows of the array one by one, updates each at the same indices, and collects them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ctrlgrad.ir import Counting, Loop, Node, TensorType, Use, Value, attributes, definitions, is_loop
from ctrlgrad.ir.attributes import Key
from ctrlgrad.records import record
from ctrlgrad.source import Source
from ctrlgrad.stacks.lengths import constant_of

Producers = Mapping[Value, Node]


def is_update(node: Node) -> bool:
    """Return true if a node gives its first operand back with new elements at some indices."""
    return node.op.updates and attributes.Index.find(node) is not None


@record(eq=False)
class Place:
    """Place of an update: the part of the operand that it changes."""

    # The node that changes it, and what that gives.
    node: Node
    made: Value
    key: attributes.Index
    indices: tuple[Value, ...]
    written: TensorType | None
    source: Source | None

    @staticmethod
    def of(update: Node) -> Place:
        _, written, *indices = update.operands
        key = attributes.Index.of(update)
        return Place(update, update.result, key, tuple(indices), written.tensor, update.source)

    def is_as(self, other: Place) -> bool:
        return self.indices == other.indices and repr(self.key) == repr(other.key)


def last_places(value: Value, producers: Producers, count: Mapping[Value, int]) -> tuple[Value, list[Place]]:
    """Return the places of a value's last update and of those just before it at the same place, and their operand.

    The earlier updates have no other uses; `count` has the uses. Without an update the list is empty.
    """
    places: list[Place] = []
    node = producers.get(value)
    while node is not None and is_update(node):
        place = Place.of(node)
        if places and (count[node.result] > 1 or not place.is_as(places[0])):
            break
        places.insert(0, place)
        value = node.operands[0]
        node = producers.get(value)
    return value, places


def differences(
    value: Value, first: Value, producers: Producers, known: Mapping[Value, bool] | None = None
) -> list[Place] | None:
    """The places where a value may differ from another one, masks being what is known of them; None where it may differ
    anywhere."""
    if value is first:
        return []
    known, node = known or {}, producers.get(value)
    if node is None or value.type != first.type:
        return None
    if is_update(node):
        before = differences(node.operands[0], first, producers, known)
        return None if before is None else [*before, Place.of(node)]
    if node.op.name != "where" or not first.tensor.is_static:
        return None  # what is of an unknown size may be repeated
    mask, *sides = node.operands
    found: list[Place] = []
    for side, holds in zip(sides, (True, False), strict=True):
        if known.get(mask, holds) == holds:
            places = differences(side, first, producers, {**known, mask: holds})
            if places is None:
                return None
            found += places
    return found


@record(eq=False)
class CollectedRows:
    """Array whose rows a loop takes, updates and collects; the result differs from the array at these places."""

    array: Value
    places: Sequence[Place]


def collected_rows(value: Value, producers: Producers) -> CollectedRows | None:
    """Return the array and the places, if a loop collects a value from updated rows of an array; else None."""
    made = producers[value]
    axes = tuple(range(value.tensor.rank))
    if made.op.name == "transpose":
        axes, made = attributes.Axes.of(made).axes, producers.get(made.operands[0], made)
    node = producers.get(made.operands[0]) if made.op.name == "stack_to_tensor" else None
    if node is None or not is_loop(node):
        return None
    loop, number = Loop.of(node), partial(constant_of, producers)
    (carry,) = (c for c in loop.carries if c.result is made.operands[0])
    inside, start, counting = definitions(loop.body), producers.get(carry.init), Counting.of(loop, number)
    if start is None or start.op.name != "stack_new" or start.operands:
        return None
    if counting is None or counting.step != 1 or number(counting.carry.init) != 0:
        return None
    push = inside.get(carry.next)
    if push is None or push.op.use(0) is not Use.PUSH or push.operands[0] is not carry.in_body:
        return None
    updates, row = list[Node](), inside.get(push.operands[1])
    while row is not None and is_update(row):
        updates.insert(0, row)
        row = inside.get(row.operands[0])
    outside = {c.in_body: c.outer for c in loop.captures}
    if row is None or row.op.name != "getitem" or row.operands[0] not in outside:
        return None
    array, axis = outside[row.operands[0]], _axis_of_rows(attributes.Index.of(row).key)
    if axis is None or row.operands[1:] != (counting.carry.in_body,) or array.type != value.type:
        return None
    if axes != (*range(1, axis + 1), 0, *range(axis + 1, len(axes))):
        return None
    if counting.count(number) != array.tensor.shape[axis]:
        return None
    places = []
    for update in updates:
        key, indices = attributes.Index.of(update).key, [outside.get(v) for v in update.operands[2:]]
        if None in key or None in indices:
            return None
        whole = attributes.Index(key=(*key[:axis], slice(None), *key[axis:]))
        known = tuple(v for v in indices if v is not None)
        places.append(Place(node, made.operands[0], whole, known, None, update.source))
    return CollectedRows(array, places)


def _axis_of_rows(key: Key) -> int | None:
    """The axis along which a key takes one row; None for any other key."""
    axes = [axis for axis, item in enumerate(key) if item != slice(None)]
    return axes[0] if len(axes) == 1 and key[axes[0]] is attributes.DYNAMIC else None
