"""Batching of ops that move elements: the same op on the axes after the batch axis."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Lane, common
from ctrlgrad.batching.table import batches
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ops.term import Term, emit, ensure_sizes, reshape, sum_to, transpose


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
def _concat(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (axis,) = _moved((attributes.Axis.of(node).axis,), node.result.tensor.rank)
    return [batcher.lane(batcher.emit("concat", [batcher.batched(v) for v in node.operands], {"axis": axis}))]
