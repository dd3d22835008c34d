"""Batching of ops that call the user's Python, and of identities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Batched, Lane, Ragged, Uniform
from ctrlgrad.batching.table import batches
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ops.term import Term, emit, reshape


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


@batches("pure_callback")
def _pure_callback(batcher: Batcher, node: Node) -> Sequence[Lane]:
    """Called for each row, or once for all of them, as the user says."""
    attrs = attributes.HostCall.of(node)
    if attrs.vmap_method is None:
        raise TypeMismatchError(
            f"vmap: {attrs.label} does not say how its function takes rows",
            source=node.source,
            expected="a vmap_method",
            got="vmap_method=None",
            hint='pass vmap_method="sequential", which calls it for each row, or "expand_dims" or "broadcast_all",\n'
            "which call it once with an axis of rows in front",
        )
    fn, shared = attrs.fn, [batcher.is_same(v) for v in node.operands]
    repeated = attrs.vmap_method == "broadcast_all"
    operands = [batcher.batched(v) if repeated else batcher.term(v) for v in node.operands]
    if attrs.vmap_method == "sequential":
        fn = _for_each_row(attrs, shared)
    elif attrs.vmap_method == "expand_dims":
        operands = [emit("expand_dims", x, axes=(0,)) if s else x for x, s in zip(operands, shared, strict=True)]
    results = tuple(batcher.rows.of(t) for t in attrs.results)
    found = batcher.builder.emit_all(
        "pure_callback", [x.value for x in operands], replace(attrs, fn=fn, results=results), source=node.source
    )
    return [batcher.lane(Term(batcher.builder, v)) for v in found]


def _for_each_row(attrs: attributes.HostCall, shared: Sequence[bool]) -> Callable[..., list[np.ndarray]]:
    def rows(*operands: Any) -> list[np.ndarray]:
        count = next(len(x) for x, s in zip(operands, shared, strict=True) if not s)
        if count == 0:
            return [np.zeros((0, *(n or 0 for n in t.shape)), t.dtype) for t in attrs.results]
        found = [attrs.fn(*(x if s else x[i] for x, s in zip(operands, shared, strict=True))) for i in range(count)]
        return [np.stack([np.asarray(x) for x in results]) for results in zip(*found, strict=True)]

    return rows
