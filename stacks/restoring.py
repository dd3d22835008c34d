"""Carries of a loop that are updated in part: the backward loop restores them instead of popping each of their values.

An iteration that writes a row of a cache leaves the rest of it as it was. The backward loop begins with what the cache
was after the last iteration, and undoes the updates one after the other: before an update the forward loop pushes the
elements that it overwrites, and the backward loop writes them back. Moving elements is exact, whatever the update does
with them, so what is restored has the bits of what was carried; and where an update names a position twice, what is
written back there is the same twice. A loop of T iterations then saves T rows, not T caches.

    forward   old = cache[i]    push old    next = cache with i updated
    backward  pop old           cache = next with cache[i] = old

An update under a mask is one too: `where(mask, updated, cache)` differs from `cache` at no position but those updated,
also if what is updated is in its turn `where(mask, cache, anything)`. So the rows of a batch that have left a loop are
restored with the others.

So is one in a branch: what it overwrites, and where, become further results of the branch. Of a branch without that
update they are what stands at its first position anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ctrlgrad.ir import OPS, Branch, Builder, Graph, Node, TensorType, Value, attributes, definitions, is_branch, uses
from ctrlgrad.ir.control import Carry
from ctrlgrad.source import Source
from ctrlgrad.stacks.choice import bytes_of

# What a mask is known to be at a position.
_Known = Mapping[Value, bool]


@dataclass(frozen=True, eq=False)
class Patch:
    """Elements that an update overwrites, and where they were."""

    old: Value
    indices: tuple[Value, ...]
    key: attributes.Index
    source: Source | None

    def undone(self, after: Value, old: Value, indices: Iterable[Value], before: Value) -> Node:
        """The node that makes `before` of `after`, from what stands for the elements and the indices."""
        return Node(OPS["setitem"], (after, old, *indices), (before,), self.key, (), self.source)


@dataclass(frozen=True, eq=False)
class Stage:
    """`after` differs from `before` at no position but those of the patches, which are undone in this order."""

    before: Value
    after: Value
    patches: tuple[Patch, ...]
    # The forward nodes that it changes.
    nodes: tuple[Node, ...]

    def prepared(self, node: Node) -> Sequence[Node]:
        """What stands on the forward side for a node, or for what took its place already: that makes what is patched,
        too."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Updates(Stage):
    """Updates of `before`, or of what is `before` where a mask lets it through."""

    # By what an update gives: the nodes that read what it overwrites.
    readings: Mapping[Value, Sequence[Node]]

    @staticmethod
    def of(before: Value, after: Value, updates: Iterable[Node]) -> Updates:
        different: dict[tuple[str, tuple[Value, ...]], Node] = {}
        for node in updates:
            different.setdefault((repr(node.attrs), node.operands[2:]), node)
        nodes = tuple(different.values())
        readings = {node.result: _reading(before, node) for node in nodes}
        patches = (
            Patch(
                readings[node.result][-1].result,
                node.operands[2:],
                attributes.Index.of(node),
                node.source and node.source.recomputed,
            )
            for node in nodes
        )
        return Updates(before, after, tuple(patches), nodes, readings)

    def prepared(self, node: Node) -> Sequence[Node]:
        return (*(new for v in node.results for new in self.readings.get(v, ())), node)


def _reading(value: Value, update: Node) -> Sequence[Node]:
    """The nodes that read what an update of a value overwrites, the last of which gives that."""
    maker = Builder()
    maker.source = update.source
    _, given, *indices = update.operands
    old = maker.emit("getitem", [value, *indices], attributes.Index.of(update), hint="old")
    if not old.tensor.is_static and given.tensor.rank == old.tensor.rank:
        # A slice with bounds of its own is as long as what is written there, unless that is repeated.
        sizes = [d if d not in (None, 1) else s for d, s in zip(given.tensor.shape, old.tensor.shape, strict=True)]
        if None not in sizes:
            maker.emit("reshape", [old], {"shape": tuple(sizes)}, hint="old")
    return maker.nodes


@dataclass(frozen=True, eq=False)
class _Side:
    """How a branch makes its result of one of its inputs."""

    input: Value
    output: Value
    stages: Sequence[Stage]

    @property
    def patches(self) -> list[Patch]:
        return [patch for stage in self.stages for patch in stage.patches]


@dataclass(frozen=True, eq=False)
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
        if len(before) > 1 or not exported or not all(map(_has_first_position, (after, *before), (exported, ()))):
            return None
        patches = (replace(p, old=_another(p.old), indices=tuple(map(_another, p.indices))) for p in exported)
        return Branches(before.pop(), after, tuple(patches), (node,), sides)

    def prepared(self, node: Node) -> Sequence[Node]:
        if self.after not in node.results:
            return (node,)
        branch = Branch.of(node)
        results = [v for patch in self.patches for v in (patch.old, *patch.indices)]
        regions = tuple(self._region(region, k) for k, region in enumerate(branch.branches))
        return (replace(branch, branches=regions, results=(*branch.results, *results)).node,)

    def _region(self, region: Graph, taken: int) -> Graph:
        side, maker = self.sides[taken], Builder()
        nodes = prepared(region.nodes, side.stages)
        outputs = list(region.outputs)
        for k in reversed(range(len(self.sides))):
            for patch in self.sides[k].patches:
                if k == taken:
                    outputs += [patch.old, *patch.indices]
                    continue
                # When it is undone, the updates of this side are, or are not yet.
                value = side.output if k > taken else side.input
                first = [maker.constant(np.zeros(v.tensor.shape, v.tensor.dtype)) for v in patch.indices]
                outputs += [maker.emit("getitem", [value, *first], patch.key, hint="old"), *first]
        return Graph(region.inputs, (*nodes, *maker.nodes), tuple(outputs), region.name)


