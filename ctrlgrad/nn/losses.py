"""Losses of classifiers and of labels that are not aligned."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.while_loops import while_loop
from ctrlgrad.source import here
from ctrlgrad.transforms.vmap import vmap


def softmax_cross_entropy(logits: Any, targets: Any) -> Any:
    """Minus the natural logarithm of the probability that `softmax(logits)` gives to each target.

    `logits` is `[..., classes]`, `targets` integers `[...]` in `0 <= target < classes`; the result is `[...]`, in
    nats, of the logits' dtype. Large logits do not overflow.

    >>> softmax_cross_entropy(np.array([[0.0, 0.0]]), np.array([1]))
    array([0.69314718])
    """
    chosen = cnp.take_along_axis(logits, cnp.expand_dims(targets, -1), axis=-1)
    return cnp.logsumexp(logits, axis=-1) - cnp.squeeze(chosen, -1)


def cross_entropy(logits: Any, targets: Any, *, where: Any = None, label_smoothing: float = 0.0) -> Any:
    """Mean of `softmax_cross_entropy` over all targets, a scalar of the logits' dtype, as PyTorch's `cross_entropy`.

    Args:
        logits: `[..., classes]`: the classes are the last axis.
        targets: integers `[...]`.
        where: booleans that broadcast to the targets: which of them count. None for all.
        label_smoothing: the share of each target that is spread evenly over all classes.

    Raises `TypeMismatchError` for targets that are no integers, `ShapeError` for those of another shape.

    >>> float(cross_entropy(np.array([[0.0, 0.0], [50.0, 0.0]]), np.array([1, 0])).round(4))
    0.3466
    """
    logits, targets = cnp.asarray(logits), cnp.asarray(targets)
    if dtype_kind(targets.dtype) not in "iu":
        raise TypeMismatchError(
            "nn.cross_entropy: the targets are no integers",
            expected="the number of a class for each row of logits",
            got=f"{targets.dtype}",
            hint="of probabilities p: -(p * ctrlgrad.nn.log_softmax(logits)).sum(axis=-1).mean()",
        )
    sizes = zip(logits.shape[:-1], targets.shape, strict=False)
    if logits.ndim != targets.ndim + 1 or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes):
        raise ShapeError(
            "nn.cross_entropy: logits and targets do not fit",
            expected="logits [..., classes] and targets [...]",
            got=f"{tuple(logits.shape)} and {tuple(targets.shape)}",
            hint="the classes are the last axis: ctrlgrad.numpy.moveaxis(logits, 1, -1) of [batch, classes, ...]",
        )
    losses = softmax_cross_entropy(logits, targets)
    if label_smoothing:
        even = cnp.logsumexp(logits, axis=-1) - cnp.mean(logits, axis=-1)
        losses = (1 - label_smoothing) * losses + label_smoothing * even
    return cnp.mean(losses) if where is None else cnp.mean(losses, where=cnp.broadcast_to(where, losses.shape))


def ctc_loss(logits: Any, targets: Any, frames: Any, lengths: Any, blank: int = 0) -> Any:
    """Minus the log-probability of label sequences, summed over all alignments of frames to labels and blanks.

    Args:
        logits: `[batch, time, classes]`, or `[time, classes]` of one sequence.
        targets: integers `[batch, labels]`, or `[labels]`, padded with any class.
        frames, lengths: integers `[batch]`, or scalars: how many frames and how many labels count.
        blank: the class of the blank.

    Returns `[batch]`, or a scalar, of the logits' dtype: infinity where there are too few frames for the labels. The
    loop runs for as many iterations as the longest sequence has frames.

    Source: Graves, Fernandez, Gomez and Schmidhuber 2006, "Connectionist temporal classification", section 4.1.

    >>> float(ctc_loss(np.zeros((2, 3)), np.array([1]), 2, 1)) == -float(np.log(3 / 9))
    True
    """
    logits, targets = cnp.asarray(logits), cnp.asarray(targets)
    if logits.ndim not in (2, 3) or targets.ndim != logits.ndim - 1:
        raise ShapeError(
            "nn.ctc_loss: logits and targets do not fit",
            expected="logits [batch, time, classes] and targets [batch, labels], or both without the batch",
            got=f"{tuple(logits.shape)} and {tuple(targets.shape)}",
            hint="PyTorch has the time first: ctrlgrad.numpy.swapaxes(logits, 0, 1)",
        )
    classes = logits.shape[-1]
    if isinstance(classes, int) and not 0 <= blank < classes:
        raise UserInputError(
            "nn.ctc_loss: there is no such blank",
            source=here(),
            expected=f"0 <= blank < {classes}",
            got=str(blank),
            hint="the blank is one of the classes",
        )

    def one(logits: Any, targets: Any, frames: Any, length: Any) -> Any:
        return _ctc_loss(logits, targets, frames, length, blank)

    return (one if logits.ndim == 2 else vmap(one))(logits, targets, cnp.asarray(frames), cnp.asarray(lengths))


def _ctc_loss(logits: Any, targets: Any, frames: Any, length: Any, blank: int) -> Any:
    """The loss of one sequence."""
    scores = cnp.log_softmax(logits, axis=-1)
    # The states of an alignment: blank, first label, blank, second label, ..., blank.
    place = np.arange(2 * targets.shape[0] + 1)
    padded = cnp.concatenate([targets, cnp.full(1, blank, targets.dtype)])
    states = cnp.where(place % 2 == 1, padded[place // 2], blank)
    # A blank between two labels may be left out, unless they are equal.
    before = cnp.concatenate([cnp.full(2, blank, states.dtype), states])[:-2]
    may_skip = (states != blank) & (states != before)
    never = np.asarray(-np.inf, scores.dtype)

    def shifted(alpha: Any, by: int) -> Any:
        return cnp.concatenate([cnp.full(by, never, scores.dtype), alpha])[:-by]

    def frame(carry: Any) -> Any:
        t, alpha = carry
        skip = cnp.where(may_skip, shifted(alpha, 2), never)
        return t + 1, cnp.logsumexp(cnp.stack([alpha, shifted(alpha, 1), skip]), axis=0) + scores[t][states]

    # Before the first frame an alignment stands at the first blank, from which the first label is one place away.
    start = (0, cnp.where(place == 0, np.asarray(0, scores.dtype), never))
    _, alpha = while_loop(lambda carry: carry[0] < frames, frame, start, name="frames")
    # An alignment ends in the last label or in the blank behind it.
    return -cnp.logsumexp(cnp.where((place == 2 * length) | (place == 2 * length - 1), alpha, never))
