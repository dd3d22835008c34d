"""Derivatives of a translated graph by JAX's own transforms.

The judged function is scalar: a graph with one output of rank 0. Its derivatives of any order along fixed
directions are

    s_0 = s,    s_k(x) = <gradient of s_{k-1} at x, v_k>,

and the judge gives the gradient of each s_k with respect to every floating-point input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph
from ctrlgrad.passes.dead_code import inline_calls
from ctrlgrad.verify.jax_translation import Form, translate
from ctrlgrad.verify.jax_translation import NotInJaxError as NotInJaxError
from ctrlgrad.verify.originals import originals, without_other_calls
from ctrlgrad.verify.originals import originals_kept as originals_kept

Leaves = tuple[np.ndarray, ...]

# Note on an answer that JAX gives only without jit.
JIT_DIFFERS = "jitted JAX differs from JAX without jit"

# Messages of JAX and of packages for a derivative that does not exist.
_REFUSAL = re.compile(r"differentia|\bJVP\b|transpose rule", re.IGNORECASE)
# Messages for a user's rule that violates JAX's requirements.
_BROKEN_RULE = re.compile(r"Custom (JVP|VJP)")


def confirmed(ask: Callable[[], Any], agrees: Callable[[Any], bool]) -> tuple[Any, str]:
    """JAX's answer and, where jit alone makes it disagree, the answer without jit and `JIT_DIFFERS`.

    `ask` calls JAX, by `jax.jit` or not; `agrees` compares its answer. Jitted JAX 0.10.2 has wrong numbers on a
    processor where a slice or an update meets `cumsum` or `sort` in a loop.
    """
    found = ask()
    if agrees(found):
        return found, ""
    with jax.disable_jit():
        plain = ask()
    return (plain, JIT_DIFFERS) if agrees(plain) else (found, "")


@dataclass(frozen=True)
class JaxDerivative:
    """The value and gradient of s_k. `form` says how JAX ran the loops."""

    value: np.ndarray
    gradient: Leaves
    form: Form


class JaxJudge:
    """Judges one scalar graph at one point.

    `wrt` names the inputs to differentiate; the other inputs are constants. A JAX function that the graph keeps
    (`originals`) is called in place of a translation of what was read of it, unless JAX refuses to differentiate it.
    """

    def __init__(self, graph: Graph, arguments: Sequence[Any], wrt: Sequence[int], form: Form | None = None) -> None:
        self.arguments = [np.asarray(x) for x in arguments]
        self.wrt = tuple(wrt)
        self.form = form
        graph = without_other_calls(graph)
        self.is_original = bool(originals(graph))
        self.translation = self._asked(lambda: translate(graph, self.arguments, form))
        # The derivatives so far: of which directions, with jit or without.
        self._found: dict[Any, list[JaxDerivative]] = {}

    @property
    def name(self) -> str:
        return "jax (original)" if self.is_original else f"jax ({self.translation.form})"

    def derivative(self, directions: Sequence[Leaves] = ()) -> JaxDerivative:
        """The value and gradient of s_k for k directions, each with one array per differentiated input."""
        return self.derivatives(directions)[-1]

    def derivatives(self, directions: Sequence[Leaves] = ()) -> list[JaxDerivative]:
        """The same of s_0, ..., s_k: the last one computes those before it on its way, in one compiled program."""
        config: Any = jax.config
        key = (*map(id, directions), config.jax_disable_jit)
        if key not in self._found:
            found = self._asked(lambda: self._derivatives(directions))
            if found is None:
                # JAX has no reverse mode of `lax.while_loop`, and packages refuse derivatives.
                self.is_original = False
                self.translation = translate(inline_calls(self.translation.graph), self.arguments, self.form)
                found = self._derivatives(directions)
            self._found[key] = found
        return self._found[key]

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """JAX's answer; None where it refuses to differentiate the JAX function."""
        try:
            return ask()
        except Exception as error:
            if not self.is_original:
                raise
            text = str(error)
            if isinstance(error, NotImplementedError) or (_REFUSAL.search(text) and not _BROKEN_RULE.search(text)):
                return None
            raise UserInputError(
                "check_grads: JAX fails on the function that from_jax was given",
                expected="a function that JAX computes, and differentiates or refuses to differentiate",
                got=f"{type(error).__name__}: {text}",
                hint='mend the function; against=("finite_differences",) checks without JAX',
            ) from error

    def _derivatives(self, directions: Sequence[Leaves]) -> list[JaxDerivative]:
        with self.translation.settings():
            # The value and gradient of s_0, ..., s_k. Along v, the value of s_k changes by that of s_{k+1}, and its
            # gradient by that of s_{k+1}, since second derivatives are symmetric: one reverse pass serves all orders.
            function: Callable[..., Any] = lambda point: (jax.value_and_grad(self._scalar)(point),)
            for direction in directions:
                function = _with_next(function, direction)
            found = self.translation.run(function, self._point())
            (result,) = self.translation.graph.outputs
            dtypes = [self.arguments[position].dtype for position in self.wrt]
            return [
                JaxDerivative(
                    np.asarray(value, result.tensor.dtype),
                    tuple(np.asarray(g, dtype) for g, dtype in zip(gradient, dtypes, strict=True)),
                    self.translation.form,
                )
                for value, gradient in found
            ]

    def directional(self, direction: Leaves, directions: Sequence[Leaves] = ()) -> tuple[np.ndarray, np.ndarray]:
        """The value of s_k and its derivative along one more direction, by JAX's forward mode alone."""
        with self.translation.settings():
            function: Callable[..., Any] = self._scalar
            for d in directions:
                function = _tangent(function, d)
            both = lambda point: (function(point), _tangent(function, direction)(point))
            value, slope = self.translation.run(both, self._point())
            return np.asarray(value), np.asarray(slope)

    def _point(self) -> tuple[Any, ...]:
        # `jnp.asarray` would compile a copy for each shape.
        return tuple(jax.device_put(self.arguments[position]) for position in self.wrt)

    def _scalar(self, point: tuple[Any, ...]) -> Any:
        arguments: list[Any] = list(self.arguments)
        for position, x in zip(self.wrt, point, strict=True):
            arguments[position] = x
        (result,) = self.translation.function(*arguments)
        return result


def _with_next(function: Callable[..., Any], direction: Leaves) -> Callable[..., Any]:
    def pairs(point: tuple[Any, ...]) -> Any:
        found, moved = jax.jvp(function, (point,), (tuple(map(jnp.asarray, direction)),))
        return (*found, moved[-1])

    return pairs


def _tangent(function: Callable[..., Any], direction: Leaves) -> Callable[..., Any]:
    return lambda point: jax.jvp(function, (point,), (tuple(map(jnp.asarray, direction)),))[1]
