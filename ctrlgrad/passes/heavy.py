"""Which matrix products are heavy: one of all iterations of a chunk pays against one per iteration."""

from __future__ import annotations

from ctrlgrad.ir import Node

# Multiplications in one iteration's product from which it pays to take it out of the loop.
HEAVY = 4_000
# What an unknown dimension counts as.
_GUESS = 64


def is_heavy(product: Node, columns: int | None = None) -> bool:
    """Whether a node is a heavy product of two matrices of floats, or so many `columns` of it are."""
    if product.op.name != "matmul":
        return False
    a, b = (v.tensor for v in product.operands)
    if a.rank != 2 or b.rank != 2 or a.dtype.kind not in "fc":
        return False
    m, k, n = (_GUESS if d is None else d for d in (*a.shape, b.shape[1]))
    return m * k * (n if columns is None else columns) >= HEAVY
