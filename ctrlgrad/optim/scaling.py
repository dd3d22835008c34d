"""Single transformations of gradients, of which the optimisers are chains, with the fields of Optax's states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ctrlgrad import tree
from ctrlgrad.frontend.functions import publish
from ctrlgrad.optim.stages import (
    EmptyState,
    GradientTransformation,
    ScalarOrSchedule,
    Schedule,
    cast,
    chain,
    count_of,
    identity,
    is_traced,
    no_state,
    norm,
    number,
    stage,
    zero_count,
    zeros_like,
)


class TraceState(NamedTuple):
    """State of `trace`: the decaying sum of gradients."""

    trace: Any


class ScaleByAdamState(NamedTuple):
    """State of `scale_by_adam`: the int32 number of updates, and the means of gradients and of their squares."""

    count: Any
    mu: Any
    nu: Any


class ScaleByLionState(NamedTuple):
    """State of `scale_by_lion`: the int32 number of updates and the mean of gradients."""

    count: Any
    mu: Any


class ScaleByRmsState(NamedTuple):
    """State of `scale_by_rms`: the mean of squared gradients."""

    nu: Any


class ScaleByRmsWithCountState(NamedTuple):
    """State of `scale_by_rms` with `bias_correction`: the int32 number of updates too."""

    count: Any
    nu: Any


class ScaleByRStdDevState(NamedTuple):
    """State of `scale_by_stddev`: the means of gradients and of their squares."""

    mu: Any
    nu: Any


class ScaleByRStdDevWithCountState(NamedTuple):
    """State of `scale_by_stddev` with `bias_correction`: the int32 number of updates too."""

    count: Any
    mu: Any
    nu: Any


class ScaleByRssState(NamedTuple):
    """State of `scale_by_rss`: the sum of squared gradients."""

    sum_of_squares: Any


class ScaleByScheduleState(NamedTuple):
    """State of `scale_by_schedule`: the int32 number of updates."""

    count: Any


def clip(max_delta: float) -> GradientTransformation:
    """Cut every entry of the gradients to between `-max_delta` and `max_delta`.

    >>> clip(1.0).update([np.array([0.5, -3.0])], EmptyState())[0]
    [array([ 0.5, -1. ])]
    """

    def follow(updates: Any, state: Any, params: Any, numbers: Any) -> tuple[Any, Any]:
        cut = lambda g: np.maximum(np.minimum(g, number(max_delta, g)), number(-max_delta, g))
        return tree.map(cut, updates), state

    return stage("optim.clip", EmptyState, no_state, follow)


def clip_by_global_norm(max_norm: float) -> GradientTransformation:
    """Scale gradients whose `global_norm` is `max_norm` or more down to that norm; their direction stays.

    Source: Pascanu, Mikolov and Bengio 2013, "On the difficulty of training recurrent neural networks".

    >>> clip_by_global_norm(1.0).update([np.array([3.0, 4.0])], EmptyState())[0]
    [array([0.6, 0.8])]
    """

    def follow(updates: Any, state: Any, params: Any, numbers: Any) -> tuple[Any, Any]:
        length = norm(updates)
        if not is_traced(updates) and length < max_norm:
            return updates, state
        factor = np.where(length < max_norm, 1.0, max_norm / length)
        return tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return stage("optim.clip_by_global_norm", EmptyState, no_state, follow)


def scale(step_size: float) -> GradientTransformation:
    """Multiply the gradients by a number.

    >>> scale(-0.5).update([np.array([4.0])], EmptyState())[0]
    [array([-2.])]
    """

    def follow(updates: Any, state: Any, params: Any, numbers: Any) -> tuple[Any, Any]:
        return tree.map(lambda g: number(numbers, g) * g, updates), state

    return stage("optim.scale", EmptyState, no_state, follow, lambda state: step_size)


def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    """Multiply the gradients by a function of the number of updates so far, 0 for the first.

    >>> optimiser = scale_by_schedule(lambda count: -1.0 / (count + 1))
    >>> updates, state = optimiser.update([np.array([4.0])], optimiser.init(None))
    >>> updates, state = optimiser.update([np.array([4.0])], state)
    >>> updates, int(state.count)
    ([array([-2.])], 2)
    """

    def follow(updates: Any, state: Any, params: Any, numbers: Any) -> tuple[Any, Any]:
        return tree.map(lambda g: number(numbers, g) * g, updates), state

    return stage(
        "optim.scale_by_schedule",
        ScaleByScheduleState,
        lambda params: ScaleByScheduleState(zero_count()),
        follow,
        lambda state: step_size_fn(count_of(state)),
    )


def scale_by_learning_rate(learning_rate: ScalarOrSchedule, *, flip_sign: bool = True) -> GradientTransformation:
    """Multiply the gradients by minus a learning rate, a number or a schedule.

    >>> scale_by_learning_rate(0.5).update([np.array([4.0])], EmptyState())[0]
    [array([-2.])]
    """
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


def trace(decay: float, nesterov: bool = False, accumulator_dtype: Any = None) -> GradientTransformation:
    """Momentum: a sum of the gradients in which each earlier one is `decay` times as large.

    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".

    >>> optimiser = trace(0.5)
    >>> updates, state = optimiser.update([np.array([4.0])], optimiser.init([np.zeros(1)]))
    >>> optimiser.update([np.array([4.0])], state)[0]
    [array([6.])]
    """

    def follow(updates: Any, state: Any, params: Any, numbers: Any) -> tuple[Any, Any]:
        add = lambda g, t: g + number(decay, t) * t
        summed = tree.map(add, updates, state.trace)
        updates = tree.map(add, updates, summed) if nesterov else summed
        return updates, TraceState(cast(summed, accumulator_dtype))

    return stage("optim.trace", TraceState, lambda params: TraceState(zeros_like(params, accumulator_dtype)), follow)


momentum = trace


def _moment(decay: float, order: int) -> Callable[[Any, Any], Any]:
    """The next mean of gradients, or of their squares, from the one before."""
    return lambda g, m: number(1 - decay, g) * (g if order == 1 else g * g) + number(decay, m) * m


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Divide the mean of gradients by the root of the mean of their squares, both without bias; see `adam`.

    >>> optimiser = scale_by_adam()
    >>> optimiser.update([np.array([3.0])], optimiser.init([np.zeros(1)]))[0][0].round(6)
    array([1.])
    """

    def numbers(state: Any) -> Any:
        # Both corrections in one factor, and the epsilons scaled with them: one division per parameter.
        after = count_of(state) + 1
        square = 1 - b2**after
        root, by_next = np.sqrt(square), 1 - b1 ** (after + 1 if nesterov else after)
        return {
            "mean": root / by_next * (b1 if nesterov else 1.0),
            "gradient": root * (1 - b1) / (1 - b1**after),
            "outside": eps * root,
            "inside": eps_root * square,
        }

    def follow(grads: Any, state: Any, params: Any, n: Any) -> tuple[Any, Any]:
        mu, nu = tree.map(_moment(b1, 1), grads, state.mu), tree.map(_moment(b2, 2), grads, state.nu)

        def scaled(g: Any, m: Any, v: Any) -> Any:
            mean = number(n["mean"], m) * m
            mean = mean + number(n["gradient"], g) * g if nesterov else mean
            return mean / (np.sqrt(v + number(n["inside"], v) if eps_root else v) + number(n["outside"], v))

        nu = tree.map(lambda v, before: v.astype(before.dtype), nu, state.nu)
        return tree.map(scaled, grads, mu, nu), ScaleByAdamState(None, cast(mu, mu_dtype), nu)

    def init(params: Any) -> ScaleByAdamState:
        return ScaleByAdamState(zero_count(), zeros_like(params, mu_dtype), zeros_like(params))

    return stage("optim.adam", ScaleByAdamState, init, follow, numbers)


