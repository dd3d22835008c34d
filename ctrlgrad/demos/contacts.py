"""Contacts: forces that are solved for at each step, within a loop that ends when the body rests."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.demos.catalogue import Finding


def contact_impulses(a: Any, b: Any) -> Any:
    """x >= 0 with a x + b >= 0 and x (a x + b) = 0: Gauss-Seidel, one contact after the other."""
    n = b.shape[0]

    def sweep(carry: Any) -> Any:
        def one(i: Any, x: Any) -> Any:
            return x.at[i].set(cnp.maximum(0.0, x[i] - (a[i] @ x + b[i]) / a[i, i]))

        return cg.fori_loop(0, n, one, carry[0]), carry[0]

    def go_on(carry: Any) -> Any:
        return cnp.abs(carry[0] - carry[1]).max() > 1e-12

    return cg.while_loop(go_on, sweep, (cnp.zeros(n), cnp.full(n, 1.0)))[0]


def slide(speed: Any, friction: Any, h: Any = 0.01) -> Any:
    """Distance that a block slides on the floor before it rests, and the number of steps."""

    def body(carry: Any) -> Any:
        steps, x, v = carry
        fall = v[1] - 9.81 * h
        (support,) = contact_impulses(cnp.ones((1, 1)), fall[None])
        brake = cnp.minimum(friction * support, v[0])
        v = cnp.stack([v[0] - brake, fall + support])
        return steps + 1, x + h * v[0], v

    start = (0, 0.0, cnp.stack([speed, 0.0 * speed]))
    steps, x, _ = cg.while_loop(lambda carry: carry[2][0] > 1e-9, body, start)
    return x, steps


# Finding: the distance over the speed, with its tangents.


def show(points: int = 60) -> Finding:
    friction, gravity = 0.4, 9.81
    at = cg.function(cg.value_and_grad(slide, has_aux=True))
    speeds = np.linspace(0.2, 5.0, points)
    found = [at(speed, friction) for speed in speeds]
    distances = np.array([float(value) for (value, _), _ in found])
    steps = np.array([int(count) for (_, count), _ in found])
    slopes = np.array([float(slope) for _, slope in found])

    def draw_distances(axes: Any) -> None:
        axes.plot(speeds, distances, label="solved, step by step")
        axes.plot(speeds, speeds**2 / (2 * friction * gravity), ":", label="steps of length zero")
        for i in range(points // 8, points, points // 4):
            near = speeds[i] + np.array([-0.5, 0.5])
            axes.plot(near, distances[i] + slopes[i] * (near - speeds[i]), color="tab:red")
        axes.plot([], [], color="tab:red", label="tangent, by the gradient")
        axes.set(title="How far a block slides", xlabel="speed in m/s", ylabel="distance in m")
        axes.legend()

    def draw_steps(axes: Any) -> None:
        axes.step(speeds, steps, where="mid")
        axes.set(title="Iterations of the loop over time", xlabel="speed in m/s", ylabel="steps of 0.01 s")

    return Finding(
        (
            f"a block with friction {friction} and {speeds[-1]} m/s slides {distances[-1]:.3f} m, in {steps[-1]} steps",
            f"each m/s more takes it {slopes[-1]:.3f} m further, by the gradient",
            f"with steps of length zero it would be {speeds[-1] / (friction * gravity):.3f} m",
        ),
        (draw_distances, draw_steps),
    )
