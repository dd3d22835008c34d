"""Batching rules of operations on arrays."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.batching.batcher import BATCH, Batcher, batches
from ctrlgrad.batching.lanes import (
    Batched,
    Fresh,
    Lane,
    Ragged,
    Same,
    Uniform,
    common,
    fit,
    greatest,
    nothing,
    redirect,
    set_apart,
)
from ctrlgrad.batching.stacks import as_uniform
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import INDEX, OPS, Builder, Graph, Node, Trait, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC, Item, Key
from ctrlgrad.ops.term import Term, constant, emit, ensure_sizes, reshape, sum_to, transpose
from ctrlgrad.records import record

# Batching of elementwise ops and linear systems: operands of lower rank get axes of size 1 after the batch axis.


@batches("solve triangular_solve")
def _of_one_rank(batcher: Batcher, node: Node) -> Sequence[Lane]:
    rank = max(v.tensor.rank for v in node.operands)
    return [batcher.lane(batcher.emit(node.op.name, [batcher.aligned(v, rank) for v in node.operands], node.attrs))]


BATCH |= {name: _of_one_rank for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits}


# Batching of reductions and scans: along the same axes, counted behind the batch axis.


@batches("sum prod max min any all argmax argmin")
def _reduction(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    if attributes.Reduction.of(node).all_rows:
        flat = batcher.term(x)
        return [batcher.lane_same(greatest(reshape(flat, [_product(flat.dims)])))]
    axes = tuple(axis % x.tensor.rank + 1 for axis in attributes.Axes.of(node).axes)
    return [
        batcher.lane(batcher.emit(node.op.name, [batcher.term(x)], replace(attributes.Reduction.of(node), axes=axes)))
    ]


def _product(dims: Sequence[int | Term]) -> int | Term:
    return functools.reduce(operator.mul, dims)


@batches("cumsum cumprod argsort top_k fft rfft irfft")
def _along_an_axis(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    axis = attributes.Axis.of(node).axis % x.tensor.rank + 1
    return [batcher.lane(batcher.emit(node.op.name, [batcher.term(x)], replace(attributes.Axis.of(node), axis=axis)))]


# Batching of matrix products. Rows times one shared matrix is a single product of all rows.


@batches("matmul")
def _matmul(batcher: Batcher, node: Node) -> Sequence[Lane]:
    a, b = node.operands
    if batcher.is_same(b) and a.tensor.rank == b.tensor.rank == 2:
        x, w = batcher.term(a), batcher.term(b)
        rows, m, k = x.dims
        flat = reshape(x, [rows * m, k]) @ w
        return [batcher.lane(reshape(flat, [rows, m, flat.dim(1)]))]
    rank = max(a.tensor.rank, b.tensor.rank)
    return [batcher.lane(batcher.aligned(a, rank) @ batcher.aligned(b, rank))]


@batches(
    """cholesky det adjugate logabsdet det_sign orthonormal eigenvalues eigenvectors
    general_eigenvalues general_eigenvectors singular_values singular_vectors"""
)
def _matrices(batcher: Batcher, node: Node) -> Sequence[Lane]:
    """Batch an op on the last two axes, which takes any axes before them."""
    return [batcher.lane(batcher.emit(node.op.name, [batcher.term(v) for v in node.operands], node.attrs))]


@batches("adjugate_along")
def _of_one_type(batcher: Batcher, node: Node) -> Sequence[Lane]:
    return [batcher.lane(batcher.emit(node.op.name, [batcher.batched(v) for v in node.operands], node.attrs))]


@batches("pinv")
def _pinv(batcher: Batcher, node: Node) -> Sequence[Lane]:
    a, rtol = node.operands
    return [batcher.lane(batcher.emit("pinv", [batcher.batched(a), batcher.aligned(rtol, a.tensor.rank - 2)]))]


# Batching of ops that find an order or positions.


@batches("searchsorted")
def _searchsorted(batcher: Batcher, node: Node) -> Sequence[Lane]:
    row, values = node.operands
    if batcher.is_same(row):
        return [batcher.lane(batcher.emit("searchsorted", [batcher.term(row), batcher.term(values)], node.attrs))]
    # Each row of examples has a sorted row of its own: count the elements that come before.
    rank = values.tensor.rank
    rows = batcher.aligned(row, rank + 1)
    sought = batcher.term(values)
    sought = emit("expand_dims", sought, axes=(sought.rank,))
    before = emit("less" if attributes.Search.of(node).side == "left" else "less_equal", rows, sought)
    if dtype_kind(rows.dtype) == "f":
        before = emit("logical_or", before, _before_nan(rows, sought, attributes.Search.of(node).side))
    return [batcher.lane(emit("sum", emit("cast", before, dtype=INDEX.dtype), axes=(rank + 1,), keepdims=False))]


def _before_nan(rows: Term, sought: Term, side: str) -> Term:
    """NaN is the last in the order: every number comes before it, and on the right side NaN too."""
    last = emit("isnan", sought)
    return last if side == "right" else emit("logical_and", last, emit("logical_not", emit("isnan", rows)))


@batches("nonzero")
def _nonzero(batcher: Batcher, node: Node) -> Sequence[Lane]:
    raise TypeMismatchError(
        "vmap: each row has a number of its own of elements that are not zero, so the results have different shapes",
        source=node.source,
        expected="nonzero (or indexing by a mask) of a value that does not depend on a mapped argument",
        got=str(node.operands[0].type),
        hint="numpy.where(mask, x, 0) keeps the shape; cumsum of the mask counts",
    )


# Batching of slots joined along an axis: where all rows have written equally many slots, the axis moves by one.


def _uniform(batcher: Batcher, node: Node, s: Value) -> Uniform:
    lane = batcher.lanes[s]
    if isinstance(lane, Ragged):
        raise TypeMismatchError(
            "vmap: TensorArray.concat where examples have written differently many slots",
            source=node.source,
            expected="arrays that every example writes at the same places",
            got="arrays that differ in length from example to example",
            hint="give element_shape without None, so that the slots of all examples have one size",
        )
    assert isinstance(lane, Same | Fresh | Uniform)
    return as_uniform(lane, batcher.rows)


def _counts(batcher: Batcher, v: Value) -> Term:
    """The row counts, which must be the same for all rows."""
    if not batcher.is_same(v):
        raise TypeMismatchError(
            "vmap: slots that differ in size from example to example cannot be joined",
            source=None,
            hint="write slots of one size, or use ctrlgrad.map in place of vmap",
        )
    return batcher.term(v)


@batches("stack_rows")
def _rows(batcher: Batcher, node: Node) -> Sequence[Lane]:
    s = _uniform(batcher, node, node.operands[0])
    counts = batcher.builder.emit("stack_rows", [s.value], {"axis": attributes.Axis.of(node).axis + 1})
    return [batcher.lane_same(Term(batcher.builder, counts))]


@batches("stack_concat")
def _concat(batcher: Batcher, node: Node) -> Sequence[Lane]:
    s, counts, *given = node.operands
    lane = _uniform(batcher, node, s)
    axis = attributes.Axis.of(node).axis
    unknown = [d for i, d in enumerate(lane.element.shape) if i != axis and d is None]
    count = batcher.rows.count(batcher.builder)
    sizes = [count, *(batcher.same(v) for v in given)] if len(unknown) == len(given) else []
    operands = [lane.value, _counts(batcher, counts).value, *(x.value for x in sizes if isinstance(x, Term))]
    attrs = replace(attributes.Concat.of(node), axis=axis + 1)
    joined = Term(batcher.builder, batcher.builder.emit("stack_concat", operands, attrs))
    return [batcher.lane(joined if lane.guard is None else redirect(joined, lane.guard))]


@batches("stack_split")
def _split(batcher: Batcher, node: Node) -> Sequence[Lane]:
    x, counts = node.operands
    attrs = {"axis": attributes.Axis.of(node).axis + 1, "element": batcher.rows.of(attributes.Split.of(node).element)}
    parts = [batcher.batched(x).value, _counts(batcher, counts).value]
    return [Uniform(batcher.builder, batcher.builder.emit("stack_split", parts, attrs))]


# Batching of ops that move elements: the same op on the axes after the batch axis.


def template(batcher: Batcher, node: Node, dims: Sequence[object] = ()) -> list[int | Term]:
    """The sizes that an op's shape attribute and its size operands give."""
    rest = iter(node.operands[len(dims) :])
    return [batcher.same(next(rest)) if d is None else d for d in attributes.Shape.of(node).shape]


