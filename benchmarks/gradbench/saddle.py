"""A saddle point by gradient descent within gradient descent, with derivatives through the inner one.

Of the two letters of a function's name, the first is the mode of the outer derivative (forward or reverse), the second
that of the inner one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from benchmarks.gradbench.descent import derivative, minimiser
from benchmarks.gradbench.evaluation import Evaluation, Module, compiled


def height(x: Any, y: Any) -> Any:
    return cnp.sum(x * x) - cnp.sum(y * y)


def highest(mode: str, x: Any, start: Any) -> Any:
    """The y that maximises the height over x."""

    def depth(y: Any) -> Any:
        return -height(x, y)

    return minimiser(depth, derivative(mode, depth), start)


def saddle_point(outer: str, inner: str, start: Any) -> Any:
    def ridge(x: Any) -> Any:
        return height(x, highest(inner, x, start))

    x = minimiser(ridge, derivative(outer, ridge), start)
    return cnp.concat([x, highest(outer, x, start)])


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return (np.array(given["start"], np.float64),)


MODULE = Module(
    {
        outer + inner: Evaluation(compiled(partial(saddle_point, outer, inner), (2,)), prepare)
        for outer in "fr"
        for inner in "fr"
    },
    example={"start": [0.7, 0.3]},
)
