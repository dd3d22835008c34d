"""The loss of connectionist temporal classification, as a loop over frames.

Graves, Fernandez, Gomez and Schmidhuber 2006, "Connectionist temporal classification", section 4.1: the probability of
a label sequence is the sum over all alignments of frames to labels and blanks. The recurrence adds them up in one
pass, in logarithms. Here it is a `while_loop` that runs as long as the utterance has frames; `vmap` runs a batch whose
utterances and labels differ in length. Every value, and every entry of the gradient, is compared with the sum over
all alignments, one by one.

    python examples/ctc_loss.py
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

BLANK = 0
NEVER = -np.inf  # the logarithm of probability zero


def ctc_loss(logits: Any, frames: Any, labels: Any, length: Any) -> Any:
    """Minus the log-probability of `labels[:length]` given `logits[:frames]`.

    `logits` is `[time, classes]`, `labels` `[n]`, both padded; class 0 is the blank.
    """
    scores = cnp.log_softmax(logits, axis=-1)
    # The states of an alignment: blank, first label, blank, second label, ..., blank.
    place = np.arange(2 * labels.shape[0] + 1)
    states = cnp.where(place % 2 == 1, labels[np.minimum(place // 2, labels.shape[0] - 1)], BLANK)
    # A blank between two labels may be left out, unless they are equal.
    before = cnp.concat([np.full(2, BLANK), states[:-2]])
    may_skip = (states != BLANK) & (states != before)

    def frame(carry: Any) -> Any:
        t, alpha = carry
        stay = alpha
        advance = cnp.concat([np.full(1, NEVER), alpha[:-1]])
        skip = cnp.where(may_skip, cnp.concat([np.full(2, NEVER), alpha[:-2]]), NEVER)
        arrived = cnp.logsumexp(cnp.stack([stay, advance, skip]), axis=0)
        return t + 1, arrived + scores[t][states]

    first = cnp.where(place < 2, scores[0][states], NEVER)
    _, alpha = cg.while_loop(lambda carry: carry[0] < frames, frame, (1, first))
    # An alignment ends in the last label or in the blank behind it.
    return -cnp.logsumexp(cnp.where((place == 2 * length) | (place == 2 * length - 1), alpha, NEVER))


def collapse(alignment: tuple[int, ...]) -> list[int]:
    """The labels that an alignment stands for: repetitions taken together, then blanks left out."""
    return [c for c, _ in itertools.groupby(alignment) if c != BLANK]


def by_enumeration(logits: np.ndarray, labels: list[int]) -> tuple[float, np.ndarray]:
    """The loss and its gradient from all `classes ** frames` alignments."""
    frames, classes = logits.shape
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    total, occupancy = 0.0, np.zeros((frames, classes))
    for alignment in itertools.product(range(classes), repeat=frames):
        if collapse(alignment) == labels:
            probability = np.prod(p[np.arange(frames), alignment])
            total += probability
            occupancy[np.arange(frames), alignment] += probability
    # The gradient in the logits: the softmax, less the expected use of each class (equation 16 of the paper).
    return -np.log(total), p - occupancy / total


def main() -> int:
    rng = np.random.default_rng(0)
    frames = np.array([6, 3, 5, 4])
    labels = np.array([[1, 2, 2], [2, 0, 0], [2, 1, 2], [1, 1, 0]])
    lengths = np.array([3, 1, 3, 2])
    logits = rng.standard_normal((4, 6, 3))
    batched = cg.vmap(cg.value_and_grad(ctc_loss))
    losses, gradients = cg.function(batched)(logits, frames, labels, lengths)
    errors = []
    print("frames  labels     loss            by enumeration")
    for row, (n, m) in enumerate(zip(frames, lengths, strict=True)):
        wanted = labels[row, :m].tolist()
        loss, gradient = by_enumeration(logits[row, :n], wanted)
        print(f"{n:6d}  {wanted!s:9}  {losses[row]:.12f}  {loss:.12f}")
        padded = np.zeros_like(logits[row])
        padded[:n] = gradient
        errors += [abs(losses[row] - loss), np.max(np.abs(gradients[row] - padded))]
    worst = np.max(errors)
    print(f"largest difference of a loss or an entry of a gradient: {worst:.1e}")
    if not worst < 1e-12:
        print("the loop disagrees with the sum over alignments", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