def scale_by_lion(b1: float = 0.9, b2: float = 0.99, mu_dtype: Any = None) -> GradientTransformation:
    """Return the sign of a mean of the gradients; see `lion`.

    >>> optimiser = scale_by_lion()
    >>> optimiser.update([np.array([3.0, -0.1])], optimiser.init([np.zeros(2)]))[0]
    [array([ 1., -1.])]
    """

    def follow(grads: Any, state: Any, params: Any, numbers: Any) -> tuple[Any, Any]:
        signs = tree.map(lambda g, m: np.sign(_moment(b1, 1)(g, m)), grads, state.mu)
        return signs, ScaleByLionState(None, cast(tree.map(_moment(b2, 1), grads, state.mu), mu_dtype))

    def init(params: Any) -> ScaleByLionState:
        return ScaleByLionState(zero_count(), zeros_like(params, mu_dtype))

    return stage("optim.lion", ScaleByLionState, init, follow)


def _scaled_by_root(
    is_centered: bool, decay: float, eps: float, initial_scale: float, eps_in_sqrt: bool, bias_correction: bool
) -> GradientTransformation:
    """Gradients over the root of the mean of their squares, or of their variance."""
    kind: Any = {
        (False, False): ScaleByRmsState,
        (False, True): ScaleByRmsWithCountState,
        (True, False): ScaleByRStdDevState,
        (True, True): ScaleByRStdDevWithCountState,
    }[is_centered, bias_correction]

    def numbers(state: Any) -> Any:
        return 1 / (1 - decay ** (count_of(state) + 1)) if bias_correction else ()

    def follow(grads: Any, state: Any, params: Any, factor: Any) -> tuple[Any, Any]:
        after = {"nu": tree.map(_moment(decay, 2), grads, state.nu)}
        if is_centered:
            after["mu"] = tree.map(_moment(decay, 1), grads, state.mu)

        def free(x: Any) -> Any:
            return number(factor, x) * x if bias_correction else x

        def scaled(g: Any, v: Any, m: Any = None) -> Any:
            square = free(v) if m is None else free(v) - free(m) * free(m)
            if eps_in_sqrt:
                return g / np.sqrt(square + number(eps, square))
            return g / (np.sqrt(square) + number(eps, square))

        return tree.map(scaled, grads, *after.values()), state._replace(**after)

    def init(params: Any) -> Any:
        state = {"nu": zeros_like(params, value=initial_scale)}
        state |= {"mu": zeros_like(params)} if is_centered else {}
        return kind(**state, **({"count": zero_count()} if bias_correction else {}))

    return stage("optim.rmsprop", kind, init, follow, numbers)


