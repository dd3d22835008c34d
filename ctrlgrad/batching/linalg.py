"""Batching of matrix products. Rows times one shared matrix is a single product of all rows."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.lanes import Lane
from ctrlgrad.batching.table import batches
from ctrlgrad.batching.walk import Walk
from ctrlgrad.ir import Node
from ctrlgrad.ops.term import reshape


@batches("matmul")
def _matmul(walk: Walk, node: Node) -> Sequence[Lane]:
    a, b = node.operands
    if walk.is_same(b) and a.tensor.rank == b.tensor.rank == 2:
        x, w = walk.term(a), walk.term(b)
        rows, m, k = x.dims
        together = reshape(x, [rows * m, k]) @ w
        return [walk.lane(reshape(together, [rows, m, together.dim(1)]))]
    rank = max(a.tensor.rank, b.tensor.rank)
    return [walk.lane(walk.aligned(a, rank) @ walk.aligned(b, rank))]


@batches(
    """cholesky det adjugate logabsdet det_sign orthonormal eigenvalues eigenvectors singular_values
    singular_vectors"""
)
def _matrices(walk: Walk, node: Node) -> Sequence[Lane]:
    """These work on the last two axes and take any axes before them."""
    return [walk.lane(walk.emit(node.op.name, [walk.term(v) for v in node.operands], node.attrs))]


@batches("adjugate_along")
def _of_one_type(walk: Walk, node: Node) -> Sequence[Lane]:
    return [walk.lane(walk.emit(node.op.name, [walk.batched(v) for v in node.operands], node.attrs))]


@batches("pinv")
def _pinv(walk: Walk, node: Node) -> Sequence[Lane]:
    a, rtol = node.operands
    return [walk.lane(walk.emit("pinv", [walk.batched(a), walk.aligned(rtol, a.tensor.rank - 2)]))]


@batches("solve")
def _solve(walk: Walk, node: Node) -> Sequence[Lane]:
    rank = max(v.tensor.rank for v in node.operands)
    return [walk.lane(walk.emit("solve", [walk.aligned(v, rank) for v in node.operands], node.attrs))]
