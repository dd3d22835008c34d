"""A layer that gives the fixed point of its cell: solved by a loop, differentiated by the implicit function theorem."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, random


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fixed_point(f, params, start):
    """The x with x = f(params, x), by iteration from `start`."""

    def goes_on(carry):
        before, now = carry
        return jnp.max(jnp.abs(now - before)) > 1e-12

    def improve(carry):
        _, now = carry
        return now, f(params, now)

    return lax.while_loop(goes_on, improve, (start, f(params, start)))[1]


def fixed_point_forward(f, params, start):
    x = fixed_point(f, params, start)
    return x, (params, x)


def fixed_point_backward(f, saved, cotangent):
    """With x = f(p, x): w = cotangent + w df/dx is a fixed point too, and w df/dp the cotangent of p."""
    params, x = saved
    _, pull_params = jax.vjp(lambda params: f(params, x), params)
    w = fixed_point(partial(adjoint, f), (params, x, cotangent), cotangent)
    return pull_params(w)[0], jnp.zeros_like(x)


def adjoint(f, known, w):
    params, x, cotangent = known
    _, pull_x = jax.vjp(lambda x: f(params, x), x)
    return cotangent + pull_x(w)[0]


fixed_point.defvjp(fixed_point_forward, fixed_point_backward)


def init_params(key, features, hidden):
    keys = random.split(key, 3)
    return {
        "within": 0.3 * random.normal(keys[0], (hidden, hidden)) / jnp.sqrt(hidden),
        "in": random.normal(keys[1], (features, hidden)) / jnp.sqrt(features),
        "out": random.normal(keys[2], (hidden,)) / jnp.sqrt(hidden),
    }


def cell(known, z):
    params, x = known
    return jnp.tanh(z @ params["within"] + x @ params["in"])


def predict(params, x):
    """A number for each row of x."""
    z = fixed_point(cell, (params, x), jnp.zeros((x.shape[0], params["within"].shape[0])))
    return z @ params["out"]


def loss(params, x, y):
    return jnp.mean((predict(params, x) - y) ** 2)


@partial(jax.jit, static_argnames=("steps",))
def train(params, x, y, steps, rate=0.1):
    """The parameters after some steps of gradient descent, and the loss of each."""

    def descend(params, _):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), value

    return lax.scan(descend, params, None, length=steps)
