"""Carries of a loop that are updated in part: the backward loop restores them instead of popping each of their values.

An iteration that writes a row of a cache leaves the rest of it unchanged. The backward loop begins with the cache after
the last iteration, and undoes the updates one after the other: before an update the forward loop pushes the elements
that it overwrites, and the backward loop writes them back. Moving elements is exact, so restored values equal the
carried ones bit by bit. If an update names a position twice, the same old element is written back there twice. A loop
of T iterations then saves T rows, not T caches.

    forward   old = cache[i]    push old    next = cache with i updated
    backward  pop old           cache = next with cache[i] = old

After an update at `i`, `next` differs from `cache` there alone. The same holds under a mask, `where(mask, updated,
cache)`, also if the update's operand is itself `where(mask, cache, anything)`. And it holds for one part of an array if
a loop takes the rows of the array one by one, updates each at the same indices, and collects them.

A value comes from another one in stages, each of which has patches: the elements that it overwrites, and where they
were. A stage says what stands on the forward side in place of its nodes, so that the patches are there.

- `Updates`: one update, or several that a mask joins. The patches are read in front of them.
- `Branches`: a branch whose sides update the value, or pass it on. What a side overwrites, and where, become further
  results of the branch; of the other sides these are what stands at the first position anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

import numpy as np

from ctrlgrad.ir import (
    OPS,
    Branch,
    Builder,
    Counting,
    Graph,
    Loop,
    Node,
    TensorType,
    Use,
    Value,
    attributes,
    definitions,
    is_branch,
    is_loop,
    uses,
)
from ctrlgrad.ir.attributes import Key
from ctrlgrad.ir.control import Carry
from ctrlgrad.records import record
from ctrlgrad.source import Source
from ctrlgrad.stacks.choice import bytes_of
from ctrlgrad.stacks.sizes import constant_of

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


@record(eq=False)
class Patch:
    """Elements that an update overwrites, and where they were."""

    old: Value
    indices: tuple[Value, ...]
    key: attributes.Index
    source: Source | None

    def undone(self, after: Value, old: Value, indices: Iterable[Value], before: Value) -> Node:
        """The node that makes `before` of `after`, from what stands for the elements and the indices."""
        source = self.source and self.source.recomputed
        return Node(OPS["setitem"], (after, old, *indices), (before,), self.key, (), source)


@record(eq=False)
class Stage(ABC):
    """`after` differs from `before` at no position but those of the patches, which are undone in this order."""

    before: Value
    after: Value
    patches: tuple[Patch, ...]
    # The forward nodes that it changes.
    nodes: tuple[Node, ...]

    @abstractmethod
    def prepared(self, node: Node) -> Sequence[Node]:
        """Return the forward nodes that replace a node, or its earlier replacement, and compute the patches too."""


def prepared(nodes: Iterable[Node], stages: Iterable[Stage]) -> list[Node]:
    """Forward nodes with those that make what is patched."""
    found = list(nodes)
    for stage in stages:
        found = [new for node in found for new in stage.prepared(node)]
    return found


@record(eq=False)
class Updates(Stage):
    """Updates of `before`, or of what is `before` where a mask lets it through."""

    # By what an update gives: the nodes that read what it overwrites.
    readings: Mapping[Value, Sequence[Node]]

    @staticmethod
    def of(before: Value, after: Value, places: Iterable[Place]) -> Updates:
        different: list[Place] = []
        for place in places:
            if not any(place.is_as(other) for other in different):
                different.append(place)
        patches, readings = [], dict[Value, list[Node]]()
        for place in different:
            reading = _reading(before, place)
            patches.append(Patch(reading[-1].result, place.indices, place.key, place.source))
            readings.setdefault(place.made, []).extend(reading)
        nodes = tuple(dict.fromkeys(place.node for place in different))
        return Updates(before, after, tuple(patches), nodes, readings)

    def prepared(self, node: Node) -> Sequence[Node]:
        return (*(new for v in node.results for new in self.readings.get(v, ())), node)


def _reading(value: Value, place: Place) -> Sequence[Node]:
    """The nodes that read a part of a value, the last of which gives that."""
    maker = Builder()
    maker.source = place.source
    old = maker.emit("getitem", [value, *place.indices], place.key, hint="old")
    if place.written is not None and not old.tensor.is_static and place.written.rank == old.tensor.rank:
        # A slice with bounds of its own is as long as what is written there, unless that is repeated.
        shapes = zip(place.written.shape, old.tensor.shape, strict=True)
        sizes = tuple(d if d not in (None, 1) else size for d, size in shapes)
        if None not in sizes:
            maker.emit("reshape", [old], {"shape": sizes}, hint="old")
    return maker.nodes


@record(eq=False)
class _Side:
    """Side of a branch: the input that its result comes from, and the stages between them."""

    input: Value
    output: Value
    stages: Sequence[Stage]

    @property
    def patches(self) -> list[Patch]:
        return [patch for stage in self.stages for patch in stage.patches]


@record(eq=False)
class Branches(Stage):
    """A branch each of whose sides updates the value or passes it on. Those of the last side are undone first."""

    sides: Sequence[_Side]

    @staticmethod
    def of(node: Node, after: Value) -> Branches | None:
        branch = Branch.of(node)
        position = branch.results.index(after)
        before, sides = set[Value](), list[_Side]()
        for region in branch.branches:
            value = region.outputs[position]
            stages = find_stages(value, region.inputs, definitions(region), uses(region))
            if stages is None:
                return None
            sides.append(_Side(stages[-1].before if stages else value, value, stages))
            before.add(branch.operands[region.inputs.index(sides[-1].input)])
        exported = [patch for side in reversed(sides) for patch in side.patches]
        if len(before) > 1 or not _have_first_position(after, exported):
            return None
        patches = (replace(p, old=another(p.old), indices=tuple(map(another, p.indices))) for p in exported)
        return Branches(before.pop(), after, tuple(patches), (node,), sides)

    def prepared(self, node: Node) -> Sequence[Node]:
        if self.after not in node.results:
            return (node,)
        branch = Branch.of(node)
        results = [v for patch in self.patches for v in (patch.old, *patch.indices)]
        regions = tuple(self._region(region, k) for k, region in enumerate(branch.branches))
        return (replace(branch, branches=regions, results=(*branch.results, *results)).node,)

    def _region(self, region: Graph, taken: int) -> Graph:
        side, outputs = self.sides[taken], list(region.outputs)
        first, last = Builder(), Builder()
        for k in reversed(range(len(self.sides))):
            for patch in self.sides[k].patches:
                if k == taken:
                    outputs += [patch.old, *patch.indices]
                    continue
                # When it is undone, the updates of this side are not yet, or are.
                value, reader = (side.output, last) if k > taken else (side.input, first)
                indices = [first.constant(np.zeros(v.tensor.shape, v.tensor.dtype)) for v in patch.indices]
                outputs += [reader.emit("getitem", [value, *indices], patch.key, hint="old"), *indices]
        nodes = (*first.nodes, *prepared(region.nodes, side.stages), *last.nodes)
        return Graph(region.inputs, nodes, tuple(outputs), region.name)


def another(value: Value) -> Value:
    """Another value of the same type and name."""
    return Value(value.type, value.hint)


def _have_first_position(array: Value, patches: Sequence[Patch]) -> bool:
    """True if there are patches, all of static sizes, and the array has a first position."""
    sliced = [item for p in patches for item in p.key.key if isinstance(item, slice)]
    if any(attributes.DYNAMIC in (item.start, item.stop, item.step) for item in sliced):
        return False
    is_static = all(v.tensor.is_static for p in patches for v in (p.old, *p.indices))
    return bool(patches) and is_static and array.tensor.is_static and 0 not in array.tensor.shape


def find_stages(
    value: Value,
    firsts: Collection[Value],
    producers: Producers,
    count: Mapping[Value, int],
    masked: Value | None = None,
) -> list[Stage] | None:
    """Find the updates by which a value comes from one of `firsts`, the last first; None if it does not.

    `count` has the uses of each value. Under a mask the first value may be `masked` alone.
    """
    stages: list[Stage] = []
    while value not in firsts:
        stage = _stage(value, producers, count, masked) if isinstance(value.type, TensorType) else None
        if stage is None or stage.before.type != value.type:
            return None
        stages.append(stage)
        value = stage.before
    return stages


def _stage(value: Value, producers: Producers, count: Mapping[Value, int], masked: Value | None) -> Stage | None:
    if value not in producers:
        return None
    before, places = last_places(value, producers, count)
    if places:
        return Updates.of(before, value, places)
    if is_branch(producers[value]):
        return Branches.of(producers[value], value)
    rows = collected_rows(value, producers)
    if rows is not None and rows.places:
        return Updates.of(rows.array, value, rows.places)
    found = None if masked is None else differences(value, masked, producers)
    return Updates.of(masked, value, found) if masked is not None and found else None


@record(eq=False)
class Restoring:
    """A carry whose next value comes from its value by updates alone: the stages, the last of them first."""

    carry: Carry
    stages: Sequence[Stage]

    @staticmethod
    def of(carry: Carry, producers: Producers, count: Mapping[Value, int]) -> Restoring | None:
        """Return None if a carry is not updated in parts, or the parts are not smaller than the carry."""
        first = carry.in_body
        if not isinstance(first.type, TensorType) or any(v.type != first.type for v in (carry.init, carry.result)):
            return None
        stages = find_stages(carry.next, [first], producers, count, first)
        if not stages:
            return None
        restoring = Restoring(carry, stages)
        return restoring if sum(bytes_of(patch.old) for patch in restoring.patches) < bytes_of(first) else None

    @property
    def members(self) -> tuple[Value, ...]:
        """The values that are restored."""
        return (*(stage.after for stage in self.stages), self.carry.in_body)

    @property
    def patches(self) -> list[Patch]:
        return [patch for stage in self.stages for patch in stage.patches]

    @property
    def needs(self) -> list[Value]:
        """The values with which the updates are undone."""
        return [v for patch in self.patches for v in (patch.old, *patch.indices)]

    def undone(self, brought: Mapping[Value, Value]) -> list[Node]:
        """The nodes that restore the members; `brought` has what stands for each of these, and for the needs."""
        nodes = []
        for stage in self.stages:
            value = brought[stage.after]
            for patch in stage.patches:
                before = brought[stage.before] if patch is stage.patches[-1] else another(value)
                indices = [brought[v] for v in patch.indices]
                nodes.append(patch.undone(value, brought[patch.old], indices, before))
                value = before
        return nodes


@record(eq=False, frozen=False)
class Restorable:
    """The carries of a loop that may be restored."""

    members: dict[Value, Restoring] = field(default_factory=dict)
    # The values with which the members are restored.
    olds: set[Value] = field(default_factory=set)
    indices: set[Value] = field(default_factory=set)
    # The values of the loop's body that members take part in.
    following: set[Value] = field(default_factory=set)

    @staticmethod
    def of(restorings: Iterable[Restoring], nodes: Sequence[Node]) -> Restorable:
        """`nodes` are those of the loop's body."""
        found = Restorable()
        for restoring in restorings:
            found.members.update(dict.fromkeys(restoring.members, restoring))
            found.olds.update(patch.old for patch in restoring.patches)
            found.indices.update(v for patch in restoring.patches for v in patch.indices)
        found.following.update(found.members)
        for node in nodes:
            if not found.following.isdisjoint(node.operands):
                found.following.update(node.results)
        return found

    def is_saved(self, value: Value) -> bool:
        """True if a value, if needed, can only be saved: values that restore a carry must not depend on carries."""
        return value in self.olds or (value in self.indices and value in self.following)


def placed(nodes: Iterable[Node], chains: Iterable[Sequence[Node]]) -> list[Node]:
    """Nodes with those of chains among them, each as late as can be: a value that is read before another one takes its
    place is not copied."""
    found: list[Node] = []
    left = [list(chain) for chain in chains]

    def reach(wanted: Container[Value]) -> None:
        for chain in left:
            last = max((i for i, node in enumerate(chain) if node.result in wanted), default=-1)
            found.extend(chain[: last + 1])
            del chain[: last + 1]

    for node in nodes:
        reach(node.operands)
        found.append(node)
    for chain in left:
        found += chain
    return found