def _another(value: Value) -> Value:
    return Value(value.type, value.hint)


def _has_first_position(value: Value, patches: Iterable[Patch]) -> bool:
    """Whether there is a first position wherever patches lie, and as many elements there."""
    shape = value.tensor.shape
    sliced = (part for p in patches for item in p.key.key if isinstance(item, slice) for part in _parts(item))
    is_static = all(v.tensor.is_static for p in patches for v in (p.old, *p.indices))
    return is_static and None not in shape and 0 not in shape and attributes.DYNAMIC not in sliced


def _parts(item: slice) -> tuple[object, ...]:
    return item.start, item.stop, item.step


def prepared(nodes: Iterable[Node], stages: Iterable[Stage]) -> list[Node]:
    """Forward nodes with those that make what is patched."""
    found = list(nodes)
    for stage in stages:
        found = [new for node in found for new in stage.prepared(node)]
    return found


def find_stages(
    value: Value,
    firsts: Collection[Value],
    producers: Mapping[Value, Node],
    count: Mapping[Value, int],
    masked: Value | None = None,
) -> list[Stage] | None:
    """How a value comes from one of `firsts` by updates alone, the last of them first; None if it does not.

    `count` has the uses of each value. Under a mask the first value may be `masked` alone.
    """
    stages: list[Stage] = []
    while value not in firsts:
        node = producers.get(value)
        if node is None or not isinstance(value.type, TensorType):
            return None
        stage: Stage | None = None
        if updates := _updates(value, producers, count):
            stage = Updates.of(updates[0].operands[0], value, updates)
        elif is_branch(node):
            stage = Branches.of(node, value)
        elif masked is not None and (updates := _differences(value, masked, producers, {}) or []):
            stage = Updates.of(masked, value, updates)
        if stage is None or stage.before.type != stage.after.type:
            return None
        stages.append(stage)
        value = stage.before
    return stages


@dataclass(frozen=True, eq=False)
class Restoring:
    """How a carry's next value comes from its value, by updates alone; the last of them first."""

    carry: Carry
    stages: Sequence[Stage]

    @staticmethod
    def of(carry: Carry, producers: Mapping[Value, Node], count: Mapping[Value, int]) -> Restoring | None:
        """None where a carry is not updated in parts, or the parts are not smaller than it."""
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
        """What the updates are undone with."""
        return [v for patch in self.patches for v in (patch.old, *patch.indices)]

    def undone(self, brought: Mapping[Value, Value]) -> list[Node]:
        """The nodes that restore the members; `brought` has what stands for each of these, and for the needs."""
        nodes = []
        for stage in self.stages:
            value = brought[stage.after]
            for patch in stage.patches:
                before = brought[stage.before] if patch is stage.patches[-1] else _another(value)
                indices = [brought[v] for v in patch.indices]
                nodes.append(patch.undone(value, brought[patch.old], indices, before))
                value = before
        return nodes


def is_update(node: Node) -> bool:
    """Whether a node gives its first operand back with new elements at some indices."""
    return node.op.updates and attributes.Index.find(node) is not None


def _updates(value: Value, producers: Mapping[Value, Node], count: Mapping[Value, int]) -> list[Node]:
    """The last update of a value, behind those before it that have the same indices and are used for it alone."""
    updates: list[Node] = []
    node = producers.get(value)
    while node is not None and is_update(node):
        if updates and (count[node.result] > 1 or not _has_indices_of(updates[0], node)):
            break
        updates.insert(0, node)
        node = producers.get(node.operands[0])
    return updates


def _has_indices_of(update: Node, other: Node) -> bool:
    return update.operands[2:] == other.operands[2:] and repr(update.attrs) == repr(other.attrs)


def _differences(value: Value, first: Value, producers: Mapping[Value, Node], known: _Known) -> list[Node] | None:
    """The updates at whose positions a value may differ from another one, where masks are what is known of them; None
    where it may differ elsewhere."""
    if value is first:
        return []
    node = producers.get(value)
    if node is None or value.type != first.type:
        return None
    if is_update(node):
        before = _differences(node.operands[0], first, producers, known)
        return None if before is None else [*before, node]
    if node.op.name != "where" or not first.tensor.is_static:
        return None
    mask, *sides = node.operands
    found: list[Node] = []
    for side, holds in zip(sides, (True, False), strict=True):
        if known.get(mask, holds) == holds:
            updates = _differences(side, first, producers, {**known, mask: holds})
            if updates is None:
                return None
            found += updates
    return found


@dataclass(eq=False)
class Restorable:
    """The carries of a loop that may be restored."""

    members: dict[Value, Restoring] = field(default_factory=dict)
    # What they are restored with.
    olds: set[Value] = field(default_factory=set)
    indices: set[Value] = field(default_factory=set)
    # The values of the loop's body that members take part in.
    following: set[Value] = field(default_factory=set)
    # Where updates are under masks, what they give is no member; it is had again by updating what is restored.
    updates: set[Node] = field(default_factory=set)

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
                if is_update(node) and node.operands[0] in found.following:
                    found.updates.add(node)
        return found

    def is_saved(self, value: Value) -> bool:
        """Whether a value, if needed, can only be saved: what a carry is restored with must not follow from carries."""
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