def scale_by_rms(
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divide the gradients by the root of the mean of their squares; see `rmsprop`.

    >>> optimiser = scale_by_rms(decay=0.0)
    >>> optimiser.update([np.array([3.0])], optimiser.init([np.zeros(1)]))[0][0].round(6)
    array([1.])
    """
    return _scaled_by_root(False, decay, eps, initial_scale, eps_in_sqrt, bias_correction)


def scale_by_stddev(
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divide the gradients by their standard deviation; see `rmsprop` with `centered=True`.

    >>> optimiser = scale_by_stddev()
    >>> optimiser.update([np.array([3.0])], optimiser.init([np.zeros(1)]))[0][0].round(3)
    array([3.333])
    """
    return _scaled_by_root(True, decay, eps, initial_scale, eps_in_sqrt, bias_correction)


def scale_by_rss(initial_accumulator_value: float = 0.1, eps: float = 1e-7) -> GradientTransformation:
    """Divide the gradients by the root of the sum of all their squares so far; see `adagrad`.

    >>> optimiser = scale_by_rss(0.0, 0.0)
    >>> optimiser.update([np.array([3.0])], optimiser.init([np.zeros(1)]))[0]
    [array([1.])]
    """

    def follow(grads: Any, state: Any, params: Any, numbers: Any) -> tuple[Any, Any]:
        squares = tree.map(lambda g, total: g * g + total, grads, state.sum_of_squares)

        def scaled(g: Any, total: Any) -> Any:
            safe = np.where(total > 0, total, number(1.0, total))
            return np.where(total > 0, g / np.sqrt(safe + number(eps, total)), number(0.0, g))

        return tree.map(scaled, grads, squares), ScaleByRssState(squares)

    init = lambda params: ScaleByRssState(zeros_like(params, value=initial_accumulator_value))
    return stage("optim.adagrad", ScaleByRssState, init, follow)


def add_decayed_weights(weight_decay: ScalarOrSchedule = 0.0, mask: Any = None) -> GradientTransformation:
    """Add a share of the parameters to the gradients: `g + weight_decay * p`.

    Args:
        weight_decay: a number, or a schedule.
        mask: a pytree of booleans like the parameters, or a function that makes one of them: where it is false, a
            parameter does not decay.

    >>> gradient, params = [np.array([1.0])], [np.array([5.0])]
    >>> add_decayed_weights(0.1).update(gradient, EmptyState(), params)[0]
    [array([1.5])]
    """

    def follow(grads: Any, state: Any, params: Any, numbers: Any) -> tuple[Any, Any]:
        decays = mask(params) if callable(mask) else mask
        if decays is None:
            decays = tree.map(lambda p: True, params)
        added = lambda g, p, is_decayed: g + number(numbers, p) * p if is_decayed else g
        return tree.map(added, grads, params, decays), state

    if callable(weight_decay):
        kind: Any = ScaleByScheduleState
        init: Callable[[Any], Any] = lambda params: ScaleByScheduleState(zero_count())
        numbers = lambda state: weight_decay(count_of(state))
    else:
        kind, init, numbers = EmptyState, no_state, lambda state: weight_decay
    return stage("optim.add_decayed_weights", kind, init, follow, numbers, needs_params=True)


# Optimisers by name: chains of single transformations.


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
    >>> state = optimiser.init([np.zeros(2)])
    >>> optimiser.update([np.array([2.0, -3.0])], state)[0][0].round(6)
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
        scale_by_lion(b1, b2, mu_dtype), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate)
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


publish(__name__)
