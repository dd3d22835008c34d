"""Batching of ops that let the user look in, and of identities: they get all rows at once."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.lanes import Batched, Lane, Ragged, Uniform
from ctrlgrad.batching.table import batches
from ctrlgrad.batching.walk import Walk
from ctrlgrad.ir import Node
from ctrlgrad.ops.term import Term, reshape


@batches("stop_gradient barrier watch")
def _identity(walk: Walk, node: Node) -> Sequence[Lane]:
    lane = walk.lanes[node.operands[0]]
    builder = walk.builder
    if isinstance(lane, Uniform):
        return [Uniform(builder, builder.emit(node.op, [lane.value], node.attrs), lane.guard, lane.marked)]
    if isinstance(lane, Ragged):
        same = builder.emit(node.op, [lane.buffer], node.attrs)
        return [Ragged(builder, same, lane.lengths, lane.element, lane.guard)]
    assert isinstance(lane, Batched)
    return [walk.lane(walk.emit(node.op.name, [walk.term(node.operands[0])], node.attrs))]


@batches("callback")
def _callback(walk: Walk, node: Node) -> Sequence[Lane]:
    """Called once for all rows, with arrays that have the rows in front where they have any.

    A region that no row enters does not run, so nothing is called there; ghosts show what the row they follow has.
    """
    shown = [walk.term(v) for v in node.operands]
    if walk.rows.nested:
        axes = [n if isinstance(n, int) else Term(walk.builder, n) for n in walk.rows.nested]
        operands = zip(node.operands, shown, strict=True)
        shown = [x if walk.is_same(v) else reshape(x, [*axes, *x.dims[1:]]) for v, x in operands]
    walk.builder.emit_all("callback", [x.value for x in shown], node.attrs, source=node.source)
    return []
