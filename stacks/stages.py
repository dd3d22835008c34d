"""Updates that can be undone: what they overwrite is read before them, and is written back to undo them.

A value comes from another one in stages, each of which has patches: the elements that it overwrites, and where they
were. A stage says what stands on the forward side in place of its nodes, so that the patches are there.

- `Updates`: one update, or several that a mask joins. The patches are read in front of them.
- `Branches`: a branch whose sides update the value, or pass it on. What a side overwrites, and where, become further
  results of the branch; of the other sides these are what stands at the first position anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ctrlgrad.ir import OPS, Branch, Builder, Graph, Node, TensorType, Value, attributes, definitions, is_branch, uses
from ctrlgrad.records import record
from ctrlgrad.source import Source
from ctrlgrad.stacks.updates import Place, Producers, collected_rows, differences, last_places


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
