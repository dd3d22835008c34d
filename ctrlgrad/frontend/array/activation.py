"""The nonlinear functions that losses and networks share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array.arithmetic import add, divide, subtract
from ctrlgrad.frontend.array.creation import zeros_like
from ctrlgrad.frontend.array.dims import axes_of, dtype_of, rank_of, squeezed
from ctrlgrad.frontend.array.elementwise import exp, isfinite, log, stop_gradient
from ctrlgrad.frontend.array.logic import equal, less_equal, where
from ctrlgrad.frontend.array.promote import elementwise, operand
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function


@array_function()
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow; integers give floats as in `exp`.

    >>> import ctrlgrad.numpy as cnp
    >>> print(cnp.sigmoid(0.0))
    0.5
    """
    return elementwise("sigmoid", np.exp, x)


@array_function()
def relu(x: Any) -> Any:
    """x where it is positive, else zero; its derivative at zero is zero.

    >>> import ctrlgrad.numpy as cnp
    >>> print(cnp.relu(-1.0))
    0.0
    """
    x = operand("relu", x)
    return where(less_equal(x, 0), zeros_like(x, shape=()), x)


def _floats(operation: str, x: Any) -> Any:
    x = operand(operation, x)
    return apply("cast", [x], {"dtype": np.dtype(np.float64)}) if dtype_of(x).kind in "biu" else x


def _shift(x: Any, axes: tuple[int, ...]) -> Any:
    """The largest element along axes, which keep size 1, as a constant; zero where it is infinite or nan."""
    top = stop_gradient(apply("max", [x], {"axes": axes, "keepdims": True}))
    return where(isfinite(top), top, zeros_like(top, shape=()))


@array_function()
def softmax(x: Any, axis: Any = -1) -> Any:
    """exp(x) / sum(exp(x)) along an axis or several (None: all), without overflow. Entries of -inf get zero.

    >>> import ctrlgrad.numpy as cnp
    >>> cnp.softmax([0.0, 0.0])
    array([0.5, 0.5])
    """
    x = _floats("softmax", x)
    axes = axes_of("softmax", axis, rank_of(x))
    weights = exp(subtract(x, _shift(x, axes)))
    return divide(weights, total(weights, axes, keepdims=True))


@array_function()
def log_softmax(x: Any, axis: Any = -1) -> Any:
    """x - logsumexp(x) along an axis or several (None: all), without overflow.

    >>> import ctrlgrad.numpy as cnp
    >>> print(cnp.log_softmax([0.0, -1e9])[0])
    0.0
    """
    x = _floats("log_softmax", x)
    axes = axes_of("log_softmax", axis, rank_of(x))
    shifted = subtract(x, _shift(x, axes))
    return subtract(shifted, log(total(exp(shifted), axes, keepdims=True)))


@array_function()
def logsumexp(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) along axes, or of all elements, without overflow.

    Where all elements are -inf the result is -inf and its derivative zero.

    >>> import ctrlgrad.numpy as cnp
    >>> print(cnp.logsumexp([1000.0, -cnp.inf]))
    1000.0
    """
    x = _floats("logsumexp", x)
    axes = axes_of("logsumexp", axis, rank_of(x))
    shift = _shift(x, axes)
    sums = total(exp(subtract(x, shift)), axes, keepdims=True)
    nothing = equal(sums, 0)
    logs = where(nothing, -np.inf, log(where(nothing, 1, sums)))
    result = add(logs, shift)
    return result if keepdims else squeezed(result, axes)


__all__ = [
    "log_softmax",
    "logsumexp",
    "relu",
    "sigmoid",
    "softmax",
]
