"""Heavy matrix products that leave a loop: one product for all iterations of a chunk instead of one per iteration.

A product in a loop reads its right factor again in each iteration, or reads and writes the sum that it is added to. One
product for a chunk does that once, but its rows go through memory: they are written by one loop and read by another.
The arithmetic is as fast in both. So a product leaves the loop where the elements that it repeats cost more than the
elements that are stacked. A GPU, where each product of an iteration is a launch, has every heavy product leave.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from contextvars import ContextVar

from ctrlgrad.blocks import holding
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Node

# Multiplications in one iteration's product from which it pays to take it out of the loop.
HEAVY = 4_000
# Elements that are repeated in the time of one that is stacked: of a matrix that lies in a near cache, and of one of so
# many bytes or more. Fitted to processor time of LSTMs on one thread (batches of 1 to 128, 16 to 256 inputs, 32 to 256
# units).
STACKED, STACKED_OF_FAR = 24, 6
FAR_BYTES = 1 << 19
_WEIGHS = ContextVar("weighs", default=True)
# Multiplications that leave an iteration, of all products together, from which it pays to distribute a loop inside a
# loop. The loop around it then has no native form, which costs each of its iterations some 0.2 ms: with a tenth of this
# the loop inside must take about a hundred iterations to make up for that, and ten of them are ten times as slow.
WORTH_INSIDE = 1_000_000
# Size that an unknown dimension counts as.
_GUESS = 64


def is_heavy(product: Node) -> bool:
    """True if a node is a heavy product of two matrices of floats, or of two batches of them of one known shape."""
    if product.op.name != "matmul":
        return False
    a, b = (v.tensor for v in product.operands)
    batch = a.shape[:-2]
    if min(a.rank, b.rank) < 2 or b.shape[:-2] != batch or None in batch or dtype_kind(a.dtype) not in "fc":
        return False
    return multiplications(product) >= HEAVY


def pays_as_rows(product: Node, terms: int | None = None) -> bool:
    """True if a heavy product of rows of an array is cheaper in front of the loop: its results are stacked.

    `terms` is the number of columns of its left factor that count, if not all do.
    """
    if not is_heavy(product) or product.result.tensor.rank != 2:
        return False
    m, k, n = _sizes(product)
    k = k if terms is None else terms
    return n > 1 and m * k * n >= HEAVY and _costs_more(product, k * n, 1, m * n)


def pays_as_sum(product: Node) -> bool:
    """True if a heavy product that is added to a carry is cheaper behind the loop: its factors are stacked.

    On the processor only real products of 32 and 64 bits go on from a sum in its order. Factors of a batch are joined
    along terms of a known number.
    """
    if not is_heavy(product) or (_WEIGHS.get() and product.result.tensor.dtype.char not in "fd"):
        return False
    left, right = (v.tensor.shape for v in product.operands)
    if len(left) > 2 and None in (left[-1], right[-2]):
        return False
    m, k, n = _sizes(product)
    return _costs_more(product, m * n, 2, k * (m + n))


def _costs_more(product: Node, repeated: int, times: int, stacked: int) -> bool:
    """True if a matrix of so many elements costs more, taken so many times an iteration, than what is stacked."""
    if not _WEIGHS.get():
        return True
    is_far = _matrices(product) * repeated * product.result.tensor.dtype.itemsize >= FAR_BYTES
    return times * repeated >= (STACKED_OF_FAR if is_far else STACKED) * stacked


def weighing(weighs: bool) -> AbstractContextManager[None]:
    """Context in which heavy products are weighed before they leave a loop, or all leave it."""
    return holding(_WEIGHS, weighs)


def _sizes(product: Node) -> tuple[int, int, int]:
    """Rows, terms and columns of a product; unknown sizes are guessed."""
    a, b = (v.tensor for v in product.operands)
    m, k, n = (_GUESS if d is None else d for d in (*a.shape[-2:], b.shape[-1]))
    return m, k, n


def _matrices(product: Node) -> int:
    """Number of matrices in a batch."""
    return math.prod(d or 1 for d in product.result.tensor.shape[:-2])


def multiplications(product: Node) -> int:
    """Number of multiplications in a product of two matrices, or of batches; unknown sizes are guessed."""
    return _matrices(product) * math.prod(_sizes(product))


def pays_inside(left: int) -> bool:
    """True if an inner loop is worth distributing when so many multiplications leave each iteration."""
    return left >= WORTH_INSIDE
