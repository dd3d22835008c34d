"""The square of a number and its derivative."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
from benchmarks.gradbench.evaluation import Evaluation, Module, compiled


def square(x: Any) -> Any:
    return x * x


def prepare(given: float) -> tuple[Any, ...]:
    return (np.float64(given),)


MODULE = Module(
    {
        "square": Evaluation(compiled(square, 0), prepare, float),
        "double": Evaluation(compiled(cg.grad(square), 0), prepare, float),
    },
    example=3.0,
)