def _moved(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes of one example as axes behind the batch axis."""
    return tuple(axis % rank + 1 for axis in axes)


@batches("constant")
def _constant(batcher: Batcher, node: Node) -> Sequence[Lane]:
    return [batcher.lane_same(batcher.emit("constant", [], node.attrs))]


@batches("dim")
def _dim(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    (axis,) = _moved((attributes.Axis.of(node).axis,), x.tensor.rank)
    return [batcher.lane_same(emit("dim", batcher.term(x), axis=axis))]


@batches("common_size")
def _common_size(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    batcher.rows.require_one_size()
    sizes = batcher.term(x)
    flat = reshape(sizes, [functools.reduce(operator.mul, sizes.dims)])
    return [batcher.lane_same(common(flat, attributes.Described.of(node).what))]


@batches("iota")
def _iota(batcher: Batcher, node: Node) -> Sequence[Lane]:
    return [batcher.lane_same(batcher.emit("iota", [batcher.same(v) for v in node.operands], node.attrs))]


@batches("reshape")
def _reshape(batcher: Batcher, node: Node) -> Sequence[Lane]:
    x = node.operands[0]
    dims = template(batcher, node, (x,))
    if batcher.is_same(x):
        return [batcher.lane_same(reshape(batcher.term(x), dims))]
    return [batcher.lane(reshape(batcher.term(x), [batcher.rows.count(batcher.builder), *dims]))]


@batches("ensure_sizes")
def _ensure_sizes(batcher: Batcher, node: Node) -> Sequence[Lane]:
    x, given = node.operands[0], attributes.Required.of(node)
    sizes = dict(zip(given.axes, template(batcher, node, (x,)), strict=True))
    if batcher.is_same(x):
        return [batcher.lane_same(ensure_sizes(batcher.term(x), sizes, given.problem, given.hint))]
    moved = {axis + 1: size for axis, size in sizes.items()}
    return [batcher.lane(ensure_sizes(batcher.term(x), moved, given.problem, given.hint))]


@batches("broadcast_to")
def _broadcast_to(batcher: Batcher, node: Node) -> Sequence[Lane]:
    x = node.operands[0]
    dims = template(batcher, node, (x,))
    unknown = [d for d in dims if isinstance(d, Term)]
    if batcher.is_same(x):
        return [batcher.lane_same(batcher.emit("broadcast_to", [batcher.term(x), *unknown], node.attrs))]
    count = batcher.rows.count(batcher.builder)
    unknown = [d for d in (count, *dims) if isinstance(d, Term)]
    shape = (batcher.rows.static, *attributes.Shape.of(node).shape)
    return [batcher.lane(batcher.emit("broadcast_to", [batcher.aligned(x, len(dims)), *unknown], {"shape": shape}))]


@batches("sum_to")
def _sum_to(batcher: Batcher, node: Node) -> Sequence[Lane]:
    x = node.operands[0]
    dims = template(batcher, node, (x,))
    if batcher.is_same(x):
        return [batcher.lane_same(sum_to(batcher.term(x), dims))]
    lead = x.tensor.rank - len(dims)
    total = sum_to(batcher.term(x), [batcher.rows.count(batcher.builder), *[1] * lead, *dims])
    return [batcher.lane(emit("squeeze", total, axes=tuple(range(1, 1 + lead))) if lead else total)]


@batches("transpose")
def _transpose(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    return [batcher.lane(transpose(batcher.term(x), (0, *_moved(attributes.Axes.of(node).axes, x.tensor.rank))))]


@batches("expand_dims")
def _expand_dims(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    return [
        batcher.lane(
            emit("expand_dims", batcher.term(x), axes=_moved(attributes.Axes.of(node).axes, node.result.tensor.rank))
        )
    ]


@batches("squeeze flip forget_sizes")
def _same_axes(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    return [
        batcher.lane(emit(node.op.name, batcher.term(x), axes=_moved(attributes.Axes.of(node).axes, x.tensor.rank)))
    ]


@batches("concat")
def _concat_rule(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (axis,) = _moved((attributes.Axis.of(node).axis,), node.result.tensor.rank)
    return [batcher.lane(batcher.emit("concat", [batcher.batched(v) for v in node.operands], {"axis": axis}))]


# Slices whose bounds differ from row to row, but whose length plainly does not: `x[i : i + 3]`.
#
# Such a slice is an index array, `x[i + arange(3)]`, which rows may have each of their own. A slice that the end of the
# array would cut short has no such form: it fails when the program runs, as an index that is out of range.


# Behind the end of every array.
_NOWHERE = np.int64(2**62)


@record
class _Offset:
    """A scalar as another one plus a number."""

    base: Value
    number: int


def _offset(value: Value, producers: Mapping[Value, Node]) -> _Offset:
    """Split a scalar integer into a base plus a constant, through sums with constants and casts between integers."""
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
        # start, start + 1, ...; nowhere for a slice that would begin before the end and stop after the beginning.
        begin = builder.emit("cast", [inputs[part.start]], {"dtype": np.dtype(np.int64)})
        zero, end = builder.constant(np.int64(0)), builder.emit("add", [begin, builder.constant(np.int64(part.length))])
        from_end = builder.emit("less", [begin, zero])
        round_the_end = builder.emit("logical_and", [from_end, builder.emit("greater_equal", [end, zero])])
        positions = builder.emit("add", [begin, builder.constant(np.arange(part.length))])
        positions = builder.emit("where", [round_the_end, builder.constant(_NOWHERE), positions])
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


# Batching of indexed reads and updates.
#
# An index that differs from row to row becomes an index array; beside an indexed array with rows it is paired
# with the rows' own numbers. NumPy puts the axes of index arrays in front where something separates
# them, so results are transposed back, and values of updates are transposed to where they are expected.


@record
class _Layout:
    """Positions of the axes of index arrays in the result of `x[key]`."""

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
        rest, joined = _split_index(after)
        order = (rest[0], *rest[1 : 1 + before.at], *joined, *rest[1 + before.at :])
        return _Index((slice(None), *key), [batcher.term(v) for v in indices], order)
    operands = [
        batcher.term(v) if bound else batcher.aligned(v, before.joined)
        for v, bound in zip(indices, _slice_bounds(key), strict=True)
    ]
    if own is not None:
        key = (DYNAMIC, *key)
        operands = [reshape(own, [batcher.rows.count(batcher.builder), *[1] * before.joined]), *operands]
    rest, (rows, *joined) = _split_index(_Layout.of(key, [t.rank for t in operands]))
    return _Index(key, operands, (rows, *rest[: before.at], *joined, *rest[before.at :]))


def _split_index(layout: _Layout) -> tuple[list[int], list[int]]:
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
        # Ghosts write the elements that are there already: that costs as much as is written, not the array.
        mask = Term(target.builder, guarded.guard.mask)
        mask = emit("expand_dims", mask, axes=tuple(a for a in range(len(index.order)) if a != index.order[0]))
        if node.op.name == "setitem":
            still = emit("getitem", target, *index.operands, key=index.key)
        else:
            still = constant(target.builder, nothing(target), target.dtype)
        given = emit("where", mask, given, still)
    if apart:
        updated = set_apart(target, given, index.operands, index.key)
    else:
        updated = emit(node.op.name, target, given, *index.operands, key=index.key)
    return [batcher.lane(updated) if guarded is None else guarded.followed_by(batcher.builder, updated.value)]


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


# Batching of ops that call the user's Python, and of identities.


@batches("stop_gradient barrier watch")
def _identity(batcher: Batcher, node: Node) -> Sequence[Lane]:
    lane = batcher.lanes[node.operands[0]]
    builder = batcher.builder
    if isinstance(lane, Uniform):
        return [Uniform(builder, builder.emit(node.op, [lane.value], node.attrs), lane.guard, lane.marked)]
    if isinstance(lane, Ragged):
        same = builder.emit(node.op, [lane.buffer], node.attrs)
        return [Ragged(builder, same, lane.lengths, lane.element, lane.guard)]
    assert isinstance(lane, Batched)
    return [batcher.lane(batcher.emit(node.op.name, [batcher.term(node.operands[0])], node.attrs))]


@batches("callback")
def _callback(batcher: Batcher, node: Node) -> Sequence[Lane]:
    """Called once for all rows, with arrays that have the rows in front where they have any.

    A region that no row enters does not run, so nothing is called there; ghosts show what the row they follow has.
    """
    shown = [batcher.term(v) for v in node.operands]
    if batcher.rows.nested:
        axes = [n if isinstance(n, int) else Term(batcher.builder, n) for n in batcher.rows.nested]
        operands = zip(node.operands, shown, strict=True)
        shown = [x if batcher.is_same(v) else reshape(x, [*axes, *x.dims[1:]]) for v, x in operands]
    batcher.builder.emit_all("callback", [x.value for x in shown], node.attrs, source=node.source)
    return []


@batches("pure_callback")
def _pure_callback(batcher: Batcher, node: Node) -> Sequence[Lane]:
    """Called for each row, or once for all of them, as the user says."""
    attrs = attributes.HostCall.of(node)
    if attrs.vmap_method is None:
        raise TypeMismatchError(
            f"vmap: {attrs.label} does not say how its function takes rows",
            source=node.source,
            expected="a vmap_method",
            got="vmap_method=None",
            hint='pass vmap_method="sequential", which calls it for each row, or "expand_dims" or "broadcast_all",\n'
            "which call it once with an axis of rows in front",
        )
    fn, shared = attrs.fn, [batcher.is_same(v) for v in node.operands]
    repeated = attrs.vmap_method == "broadcast_all"
    operands = [batcher.batched(v) if repeated else batcher.term(v) for v in node.operands]
    if attrs.vmap_method == "sequential":
        fn = _for_each_row(attrs, shared)
    elif attrs.vmap_method == "expand_dims":
        operands = [emit("expand_dims", x, axes=(0,)) if s else x for x, s in zip(operands, shared, strict=True)]
    results = tuple(batcher.rows.of(t) for t in attrs.results)
    found = batcher.builder.emit_all(
        "pure_callback", [x.value for x in operands], replace(attrs, fn=fn, results=results), source=node.source
    )
    return [batcher.lane(Term(batcher.builder, v)) for v in found]


def _for_each_row(attrs: attributes.HostCall, shared: Sequence[bool]) -> Callable[..., list[np.ndarray]]:
    def rows(*operands: Any) -> list[np.ndarray]:
        count = next(len(x) for x, s in zip(operands, shared, strict=True) if not s)
        if count == 0:
            return [np.zeros((0, *(n or 0 for n in t.shape)), t.dtype) for t in attrs.results]
        found = [attrs.fn(*(x if s else x[i] for x, s in zip(operands, shared, strict=True))) for i in range(count)]
        return [np.stack([np.asarray(x) for x in results]) for results in zip(*found, strict=True)]

    return rows
