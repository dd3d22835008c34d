"""CTC and CRF, sums over alignments: the gradient of the logarithm of the sum is the probability of each step."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad.demos.catalogue import Finding
from ctrlgrad.scipy.special import logsumexp


def log_partition(scores: Any, moves: Any, length: Any) -> Any:
    """Over all label sequences: the first `length` rows of scores[time, label], and moves[from, to]."""

    def body(carry: Any) -> Any:
        t, alpha = carry
        return t + 1, logsumexp(alpha[:, None] + moves, axis=0) + scores[t]

    return logsumexp(cg.while_loop(lambda carry: carry[0] < length, body, (1, scores[0]))[1])


# Finding: probabilities of labels, for sequences of two lengths in one batch.


def show() -> Finding:
    rng = np.random.default_rng(0)
    scores, lengths = 1.5 * rng.standard_normal((16, 4)), np.array([16, 10])
    moves = 2.0 * np.eye(4)  # labels like to stay

    def total(scores: Any) -> Any:
        return cg.vmap(log_partition, in_axes=(0, None, 0))(scores, moves, lengths).sum()

    marginals = cg.grad(total)(np.stack([scores, scores]))
    rest = max(
        np.abs(marginals[row, :length].sum(axis=1) - 1).max() + np.abs(marginals[row, length:]).max(initial=0.0)
        for row, length in enumerate(lengths)
    )

    def drawing(shown: np.ndarray, title: str) -> Any:
        def draw(axes: Any) -> None:
            image = axes.imshow(shown.T, aspect="auto", interpolation="nearest")
            axes.figure.colorbar(image, ax=axes)
            axes.set(title=title, xlabel="time", ylabel="label", yticks=range(4))

        return draw

    return Finding(
        (
            f"a chain of 4 labels: {4**16:,} sequences of length 16, summed in 16 steps",
            f"probabilities of a time add up to one, and to zero behind an end, within {rest:.0e}",
        ),
        (
            drawing(scores, "Scores"),
            *(drawing(m, f"Gradient = probability, length {n}") for m, n in zip(marginals, lengths, strict=True)),
        ),
    )
