"""A flow that pulls a sample through residual layers until it lies near the origin: its depth depends on the data."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import grad, jit, lax, random, vmap
from jax.scipy.special import logsumexp


class Layers(NamedTuple):
    """Planar layers `x + u tanh(w x + b)`, applied in a circle."""

    u: jax.Array
    w: jax.Array
    b: jax.Array
    log_scale: jax.Array


class Sample(NamedTuple):
    x: jax.Array
    log_det: jax.Array
    depth: jax.Array


def init_params(key, layers, dims):
    key_u, key_w, key_b = random.split(key, 3)
    return Layers(
        u=0.3 * random.normal(key_u, (layers, dims)),
        w=random.normal(key_w, (layers, dims)),
        b=0.1 * random.uniform(key_b, (layers,), minval=-1.0, maxval=1.0),
        log_scale=jnp.full((layers, dims), -0.2),
    )


def invertible(u, w):
    """The part of u along w is bent so that the layer has an inverse (Rezende and Mohamed 2015, appendix A.1)."""
    along = jnp.vdot(w, u)
    return u + (jax.nn.softplus(along) - 1.0 - along) * w / (jnp.sum(w**2) + 1e-6)


def layer(params, i, x):
    u, w, b, log_scale = jax.tree.map(lambda p: lax.dynamic_index_in_dim(p, i, keepdims=False), params)
    u = invertible(u, w)
    t = jnp.tanh(jnp.dot(w, x) + b)
    log_det = jnp.log(jnp.abs(1.0 + (1.0 - t**2) * jnp.dot(u, w))) + log_scale.sum()
    return jnp.exp(log_scale) * (x + u * t), log_det


def flow(params, x, radius=1.0, max_depth=20):
    """A point pulled to within `radius` of the origin, the log determinant on its way, and how many layers it took."""
    layers = params.b.shape[0]

    def goes_on(s):
        return (jnp.linalg.norm(s.x) > radius) & (s.depth < max_depth)

    def body(s):
        x, log_det = layer(params, s.depth % layers, s.x)
        return Sample(x, s.log_det + log_det, s.depth + 1)

    return lax.while_loop(goes_on, body, Sample(x, jnp.zeros_like(x[0]), 0))


def log_prob(params, x):
    """The density of x by that of where it ends: a mixture of two normal distributions."""
    end = flow(params, x)
    centres = jnp.array([[0.5, 0.0], [-0.5, 0.0]])
    normal = -0.5 * jnp.sum((end.x - centres) ** 2, axis=-1) - jnp.log(2 * jnp.pi)
    return logsumexp(normal + jnp.log(0.5)) + end.log_det


def loss(params, xs):
    return -vmap(log_prob, in_axes=(None, 0))(params, xs).mean()


@jit
def depths(params, xs):
    return vmap(lambda x: flow(params, x).depth)(xs)


@jit
def score(params, x):
    """The slope of the log density at x: by forward mode, since a while loop has no other in every framework."""
    return jax.jacfwd(log_prob, argnums=1)(params, x)


def loss_gradient(params, xs):
    return grad(loss)(params, xs)
