"""Optimisers by name: chains of single transformations."""

from __future__ import annotations

from typing import Any

from ctrlgrad.optim.scaling import (
    add_decayed_weights,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
    trace,
)
from ctrlgrad.optim.schedules import ScalarOrSchedule
from ctrlgrad.optim.stages import GradientTransformation, chain, identity


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> GradientTransformation:
    """Stochastic gradient descent, with momentum where it is given.

    >>> optimiser = sgd(0.1)
    >>> optimiser.update([np.array([2.0])], optimiser.init([np.zeros(1)]))[0]
    [array([-0.2])]
    """
    first = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(first, scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam with bias correction.

    Args:
        learning_rate: a number, or a schedule.
        eps, eps_root: added to the root of the mean square, and within it.
        mu_dtype: dtype of the mean of gradients; the parameters' where it is not given.
        nesterov: whether the mean looks one gradient ahead (Dozat 2016).

    Source: Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.

    >>> optimiser = adam(0.1)
    >>> optimiser.update([np.array([2.0, -3.0])], optimiser.init([np.zeros(2)]))[0][0].round(6)
    array([-0.1,  0.1])
    """
    first = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return chain(first, scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam whose weights decay by the learning rate times `weight_decay`; `mask` as in `add_decayed_weights`.

    Source: Loshchilov and Hutter 2019, "Decoupled weight decay regularization".

    >>> optimiser, params = adamw(0.1, weight_decay=0.5), [np.array([4.0])]
    >>> optimiser.update([np.array([2.0])], optimiser.init(params), params)[0][0].round(6)
    array([-0.3])
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def lion(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: Any = None,
) -> GradientTransformation:
    """Steps of one size along the signs of a mean of gradients, with decaying weights.

    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms".

    >>> optimiser, params = lion(0.1, weight_decay=0.0), [np.array([4.0])]
    >>> optimiser.update([np.array([2.0])], optimiser.init(params), params)[0]
    [array([-0.1])]
    """
    return chain(
        scale_by_lion(b1, b2, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Gradients over the root of the mean of their squares; of their variance, where `centered`.

    Source: Tieleman and Hinton 2012, "Neural networks for machine learning", lecture 6.5; centred: Graves 2013,
    "Generating sequences with recurrent neural networks".

    >>> optimiser = rmsprop(0.1, decay=0.0)
    >>> optimiser.update([np.array([2.0])], optimiser.init([np.zeros(1)]))[0][0].round(6)
    array([-0.1])
    """
    first = (scale_by_stddev if centered else scale_by_rms)(decay, eps, initial_scale, eps_in_sqrt, bias_correction)
    last = identity() if momentum is None else trace(momentum, nesterov)
    return chain(first, scale_by_learning_rate(learning_rate), last)


def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: float = 0.1, eps: float = 1e-7
) -> GradientTransformation:
    """Gradients over the root of the sum of all their squares so far.

    Source: Duchi, Hazan and Singer 2011, "Adaptive subgradient methods for online learning".

    >>> optimiser = adagrad(0.1, 0.0, 0.0)
    >>> optimiser.update([np.array([2.0])], optimiser.init([np.zeros(1)]))[0]
    [array([-0.1])]
    """
    return chain(scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))
