"""The control of a charged particle's path, found by gradient descent through a simulation of unknown length.

The force on the particle is itself a derivative, of the potential: derivatives through an unbounded loop that takes
derivatives. Of the two letters of a function's name, the first is the mode of the outer one (forward or reverse), the
second that of the inner one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.descent import derivative, minimiser
from benchmarks.gradbench.evaluation import Evaluation, Module, compiled

STEP = 0.1


def miss(mode: str, w: Any) -> Any:
    """The square of where the particle meets the axis, for a control w of shape (1,)."""

    def potential(x: Any) -> Any:
        return 1.0 / _distance(x, 10.0, 10.0 - w[0]) + 1.0 / _distance(x, 10.0, 0.0)

    slope = derivative(mode, potential)

    def accelerate(state: Any) -> Any:
        x, velocity = state
        force = -slope(x)
        return x + STEP * velocity, velocity, velocity + STEP * force

    def is_above(carry: Any) -> Any:
        return carry[0][1] > 0.0

    def move(carry: Any) -> Any:
        x, _, velocity = carry
        return accelerate((x, velocity))

    start = np.array([0.0, 8.0]), np.array([0.75, 0.0])
    x, velocity, _ = cg.while_loop(is_above, move, (start[0], start[1], start[1]))
    meets = x - x[1] / velocity[1] * velocity
    return meets[0] ** 2


def _distance(x: Any, a: Any, b: Any) -> Any:
    return cnp.sqrt((x[0] - a) ** 2 + (x[1] - b) ** 2)


def control(outer: str, inner: str, w: Any) -> Any:
    missed = partial(miss, inner)
    return minimiser(missed, derivative(outer, missed), w)[0]


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return (np.array([given["w"]], np.float64),)


MODULE = Module(
    {
        outer + inner: Evaluation(compiled(partial(control, outer, inner), (1,)), prepare, float)
        for outer in "fr"
        for inner in "fr"
    },
    example={"w": 0.2},
)
