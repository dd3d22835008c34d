"""Batching of matrix products. Rows times one shared matrix is a single product of all rows."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Lane
from ctrlgrad.batching.table import batches
from ctrlgrad.ir import Node
from ctrlgrad.ops.term import reshape


@batches("matmul")
def _matmul(batcher: Batcher, node: Node) -> Sequence[Lane]:
    a, b = node.operands
    if batcher.is_same(b) and a.tensor.rank == b.tensor.rank == 2:
        x, w = batcher.term(a), batcher.term(b)
        rows, m, k = x.dims
        flat = reshape(x, [rows * m, k]) @ w
        return [batcher.lane(reshape(flat, [rows, m, flat.dim(1)]))]
    rank = max(a.tensor.rank, b.tensor.rank)
    return [batcher.lane(batcher.aligned(a, rank) @ batcher.aligned(b, rank))]


@batches(
    """cholesky det adjugate logabsdet det_sign orthonormal eigenvalues eigenvectors
    general_eigenvalues general_eigenvectors singular_values singular_vectors"""
)
def _matrices(batcher: Batcher, node: Node) -> Sequence[Lane]:
    """These work on the last two axes and take any axes before them."""
    return [batcher.lane(batcher.emit(node.op.name, [batcher.term(v) for v in node.operands], node.attrs))]


@batches("adjugate_along")
def _of_one_type(batcher: Batcher, node: Node) -> Sequence[Lane]:
    return [batcher.lane(batcher.emit(node.op.name, [batcher.batched(v) for v in node.operands], node.attrs))]


@batches("pinv")
def _pinv(batcher: Batcher, node: Node) -> Sequence[Lane]:
    a, rtol = node.operands
    return [batcher.lane(batcher.emit("pinv", [batcher.batched(a), batcher.aligned(rtol, a.tensor.rank - 2)]))]


@batches("solve triangular_solve")
def _solve(batcher: Batcher, node: Node) -> Sequence[Lane]:
    rank = max(v.tensor.rank for v in node.operands)
    return [batcher.lane(batcher.emit(node.op.name, [batcher.aligned(v, rank) for v in node.operands], node.attrs))]
