"""Batches of different length: a loop ends where the sequence does, and `vmap` runs many of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.demos.catalogue import Finding


def init(rng: np.random.Generator) -> Any:
    return {"cell": cg.nn.gru_init(cg.random.key(0), 3, 8), "head": 0.1 * rng.standard_normal((8, 2))}


def last_state(params: Any, xs: Any, length: Any) -> Any:
    def step(carry: Any) -> Any:
        t, h = carry
        (h,) = cg.nn.gru_cell(params["cell"], (h,), xs[t][None])
        return t + 1, h

    return cg.while_loop(lambda carry: carry[0] < length, step, (0, np.zeros((1, 8))))[1]


def loss(params: Any, xs: Any, length: Any, label: Any) -> Any:
    return -cnp.log_softmax((last_state(params, xs, length) @ params["head"])[0])[label]


def batch_loss(params: Any, batch: Any) -> Any:
    return cg.vmap(loss, in_axes=(None, 0, 0, 0))(params, *batch).mean()


# Finding: the model learns whether the first feature of a sequence has a positive mean.


def show(updates: int = 120) -> Finding:
    rng = np.random.default_rng(0)
    params, longest = init(rng), 16
    lengths = np.sort(rng.integers(1, longest + 1, 32))
    xs = rng.standard_normal((32, longest, 3))
    behind = np.arange(longest) >= lengths[:, None]
    labels = (np.where(behind, 0.0, xs[:, :, 0]).sum(axis=1) > 0).astype(int)
    xs[behind] = np.nan  # a model that read these would give NaN

    step = cg.function(cg.value_and_grad(batch_loss))
    losses = []
    for _ in range(updates):
        value, gradient = step(params, (xs, lengths, labels))
        params = cg.tree.map(lambda p, g: p - 0.5 * g, params, gradient)
        losses.append(float(value))
    influence = np.abs(cg.grad(lambda xs: batch_loss(params, (xs, lengths, labels)))(xs)).max(axis=2)

    def draw_losses(axes: Any) -> None:
        axes.plot(losses)
        axes.set(title="The loss of 32 sequences", xlabel="update", ylabel="cross entropy", ylim=(0, None))

    def draw_influence(axes: Any) -> None:
        shown = axes.imshow(np.where(influence > 0, influence, np.nan), aspect="auto", interpolation="nearest")
        axes.figure.colorbar(shown, ax=axes)
        axes.set(title="Gradient of each input; none behind an end", xlabel="position", ylabel="sequence")

    return Finding(
        (
            f"32 sequences of {lengths.min()} to {lengths.max()} inputs, with NaN behind each end",
            f"cross entropy {losses[0]:.3f} before the first update, {losses[-1]:.3f} before the last of {updates}",
            f"inputs with a gradient: {np.count_nonzero(influence)}; inputs before an end: {lengths.sum()}",
        ),
        (draw_losses, draw_influence),
    )
