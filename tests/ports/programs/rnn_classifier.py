"""A recurrent classifier of sequences of several lengths, trained by Adam inside one scan."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, nn, random


class Adam(NamedTuple):
    step: jax.Array
    mean: dict
    square: dict


class TrainState(NamedTuple):
    params: dict
    adam: Adam
    key: jax.Array


def init_params(key, features, hidden, classes):
    keys = random.split(key, 4)

    def glorot(key, shape):
        return random.normal(key, shape) * jnp.sqrt(2 / sum(shape))

    return {
        "cell": {
            "gates": glorot(keys[0], (features + hidden, 2 * hidden)),
            "gates_bias": jnp.zeros(2 * hidden),
            "candidate": glorot(keys[1], (features + hidden, hidden)),
        },
        "start": 0.1 * random.normal(keys[2], (hidden,)),
        "head": (random.normal(keys[3], (hidden, classes)) / jnp.sqrt(hidden), jnp.zeros(classes)),
    }


def gru(cell, h, x):
    gates = nn.sigmoid(jnp.concatenate([x, h]) @ cell["gates"] + cell["gates_bias"])
    update, reset = jnp.split(gates, 2)
    candidate = jnp.tanh(jnp.concatenate([x, reset * h]) @ cell["candidate"])
    return (1.0 - update) * h + update * candidate


def logits(params, xs, length):
    """Class scores of one sequence; the state stands still behind its end."""

    @jax.checkpoint
    def step(h, inputs):
        i, x = inputs
        h = jnp.where(i < length, gru(params["cell"], h, x), h)
        return h, None

    h, _ = lax.scan(step, params["start"], (jnp.arange(xs.shape[0]), xs))
    w, b = params["head"]
    return h @ w + b


def loss(params, batch, weight_decay=1e-3):
    xs, lengths, labels = batch
    scores = jax.vmap(logits, in_axes=(None, 0, 0))(params, xs, lengths)
    picked = nn.log_softmax(scores) * nn.one_hot(labels, scores.shape[-1])
    penalty = sum(jnp.sum(w**2) for w in jax.tree.leaves(params))
    accuracy = (jnp.argmax(scores, axis=-1) == labels).astype(float).mean()
    return -picked.sum(axis=-1).mean() + weight_decay * penalty, accuracy


def make_data(key, size, steps, features):
    """Sequences whose class is the feature that has the largest sum."""
    key_x, key_length = random.split(key)
    xs = random.normal(key_x, (size, steps, features))
    lengths = random.randint(key_length, (size,), 2, steps + 1)
    seen = jnp.arange(steps)[None, :] < lengths[:, None]
    return xs, lengths, jnp.argmax((xs * seen[..., None]).sum(axis=1), axis=-1)


def adam_update(adam, params, grads, rate, b1=0.9, b2=0.999):
    step = adam.step + 1
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, adam.mean, grads)
    square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, adam.square, grads)

    def moved(p, m, v):
        return p - rate * (m / (1 - b1**step)) / (jnp.sqrt(v / (1 - b2**step)) + 1e-8)

    return jax.tree.map(moved, params, mean, square), Adam(step, mean, square)


@partial(jax.jit, static_argnames=("steps", "batch_size"))
def train(params, data, key, steps, batch_size=8, rate=0.02):
    """The trained parameters, and the loss and the accuracy of every step."""

    def train_step(state, _):
        key, key_batch = random.split(state.key)
        rows = random.choice(key_batch, data[0].shape[0], (batch_size,), replace=False)
        batch = jax.tree.map(lambda x: x[rows], data)
        (value, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(state.params, batch)
        params, adam = adam_update(state.adam, state.params, grads, rate)
        return TrainState(params, adam, key), (value, accuracy)

    zeros = jax.tree.map(jnp.zeros_like, params)
    state = TrainState(params, Adam(jnp.array(0), zeros, zeros), key)
    state, curve = lax.scan(train_step, state, None, length=steps)
    return state.params, curve
