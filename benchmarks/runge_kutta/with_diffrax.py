"""The adaptive method by Diffrax."""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.program import Program
from benchmarks.runge_kutta import FIRST_STEP, PARAMETERS, START, TOLERANCE

jax.config.update("jax_enable_x64", True)


def field(t: Any, y: Any, p: Any) -> Any:
    prey, predators = y
    return jnp.stack([p[0] * prey - p[1] * prey * predators, p[2] * prey * predators - p[3] * predators])


def solve(end: float) -> Program:
    controller = diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE)

    def loss(inputs: Any) -> Any:
        y, p = inputs
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Dopri5(),
            t0=0.0,
            t1=end,
            dt0=FIRST_STEP,
            y0=y,
            args=p,
            stepsize_controller=controller,
        )
        return jnp.sum(solution.ys[-1]), solution.stats["num_steps"]

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    inputs = (jnp.array(START), jnp.array(PARAMETERS))
    return Program(
        step=lambda: jax.block_until_ready(step(inputs)), read=read, units=lambda result: float(result[0][1])
    )


def read(result: Any) -> dict[str, np.ndarray]:
    (value, steps), (dy, dp) = result
    return {"loss": np.asarray(value), "steps": np.asarray(steps), "dy": np.asarray(dy), "dp": np.asarray(dp)}
