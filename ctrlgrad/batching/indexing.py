"""Batching of indexed reads and updates.

An index that differs from row to row becomes an index array; beside an indexed array with rows it is paired
with the rows' own numbers. NumPy puts the axes of index arrays in front where something separates
them, so results are transposed back, and values of updates are transposed to where they are expected.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Batched, Guard, Lane, fit, nothing, set_apart
from ctrlgrad.batching.slices import with_positions
from ctrlgrad.batching.table import batches
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import Node, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC, Item, Key
from ctrlgrad.ops.term import Term, constant, emit, reshape, transpose
from ctrlgrad.records import record


@record
class _Layout:
    """Where index arrays put their axes in the result of `x[key]`."""

    at: int
    joined: int
    rest: int

    @staticmethod
    def of(key: Key, ranks: Sequence[int]) -> _Layout:
        """`ranks` are those of the operands that fill the key's placeholders."""
        joined = max((rank for rank, bound in zip(ranks, _slice_bounds(key), strict=True) if not bound), default=0)
        at = rest = 0
        places: list[int] = []
        for position, item in enumerate(key):
            if item is None or isinstance(item, slice):
                rest += 1
            elif joined:
                at = at if places else rest
                places.append(position)
        adjacent = not places or places[-1] - places[0] + 1 == len(places)
        return _Layout(at if adjacent else 0, joined, rest)


@record
class _Index:
    """The batched form of a key: what to index with, and how to bring the result's axes into order."""

    key: Key
    operands: list[Term]
    # The result's axes in the order (rows, axes of one row's result).
    order: tuple[int, ...]


def _index(batcher: Batcher, node: Node, indices: Sequence[Value], own: Term | None) -> _Index:
    """The batched key. `own`: the number of the row that each row reads or writes; None where x has no rows."""
    key: Key = attributes.Index.of(node).key
    before = _Layout.of(key, [v.tensor.rank for v in indices])
    if all(batcher.is_same(v) for v in indices):
        after = _Layout.of((slice(None), *key), [v.tensor.rank for v in indices])
        rest, joined = _split(after)
        order = (rest[0], *rest[1 : 1 + before.at], *joined, *rest[1 + before.at :])
        return _Index((slice(None), *key), [batcher.term(v) for v in indices], order)
    operands = [
        batcher.term(v) if bound else batcher.aligned(v, before.joined)
        for v, bound in zip(indices, _slice_bounds(key), strict=True)
    ]
    if own is not None:
        key = (DYNAMIC, *key)
        operands = [reshape(own, [batcher.rows.count(batcher.builder), *[1] * before.joined]), *operands]
    rest, (rows, *joined) = _split(_Layout.of(key, [t.rank for t in operands]))
    return _Index(key, operands, (rows, *rest[: before.at], *joined, *rest[before.at :]))


def _split(layout: _Layout) -> tuple[list[int], list[int]]:
    """The result's axes: those that no index array takes, and those of the index arrays."""
    axes = list(range(layout.joined + layout.rest))
    end = layout.at + layout.joined
    return axes[: layout.at] + axes[end:], axes[layout.at : end]


def _slice_bounds(key: Key) -> list[bool]:
    """For each placeholder, whether it is a slice's bound."""
    found = []
    for item in key:
        if isinstance(item, slice):
            found += [True for part in (item.start, item.stop, item.step) if part is DYNAMIC]
        elif item is DYNAMIC:
            found.append(False)
    return found


def _own_slices(batcher: Batcher, node: Node, first: int) -> Sequence[Lane] | None:
    """The node where a slice's bound differs from row to row, by index arrays; None where none does.

    `first` operands stand before those of the key.
    """
    key: Key = attributes.Index.of(node).key
    indices = node.operands[first:]
    if not any(bound and not batcher.is_same(v) for v, bound in zip(indices, _slice_bounds(key), strict=True)):
        return None
    graph = with_positions(node, first, batcher.producers)
    if graph is None:
        raise TypeMismatchError(
            "vmap: a slice's bound differs from row to row, so the results would have different shapes",
            source=node.source,
            expected="bounds that do not depend on a mapped argument, or a length that plainly does not: x[i : i + 3]",
            got=f"x[{', '.join(_shown(item) for item in key)}] with a bound of each row's own",
            hint="index with an array, x[start + numpy.arange(n)], or multiply by a mask",
        )
    lanes = {v: batcher.lanes[u] for v, u in zip(graph.inputs, dict.fromkeys(node.operands), strict=True)}
    return type(batcher)(batcher.builder, batcher.rows, lanes).run(graph)


