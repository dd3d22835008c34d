"""A chain of linear equations, each driven by the one before it, by the Runge-Kutta method of fourth order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.evaluation import Evaluation, Module, compiled

END = 2.0


def solution(x: Any, steps: Any) -> Any:
    """The state at the end."""
    h = END / steps

    def slope(y: Any) -> Any:
        return cnp.concat([x[:1], x[1:] * y[:-1]])

    def step(_: Any, y: Any) -> Any:
        k1 = slope(y)
        k2 = slope(y + h / 2.0 * k1)
        k3 = slope(y + h / 2.0 * k2)
        k4 = slope(y + h * k3)
        return y + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    return cg.fori_loop(0, steps, step, cnp.zeros_like(x))


def last(x: Any, steps: Any) -> Any:
    return solution(x, steps)[-1]


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return np.array(given["x"], np.float64), np.int64(given["s"])


MODULE = Module(
    {
        "primal": Evaluation(compiled(solution, 1, "n"), prepare),
        "gradient": Evaluation(compiled(cg.grad(last), 1, "n"), prepare),
    },
    example={"x": [0.4, 0.7, 0.2, 0.9], "s": 3},
)
