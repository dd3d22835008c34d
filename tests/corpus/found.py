"""Programs that random programs found: each failed once, shrunk to what matters."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
from corpus.program import count, normal, program

UNKNOWN_LENGTH = (cg.TensorSpec((None,)), cg.TensorSpec((1,)), cg.TensorSpec((), "int64"))


@program(normal(301, 2), normal(302, 1), count(2), signature=UNKNOWN_LENGTH)
def known_sizes_in_an_unknown_carry(x, w, n):
    """The carry's size is unknown, that of the body's result is known: the result's cotangent comes with the carry's
    type, and the shares that the captures get from it must have theirs."""
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.sin(w + 0.5 * np.sum(w))), (0, x))[1]


@known_sizes_in_an_unknown_carry.twin
def _(x, w, n):
    y = x
    for _ in range(n):
        y = np.sin(w + 0.5 * np.sum(w))
    return y
