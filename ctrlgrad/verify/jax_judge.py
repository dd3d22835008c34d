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

    `wrt` names the inputs to differentiate; the others stay as they are. `original` is the JAX function that the graph
    was read from: it is judged by in place of a translation of the graph, unless JAX refuses to differentiate it.
    """

    def __init__(
        self,
        graph: Graph,
        arguments: Sequence[Any],
        wrt: Sequence[int],
        form: Form | None = None,
        original: Callable[..., Any] | None = None,
    ) -> None:
        self.arguments = [np.asarray(x) for x in arguments]
        self.wrt = tuple(wrt)
        self.translation = translate(graph, self.arguments, form)
        self.original = original

    @property
    def name(self) -> str:
        return f"jax ({self.translation.form})" if self.original is None else "jax (original)"

    def derivative(self, directions: Sequence[Leaves] = ()) -> JaxDerivative:
        """The value and gradient of s_k for k directions, each with one array per differentiated input."""
        return self.derivatives(directions)[-1]

    def derivatives(self, directions: Sequence[Leaves] = ()) -> list[JaxDerivative]:
        """The same of s_0, ..., s_k: the last one computes those before it on its way, in one compiled program."""
        if self.original is not None:
            try:
                # By the setting of the caller, by which the graph was read.
                found = jax.jit(self._pairs(directions))(self._point())
                return [self._cast(value, gradient) for value, gradient in found]
            except Exception:
                # JAX has no reverse mode of `lax.while_loop`, and packages refuse derivatives by errors of their own.
                self.original = None
        with x64():
            found = self.translation.run(self._pairs(directions), self._point())
            return [
                JaxDerivative(np.asarray(value), tuple(np.asarray(g) for g in gradient), self.translation.form)
                for value, gradient in found
            ]

    def directional(self, direction: Leaves, directions: Sequence[Leaves] = ()) -> tuple[np.ndarray, np.ndarray]:
        """The value of s_k and its derivative along one more direction, by JAX's forward mode alone."""
        with x64():
            function: Callable[..., Any] = self._scalar
            for d in directions:
                function = _tangent(function, d)
            both = lambda point: (function(point), _tangent(function, direction)(point))
            value, slope = self.translation.run(both, self._point())
            return np.asarray(value), np.asarray(slope)

    def _cast(self, value: Any, gradient: Sequence[Any]) -> JaxDerivative:
        """A derivative of the original, in the dtypes of the arguments."""
        dtypes = [self.arguments[position].dtype for position in self.wrt]
        gradient = tuple(np.asarray(g, dtype) for g, dtype in zip(gradient, dtypes, strict=True))
        return JaxDerivative(np.asarray(value), gradient, self.translation.form)

    def _point(self) -> tuple[Any, ...]:
        # `jnp.asarray` would compile a copy for each shape.
        return tuple(jax.device_put(self.arguments[position]) for position in self.wrt)

    def _scalar(self, point: tuple[Any, ...]) -> Any:
        arguments: list[Any] = list(self.arguments)
        for position, x in zip(self.wrt, point, strict=True):
            arguments[position] = x
        if self.original is not None:
            return self.original(*arguments)
        (result,) = self.translation.function(*arguments)
        return result

    def _pairs(self, directions: Sequence[Leaves]) -> Callable[..., Any]:
        """A function of the point that gives the value and gradient of s_0, ..., s_k.

        Along v, the value of s_k changes by the value of s_{k+1}, and its gradient by that of s_{k+1}, since second
        derivatives are symmetric: one reverse pass serves all orders.
        """
        function: Callable[..., Any] = lambda point: (jax.value_and_grad(self._scalar)(point),)
        for direction in directions:
            function = _with_next(function, direction)
        return function


def _with_next(function: Callable[..., Any], direction: Leaves) -> Callable[..., Any]:
    def pairs(point: tuple[Any, ...]) -> Any:
        found, moved = jax.jvp(function, (point,), (tuple(map(jnp.asarray, direction)),))
        return (*found, moved[-1])

    return pairs


def _tangent(function: Callable[..., Any], direction: Leaves) -> Callable[..., Any]:
    return lambda point: jax.jvp(function, (point,), (tuple(map(jnp.asarray, direction)),))[1]
