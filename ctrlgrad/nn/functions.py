"""Activations and what goes with them, by the names of `jax.nn`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.array.promote import whole_number
from ctrlgrad.frontend.loops import while_loop
from ctrlgrad.numpy import log_softmax, logsumexp, relu, sigmoid, softmax, tanh
from ctrlgrad.options import default_float
from ctrlgrad.scipy.special import erfc
from ctrlgrad.source import here
from ctrlgrad.transforms.vmap import vmap

# Activations and what goes with them, by the names of `jax.nn`.


def _floats(x: Any) -> Any:
    x = cnp.asarray(x)
    return x if dtype_kind(x.dtype) in "fc" else x.astype(default_float())


def identity(x: Any) -> Any:
    """x.

    >>> float(identity(2.0))
    2.0
    """
    return cnp.asarray(x)


def relu6(x: Any) -> Any:
    """min(max(x, 0), 6).

    >>> float(relu6(7.0))
    6.0
    """
    return cnp.minimum(cnp.maximum(_floats(x), 0), 6.0)


def softplus(x: Any) -> Any:
    """log(1 + exp(x)).

    >>> float(softplus(0.0)) == float(np.log(2))
    True
    """
    return cnp.logaddexp(_floats(x), 0.0)


def soft_sign(x: Any) -> Any:
    """x / (1 + |x|).

    >>> float(soft_sign(1.0))
    0.5
    """
    x = _floats(x)
    return x / (cnp.abs(x) + 1)


def silu(x: Any) -> Any:
    """x sigmoid(x), also called swish.

    >>> float(silu(0.0))
    0.0
    """
    x = _floats(x)
    return x * sigmoid(x)


swish = silu


def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)).

    >>> float(log_sigmoid(0.0)) == -float(np.log(2))
    True
    """
    return -softplus(-_floats(x))


def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x where it is positive, else alpha (exp(x) - 1).

    >>> float(elu(2.0))
    2.0
    """
    x = _floats(x)
    return cnp.where(x > 0, x, alpha * cnp.expm1(cnp.where(x > 0, 0.0, x)))


def celu(x: Any, alpha: Any = 1.0) -> Any:
    """x where it is positive, else alpha (exp(x / alpha) - 1).

    >>> float(celu(2.0))
    2.0
    """
    x = _floats(x)
    return cnp.where(x > 0, x, alpha * cnp.expm1(cnp.where(x > 0, 0.0, x) / alpha))


def selu(x: Any) -> Any:
    """`elu` scaled so that activations keep mean 0 and variance 1 (Klambauer et al. 2017).

    >>> float(selu(0.0))
    0.0
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """x where it is not negative, else a small part of it.

    >>> float(leaky_relu(-1.0))
    -0.01
    """
    x = _floats(x)
    return cnp.where(x >= 0, x, negative_slope * x)


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the probability that a standard normal number is less; by tanh if `approximate` (Hendrycks 2016).

    >>> float(gelu(0.0)), float(gelu(0.0, approximate=False))
    (0.0, 0.0)
    """
    x = _floats(x)
    if approximate:
        return x * (0.5 * (1.0 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))))
    return 0.5 * x * erfc(-x * math.sqrt(0.5))


def glu(x: Any, axis: int = -1) -> Any:
    """The first half along an axis times the sigmoid of the second.

    >>> glu(np.array([2.0, 0.0]))
    array([1.])
    """
    first, second = cnp.split(_floats(x), 2, axis)
    return first * sigmoid(second)


def hard_tanh(x: Any) -> Any:
    """x between -1 and 1.

    >>> float(hard_tanh(3.0))
    1.0
    """
    x = _floats(x)
    return cnp.where(x > 1, 1.0, cnp.where(x < -1, -1.0, x))


def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6.

    >>> float(hard_sigmoid(0.0))
    0.5
    """
    return relu6(_floats(x) + 3.0) / 6.0


def hard_silu(x: Any) -> Any:
    """x hard_sigmoid(x), also called hard_swish.

    >>> float(hard_silu(3.0))
    3.0
    """
    x = _floats(x)
    # Beyond 3 the product would be infinity times 0, in the derivative at least.
    middle = cnp.where(cnp.abs(x) > 3, 0.0, x)
    return cnp.where(x > 3, x, cnp.where(x < -3, 0.0, middle * hard_sigmoid(middle)))


hard_swish = hard_silu


def squareplus(x: Any, b: Any = 4.0) -> Any:
    """(x + sqrt(x x + b)) / 2.

    >>> float(squareplus(0.0))
    1.0
    """
    x = _floats(x)
    return (x + cnp.sqrt(x * x + b)) / 2.0


def mish(x: Any) -> Any:
    """x tanh(softplus(x)).

    >>> float(mish(0.0))
    0.0
    """
    x = _floats(x)
    return x * tanh(softplus(x))


