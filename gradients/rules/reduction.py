"""Derivatives of reductions and scans. `axes` are counted from the front and sorted."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.gradients.table import forward, linear, not_differentiable, reverse
from ctrlgrad.ops.term import Term, broadcast_to, emit

# Products of integers: those of floats are multiplied pair by pair.
not_differentiable("argmax argmin any all prod cumprod")


def _spread(ct: Term, x: Term, axes: tuple[int, ...], keepdims: bool) -> Term:
    """What was reduced over `axes`, with those axes of size 1 again."""
    return ct if keepdims or not axes else emit("expand_dims", ct, axes=axes)


def _sum(ct: Term, x: Term, axes: tuple[int, ...], keepdims: bool) -> Term:
    return broadcast_to(_spread(ct, x, axes, keepdims), x.dims)


linear("sum", _sum)


def _extreme(ct: Term, out: Term, x: Term, axes: tuple[int, ...], keepdims: bool) -> Term:
    """The cotangent, shared evenly by the elements that equal the extreme."""
    ct, out = (_spread(v, x, axes, keepdims) for v in (ct, out))
    hits = emit("cast", x.equals(out), dtype=x.dtype)
    return hits * (ct / emit("sum", hits, axes=axes, keepdims=True))


def _push_extreme(tangents: Sequence[Term], out: Term, x: Term, axes: tuple[int, ...], keepdims: bool) -> Term:
    """The mean tangent of the elements that equal the extreme."""
    hits = emit("cast", x.equals(_spread(out, x, axes, keepdims)), dtype=x.dtype)
    total, count = (emit("sum", v, axes=axes, keepdims=keepdims) for v in (hits * tangents[0], hits))
    return total / count


forward("max", _push_extreme)
forward("min", _push_extreme)
reverse("max", _extreme)
reverse("min", _extreme)


linear("cumsum", lambda ct, x, axis, reverse: emit("cumsum", ct, axis=axis, reverse=not reverse))
