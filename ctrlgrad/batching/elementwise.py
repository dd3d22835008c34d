"""Batching of elementwise ops: operands of lower rank get axes of size 1 after the batch axis."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Lane
from ctrlgrad.batching.table import BATCH
from ctrlgrad.ir import OPS, Node, Trait


def _elementwise(batcher: Batcher, node: Node) -> Sequence[Lane]:
    rank = max(v.tensor.rank for v in node.operands)
    return [batcher.lane(batcher.emit(node.op.name, [batcher.aligned(v, rank) for v in node.operands], node.attrs))]


BATCH |= {name: _elementwise for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits}
