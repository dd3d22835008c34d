"""Derivatives of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.gradients.table import forward, reverse
from ctrlgrad.ops.term import Term, sum_to, swap_last


def _to(ct: Term, x: Term) -> Term:
    """Sum over batch dimensions in which x was broadcast."""
    if x.rank == 2 == ct.rank:
        return ct
    return sum_to(ct, [*x.dims[:-2], *ct.dims[-2:]])


def _push(tangents: Sequence[Term | None], out: Term, a: Term, b: Term) -> Term:
    da, db = tangents
    parts = [] if da is None else [da @ b]
    parts += [] if db is None else [a @ db]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


forward("matmul", _push)
reverse(
    "matmul",
    lambda ct, out, a, b: _to(ct @ swap_last(b), a),
    lambda ct, out, a, b: _to(swap_last(a) @ ct, b),
)
