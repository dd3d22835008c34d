"""Batching of slots joined along an axis: where all rows have written equally many slots, the axis moves by one."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.lanes import Fresh, Lane, Ragged, Same, Uniform, redirect
from ctrlgrad.batching.stacks import as_uniform
from ctrlgrad.batching.table import batches
from ctrlgrad.batching.walk import Walk
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import Node, Value
from ctrlgrad.ops.term import Term


def _uniform(walk: Walk, node: Node, s: Value) -> Uniform:
    lane = walk.lanes[s]
    if isinstance(lane, Ragged):
        raise TypeMismatchError(
            "vmap: TensorArray.concat where examples have written differently many slots",
            source=node.source,
            expected="arrays that every example writes at the same places",
            got="arrays that differ in length from example to example",
            hint="give element_shape without None, so that the slots of all examples have one size",
        )
    assert isinstance(lane, Same | Fresh | Uniform)
    return as_uniform(lane, walk.rows)


def _counts(walk: Walk, v: Value) -> Term:
    """The row counts, which must be the same for all rows."""
    if not walk.is_same(v):
        raise TypeMismatchError("vmap: slots that differ in size from example to example cannot be joined")
    return walk.term(v)


@batches("stack_rows")
def _rows(walk: Walk, node: Node) -> Sequence[Lane]:
    s = _uniform(walk, node, node.operands[0])
    counts = walk.builder.emit("stack_rows", [s.value], {"axis": node.attrs["axis"] + 1})
    return [walk.lane_same(Term(walk.builder, counts))]


@batches("stack_concat")
def _concat(walk: Walk, node: Node) -> Sequence[Lane]:
    s, counts, *given = node.operands
    lane = _uniform(walk, node, s)
    axis = node.attrs["axis"]
    unknown = [d for i, d in enumerate(lane.element.shape) if i != axis and d is None]
    count = walk.rows.count(walk.builder)
    sizes = [count, *(walk.same(v) for v in given)] if len(unknown) == len(given) else []
    operands = [lane.value, _counts(walk, counts).value, *(x.value for x in sizes if isinstance(x, Term))]
    joined = Term(walk.builder, walk.builder.emit("stack_concat", operands, {**node.attrs, "axis": axis + 1}))
    return [walk.lane(joined if lane.guard is None else redirect(joined, lane.guard))]


@batches("stack_split")
def _split(walk: Walk, node: Node) -> Sequence[Lane]:
    x, counts = node.operands
    attrs = {"axis": node.attrs["axis"] + 1, "element": walk.rows.of(node.attrs["element"])}
    parts = [walk.batched(x).value, _counts(walk, counts).value]
    return [Uniform(walk.builder, walk.builder.emit("stack_split", parts, attrs))]
