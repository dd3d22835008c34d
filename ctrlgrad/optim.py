"""Optimisers: pure functions on pytrees of NumPy arrays.

An `Optimiser` has `init(params) -> state` and `update(grads, state, params) -> (params, state)`. Nothing is changed
in place, so the old parameters and state stay valid, and a state is a pytree of arrays that can be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad import tree


@dataclass(frozen=True, slots=True)
class Optimiser:
    """See the module's docstring."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


def global_norm(grads: Any) -> float:
    """The Euclidean norm of all leaves taken as one vector, summed in float64.

    >>> global_norm({"a": np.array([3.0]), "b": np.array([[4.0]])})
    5.0
    """
    return float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in tree.leaves(grads))))


def clip_by_global_norm(grads: Any, limit: float) -> Any:
    """The gradients, scaled down to norm `limit` where theirs is larger; their direction stays.

    Source: Pascanu, Mikolov and Bengio 2013, "On the difficulty of training recurrent neural networks".

    >>> clip_by_global_norm([np.array([3.0, 4.0])], 1.0)
    [array([0.6, 0.8])]
    """
    norm = global_norm(grads)
    if norm <= limit:
        return grads
    return tree.map(lambda g: g * g.dtype.type(limit / norm), grads)


def adam(
    learning_rate: float | Callable[[int], float], beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Optimiser:
    """Adam with bias correction; `learning_rate` is a number or a function of the step (0 for the first).

    The state is `{"step", "mean", "square"}`: an int64 scalar and two pytrees like the parameters, of their dtypes.
    Source: Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.

    >>> optimiser = adam(0.1)
    >>> params = {"w": np.array([1.0, -1.0])}
    >>> params, state = optimiser.update({"w": np.array([2.0, -3.0])}, optimiser.init(params), params)
    >>> params["w"].round(6)
    array([ 0.9, -0.9])
    """

    def init(params: Any) -> Any:
        zeros = tree.map(np.zeros_like, params)
        return {"step": np.zeros((), np.int64), "mean": zeros, "square": zeros}

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        rate = learning_rate(int(state["step"])) if callable(learning_rate) else learning_rate
        step = state["step"] + 1
        # Both corrections in one factor, and epsilon scaled with them: one division per parameter.
        unbias = np.sqrt(1 - beta2**step)
        factor = rate * unbias / (1 - beta1**step)

        def next_mean(m: Any, g: Any) -> Any:
            return m + _like(g, 1 - beta1) * (g - m)

        def next_square(v: Any, g: Any) -> Any:
            return v + _like(g, 1 - beta2) * (g * g - v)

        def next_param(p: Any, m: Any, v: Any) -> Any:
            return p - _like(p, factor) * m / (np.sqrt(v) + _like(p, epsilon * unbias))

        mean = tree.map(next_mean, state["mean"], grads)
        square = tree.map(next_square, state["square"], grads)
        return tree.map(next_param, params, mean, square), {"step": np.asarray(step), "mean": mean, "square": square}

    return Optimiser(init, update)


def _like(array: Any, number: float) -> Any:
    return np.asarray(array).dtype.type(number)


def warmup_cosine(peak: float, steps: int, warmup: int) -> Callable[[int], float]:
    """A learning rate that rises linearly to `peak` in `warmup` steps and falls along a cosine to a tenth of it.

    Source: Loshchilov and Hutter 2017, "SGDR: stochastic gradient descent with warm restarts", without restarts.

    >>> rate = warmup_cosine(1.0, 110, 10)
    >>> rate(0), rate(9), round(rate(109), 6)
    (0.1, 1.0, 0.1)
    """

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        progress = (step + 1 - warmup) / max(1, steps - warmup)
        return peak * float(0.1 + 0.45 * (1 + np.cos(np.pi * min(1.0, progress))))

    return rate
