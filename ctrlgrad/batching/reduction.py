"""Batching of reductions and scans: along the same axes, counted behind the batch axis."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Lane, greatest
from ctrlgrad.batching.table import batches
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ops.term import Term, reshape


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


@batches("cumsum cumprod")
def _scan(batcher: Batcher, node: Node) -> Sequence[Lane]:
    (x,) = node.operands
    axis = attributes.Axis.of(node).axis % x.tensor.rank + 1
    return [batcher.lane(batcher.emit(node.op.name, [batcher.term(x)], replace(attributes.Axis.of(node), axis=axis)))]
