"""A learned vector field, trained through a Runge-Kutta method that chooses its own steps.

Bogacki and Shampine's embedded pair of orders 3 and 2 (1989, "A 3(2) pair of Runge-Kutta formulas") takes as many steps
as the error estimate asks for, and rejects those that were too long. A small network learns the field of a damped
pendulum from where 24 starting points end up; the gradient goes back through the whole loop, the choice of the
steps included. It is compared with central differences along a random direction.

    python examples/adaptive_runge_kutta.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

END = 2.0


def integrate(field: Callable[[Any], Any], start: Any, tolerance: float) -> tuple[Any, Any, Any]:
    """The solution of `y' = field(y)` at time END, and how many steps were taken and how many rejected."""

    def unfinished(carry: Any) -> Any:
        return carry[0] < END

    def step(carry: Any) -> Any:
        t, h, y, k1, taken, rejected = carry
        h = cnp.minimum(h, END - t)
        k2 = field(y + h / 2 * k1)
        k3 = field(y + 3 * h / 4 * k2)
        following = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
        k4 = field(following)
        error = cnp.max(cnp.abs(h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)))
        next_h = h * cnp.clip(0.9 * (tolerance / cnp.maximum(error, 1e-300)) ** (1 / 3), 0.2, 5.0)
        return cg.cond(
            error <= tolerance,
            lambda: (t + h, next_h, following, k4, taken + 1, rejected),
            lambda: (t, next_h, y, k1, taken, rejected + 1),
        )

    # The first step is meant to be too long: the method finds its own.
    carry = (0.0, END, start, field(start), 0, 0)
    _, _, y, _, taken, rejected = cg.while_loop(unfinished, step, carry)
    return y, taken, rejected


def pendulum(y: Any) -> Any:
    """Angle and speed, one pendulum a row, damped."""
    return cnp.stack([y[:, 1], -cnp.sin(y[:, 0]) - 0.2 * y[:, 1]], axis=1)


def network(params: Any, y: Any) -> Any:
    return cnp.tanh(y @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss(params: Any, starts: Any, ends: Any) -> tuple[Any, Any]:
    found, *steps = integrate(lambda y: network(params, y), starts, 1e-3)
    return cnp.mean((found - ends) ** 2), steps


def train(params: Any, starts: Any, ends: Any, count: int) -> tuple[Any, list[float]]:
    optimiser = cg.optim.adam(0.03)
    step = cg.function(cg.value_and_grad(loss, has_aux=True))
    state, losses = optimiser.init(params), []
    for update in range(count):
        (value, (taken, rejected)), gradient = step(params, starts, ends)
        updates, state = optimiser.update(gradient, state, params)
        params = cg.optim.apply_updates(params, updates)
        losses.append(float(value))
        if update % 20 == 0 or update == count - 1:
            print(f"update {update:3d}: loss {value:.5f}, {taken} steps taken, {rejected} rejected")
    return params, losses


def gradient_error(params: Any, starts: Any, ends: Any, rng: np.random.Generator) -> float:
    """Of the derivative along a random direction, relative to central differences."""
    direction = {name: rng.standard_normal(p.shape) for name, p in params.items()}
    gradient, _ = cg.grad(loss, has_aux=True)(params, starts, ends)
    along = sum(np.sum(gradient[name] * d) for name, d in direction.items())
    value = cg.function(lambda e: loss({n: params[n] + e * d for n, d in direction.items()}, starts, ends)[0])
    differences = (value(1e-5) - value(-1e-5)) / 2e-5
    return float(abs(along - differences) / abs(differences))


def main() -> int:
    rng = np.random.default_rng(0)
    starts = rng.uniform(-1.5, 1.5, (24, 2))
    ends, taken, rejected = integrate(pendulum, starts, 1e-8)
    print(f"the pendulum itself, to 1e-8: {taken} steps taken, {rejected} rejected")
    params = {
        "w1": rng.standard_normal((2, 16)),
        "b1": np.zeros(16),
        "w2": 0.1 * rng.standard_normal((16, 2)),
        "b2": np.zeros(2),
    }
    params, losses = train(params, starts, ends, 80)
    error = gradient_error(params, starts, ends, rng)
    print(f"the loss fell by a factor of {losses[0] / losses[-1]:.0f}; error of the gradient: {error:.1e}")
    if not (losses[-1] < losses[0] / 50 and error < 1e-6):
        print("training failed, or the gradient is wrong", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
