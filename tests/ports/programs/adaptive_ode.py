"""A bouncing ball: an ODE solved in adaptive steps, with events that are located and change the state."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class State(NamedTuple):
    t: jax.Array
    y: dict
    dt: jax.Array
    bounces: jax.Array
    rejected: jax.Array
    times: jax.Array


# Bogacki and Shampine 1989: a pair of orders 3 and 2.
STAGES = ((0.5,), (0.0, 0.75), (2 / 9, 1 / 3, 4 / 9))
ERRORS = (2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8)


def ball(params, y):
    """Gravity and a drag that grows with the square of the speed."""
    pull = -params["gravity"] - params["drag"] * y["v"] * jnp.abs(y["v"])
    return {"x": y["v"], "v": pull}


def step(f, y, dt):
    """The state after a step, and an estimate of its error."""
    slopes = [f(y)]
    for row in STAGES:
        increment = jax.tree.map(lambda *ks, row=row: sum(a * k for a, k in zip(row, ks, strict=True)), *slopes)
        new = jax.tree.map(lambda a, d: a + dt * d, y, increment)
        slopes.append(f(new))
    error = jax.tree.map(lambda *ks: dt * sum(e * k for e, k in zip(ERRORS, ks, strict=True)), *slopes)
    return new, error


def error_ratio(y, new, error, rtol, atol):
    def scaled(a, b, e):
        return (e / (atol + rtol * jnp.maximum(jnp.abs(a), jnp.abs(b)))) ** 2

    squares = jnp.stack(jax.tree.leaves(jax.tree.map(scaled, y, new, error)))
    return jnp.sqrt(jnp.maximum(squares.mean(), 1e-20))


def crossing(f, y, dt, event):
    """The length of the step at whose end the event function is zero: bisection, then a step of Newton's method."""

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        is_before = event(step(f, y, middle)[0]) > 0
        return jnp.where(is_before, middle, low), jnp.where(is_before, high, middle)

    low, high = lax.fori_loop(0, 30, halve, (jnp.zeros_like(dt), dt))
    # It does not depend on the parameters as the bisection computes it: Newton's step gives it its derivative.
    h = lax.stop_gradient(0.5 * (low + high))
    value, slope = jax.jvp(lambda h: event(step(f, y, h)[0]), (h,), (jnp.ones_like(h),))
    return h - value / slope


@partial(jax.jit, static_argnames="max_bounces")
def solve(params, t_end, max_bounces=4, rtol=1e-4, atol=1e-6):
    f = partial(ball, params)

    def height(y):
        return y["x"]

    def bounce(s):
        h = crossing(f, s.y, s.dt, height)
        landed, _ = step(f, s.y, h)
        y = {"x": jnp.zeros_like(landed["x"]), "v": -params["restitution"] * landed["v"]}
        times = s.times.at[s.bounces].set(s.t + h)
        return s._replace(t=s.t + h, y=y, bounces=s.bounces + 1, times=times)

    def goes_on(s):
        return (s.t < t_end) & (s.bounces < max_bounces)

    def body(s):
        s = s._replace(dt=jnp.minimum(s.dt, t_end - s.t))
        new, error = step(f, s.y, s.dt)
        ratio = error_ratio(s.y, new, error, rtol, atol)
        is_accepted = ratio <= 1.0
        hits = is_accepted & (height(new) < 0)
        case = jnp.where(hits, 2, jnp.where(is_accepted, 1, 0))
        after = lax.switch(
            case,
            [
                lambda s: s._replace(rejected=s.rejected + 1),
                lambda s: s._replace(t=s.t + s.dt, y=new),
                bounce,
            ],
            s,
        )
        factor = jnp.clip(0.9 * ratio ** (-1 / 3), 0.2, 5.0)
        # The lengths of steps are chosen, not part of the solution.
        return after._replace(dt=lax.stop_gradient(after.dt * factor))

    start = State(
        t=jnp.zeros(()),
        y={"x": params["height"] * 1.0, "v": jnp.zeros(())},
        dt=jnp.array(0.5),
        bounces=0,
        rejected=0,
        times=jnp.full(max_bounces, jnp.inf),
    )
    return lax.while_loop(goes_on, body, start)


def time_of_bounce(params, which):
    """The time of the ball's bounce number `which` (from 0)."""
    return solve(params, 20.0, max_bounces=which + 1).times[which]


def energy_at(params, t):
    end = solve(params, t)
    return params["gravity"] * end.y["x"] + 0.5 * end.y["v"] ** 2
