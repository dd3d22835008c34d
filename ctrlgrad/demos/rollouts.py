"""Rollouts of reinforcement learning: episodes end when the pole falls, and REINFORCE learns from 64 at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.demos.catalogue import Finding


def move(state: Any, force: Any) -> Any:
    """A pole on a cart, Barto, Sutton and Anderson 1983."""
    x, v, angle, spin = state
    c, s = cnp.cos(angle), cnp.sin(angle)
    push = (force + 0.05 * spin**2 * s) / 1.1
    turn = (9.8 * s - c * push) / (0.5 * (4 / 3 - 0.1 * c**2 / 1.1))
    return x + 0.02 * v, v + 0.02 * (push - 0.05 * turn * c / 1.1), angle + 0.02 * spin, spin + 0.02 * turn


def stands(state: Any, t: Any) -> Any:
    return (abs(state[0]) < 2.4) & (abs(state[2]) < 0.21) & (t < 200)


def episode(weights: Any, start: Any, key: Any) -> Any:
    """Number of steps that the pole stood, and the log-probability of the actions."""

    def body(carry: Any) -> Any:
        t, state, key, score = carry
        key, now = cg.random.split(key)
        right = cg.nn.sigmoid(cnp.stack(state) @ weights)
        goes_right = cg.random.uniform(now) < right
        chosen = cnp.where(goes_right, right, 1 - right)
        return t + 1, move(state, cnp.where(goes_right, 10.0, -10.0)), key, score + cnp.log(chosen)

    def goes_on(carry: Any) -> Any:
        return stands(carry[1], carry[0])

    t, _, _, score = cg.while_loop(goes_on, body, (0, tuple(start), key, 0.0))
    return t, score


# REINFORCE, many episodes at a time, each as long as it is.


@cg.function
def update(weights: Any, keys: Any, starts: Any) -> Any:
    def objective(weights: Any) -> Any:
        lengths, scores = cg.vmap(episode, in_axes=(None, 0, 0))(weights, starts, keys)
        returns = cg.stop_gradient(lengths - lengths.mean()) / (cg.stop_gradient(lengths.std()) + 1.0)
        return -(returns * scores).mean(), lengths

    (_, lengths), gradient = cg.value_and_grad(objective, has_aux=True)(weights)
    return weights - 1.0 * gradient, lengths


def learn(updates: int) -> Any:
    """The weights after the last update, and how long each episode was, `[updates, 64]`."""
    weights, rng, key, lengths = np.zeros(4), np.random.default_rng(0), cg.random.key(0), []
    for _ in range(updates):
        key, now = cg.random.split(key)
        weights, length = update(weights, cg.random.split(now, 64), rng.uniform(-0.05, 0.05, (64, 4)))
        lengths.append(length)
    return weights, np.array(lengths)


# Finding: the number of steps that the pole stands, update by update.


def show(updates: int = 40) -> Finding:
    _, lengths = learn(updates)
    means = lengths.mean(axis=1)

    def draw(axes: Any) -> None:
        at = np.repeat(np.arange(updates), lengths.shape[1])
        axes.plot(at, lengths.ravel(), ".", alpha=0.2, markersize=4, label="an episode")
        axes.plot(means, label="mean of 64")
        axes.set(
            title="How long the pole stands", xlabel="update", ylabel="steps of 0.02 s; 200 at most", ylim=(0, None)
        )
        axes.legend()

    return Finding(
        (
            f"{lengths.size} episodes of {lengths.min()} to {lengths.max()} steps, {lengths.shape[1]} in each update",
            f"mean length {means[0]:.0f} before the first update, {means[-1]:.0f} before the last of {updates}",
        ),
        (draw,),
    )
