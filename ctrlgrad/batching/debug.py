"""Batching of ops that let the user look in, and of identities: they get all rows at once."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Batched, Lane, Ragged, Uniform
from ctrlgrad.batching.table import batches
from ctrlgrad.ir import Node
from ctrlgrad.ops.term import Term, reshape


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
