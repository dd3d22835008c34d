"""Choices among numbers or rows; those of `jax.random`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.frontend.array.sorting import places_of_largest
from ctrlgrad.random.basic import bits, randint, uniform
from ctrlgrad.random.continuous import gumbel
from ctrlgrad.random.keys import checked, shape_of, split
from ctrlgrad.scipy.error_functions import floats
from ctrlgrad.source import here


def categorical(key: Any, logits: Any, axis: int = -1, shape: Sequence[int] | None = None, replace: bool = True) -> Any:
    """Indices along an axis, each with the probability softmax(logits); int64.

    By the largest of the logits with Gumbel noise added, or without replacement by the largest ones.

    Args:
        shape: of the result; that of the logits without the axis if not given, and it ends with that.

    >>> import ctrlgrad as cg
    >>> int(cg.random.categorical(cg.random.key(0), np.array([0.0, 100.0])))
    1
    """
    logits = cnp.asarray(logits)
    if any(not isinstance(n, int) for n in logits.shape):
        raise ShapeError(
            "random.categorical: the shape of the logits is not known", source=here(), got=str(logits.shape)
        )
    axis = axis % logits.ndim - logits.ndim
    batch = tuple(n for a, n in enumerate(logits.shape) if a != axis + logits.ndim)
    shape = batch if shape is None else shape_of("categorical", shape)
    before = shape[: len(shape) - len(batch)]
    if replace:
        whole = list(shape[len(before) :])
        whole.insert(axis + logits.ndim, logits.shape[axis])
        noise = gumbel(key, (*before, *whole), logits.dtype)
        return cnp.argmax(noise + logits, axis=axis)
    count = math.prod(before)
    if count > logits.shape[axis]:
        raise UserInputError(
            "random.categorical: more is drawn without replacement than there is",
            source=here(),
            expected=f"at most {logits.shape[axis]}",
            got=str(count),
            hint="draw fewer, or with replace=True",
        )
    order = places_of_largest("random.categorical", logits + gumbel(key, logits.shape, logits.dtype), count, axis)
    return cnp.reshape(cnp.moveaxis(order, axis, 0), shape)


def _shuffled(key: Any, x: Any, axis: int) -> Any:
    """In the order of random bits, over and over until no two elements had equal bits each time, all but surely."""
    size = math.prod(x.shape)
    rounds = math.ceil(3 * math.log(max(1, size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, now = split(key)
        x = cnp.take_along_axis(x, cnp.argsort(bits(now, x.shape), axis=axis), axis)
    return x


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """The rows of an array, or the numbers below an integer, in a random order.

    Args:
        independent: each line along the axis is put into an order of its own.

    >>> import ctrlgrad as cg
    >>> sorted(int(i) for i in cg.random.permutation(cg.random.key(0), 5))
    [0, 1, 2, 3, 4]
    """
    key = checked("permutation", key)
    if isinstance(x, int | np.integer):
        return _shuffled(key, cnp.arange(int(x)), 0)
    x = cnp.asarray(x)
    if independent or x.ndim == 1:
        return _shuffled(key, x, axis)
    return cnp.take(x, _shuffled(key, cnp.arange(x.shape[axis]), 0), axis=axis)


def choice(key: Any, a: Any, shape: Sequence[int] = (), replace: bool = True, p: Any = None, axis: int = 0) -> Any:
    """Rows of an array, or numbers below an integer, drawn with or without replacement.

    Args:
        p: the probability of each row; without replacement they are drawn by adding Gumbel noise to log(p).

    >>> import ctrlgrad as cg
    >>> sorted(int(i) for i in cg.random.choice(cg.random.key(0), 4, (4,), replace=False))
    [0, 1, 2, 3]
    """
    a = a if isinstance(a, int) else cnp.asarray(a)
    axis = 0 if isinstance(a, int) else axis % a.ndim
    size = a if isinstance(a, int) else a.shape[axis]
    p = None if p is None else floats(p)
    shape = shape_of("choice", shape)
    count = math.prod(shape)
    if not replace and count > size:
        raise UserInputError(
            "random.choice: more is drawn without replacement than there is",
            source=here(),
            expected=f"at most {size}",
            got=str(count),
            hint="draw fewer, or with replace=True",
        )
    if p is None and not replace and not isinstance(a, int):
        rows = cnp.moveaxis(permutation(key, a, axis), axis, 0)[:count]
        rows = cnp.reshape(rows, (*shape, *rows.shape[1:]))
        return cnp.moveaxis(rows, tuple(range(len(shape))), tuple(range(axis, axis + len(shape))))
    if replace and p is None:
        numbers = randint(key, shape, 0, size)
    elif replace:
        sums = cnp.cumsum(p)
        numbers = cnp.searchsorted(sums, sums[-1] * (1 - uniform(key, shape, sums.dtype)))
    elif p is None:
        numbers = cnp.reshape(permutation(key, size)[:count], shape)
    else:
        numbers = cnp.reshape(
            places_of_largest("random.choice", gumbel(key, (size,), p.dtype) + cnp.log(p), count), shape
        )
    return numbers if isinstance(a, int) else cnp.take(a, numbers, axis=axis)
