"""Batching of ops that move elements: the same op on the axes after the batch axis."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from ctrlgrad.batching.lanes import Lane, common
from ctrlgrad.batching.table import batches
from ctrlgrad.batching.walk import Walk
from ctrlgrad.ir import Node
from ctrlgrad.ops.term import Term, emit, reshape, sum_to, transpose


def template(walk: Walk, node: Node, dims: Sequence[object] = ()) -> list[int | Term]:
    """The sizes that an op's shape attribute and its size operands give."""
    rest = iter(node.operands[len(dims) :])
    return [walk.same(next(rest)) if d is None else d for d in node.attrs["shape"]]


def _moved(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes of one example as axes behind the batch axis."""
    return tuple(axis % rank + 1 for axis in axes)


@batches("constant")
def _constant(walk: Walk, node: Node) -> Sequence[Lane]:
    return [walk.lane_same(walk.emit("constant", [], node.attrs))]


@batches("dim")
def _dim(walk: Walk, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    (axis,) = _moved((node.attrs["axis"],), x.tensor.rank)
    return [walk.lane_same(emit("dim", walk.term(x), axis=axis))]


@batches("common_size")
def _common_size(walk: Walk, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    walk.rows.require_one_size()
    sizes = walk.term(x)
    together = reshape(sizes, [functools.reduce(operator.mul, sizes.dims)])
    return [walk.lane_same(common(together, node.attrs["of"]))]


@batches("iota")
def _iota(walk: Walk, node: Node) -> Sequence[Lane]:
    return [walk.lane_same(walk.emit("iota", [walk.same(v) for v in node.operands], node.attrs))]


@batches("reshape")
def _reshape(walk: Walk, node: Node) -> Sequence[Lane]:
    x = node.operands[0]
    dims = template(walk, node, (x,))
    if walk.is_same(x):
        return [walk.lane_same(reshape(walk.term(x), dims))]
    return [walk.lane(reshape(walk.term(x), [walk.rows.count(walk.builder), *dims]))]


@batches("broadcast_to")
def _broadcast_to(walk: Walk, node: Node) -> Sequence[Lane]:
    x = node.operands[0]
    dims = template(walk, node, (x,))
    unknown = [d for d in dims if isinstance(d, Term)]
    if walk.is_same(x):
        return [walk.lane_same(walk.emit("broadcast_to", [walk.term(x), *unknown], node.attrs))]
    count = walk.rows.count(walk.builder)
    unknown = [d for d in (count, *dims) if isinstance(d, Term)]
    shape = (walk.rows.static, *node.attrs["shape"])
    return [walk.lane(walk.emit("broadcast_to", [walk.aligned(x, len(dims)), *unknown], {"shape": shape}))]


@batches("sum_to")
def _sum_to(walk: Walk, node: Node) -> Sequence[Lane]:
    x = node.operands[0]
    dims = template(walk, node, (x,))
    if walk.is_same(x):
        return [walk.lane_same(sum_to(walk.term(x), dims))]
    lead = x.tensor.rank - len(dims)
    total = sum_to(walk.term(x), [walk.rows.count(walk.builder), *[1] * lead, *dims])
    return [walk.lane(emit("squeeze", total, axes=tuple(range(1, 1 + lead))) if lead else total)]


@batches("transpose")
def _transpose(walk: Walk, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    return [walk.lane(transpose(walk.term(x), (0, *_moved(node.attrs["axes"], x.tensor.rank))))]


@batches("expand_dims")
def _expand_dims(walk: Walk, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    return [walk.lane(emit("expand_dims", walk.term(x), axes=_moved(node.attrs["axes"], node.result.tensor.rank)))]


@batches("squeeze flip forget_sizes")
def _same_axes(walk: Walk, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    return [walk.lane(emit(node.op.name, walk.term(x), axes=_moved(node.attrs["axes"], x.tensor.rank)))]


@batches("concat")
def _concat(walk: Walk, node: Node) -> Sequence[Lane]:
    (axis,) = _moved((node.attrs["axis"],), node.result.tensor.rank)
    return [walk.lane(walk.emit("concat", [walk.batched(v) for v in node.operands], {"axis": axis}))]
