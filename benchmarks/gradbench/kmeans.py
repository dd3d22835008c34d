"""The cost of a clustering, and the direction of a Newton step: a loop over the points.

The cost's Hessian is diagonal, so its product with ones is its diagonal: forward mode over reverse mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.evaluation import Evaluation, Module, compiled


def cost(points: Any, centroids: Any) -> Any:
    def add(i: Any, total: Any) -> Any:
        point = points[i]
        distances = cnp.sum((cg.stop_gradient(centroids) - point) ** 2, axis=1)
        return total + cnp.sum((centroids[cnp.argmin(distances)] - point) ** 2)

    return cg.fori_loop(0, points.shape[0], add, 0.0)


def direction(points: Any, centroids: Any) -> Any:
    slope, curvature = cg.jvp(lambda c: cg.grad(cost, argnums=1)(points, c), (centroids,), (cnp.ones_like(centroids),))
    return slope / curvature


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return np.array(given["points"], np.float64), np.array(given["centroids"], np.float64)


def example() -> dict[str, Any]:
    points = np.random.default_rng(0).random((7, 3))
    return {"points": points.tolist(), "centroids": points[-2:].tolist()}


MODULE = Module(
    {
        "cost": Evaluation(compiled(cost, 2, 2), prepare, float),
        "dir": Evaluation(compiled(direction, 2, 2), prepare),
    },
    example(),
)
