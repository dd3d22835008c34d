"""The adaptive method in ctrlgrad: the tableau and the step control in a `while_loop`."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.program import Program
from benchmarks.runge_kutta import FIRST_STEP, PARAMETERS, START, TOLERANCE

STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
LOWER_ORDER = (1951 / 21600, 0.0, 22642 / 50085, 451 / 720, -12231 / 42400, 649 / 6300, 1 / 60)


def field(p: Any, y: Any) -> Any:
    prey, predators = y[0], y[1]
    return cnp.stack([p[0] * prey - p[1] * prey * predators, p[2] * prey * predators - p[3] * predators])


def combine(weights: Any, slopes: Any) -> Any:
    return sum(w * k for w, k in zip(weights, slopes, strict=True) if w)


def attempt(p: Any, y: Any, first_slope: Any, dt: Any) -> tuple[Any, Any, Any]:
    """The next state, the slope there, and the error relative to what is allowed: below 1 the step is kept."""
    slopes = [first_slope]
    for weights in STAGES:
        after = y + dt * combine(weights, slopes)
        slopes.append(field(p, after))
    error = dt * (combine((*STAGES[-1], 0.0), slopes) - combine(LOWER_ORDER, slopes))
    scale = TOLERANCE + TOLERANCE * cnp.maximum(cnp.abs(y), cnp.abs(after))
    return after, slopes[-1], cnp.sqrt(cnp.mean(cg.stop_gradient(error / scale) ** 2))


def next_step(dt: Any, error: Any, kept: Any) -> Any:
    low, high = cnp.where(kept, 1.0, 0.2), cnp.where(kept, 10.0, 0.9)
    return dt * cnp.minimum(cnp.maximum(0.9 * error ** (-1 / 5), low), high)


def loss(y: Any, p: Any, end: Any) -> Any:
    def body(carry: Any) -> Any:
        t, dt, y, slope, steps = carry
        dt = cnp.minimum(dt, end - t)
        after, slope_after, error = attempt(p, y, slope, dt)
        kept = error < 1.0
        following = next_step(dt, error, kept)
        return cg.cond(
            kept,
            lambda: (t + dt, following, after, slope_after, steps + 1),
            lambda: (t, following, y, slope, steps + 1),
        )

    carry = (0.0, FIRST_STEP, y, field(p, y), 0)
    _, _, y, _, steps = cg.while_loop(lambda carry: carry[0] < end, body, carry)
    return cnp.sum(y), steps


def solve(end: float, engine: str = "auto") -> Program:
    step = cg.function(cg.value_and_grad(loss, argnums=(0, 1), has_aux=True), engine=engine)
    y, p = np.array(START), np.array(PARAMETERS)
    return Program(step=lambda: step(y, p, np.float64(end)), read=read, units=lambda result: float(result[0][1]))


def read(result: Any) -> dict[str, np.ndarray]:
    (value, steps), (dy, dp) = result
    return {"loss": np.asarray(value), "steps": np.asarray(steps), "dy": np.asarray(dy), "dp": np.asarray(dp)}
