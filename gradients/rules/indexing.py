"""Derivatives of indexed reads and updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.gradients.table import jointly_linear, reverse_into, reverse_joint, reverse_variadic
from ctrlgrad.ops.indexing import is_advanced
from ctrlgrad.ops.term import Term, constant, emit, reshape, sum_to, where, zeros

jointly_linear("getitem", (0,))


def _getitem(acc: Term, ct: Term, out: Term, x: Term, *indices: Term, key: Any) -> Term:
    # A key adds axes to a number at most: then the part is the whole.
    return emit("additem", acc, ct, *indices, key=key) if x.rank else acc + reshape(ct, [])


reverse_into("getitem", _getitem)


def _additem(position: int, ct: Term, out: Term, x: Term, value: Term, *indices: Term, key: Any) -> Term | None:
    if position == 0:
        return ct
    if position == 1:
        return sum_to(emit("getitem", ct, *indices, key=key), value.dims)
    return None


jointly_linear("additem", (0, 1))
reverse_variadic("additem", _additem)


def _setitem(ct: Term, out: Term, x: Term, value: Term, *indices: Term, key: Any) -> Sequence[Term | None]:
    """What was replaced gets no cotangent. It is read before it is cleared, so that clearing can happen in place."""
    read = emit("getitem", ct, *indices, key=key)
    if is_advanced(key, [i.type for i in indices]):
        read = where(_is_kept(read, out, indices, key), read, 0)
    given = sum_to(read, value.dims)
    cleared = emit("setitem", ct, constant(ct.builder, 0, ct.dtype), *indices, key=key)
    return [cleared, given, *(None for _ in indices)]


def _is_kept(read: Term, out: Term, indices: tuple[Term, ...], key: Any) -> Term:
    """Where an index array names a position twice, only the last value written is kept: mark those."""
    builder = read.builder
    count: int | Term = 1
    for d in read.dims:
        count = d * count if isinstance(d, Term) else count * d
    n = count if isinstance(count, Term) else constant(builder, count, np.int64)
    numbers = reshape(emit("iota", n, shape=(None,)), read.dims)
    written = emit("setitem", zeros(builder, np.dtype(np.int64), out.dims), numbers, *indices, key=key)
    return emit("getitem", written, *indices, key=key).equals(numbers)


jointly_linear("setitem", (0, 1))
reverse_joint("setitem", _setitem)
