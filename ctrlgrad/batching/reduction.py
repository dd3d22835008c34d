"""Batching of reductions and scans: along the same axes, counted behind the batch axis."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Lane, greatest
from ctrlgrad.batching.table import batches
from ctrlgrad.ir import Node
from ctrlgrad.ops.term import Term, reshape


@batches("sum prod max min any all argmax argmin")
def _reduction(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    if node.attrs.get("all_rows"):
        flat = batcher.term(x)
        return [batcher.lane_same(greatest(reshape(flat, [_product(flat.dims)])))]
    axes = tuple(axis % x.tensor.rank + 1 for axis in node.attrs["axes"])
    return [batcher.lane(batcher.emit(node.op.name, [batcher.term(x)], {**node.attrs, "axes": axes}))]


def _product(dims: Sequence[int | Term]) -> int | Term:
    return functools.reduce(operator.mul, dims)


@batches("cumsum cumprod")
def _scan(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    axis = node.attrs["axis"] % x.tensor.rank + 1
    return [batcher.lane(batcher.emit(node.op.name, [batcher.term(x)], {**node.attrs, "axis": axis}))]
