"""Batching of elementwise ops: operands of lower rank get axes of size 1 after the batch axis."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.lanes import Lane
from ctrlgrad.batching.table import BATCH
from ctrlgrad.batching.walk import Walk
from ctrlgrad.ir import OPS, Node, Trait


def _elementwise(walk: Walk, node: Node) -> Sequence[Lane]:
    rank = max(v.tensor.rank for v in node.operands)
    return [walk.lane(walk.emit(node.op.name, [walk.aligned(v, rank) for v in node.operands], node.attrs))]


BATCH |= {name: _elementwise for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits}
