"""Derivatives of a translated graph by JAX's own transforms.

The judged function is scalar: a graph with one output of rank 0. Its derivatives of any order along fixed
directions are

    s_0 = s,    s_k(x) = <gradient of s_{k-1} at x, v_k>,

and the judge gives the gradient of each s_k with respect to every floating-point input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ctrlgrad.ir import Graph
from ctrlgrad.verify.jax_translation import Form, translate, x64

Leaves = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class JaxDerivative:
    """The value and gradient of s_k. `form` says how JAX ran the loops."""

    value: np.ndarray
    gradient: Leaves
    form: Form


class JaxJudge:
    """Judges one scalar graph at one point.

    `wrt` names the inputs to differentiate; the others stay as they are.
    """

    def __init__(self, graph: Graph, arguments: Sequence[Any], wrt: Sequence[int], form: Form | None = None) -> None:
        self.arguments = [np.asarray(x) for x in arguments]
        self.wrt = tuple(wrt)
        self.translation = translate(graph, self.arguments, form)

    def derivative(self, directions: Sequence[Leaves] = ()) -> JaxDerivative:
        """The value and gradient of s_k for k directions, each with one array per differentiated input."""
        with x64():
            function = jax.value_and_grad(self._along(directions))
            value, gradient = self.translation.run(function, self._point())
            return JaxDerivative(np.asarray(value), tuple(np.asarray(g) for g in gradient), self.translation.form)

    def directional(self, direction: Leaves, directions: Sequence[Leaves] = ()) -> tuple[np.ndarray, np.ndarray]:
        """The value of s_k and its derivative along one more direction, by JAX's forward mode."""
        with x64():
            function = self._along(directions)
            tangent = tuple(map(jnp.asarray, direction))
            value, slope = self.translation.run(lambda x: jax.jvp(function, (x,), (tangent,)), self._point())
            return np.asarray(value), np.asarray(slope)

    def _point(self) -> tuple[Any, ...]:
        return tuple(jnp.asarray(self.arguments[position]) for position in self.wrt)

    def _along(self, directions: Sequence[Leaves]) -> Callable[..., Any]:
        function: Callable[..., Any] = self._scalar
        for direction in directions:
            function = _along_one(function, direction)
        return function

    def _scalar(self, point: tuple[Any, ...]) -> Any:
        arguments: list[Any] = list(self.arguments)
        for position, x in zip(self.wrt, point, strict=True):
            arguments[position] = x
        (result,) = self.translation.function(*arguments)
        return result


def _along_one(function: Callable[..., Any], direction: Leaves) -> Callable[..., Any]:
    def along(point: tuple[Any, ...]) -> Any:
        gradient = jax.grad(function)(point)
        return sum(jnp.sum(g * v) for g, v in zip(gradient, direction, strict=True))

    return along
