"""Small programs that save rows of different sizes."""

from __future__ import annotations

import numpy as np
from plan.small import small, square, x5

import ctrlgrad as cg
import ctrlgrad.numpy as cnp


@small(x5, np.array([0, 3, 3, 5]), square, order=1)
def gradient_of_a_loop_over_parts(x, ends, w):
    """Slices of three, zero and two rows, which a gradient saves."""
    part = lambda t: np.tanh(x[ends[t] : ends[t + 1], None] * w[0] @ w)
    return cg.fori_loop(0, 3, lambda t, c: c * np.sum(np.sin(part(t)) * part(t)), 1.0)


@small(square, order=1)
def gradient_of_parts_with_two_sizes(w):
    part = lambda t: np.tanh(w[t:] @ w[:, 2 * t :])
    return cg.fori_loop(0, 3, lambda t, c: c + np.sum(np.sin(part(t)) * part(t)), 1.0)


@small(x5, square, order=1)
def gradient_of_a_carry_that_grows(x, w):
    def body(t, c):
        y = np.tanh(w @ c[1] + c[0][0] * np.mean(c[0] @ c[1]))
        return cnp.concat([c[0], y[None]]), y

    return cg.fori_loop(0, 4, body, (cg.unknown_dims(x[None] * 1.0, 0), x))[1]
