"""Heavy matrix products: one product for all iterations of a chunk is cheaper than one per iteration."""

from __future__ import annotations

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Node

# Multiplications in one iteration's product from which it pays to take it out of the loop.
HEAVY = 4_000
# Multiplications that leave an iteration, of all products together, from which it pays to distribute a loop inside a
# loop. The loop around it then has no native form, which costs each of its iterations some 0.2 ms: with a tenth of this
# the loop inside must take about a hundred iterations to make up for that, and ten of them are ten times as slow.
WORTH_INSIDE = 1_000_000
# Size that an unknown dimension counts as.
_GUESS = 64


def is_heavy(product: Node, columns: int | None = None) -> bool:
    """True if a node is a heavy product of two matrices of floats, or `columns` of its columns are."""
    if product.op.name != "matmul":
        return False
    a, b = (v.tensor for v in product.operands)
    if a.rank != 2 or b.rank != 2 or dtype_kind(a.dtype) not in "fc":
        return False
    return multiplications(product, columns) >= HEAVY


def multiplications(product: Node, columns: int | None = None) -> int:
    """Number of multiplications in a product of two matrices, or in some of its columns; unknown sizes are guessed."""
    a, b = (v.tensor for v in product.operands)
    m, k, n = (_GUESS if d is None else d for d in (*a.shape, b.shape[1]))
    return m * k * (n if columns is None else columns)


def pays_inside(left: int) -> bool:
    """True if an inner loop is worth distributing when so many multiplications leave each iteration."""
    return left >= WORTH_INSIDE
