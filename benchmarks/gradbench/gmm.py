"""The log-posterior of a mixture of Gaussians, and its gradient: a loop over the mixture's components."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.evaluation import Evaluation, Module

PARAMETERS = ("alpha", "mu", "q", "l")


def log_posterior(parameters: Any, x: Any, rows: Any, columns: Any, fixed: Any) -> Any:
    """Up to `prior_constant`. `rows` and `columns`: where the numbers of `l` lie in a triangular matrix.

    `fixed`: the prior's precision gamma, and its additional degrees of freedom m.
    """
    alpha, mu, q, below = (parameters[name] for name in PARAMETERS)
    n, d = x.shape
    gamma, m = fixed[0], fixed[1]

    def component(prior: Any, given: Any) -> Any:
        weight, mean, log_diagonal, below = given
        diagonal = cnp.exp(log_diagonal)
        lower = cnp.zeros((d, d)).at[rows, columns].set(below)
        centred = x - mean
        whitened = centred * diagonal + centred @ lower.T
        total = cnp.sum(log_diagonal)
        norm = cnp.sum(diagonal**2) + cnp.sum(below**2)
        return prior - 0.5 * gamma**2 * norm + m * total, weight + total - 0.5 * cnp.sum(whitened**2, axis=1)

    prior, scores = cg.scan(component, 0.0, (alpha, mu, q, below))
    return prior + cnp.sum(_log_sum_exp(scores)) - n * (_log_sum_exp(alpha) + 0.5 * d * math.log(2.0 * math.pi))


def _log_sum_exp(x: Any) -> Any:
    """Over the first axis."""
    largest = cnp.max(x, axis=0)
    return cnp.log(cnp.sum(cnp.exp(x - largest), axis=0)) + largest


def prior_constant(k: int, d: int, gamma: float, m: int) -> float:
    """Part of the prior that does not depend on the parameters."""
    freedom = d + m + 1
    log_gamma = sum(math.lgamma(0.5 * (freedom - j)) for j in range(d)) + 0.25 * d * (d - 1) * math.log(math.pi)
    return k * (freedom * d * math.log(gamma / math.sqrt(2.0)) - log_gamma)


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    k, d = given["k"], given["d"]
    parameters = {name: np.array(given[name], np.float64) for name in PARAMETERS}
    # With one dimension there is nothing below the diagonal.
    parameters["l"] = parameters["l"].reshape(k, d * (d - 1) // 2)
    columns, rows = np.triu_indices(d, 1)
    fixed = np.array([given["gamma"], given["m"]], np.float64)
    constant = prior_constant(k, d, given["gamma"], given["m"])
    return parameters, np.array(given["x"], np.float64), rows, columns, fixed, constant


MATRIX, INDICES = cg.TensorSpec((None, None)), cg.TensorSpec((None,), "int64")
SIGNATURE = (
    {"alpha": cg.TensorSpec((None,)), "mu": MATRIX, "q": MATRIX, "l": MATRIX},
    MATRIX,
    INDICES,
    INDICES,
    cg.TensorSpec((2,)),
)
VALUE = cg.function(log_posterior, signature=SIGNATURE)
GRADIENT = cg.function(cg.grad(log_posterior), signature=SIGNATURE)


def objective(*arguments: Any) -> Any:
    *given, constant = arguments
    return VALUE(*given) + constant


def jacobian(*arguments: Any) -> Any:
    return GRADIENT(*arguments[:-1])


def as_lists(gradient: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array.tolist() for name, array in gradient.items()}


def example(k: int = 4, d: int = 3, n: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    numbers = {
        "x": rng.normal(size=(n, d)),
        "alpha": rng.normal(size=k),
        "mu": rng.random((k, d)),
        "q": rng.normal(size=(k, d)),
        "l": rng.normal(size=(k, d * (d - 1) // 2)),
    }
    return {name: x.tolist() for name, x in numbers.items()} | {"k": k, "d": d, "n": n, "m": 0, "gamma": 1.0}


MODULE = Module(
    {"objective": Evaluation(objective, prepare, float), "jacobian": Evaluation(jacobian, prepare, as_lists)},
    example(),
)
