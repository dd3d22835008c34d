"""Schedules: functions of the number of updates so far, a Python int or traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.source import here

Schedule = Callable[[Any], Any]
ScalarOrSchedule = float | Schedule


def constant_schedule(value: float) -> Schedule:
    """The same number at every step.

    >>> constant_schedule(0.5)(100)
    0.5
    """
    return lambda count: value


def _plain(x: Any) -> Any:
    """A Python float in place of a NumPy one."""
    return float(x) if isinstance(x, np.floating | np.integer) else x


def polynomial_schedule(
    init_value: float, end_value: float, power: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """From `init_value` to `end_value` along a polynomial, in `transition_steps` after `transition_begin`.

    >>> rate = polynomial_schedule(1.0, 0.0, 2, 10)
    >>> rate(0), rate(5), rate(20)
    (1.0, 0.25, 0.0)
    """
    if transition_steps <= 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Any:
        left = 1 - np.minimum(np.maximum(count - begin, 0), transition_steps) / transition_steps
        return _plain((init_value - end_value) * left**power + end_value)

    return schedule


def linear_schedule(init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0) -> Schedule:
    """From `init_value` to `end_value` along a line, in `transition_steps` after `transition_begin`.

    >>> rate = linear_schedule(0.0, 1.0, 10)
    >>> rate(0), rate(5), rate(20)
    (0.0, 0.5, 1.0)
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(
    init_value: float, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """A number that is multiplied by a scale at each boundary.

    >>> rate = piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.1})
    >>> rate(9), rate(10), rate(20)
    (1.0, 0.5, 0.05)
    """
    scales = sorted((boundaries_and_scales or {}).items())
    if any(scale < 0 for _, scale in scales):
        raise UserInputError(
            "optim.piecewise_constant_schedule: a negative scale",
            source=here(),
            expected="{step: scale}, no scale below 0",
            got=repr(boundaries_and_scales),
            hint="a scale multiplies the rate: 0.1 is a tenth of it",
        )

    def schedule(count: Any) -> Any:
        value: Any = init_value
        for threshold, scale in scales:
            value = np.where(count < threshold, value, scale * value)
        return _plain(value[()] if isinstance(value, np.ndarray) else value)

    return schedule


def exponential_decay(
    init_value: float,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """`init_value * decay_rate ** (count / transition_steps)` after `transition_begin`, not beyond `end_value`.

    >>> rate = exponential_decay(1.0, 10, 0.5, staircase=True)
    >>> rate(9), rate(10), rate(25)
    (1.0, 0.5, 0.25)
    """
    if transition_steps <= 0 or decay_rate == 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Any:
        power = np.maximum(count - begin, 0) / transition_steps
        value = init_value * decay_rate ** (np.floor(power) if staircase else power)
        if end_value is not None:
            value = (np.maximum if decay_rate < 1.0 else np.minimum)(value, end_value)
        return _plain(value)

    return schedule


def cosine_decay_schedule(init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0) -> Schedule:
    """From `init_value` to `alpha * init_value` along half a cosine, in `decay_steps`.

    Source: Loshchilov and Hutter 2017, "SGDR: stochastic gradient descent with warm restarts", without restarts.

    >>> rate = cosine_decay_schedule(1.0, 10, alpha=0.1)
    >>> rate(0), round(rate(5), 6), rate(20)
    (1.0, 0.55, 0.1)
    """
    if decay_steps <= 0:
        raise UserInputError(
            "optim.cosine_decay_schedule: no steps to decay in",
            source=here(),
            expected="decay_steps of 1 or more",
            got=str(decay_steps),
            hint="with a warm-up, decay_steps counts its steps too",
        )

    def schedule(count: Any) -> Any:
        cosine = 0.5 * (1 + np.cos(np.pi * np.minimum(count, decay_steps) / decay_steps))
        return _plain(init_value * ((1 - alpha) * cosine**exponent + alpha))

    return schedule


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Schedules one after the other; each counts from the boundary where it begins.

    >>> rate = join_schedules([constant_schedule(1.0), linear_schedule(1.0, 0.0, 10)], [5])
    >>> rate(4), rate(10)
    (1.0, 0.5)
    """

    def schedule(count: Any) -> Any:
        if not isinstance(count, Tensor):
            past = len([boundary for boundary in boundaries if count >= boundary])
            return schedules[past](count - boundaries[past - 1] if past else count)
        value = schedules[0](count)
        for boundary, following in zip(boundaries, schedules[1:], strict=True):
            since: Any = count - boundary  # type: ignore[operator]
            value = np.where(since < 0, value, following(since))
        return value

    return schedule


def warmup_constant_schedule(init_value: float, peak_value: float, warmup_steps: int) -> Schedule:
    """From `init_value` to `peak_value` along a line, and then the same.

    >>> rate = warmup_constant_schedule(0.0, 1.0, 10)
    >>> rate(5), rate(10), rate(100)
    (0.5, 1.0, 1.0)
    """
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """A line up to `peak_value` in `warmup_steps`, and half a cosine to `end_value` at step `decay_steps`.

    >>> rate = warmup_cosine_decay_schedule(0.0, 1.0, 10, 110, 0.1)
    >>> rate(0), rate(5), rate(10), round(rate(110), 6)
    (0.0, 0.5, 1.0, 0.1)
    """
    alpha = 0.0 if peak_value == 0.0 else end_value / peak_value
    rising = linear_schedule(init_value, peak_value, warmup_steps)
    falling = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return join_schedules([rising, falling], [warmup_steps])


def warmup_exponential_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """A line up to `peak_value` in `warmup_steps`, and then `exponential_decay`.

    >>> rate = warmup_exponential_decay_schedule(0.0, 1.0, 10, 100, 0.5)
    >>> rate(5), rate(10), rate(110)
    (0.5, 1.0, 0.5)
    """
    falling = exponential_decay(peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value)
    return join_schedules([linear_schedule(init_value, peak_value, warmup_steps), falling], [warmup_steps])