def sparse_plus(x: Any) -> Any:
    """0 below -1, x above 1, (x + 1)**2 / 4 between.

    >>> float(sparse_plus(0.0))
    0.25
    """
    x = _floats(x)
    return cnp.where(x <= -1.0, 0.0, cnp.where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


def sparse_sigmoid(x: Any) -> Any:
    """(x + 1) / 2 between 0 and 1.

    >>> float(sparse_sigmoid(0.0))
    0.5
    """
    return 0.5 * cnp.clip(_floats(x) + 1.0, 0.0, 2.0)


def log1mexp(x: Any) -> Any:
    """log(1 - exp(-x)) for positive x.

    >>> float(log1mexp(np.log(2.0))) == float(np.log(0.5))
    True
    """
    x = _floats(x)
    small = x < math.log(2)
    return cnp.where(
        small, cnp.log(-cnp.expm1(-cnp.where(small, x, 1.0))), cnp.log1p(-cnp.exp(-cnp.where(small, 1.0, x)))
    )


def logmeanexp(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Any:
    """log(mean(exp(x))) along axes, without overflow.

    Args:
        where: which elements count, booleans that broadcast with x.

    >>> float(logmeanexp(np.zeros(3)))
    0.0
    """
    x = _floats(x)
    counts = cnp.sum(cnp.ones_like(x), axis, keepdims=keepdims, where=True if where is None else where)
    return logsumexp(x, axis, keepdims=keepdims, where=where) - cnp.log(counts)


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Any:
    """1 at the place of the class that x names, 0 elsewhere, along a new axis; all 0 out of range.

    >>> one_hot(np.array([0, 2]), 3)
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    x = cnp.asarray(x)
    axis, num_classes = axis % (x.ndim + 1), whole_number("nn.one_hot", "num_classes", num_classes, least=0)
    classes = np.arange(num_classes).reshape([num_classes if a == axis else 1 for a in range(x.ndim + 1)])
    return cnp.astype(cnp.expand_dims(x, axis) == classes, default_float() if dtype is None else dtype)


def standardize(x: Any, axis: Any = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5) -> Any:
    """x with mean 0 and variance 1 along axes.

    >>> standardize(np.array([1.0, 3.0]), epsilon=0.0)
    array([-1.,  1.])
    """
    x = _floats(x)
    mean = cnp.mean(x, axis, keepdims=True) if mean is None else mean
    variance = cnp.mean(x * x, axis, keepdims=True) - mean * mean if variance is None else variance
    return (x - mean) / cnp.sqrt(variance + epsilon)


# Losses of classifiers and of labels that are not aligned.


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
        where: booleans that broadcast to the targets: which of them count. None for all. The rest may be any
            integers, such as the -100 of PyTorch's `ignore_index`, for which `where` is `targets != -100`.
        label_smoothing: the share of each target that is spread evenly over all classes.

    Raises `TypeMismatchError` for targets that are no integers, `ShapeError` for targets or a mask of another shape,
    and, where it runs, `IndexOutOfRangeError` for a target that counts and is no class.

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
    if where is not None:
        where = cnp.asarray(where)
        if where.ndim > targets.ndim or any(
            isinstance(a, int) and isinstance(b, int) and a not in (1, b)
            for a, b in zip(reversed(where.shape), reversed(targets.shape), strict=False)
        ):
            raise ShapeError(
                "nn.cross_entropy: the mask does not fit the targets",
                expected=f"where= of a shape that broadcasts to {tuple(targets.shape)}",
                got=str(tuple(where.shape)),
                hint="a boolean for each target: transpose it as the targets are",
            )
        targets = cnp.where(where, targets, 0)
    classes = logits.shape[-1]
    if isinstance(targets, np.ndarray) and isinstance(classes, int) and np.any((targets < 0) | (targets >= classes)):
        raise IndexOutOfRangeError(
            "nn.cross_entropy: a target is no class",
            source=here(),
            expected=f"0 <= target < {classes}, the last axis of the logits",
            got=str(targets[(targets < 0) | (targets >= classes)][0]),
            hint="where=targets != -100 leaves out targets of -100, as ignore_index of PyTorch does",
        )
    # A negative target is out of range too: it does not count from the last class.
    losses = softmax_cross_entropy(logits, cnp.where(targets < 0, targets - classes, targets))
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
            expected=f"0 <= blank < {classes}",
            got=str(blank),
            hint="the blank is one of the classes",
        )

    def one(logits: Any, targets: Any, frames: Any, length: Any) -> Any:
        return alignment_loss(cnp.log_softmax(logits, axis=-1), targets, frames, length, blank)

    return (one if logits.ndim == 2 else vmap(one))(logits, targets, cnp.asarray(frames), cnp.asarray(lengths))


def alignment_loss(scores: Any, targets: Any, frames: Any, length: Any, blank: int) -> Any:
    """The loss of one sequence, whose classes have the log-probabilities `scores[time, classes]`."""
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


__all__ = [
    "celu", "cross_entropy", "ctc_loss", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish",
    "hard_tanh", "identity", "leaky_relu", "log1mexp", "log_sigmoid", "log_softmax", "logmeanexp", "logsumexp",
    "mish", "one_hot", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softmax", "softmax_cross_entropy",
    "softplus", "sparse_plus", "sparse_sigmoid", "squareplus", "standardize", "swish", "tanh",
]  # fmt: skip
