"""The gradient descent that `particle` and `saddle` prescribe: its step size doubles and halves as it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

FIRST_STEP, SMALL, STEPS_BEFORE_DOUBLING = 1e-5, 1e-5, 10


def derivative(mode: str, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The gradient of a function of a vector: "r" by reverse mode, "f" by forward mode."""
    return cg.grad(f) if mode == "r" else cg.jacfwd(f)


def minimiser(f: Callable[[Any], Any], gradient: Callable[[Any], Any], start: Any) -> Any:
    """The vector that gradient descent ends at.

    It ends where the gradient or a step is small. A step that makes the function no smaller is not taken, and the step
    size is halved; after ten steps in a row it is doubled.
    """

    def unfinished(state: Any) -> Any:
        return cnp.logical_not(state["done"])

    def proceed(state: Any) -> Any:
        x, slope = state["x"], state["slope"]
        further = x - state["size"] * slope
        is_flat = _length(slope) <= SMALL
        doubles = state["taken"] == STEPS_BEFORE_DOUBLING
        stands = cnp.logical_not(is_flat) & cnp.logical_not(doubles) & (_length(x - further) <= SMALL)
        done = is_flat | stands
        return cg.cond(done | doubles, lambda: rest(state, done), lambda: attempt(state, further))

    def rest(state: Any, done: Any) -> Any:
        return state | {"size": cnp.where(done, state["size"], 2.0 * state["size"]), "taken": 0, "done": done}

    def attempt(state: Any, further: Any) -> Any:
        value = f(further)
        return cg.cond(
            value < state["value"],
            lambda: state | {"x": further, "value": value, "slope": gradient(further), "taken": state["taken"] + 1},
            lambda: state | {"size": 0.5 * state["size"], "taken": 0},
        )

    state = {"x": start, "value": f(start), "slope": gradient(start), "size": FIRST_STEP, "taken": 0, "done": False}
    return cg.while_loop(unfinished, proceed, state)["x"]


def _length(v: Any) -> Any:
    # The descent compares lengths only, and the root of a sum of squares has no derivative at zero.
    return cnp.sqrt(cnp.sum(cg.stop_gradient(v) ** 2))
