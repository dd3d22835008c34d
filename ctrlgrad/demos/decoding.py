"""Decoding with a cache: a decoder that writes until it ends the line, and learns from lines by the same loop."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.demos.catalogue import Finding

END, LONGEST, WIDTH = 0, 12, 8
EMPTY = (np.zeros((LONGEST, WIDTH)), np.zeros((LONGEST, WIDTH)))


def init(rng: np.random.Generator) -> Any:
    params = {name: 0.3 * rng.standard_normal((WIDTH, WIDTH)) for name in ("q", "k", "v", "out")}
    return {**params, "embedding": 0.3 * rng.standard_normal((6, WIDTH))}


def decode(params: Any, cache: Any, t: Any, token: Any) -> Any:
    """Scores of the token behind position t, and the cache with this one."""
    x = params["embedding"][token]
    keys, values = (old.at[t].set(x @ params[name]) for old, name in zip(cache, "kv", strict=True))
    scores = cnp.where(cnp.arange(LONGEST) <= t, keys @ (x @ params["q"]) / WIDTH**0.5, -np.inf)
    x = x + (cg.nn.softmax(scores) @ values) @ params["out"]
    return params["embedding"] @ x, (keys, values)


@cg.function
def generate(params: Any, first: Any, key: Any) -> Any:
    """A line that begins with `first`, and its length."""

    def body(carry: Any) -> Any:
        t, tokens, cache, key = carry
        scores, cache = decode(params, cache, t, tokens[t])
        key, now = cg.random.split(key)
        return t + 1, tokens.at[t + 1].set(cg.random.categorical(now, scores)), cache, key

    def goes_on(carry: Any) -> Any:
        return (carry[0] < LONGEST - 1) & (carry[1][carry[0]] != END)

    t, tokens, _, _ = cg.while_loop(goes_on, body, (0, cnp.zeros(LONGEST, int).at[0].set(first), EMPTY, key))
    return tokens, t + 1


# Teacher forcing: the same `decode` in a loop as long as the line.


def loss(params: Any, tokens: Any, length: Any) -> Any:
    def body(carry: Any) -> Any:
        t, cache, total = carry
        scores, cache = decode(params, cache, t, tokens[t])
        return t + 1, cache, total - cnp.log_softmax(scores)[tokens[t + 1]]

    return cg.while_loop(lambda carry: carry[0] < length - 1, body, (0, EMPTY, 0.0))[2]


# Finding: the model learns to count, from any number up to 5, and then to end the line.


def show(updates: int = 150) -> Finding:
    firsts = np.arange(1, 6)
    lengths = 7 - firsts
    lines = np.array([[first + t if first + t <= 5 else END for t in range(LONGEST)] for first in firsts])
    params = init(np.random.default_rng(0))

    @cg.function
    def update(params: Any) -> Any:
        def total(params: Any) -> Any:
            return cg.vmap(loss, in_axes=(None, 0, 0))(params, lines, lengths).sum() / (lengths - 1).sum()

        value, gradient = cg.value_and_grad(total)(params)
        return cg.tree.map(lambda p, g: p - 0.5 * g, params, gradient), value

    def written(params: Any) -> np.ndarray:
        """Two lines from each first number; NaN behind each end."""
        rows = []
        for seed, first in enumerate(np.repeat(firsts, 2)):
            tokens, length = generate(params, first, cg.random.key(seed))
            rows.append(np.where(np.arange(LONGEST) < length, tokens, np.nan))
        return np.array(rows)

    before, losses = written(params), []
    for _ in range(updates):
        params, value = update(params)
        losses.append(float(value))
    after = written(params)

    def draw_losses(axes: Any) -> None:
        axes.plot(losses)
        axes.set(title="The loss per token", xlabel="update", ylabel="cross entropy", ylim=(0, None))

    def drawing(rows: np.ndarray, title: str) -> Any:
        def draw(axes: Any) -> None:
            axes.imshow(rows, aspect="auto", cmap="viridis", vmin=END, vmax=5)
            for (row, column), token in np.ndenumerate(rows):
                if np.isfinite(token):
                    axes.text(column, row, "." if token == END else int(token), ha="center", va="center", color="white")
            axes.set(title=title, xlabel="position", ylabel="line")

        return draw

    right = sum(list(row[: len(line)]) == line for row, line in zip(after, _counted(np.repeat(firsts, 2)), strict=True))
    return Finding(
        (
            f"cross entropy {losses[0]:.3f} before the first update, {losses[-1]:.3f} before the last of {updates}",
            f"lines that count to 5 and end there: {right} of {len(after)}",
        ),
        (draw_losses, drawing(before, "Lines written before"), drawing(after, "Lines written after")),
    )


def _counted(firsts: Any) -> list[list[int]]:
    return [[*range(first, 6), END] for first in firsts]
