"""Activations and what goes with them, by the names of `jax.nn`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.numpy import log_softmax, logsumexp, relu, sigmoid, softmax, tanh
from ctrlgrad.options import default_float
from ctrlgrad.scipy.special import erfc


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
    axis = axis % (x.ndim + 1)
    classes = np.arange(num_classes).reshape([num_classes if a == axis else 1 for a in range(x.ndim + 1)])
    return (cnp.expand_dims(x, axis) == classes).astype(default_float() if dtype is None else dtype)


def standardize(x: Any, axis: Any = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5) -> Any:
    """x with mean 0 and variance 1 along axes.

    >>> standardize(np.array([1.0, 3.0]), epsilon=0.0)
    array([-1.,  1.])
    """
    x = _floats(x)
    mean = cnp.mean(x, axis, keepdims=True) if mean is None else mean
    variance = cnp.mean(x * x, axis, keepdims=True) - mean * mean if variance is None else variance
    return (x - mean) / cnp.sqrt(variance + epsilon)


__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "log_softmax",
    "logmeanexp",
    "logsumexp",
    "mish",
    "one_hot",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "standardize",
    "swish",
    "tanh",
]
