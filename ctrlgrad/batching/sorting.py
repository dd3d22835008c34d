"""Batching of ops that find an order or positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Lane
from ctrlgrad.batching.table import batches
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import INDEX, Node, attributes
from ctrlgrad.ops.term import Term, emit


@batches("argsort top_k fft")
def _along_an_axis(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    axis = attributes.Axis.of(node).axis % x.tensor.rank + 1
    return [batcher.lane(batcher.emit(node.op.name, [batcher.term(x)], replace(attributes.Axis.of(node), axis=axis)))]


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
