"""The nonlinear functions that losses and networks share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array.arithmetic import add, divide, multiply, subtract
from ctrlgrad.frontend.array.creation import zeros_like
from ctrlgrad.frontend.array.dims import axes_of, dtype_of, rank_of, shape_of, squeezed
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import exp, isfinite, log, sign, stop_gradient
from ctrlgrad.frontend.array.logic import equal, less, less_equal, not_equal
from ctrlgrad.frontend.array.logic import where as choose
from ctrlgrad.frontend.array.promote import elementwise, operand
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.options import default_float


@array_function()
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow; integers give floats as in `exp`.

    >>> print(cnp.sigmoid(0.0))
    0.5
    """
    return elementwise("sigmoid", np.exp, x)


@array_function()
def relu(x: Any) -> Any:
    """x where it is positive, else zero; its derivative at zero is zero.

    >>> print(cnp.relu(-1.0))
    0.0
    """
    x = operand("relu", x)
    return choose(less_equal(x, 0), zeros_like(x, shape=()), x)


def _floats(operation: str, x: Any) -> Any:
    x = operand(operation, x)
    return apply("cast", [x], {"dtype": default_float()}) if dtype_kind(dtype_of(x)) in "biu" else x


def _shift(x: Any, axes: tuple[int, ...]) -> Any:
    """The largest element along axes, which keep size 1, constant; 0 of nothing, and where it is infinite or nan."""
    shape = shape_of(x)
    if any(shape[axis] == 0 for axis in axes):
        return total(x, axes, keepdims=True)
    top = stop_gradient(apply("max", [x], {"axes": axes, "keepdims": True}))
    return choose(isfinite(top), top, zeros_like(top, shape=()))


def _included(x: Any, where: Any) -> Any:
    """x with -inf, whose exponential is zero, where an element does not count."""
    return x if where is None else choose(where, x, -np.inf)


@array_function()
def softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """exp(x) / sum(exp(x)) along an axis or several (None: all), without overflow. Entries of -inf get zero.

    Args:
        where: booleans that broadcast with x, true for elements that count; the other elements get zero.

    >>> cnp.softmax([0.0, 0.0])
    array([0.5, 0.5])
    """
    x = _included(_floats("softmax", x), where)
    axes = axes_of("softmax", axis, rank_of(x))
    weights = exp(subtract(x, _shift(x, axes)))
    sums = total(weights, axes, keepdims=True)
    # If no element counts the sum is zero.
    return divide(weights, sums if where is None else choose(equal(sums, 0), 1, sums))


@array_function()
def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """x - logsumexp(x) along an axis or several (None: all), without overflow.

    Args:
        where: booleans that broadcast with x, true for elements that count; the other elements get -inf.

    >>> print(cnp.log_softmax([0.0, -1e9])[0])
    0.0
    """
    x = _included(_floats("log_softmax", x), where)
    axes = axes_of("log_softmax", axis, rank_of(x))
    shifted = subtract(x, _shift(x, axes))
    sums = total(exp(shifted), axes, keepdims=True)
    return subtract(shifted, log(sums if where is None else choose(equal(sums, 0), 1, sums)))


@array_function()
def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b * exp(x))) along axes, or of all elements, without overflow.

    Where all elements are -inf the result is -inf and its derivative zero.

    Args:
        b: weights, which broadcast with a; ones by default. An element of weight zero does not count, and b's
            derivative there is zero.
        return_sign: give a pair, the logarithm of the sum's absolute value and the sum's sign; otherwise the result
            is nan where the sum is negative.
        where: which elements count, booleans that broadcast with a.

    >>> print(cnp.logsumexp([1000.0, -cnp.inf]))
    1000.0
    >>> print(cnp.logsumexp([1000.0, 1000.0], b=0.5))
    1000.0
    """
    x = _included(_floats("logsumexp", a), where)
    x = x if b is None else choose(not_equal(b, 0), x, -np.inf)
    axes = axes_of("logsumexp", axis, rank_of(x))
    shift = _shift(x, axes)
    terms = exp(subtract(x, shift))
    sums = total(terms if b is None else multiply(terms, b), axes, keepdims=True)
    signs = sign(sums) if b is not None or return_sign else None
    sums = sums if b is None else absolute(sums)
    nothing = equal(sums, 0)
    logs = choose(nothing, -np.inf, log(choose(nothing, 1, sums)))
    result = add(logs, shift)
    if b is not None and not return_sign:
        result = choose(less(signs, 0), np.nan, result)
    result = result if keepdims else squeezed(result, axes)
    if return_sign:
        return result, signs if keepdims else squeezed(signs, axes)
    return result


__all__ = [
    "log_softmax",
    "logsumexp",
    "relu",
    "sigmoid",
    "softmax",
]
