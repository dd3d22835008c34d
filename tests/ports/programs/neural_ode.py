"""A neural differential equation, fitted to curves that spiral; Runge-Kutta steps between the times of observation."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, nn, random


class Layer(NamedTuple):
    weight: jax.Array
    bias: jax.Array


def init_params(key, sizes):
    keys = random.split(key, len(sizes) - 1)
    return [
        Layer(random.normal(k, (n, m)) / jnp.sqrt(n), jnp.zeros(m))
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def field(params, t, y):
    """The slope at y: a small network."""
    for layer in params[:-1]:
        y = nn.softplus(y @ layer.weight + layer.bias)
    return jnp.tanh(y @ params[-1].weight + params[-1].bias)


def runge_kutta(f, t, y, h):
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def integrate(f, start, times, longest=0.1):
    """The solution at all times. Between two of them as many steps are taken as keep each at most `longest`."""

    def between(y, interval):
        t0, t1 = interval
        count = jnp.ceil((t1 - t0) / longest).astype(int)
        h = (t1 - t0) / jnp.maximum(count, 1)

        def step(carry):
            i, y = carry
            return i + 1, runge_kutta(f, t0 + i * h, y, h)

        _, y = lax.while_loop(lambda carry: carry[0] < count, step, (0, y))
        return y, y

    _, ys = lax.scan(between, start, (times[:-1], times[1:]))
    return jnp.concatenate([start[None], ys])


def make_data(key, size, times):
    """Curves of the equation y' = A y, from starts on a ring."""
    angle = random.uniform(key, (size,), maxval=2 * jnp.pi)
    starts = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    a = jnp.array([[-0.1, 1.0], [-1.0, -0.1]])
    curve = lambda start: integrate(lambda t, y: jnp.tanh(y @ a), start, times)
    return jax.vmap(curve)(starts)


def loss(params, curves, times):
    solve = lambda start: integrate(partial(field, params), start, times)
    return jnp.mean((jax.vmap(solve)(curves[:, 0]) - curves) ** 2)


@jax.jit
def train_step(params, curves, times, rate):
    value, grads = jax.value_and_grad(loss)(params, curves, times)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads), value
