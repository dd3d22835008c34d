"""Uniform bits, integers, floats and booleans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import BFLOAT16, dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.random.keys import checked, encrypted, float_of, shape_of, split


def bits(key: Any, shape: Sequence[int] = (), dtype: Any = np.uint32) -> Any:
    """Uniform bits as unsigned integers.

    >>> cg.random.bits(cg.random.key(0), (2,)).dtype
    dtype('uint32')
    """
    key = checked("bits", key)
    shape, dtype = shape_of("bits", shape), np.dtype(dtype)
    high, low = encrypted(key, math.prod(shape))
    if dtype in (np.uint8, np.uint16, np.uint32):
        return (high ^ low).astype(dtype).reshape(shape)
    if dtype == np.uint64:
        return ((high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)).reshape(shape)
    raise TypeMismatchError("random.bits: no such dtype", expected="uint8, uint16, uint32 or uint64", got=dtype.name)


# The integers that floats are drawn as, and how many bits of these count.
_MANTISSAS = {
    np.dtype(np.float64): (np.uint64, 52),
    np.dtype(np.float32): (np.uint32, 23),
    np.dtype(np.float16): (np.uint16, 10),
    BFLOAT16: (np.uint8, 7),
}


def uniform(key: Any, shape: Sequence[int] = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Uniform numbers in [minval, maxval), of a float dtype; those of `jax.random.uniform`.

    >>> x = cg.random.uniform(cg.random.key(0), (1000,))
    >>> bool((0 <= x).all() and (x < 1).all())
    True
    """
    dtype = float_of("uniform", dtype)
    # The mantissa's bits: every multiple of 2^-52 (float32: 2^-23) in [0, 1).
    wide, width = _MANTISSAS[dtype]
    drawn = bits(key, shape, wide) >> wide(8 * np.dtype(wide).itemsize - width)
    low, high = cnp.asarray(minval, dtype=dtype), cnp.asarray(maxval, dtype=dtype)
    return cnp.maximum(low, drawn.astype(dtype) * dtype.type(2.0**-width) * (high - low) + low)


def randint(key: Any, shape: Sequence[int], minval: Any, maxval: Any, dtype: Any = np.int64) -> Any:
    """Integers in [minval, maxval), minval where that is empty; the numbers of `jax.random.randint`.

    Each has its probability up to a relative error of (maxval - minval) / 2 to the number of bits of the dtype.

    >>> x = cg.random.randint(cg.random.key(0), (100,), 0, 6)
    >>> int(x.min()), int(x.max())
    (0, 5)
    """
    dtype = np.dtype(dtype)
    if dtype_kind(dtype) not in "iu":
        raise TypeMismatchError("random.randint: no such dtype", expected="an integer dtype", got=dtype.name)
    info, wide = np.iinfo(dtype), np.dtype(f"u{dtype.itemsize}")
    # Arrays with an axis: integers wrap in them, where NumPy's scalars would warn.
    low, high = (cnp.reshape(x, x.shape or (1,)) for x in map(cnp.asarray, (minval, maxval)))
    low, high = (x if dtype_kind(x.dtype) in "iu" else x.astype(np.int64) for x in (low, high))
    # A range may end after the largest number of the dtype.
    beyond = high > info.max
    low, high = cnp.clip(low, info.min, info.max).astype(dtype), cnp.clip(high, info.min, info.max).astype(dtype)
    one = wide.type(1)
    span = cnp.where(high > low, high.astype(wide) - low.astype(wide), one)
    span = cnp.where(beyond & (high > low), span + one, span)
    first, second = split(key)
    sizes = shape_of("randint", shape)
    upper, lower = bits(first, sizes or (1,), wide), bits(second, sizes or (1,), wide)
    # Of 2 to the dtype's bits, which it has no number for: the square of its root. A span of 0 stands for all numbers.
    safe = cnp.where(span == 0, one, span)
    factor = wide.type(2 ** (4 * wide.itemsize)) % safe
    factor = (factor * factor) % safe
    drawn = ((upper % safe) * factor + lower % safe) % safe
    drawn = cnp.where(span == 0, lower, drawn)
    return cnp.reshape((low.astype(wide) + drawn).astype(dtype), sizes)


def bernoulli(key: Any, p: Any = 0.5, shape: Sequence[int] | None = None) -> Any:
    """Bools that are true with probability `p`, of the given shape or that of `p`.

    >>> bool(cg.random.bernoulli(cg.random.key(0), 1.0))
    True
    """
    p = cnp.asarray(p)
    dtype = p.dtype if p.dtype == np.float32 else np.float64
    return uniform(key, p.shape if shape is None else shape, dtype) < p


def rademacher(key: Any, shape: Sequence[int] = (), dtype: Any = np.int64) -> Any:
    """-1 or 1, each as likely; the numbers of `jax.random.rademacher`.

    >>> sorted({int(x) for x in cg.random.rademacher(cg.random.key(0), (20,))})
    [-1, 1]
    """
    drawn = bernoulli(key, 0.5, shape)
    return (2 * drawn.astype(dtype) - 1).astype(dtype)