def _shown(item: Item) -> str:
    if isinstance(item, slice):
        # A bound that is a value of the program has no number.
        shown = {None: "", DYNAMIC: "t"}
        return ":".join(shown.get(part, str(part)) for part in (item.start, item.stop))
    return str(item)


@batches("getitem")
def _getitem(batcher: Batcher, node: Node) -> Sequence[Lane]:
    by_positions = _own_slices(batcher, node, 1)
    if by_positions is not None:
        return by_positions
    x, *indices = node.operands
    lane = batcher.lanes[x]
    shared = all(batcher.is_same(v) for v in indices)
    if not isinstance(lane, Batched):
        operand, own = batcher.term(x), None
    else:
        # A ghost reads the row that it follows where it lies: reading costs a row, whatever x's size.
        operand = Term(batcher.builder, lane.value)
        own = batcher.rows.iota(batcher.builder) if lane.guard is None else Term(batcher.builder, lane.guard.source)
    index = _index(batcher, node, indices, own)
    result = _ordered(emit("getitem", operand, *index.operands, key=index.key), index.order)
    if shared and isinstance(lane, Batched) and lane.guard is not None:
        # Every row has read its own.
        return [Batched(batcher.builder, fit(result, batcher.rows.of(node.result.tensor)).value, lane.guard)]
    return [batcher.lane(result)]


def _ordered(x: Term, order: tuple[int, ...]) -> Term:
    return x if order == tuple(range(len(order))) else transpose(x, order)


@batches("setitem additem")
def _update(batcher: Batcher, node: Node) -> Sequence[Lane]:
    by_positions = _own_slices(batcher, node, 2)
    if by_positions is not None:
        return by_positions
    x, value, *indices = node.operands
    per_row = not all(batcher.is_same(v) for v in indices)
    index = _index(batcher, node, indices, batcher.rows.iota(batcher.builder) if per_row else None)
    given = _value(batcher, value, index)
    apart = node.op.name == "setitem" and per_row and all(v.tensor.rank == 0 for v in indices)
    lane = batcher.lanes[x]
    guarded = lane if isinstance(lane, Batched) and lane.guard is not None else None
    target = batcher.batched(x) if guarded is None else Term(batcher.builder, guarded.value)
    if guarded is not None and guarded.guard is not None:
        given = _in_place_of_ghosts(node.op.name, target, given, index, guarded.guard)
    if apart:
        updated = set_apart(target, given, index.operands, index.key)
    else:
        updated = emit(node.op.name, target, given, *index.operands, key=index.key)
    return [batcher.lane(updated) if guarded is None else guarded.followed_by(batcher.builder, updated.value)]


def _in_place_of_ghosts(op: str, target: Term, given: Term, index: _Index, guard: Guard) -> Term:
    """The value of an update, where ghosts write what is there already: that costs what is written, not the array."""
    mask = Term(target.builder, guard.mask)
    mask = emit("expand_dims", mask, axes=tuple(a for a in range(len(index.order)) if a != index.order[0]))
    if op == "setitem":
        still = emit("getitem", target, *index.operands, key=index.key)
    else:
        still = constant(target.builder, nothing(target), target.dtype)
    return emit("where", mask, given, still)


def _value(batcher: Batcher, value: Value, index: _Index) -> Term:
    """The value of an update, its axes where the batched key expects them."""
    identity = tuple(range(len(index.order)))
    if batcher.is_same(value) and index.order == identity:
        return batcher.term(value)
    x = batcher.aligned(value, len(index.order) - 1)
    missing = len(index.order) - x.rank
    if missing:
        x = emit("expand_dims", x, axes=tuple(range(missing)))
    return _ordered(x, tuple(index.order.index(axis) for axis in identity))
