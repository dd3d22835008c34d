"""The logarithm of a sum of exponentials, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.evaluation import Evaluation, Module, compiled


def log_sum_exp(x: Any) -> Any:
    largest = cnp.max(x)
    return cnp.log(cnp.sum(cnp.exp(x - largest))) + largest


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return (np.array(given["x"], np.float64),)


MODULE = Module(
    {
        "primal": Evaluation(compiled(log_sum_exp, 1), prepare, float),
        "gradient": Evaluation(compiled(cg.grad(log_sum_exp), 1), prepare),
    },
    example={"x": [0.1, 0.5, -0.3]},
)
