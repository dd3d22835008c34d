"""Derivatives of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.gradients.table import forward, reverse
from ctrlgrad.ops.linalg import DIFFER, TURN
from ctrlgrad.ops.term import Term, ensure_sizes, same_size, sum_to, swap_last


def _to(ct: Term, x: Term, contracted: int, other: int | Term) -> Term:
    """Sum over batch dimensions in which x was broadcast. The product itself need not be computed: that the axis along
    which x was contracted is as long as the other operand's is required here."""
    if x.rank != 2 or ct.rank != 2:
        ct = sum_to(ct, [*x.dims[:-2], *ct.dims[-2:]])
    size = x.dim(contracted)
    if same_size(size, other):
        return ct
    return ensure_sizes(ct, {x.rank + contracted: size}, DIFFER, TURN)


def _push(tangents: Sequence[Term | None], out: Term, a: Term, b: Term) -> Term:
    da, db = tangents
    parts = [] if da is None else [da @ b]
    parts += [] if db is None else [a @ db]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


forward("matmul", _push)
reverse(
    "matmul",
    lambda ct, out, a, b: _to(ct @ swap_last(b), a, -1, b.dim(-2)),
    lambda ct, out, a, b: _to(swap_last(a) @ ct, b, -2, a.dim(-1)),
)
