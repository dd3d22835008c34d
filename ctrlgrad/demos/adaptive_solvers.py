"""Adaptive solvers with events: a ball that bounces, by steps whose length the solver chooses."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.demos.catalogue import Finding


def field(y: Any) -> Any:
    """Time derivative of height and speed, with drag."""
    return cnp.stack([y[1], -9.81 - 0.1 * y[1]])


def step(y: Any, h: Any) -> Any:
    """Bogacki and Shampine's pair of orders 3 and 2."""
    k1 = field(y)
    k2 = field(y + h / 2 * k1)
    k3 = field(y + 3 * h / 4 * k2)
    following = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
    k4 = field(following)
    return following, cnp.abs(h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)).max()


def bounce(y: Any, restitution: Any) -> Any:
    return cnp.stack([0.0 * y[0], -restitution * y[1]])


def drop(height: Any, restitution: Any, end: Any = 2.0, tolerance: Any = 1e-8) -> Any:
    """The time, the next step's length, height and speed, and the number of bounces, at the end."""

    def body(carry: Any) -> Any:
        t, h, y, bounces = carry
        h = cnp.minimum(h, end - t)
        following, error = step(y, h)
        next_h = h * cnp.clip(0.9 * (tolerance / cnp.maximum(error, 1e-300)) ** (1 / 3), 0.2, 5.0)
        below = following[0] < 0.0
        # The share of the step after which the floor is reached: the step is taken again with that length.
        until = cnp.where(below, y[0] / cnp.where(below, y[0] - following[0], 1.0), 1.0)
        hits = below & (h * until < 1e-9)
        return cg.switch(
            cnp.where(hits, 2, cnp.where(below, 1, cnp.where(error <= tolerance, 0, 3))),
            [
                lambda: (t + h, next_h, following, bounces),
                lambda: (t, h * until, y, bounces),
                lambda: (t + h * until, 0.01, bounce(following, restitution), bounces + 1),
                lambda: (t, next_h, y, bounces),
            ],
        )

    start = (0.0, 0.01, cnp.stack([height, 0.0 * height]), 0)
    return cg.while_loop(lambda carry: carry[0] < end, body, start)


# Finding: the ball's position over time, and its dependence on the speed that a bounce leaves.


def show(points: int = 150) -> Finding:
    def height(restitution: Any, end: Any) -> Any:
        _, _, y, bounces = drop(2.0, restitution, end)
        return y[0], bounces

    at = cg.function(cg.value_and_grad(height, has_aux=True))
    times = np.linspace(0.01, 2.5, points)
    found = [at(0.8, end) for end in times]
    heights = np.array([float(value) for (value, _), _ in found])
    slopes = np.array([float(slope) for _, slope in found])
    bounces = [int(count) for (_, count), _ in found]
    other = np.array([float(at(0.801, end)[0][0]) for end in times])

    def draw_heights(axes: Any) -> None:
        axes.plot(times, heights)
        axes.set(title="A ball that keeps 0.8 of its speed", xlabel="time in s", ylabel="height in m", ylim=(0, None))

    def draw_slopes(axes: Any) -> None:
        axes.plot(times, slopes, label="gradient")
        axes.plot(times, (other - heights) / 0.001, "--", label="difference of two heights")
        axes.set(title="Height's derivative in restitution", xlabel="time in s", ylabel="m")
        axes.legend()

    return Finding(
        (
            f"a ball falls 2 m and bounces {bounces[-1]} times in {times[-1]} s",
            f"then it is at {heights[-1]:.3f} m; 0.001 more restitution adds {other[-1] - heights[-1]:.4f} m",
            f"the gradient says {0.001 * slopes[-1]:.4f} m",
        ),
        (draw_heights, draw_slopes),
    )
