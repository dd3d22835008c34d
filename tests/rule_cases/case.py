"""A case of a derivative rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad as cg

BOTH = ("finite_differences", "jax")
# At ties: finite differences of second order do not exist there.
JAX = ("jax",)
# Where JAX has no form of an op, or is wrong.
DIFFERENCES = ("finite_differences",)


@dataclass(frozen=True)
class Case:
    """`fn` of float64 arrays, and who judges its derivatives. `unknown` counts sizes as unknown."""

    fn: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    against: tuple[str, ...] = BOTH
    unknown: bool = False

    def function(self, dtype: Any = np.float64) -> Any:
        """The traced function, for arguments of a dtype; called, it is run by the reference engine."""
        specs = tuple(cg.TensorSpec((None,) * x.ndim, dtype) for x in self.args) if self.unknown else None
        return cg.function(self.fn, signature=specs, engine="reference")


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def positive(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(0.4, 2.0, shape)


def inside(seed: int, *shape: int) -> np.ndarray:
    """Between -1 and 1, away from both and from 0."""
    rng = np.random.default_rng([seed, *shape])
    return rng.uniform(0.1, 0.8, shape) * rng.choice([-1.0, 1.0], shape)
