"""A Kalman filter and smoother with missing observations: by a scan to and fro, and by an associative scan."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import grad, jit, lax, vmap
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular


class Model(NamedTuple):
    """A model of position and speed; variances by their logarithms."""

    log_q: jax.Array
    log_r: jax.Array
    damping: jax.Array
    mean0: jax.Array
    log_cov0: jax.Array


class Gaussian(NamedTuple):
    mean: jax.Array
    cov: jax.Array


def matrices(model, dt=0.5):
    f = jnp.array([[1.0, dt], [0.0, 0.0]]).at[1, 1].set(jnp.exp(-model.damping * dt))
    q = jnp.exp(model.log_q) * jnp.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]])
    h = jnp.array([[1.0, 0.0]])
    r = jnp.exp(model.log_r) * jnp.eye(1)
    return f, q, h, r


def predict(f, q, state):
    return Gaussian(f @ state.mean, f @ state.cov @ f.T + q)


def observe(h, r, state, y):
    """The state that has seen y, and the log likelihood of y."""
    residual = y - h @ state.mean
    s = h @ state.cov @ h.T + r
    chol = jnp.linalg.cholesky(s)
    white = solve_triangular(chol, residual, lower=True)
    log_likelihood = -0.5 * white @ white - jnp.log(jnp.diagonal(chol)).sum() - 0.5 * y.size * jnp.log(2 * jnp.pi)
    gain = cho_solve((chol, True), h @ state.cov).T
    joseph = jnp.eye(state.mean.size) - gain @ h
    return Gaussian(state.mean + gain @ residual, joseph @ state.cov @ joseph.T + gain @ r @ gain.T), log_likelihood


def filtered(model, ys, is_seen):
    """Filtered states `[steps, ...]` and the log likelihood of what was seen."""
    f, q, h, r = matrices(model)

    def step(carry, inputs):
        state, total = carry
        y, seen = inputs
        ahead = predict(f, q, state)
        state, log_likelihood = lax.cond(seen, lambda s: observe(h, r, s, y), lambda s: (s, 0.0), ahead)
        return (state, total + log_likelihood), (state, ahead)

    start = Gaussian(model.mean0, jnp.diag(jnp.exp(model.log_cov0)))
    (_, total), (states, aheads) = lax.scan(step, (start, 0.0), (ys, is_seen))
    return states, aheads, total


@jit
def smoothed(model, ys, is_seen):
    """Smoothed states, from the last to the first (Rauch, Tung and Striebel 1965)."""
    f, *_ = matrices(model)
    states, aheads, _ = filtered(model, ys, is_seen)

    def step(later, inputs):
        state, ahead = inputs
        gain = cho_solve(cho_factor(ahead.cov), f @ state.cov).T
        mean = state.mean + gain @ (later.mean - ahead.mean)
        cov = state.cov + gain @ (later.cov - ahead.cov) @ gain.T
        return Gaussian(mean, cov), Gaussian(mean, cov)

    last = jax.tree.map(lambda x: x[-1], states)
    _, earlier = lax.scan(
        step, last, (jax.tree.map(lambda x: x[:-1], states), jax.tree.map(lambda x: x[1:], aheads)), reverse=True
    )
    return jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), earlier, last)


@jit
def smoothed_in_parallel(model, ys, is_seen):
    """The same by an associative scan over affine maps (Särkkä and García-Fernández 2021, section IV)."""
    f, *_ = matrices(model)
    states, aheads, _ = filtered(model, ys, is_seen)

    def element(state, ahead):
        gain = jnp.linalg.solve(ahead.cov, f @ state.cov).T
        return gain, state.mean - gain @ ahead.mean, state.cov - gain @ ahead.cov @ gain.T

    first = vmap(element)(jax.tree.map(lambda x: x[:-1], states), jax.tree.map(lambda x: x[1:], aheads))
    last = (jnp.zeros_like(f)[None], states.mean[-1:], states.cov[-1:])
    elements = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, last)

    @vmap
    def combine(later, earlier):
        e1, g1, l1 = earlier
        e2, g2, l2 = later
        return e1 @ e2, e1 @ g2 + g1, e1 @ l2 @ e1.T + l1

    _, means, covs = lax.associative_scan(combine, elements, reverse=True)
    return Gaussian(means, covs)


def loss(model, ys, is_seen):
    return -filtered(model, ys, is_seen)[2] / ys.shape[0]


def roughness(model, ys, is_seen):
    """Change of the smoothed speed."""
    return jnp.sum(jnp.diff(smoothed(model, ys, is_seen).mean[:, 1]) ** 2)


def roughness_in_parallel(model, ys, is_seen):
    return jnp.sum(jnp.diff(smoothed_in_parallel(model, ys, is_seen).mean[:, 1]) ** 2)


@jit
def fit(model, ys, is_seen):
    """Gradient descent on the likelihood: the model, and the loss of every step."""

    def step(i, carry):
        model, curve = carry
        value, slope = jax.value_and_grad(loss)(model, ys, is_seen)
        model = jax.tree.map(lambda p, g: p - 0.1 * g, model, slope)
        return model, curve.at[i].set(value)

    return lax.fori_loop(0, 8, step, (model, jnp.zeros(8)))


def gradient(model, ys, is_seen):
    return grad(loss)(model, ys, is_seen)
