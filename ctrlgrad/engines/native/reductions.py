"""The arithmetic of reductions: what each starts with, and one step of it on numbers or vectors."""

from __future__ import annotations

import numpy as np

from ctrlgrad.engines.native.text import Writer, type_of


def element_parts(dtype: np.dtype) -> tuple[np.dtype, int]:
    """The real dtype in memory, and how many of it an element has."""
    if dtype.kind == "c":
        return np.dtype(f"f{dtype.itemsize // 2}"), 2
    return dtype, 1


def combine(w: Writer, how: str, dtype: np.dtype, a: str, b: str, width: int) -> str:
    """One step of a reduction."""
    kind = type_of(dtype, width)
    if dtype.kind == "b":
        return w.op(f"{'or' if how in ('max', 'sum') else 'and'} {kind} {a}, {b}")
    if how in ("sum", "product"):
        op = {"sum": "add", "product": "mul"}[how]
        return w.op(f"{'f' if dtype.kind == 'f' else ''}{op} {kind} {a}, {b}")
    condition = f"<{width} x i1>" if width > 1 else "i1"
    if dtype.kind == "f":
        # The new number where it is further out or no number at all; what is NaN already stays so.
        beyond = w.op(f"fcmp {'ogt' if how == 'max' else 'olt'} {kind} {b}, {a}")
        nan = w.op(f"fcmp uno {kind} {b}, {b}")
        taken = w.op(f"or {condition} {beyond}, {nan}")
    else:
        sign = "s" if dtype.kind == "i" else "u"
        taken = w.op(f"icmp {sign}{'gt' if how == 'max' else 'lt'} {kind} {b}, {a}")
    return w.op(f"select {condition} {taken}, {kind} {b}, {kind} {a}")
