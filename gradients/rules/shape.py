"""Derivatives of ops that move elements. All are linear; each line is the transpose of an op."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.gradients.table import jointly_linear, linear, not_differentiable, reverse_joint
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ops.term import Term, broadcast_to, emit, ensure_sizes, reshape, same_size, sum_to, transpose

not_differentiable("constant dim iota common_size")

linear("forget_sizes", lambda ct, x, axes: ensure_sizes(ct, {a: x.dim(a) for a in axes}))


def _ensure_sizes(
    ct: Term, x: Term, *dims: Term, shape: Sequence[int | None], axes: Sequence[int], problem: str, hint: str
) -> Term:
    """The cotangent, which has the sizes of the operand and those that were required: it may know either alone."""
    given = iter(dims)
    required = {a: next(given) if d is None else d for a, d in zip(axes, shape, strict=True)}
    return ensure_sizes(ensure_sizes(ct, required, problem, hint), {a: x.dim(a) for a in axes}, problem, hint)


linear("ensure_sizes", _ensure_sizes)
linear("reshape", lambda ct, x, *dims, shape: reshape(ct, x.dims))
linear("broadcast_to", lambda ct, x, *dims, shape: sum_to(ct, x.dims))
linear("sum_to", lambda ct, x, *dims, shape: broadcast_to(ct, x.dims))
linear("transpose", lambda ct, x, axes: transpose(ct, [axes.index(axis) for axis in range(len(axes))]))
linear("expand_dims", lambda ct, x, axes: emit("squeeze", ct, axes=axes))
linear("squeeze", lambda ct, x, axes: emit("expand_dims", ct, axes=axes))
linear("flip", lambda ct, x, axes: emit("flip", ct, axes=axes))


def _cast(ct: Term, x: Term, dtype: object) -> Term:
    return emit("cast", ct, dtype=x.dtype)


linear("cast", _cast)


def _concat(ct: Term, out: Term, *parts: Term, axis: int) -> list[Term]:
    """The parts of the cotangent, which has the sizes of all parts beside the axis that they are joined along."""
    told = [parts[0].dim(a) if d is None else d for a, d in enumerate(ct.tensor.shape)]
    for part in parts:
        sizes = {a: d for a, d in enumerate(part.dims) if a != axis and not same_size(told[a], d)}
        ct = ensure_sizes(ct, sizes, "concat: sizes differ", "arrays may differ only in the axis they are joined along")
    found = []
    start: int | Term = 0
    for part in parts:
        stop = start + part.dim(axis)
        found.append(slice_along(ct, axis, start, stop))
        start = stop
    return found


jointly_linear("concat", None)
reverse_joint("concat", _concat)


def slice_along(x: Term, axis: int, start: int | Term, stop: int | Term) -> Term:
    """`x[..., start:stop, ...]` along one axis; the bounds are not negative."""
    bounds = [start, stop]
    dynamic = [b for b in bounds if isinstance(b, Term)]
    first, last = (DYNAMIC if isinstance(b, Term) else b for b in bounds)
    key = tuple(slice(first, last, None) if i == axis else slice(None) for i in range(x.rank))
    return emit("getitem", x, *dynamic, key=key)
