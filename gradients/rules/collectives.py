"""Derivatives of collectives, which are linear: a cotangent goes back to the rows that it came from."""

from __future__ import annotations

from ctrlgrad.gradients.table import linear, not_differentiable
from ctrlgrad.ir.attributes import NamedAxis
from ctrlgrad.ops.term import Term, emit

not_differentiable("axis_index")

linear("psum", lambda ct, x, rows: emit("psum", ct, rows=rows))
linear("all_gather", lambda ct, x, **attrs: emit("psum_scatter", ct, **attrs))
linear("psum_scatter", lambda ct, x, **attrs: emit("all_gather", ct, **attrs))
linear("all_to_all", lambda ct, x, **attrs: emit("all_to_all", ct, **attrs))


def _ppermute(ct: Term, x: Term, rows: NamedAxis, sources: tuple[int, ...]) -> Term:
    back = [-1] * len(sources)
    for target, source in enumerate(sources):
        if source >= 0:
            back[source] = target
    return emit("ppermute", ct, rows=rows, sources=tuple(back))


linear("ppermute", _ppermute)
