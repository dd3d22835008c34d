"""Steps of optimisers, of the domain ai.onnx.preview.training: of each of several arrays alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.interop.onnx.operators import Node, entry

_DOMAIN = "ai.onnx.preview.training"


def _each(inputs: Sequence[Any], kinds: int, step: Callable[..., Sequence[Any]]) -> tuple[Any, ...]:
    """The results of a step for arrays that are given kind by kind, in the same order."""
    count = len(inputs) // kinds
    found = [step(*inputs[i::count]) for i in range(count)]
    return tuple(x for kind in zip(*found, strict=True) for x in kind)


def _numbers(node: Node, x: Any, **defaults: float) -> list[Any]:
    return [np.asarray(node.get(name, value), x.dtype) for name, value in defaults.items()]


@entry("Adagrad", domain=_DOMAIN)
def _adagrad(node: Node, rate: Any, t: Any, *inputs: Any) -> Any:
    def step(x: Any, g: Any, squares: Any) -> tuple[Any, Any]:
        decay, small, norm = _numbers(node, x, decay_factor=0.0, epsilon=1e-6, norm_coefficient=0.0)
        g = norm * x + g
        squares = squares + g * g
        return x - (rate / (1 + t.astype(x.dtype) * decay)).astype(x.dtype) * g / (cnp.sqrt(squares) + small), squares

    return _each(inputs, 3, step)


@entry("Adam", domain=_DOMAIN)
def _adam(node: Node, rate: Any, t: Any, *inputs: Any) -> Any:
    def step(x: Any, g: Any, mean: Any, squares: Any) -> tuple[Any, Any, Any]:
        names = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
        alpha, beta, small, norm, after = _numbers(node, x, **names)
        g, count = norm * x + g, t.astype(x.dtype)
        mean, squares = alpha * mean + (1 - alpha) * g, beta * squares + (1 - beta) * g * g
        corrected = cnp.sqrt(1 - beta**count) / cnp.where(t > 0, 1 - alpha**count, 1)
        speed = (rate * cnp.where(t > 0, corrected, 1)).astype(x.dtype)
        return (1 - after) * (x - speed * mean / (cnp.sqrt(squares) + small)), mean, squares

    return _each(inputs, 4, step)


@entry("Momentum", domain=_DOMAIN)
def _momentum(node: Node, rate: Any, t: Any, *inputs: Any) -> Any:
    def step(x: Any, g: Any, v: Any) -> tuple[Any, Any]:
        alpha, beta, norm = _numbers(node, x, alpha=0.0, beta=0.0, norm_coefficient=0.0)
        g = norm * x + g
        v = alpha * v + cnp.where(t > 0, beta, np.ones_like(beta)) * g
        along = g + alpha * v if node.get("mode") == "nesterov" else v
        return x - rate.astype(x.dtype) * along, v

    return _each(inputs, 3, step)
