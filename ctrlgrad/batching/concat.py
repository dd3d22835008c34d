"""Batching of slots joined along an axis: where all rows have written equally many slots, the axis moves by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Fresh, Lane, Ragged, Same, Uniform, redirect
from ctrlgrad.batching.stacks import as_uniform
from ctrlgrad.batching.table import batches
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import Node, Value, attributes
from ctrlgrad.ops.term import Term


def _uniform(batcher: Batcher, node: Node, s: Value) -> Uniform:
    lane = batcher.lanes[s]
    if isinstance(lane, Ragged):
        raise TypeMismatchError(
            "vmap: TensorArray.concat where examples have written differently many slots",
            source=node.source,
            expected="arrays that every example writes at the same places",
            got="arrays that differ in length from example to example",
            hint="give element_shape without None, so that the slots of all examples have one size",
        )
    assert isinstance(lane, Same | Fresh | Uniform)
    return as_uniform(lane, batcher.rows)


def _counts(batcher: Batcher, v: Value) -> Term:
    """The row counts, which must be the same for all rows."""
    if not batcher.is_same(v):
        raise TypeMismatchError("vmap: slots that differ in size from example to example cannot be joined")
    return batcher.term(v)


@batches("stack_rows")
def _rows(batcher: Batcher, node: Node) -> Sequence[Lane]:
    s = _uniform(batcher, node, node.operands[0])
    counts = batcher.builder.emit("stack_rows", [s.value], {"axis": attributes.Axis.of(node).axis + 1})
    return [batcher.lane_same(Term(batcher.builder, counts))]


@batches("stack_concat")
def _concat(batcher: Batcher, node: Node) -> Sequence[Lane]:
    s, counts, *given = node.operands
    lane = _uniform(batcher, node, s)
    axis = attributes.Axis.of(node).axis
    unknown = [d for i, d in enumerate(lane.element.shape) if i != axis and d is None]
    count = batcher.rows.count(batcher.builder)
    sizes = [count, *(batcher.same(v) for v in given)] if len(unknown) == len(given) else []
    operands = [lane.value, _counts(batcher, counts).value, *(x.value for x in sizes if isinstance(x, Term))]
    attrs = replace(attributes.Concat.of(node), axis=axis + 1)
    joined = Term(batcher.builder, batcher.builder.emit("stack_concat", operands, attrs))
    return [batcher.lane(joined if lane.guard is None else redirect(joined, lane.guard))]


@batches("stack_split")
def _split(batcher: Batcher, node: Node) -> Sequence[Lane]:
    x, counts = node.operands
    attrs = {"axis": attributes.Axis.of(node).axis + 1, "element": batcher.rows.of(attributes.Split.of(node).element)}
    parts = [batcher.batched(x).value, _counts(batcher, counts).value]
    return [Uniform(batcher.builder, batcher.builder.emit("stack_split", parts, attrs))]
