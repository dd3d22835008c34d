"""Random numbers from keys: a function of a key and a shape, the same in every engine, inside loops and outside.

A key is two uint32. Numbers come from the block cipher Threefry-2x32 with 20 rounds, which encrypts a counter with the
key. Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 4.2. The
bits are those of `jax.random` for the same key (its partitionable Threefry); so are `uniform`'s numbers, `split` and
`fold_in`. A key is used once: for more numbers split it.

    >>> import ctrlgrad as cg
    >>> key, one = cg.random.split(cg.random.key(0))
    >>> cg.random.uniform(one, (3,)).dtype
    dtype('float64')

In a loop the key is carried:

    >>> def walk(key, steps):
    ...     def step(c):
    ...         i, key, x = c
    ...         key, now = cg.random.split(key)
    ...         return i + 1, key, x + cg.random.normal(now)
    ...     return cg.while_loop(lambda c: c[0] < steps, step, (0, key, 0.0))[2]
    >>> float(walk(cg.random.key(1), 10)) == float(walk(cg.random.key(1), 10))
    True
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.source import here

# Paper, table 4 and equation 3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_U32 = np.uint32


def key(seed: Any) -> Any:
    """A key, uint32[2], from an integer of up to 64 bits.

    >>> import ctrlgrad as cg
    >>> cg.random.key(7)
    array([0, 7], dtype=uint32)
    """
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**64:
            raise UserInputError("random.key: the seed has more than 64 bits", source=here(), got=str(seed))
        return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], _U32)
    wide = cnp.asarray(seed).astype(np.uint64)
    return cnp.stack([(wide >> np.uint64(32)).astype(_U32), wide.astype(_U32)])


def split(key: Any, num: int = 2) -> Any:
    """`num` new keys, uint32[num, 2]; unpacked or indexed along axis 0.

    >>> import ctrlgrad as cg
    >>> cg.random.split(cg.random.key(0), 3).shape
    (3, 2)
    """
    key = _key("split", key)
    return cnp.stack(_encrypted(key, num), axis=1)


def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer, such as the number of an iteration.

    >>> import ctrlgrad as cg
    >>> bool((cg.random.fold_in(cg.random.key(0), 1) != cg.random.fold_in(cg.random.key(0), 2)).any())
    True
    """
    key = _key("fold_in", key)
    number = cnp.reshape(cnp.asarray(data).astype(_U32), (1,))
    return cnp.concat(_threefry(key[:1], key[1:], np.zeros(1, _U32), number))


def bits(key: Any, shape: Sequence[int] = (), dtype: Any = np.uint32) -> Any:
    """Uniform bits as uint32 or uint64.

    >>> import ctrlgrad as cg
    >>> cg.random.bits(cg.random.key(0), (2,)).dtype
    dtype('uint32')
    """
    key = _key("bits", key)
    shape, dtype = _shape("bits", shape), np.dtype(dtype)
    high, low = _encrypted(key, math.prod(shape))
    if dtype == np.uint32:
        return (high ^ low).reshape(shape)
    if dtype == np.uint64:
        return ((high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)).reshape(shape)
    raise TypeMismatchError("random.bits: no such dtype", source=here(), expected="uint32 or uint64", got=dtype.name)


def uniform(key: Any, shape: Sequence[int] = (), dtype: Any = np.float64, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Uniform numbers in [minval, maxval), float32 or float64.

    >>> import ctrlgrad as cg
    >>> x = cg.random.uniform(cg.random.key(0), (1000,))
    >>> bool((0 <= x).all() and (x < 1).all())
    True
    """
    dtype = _float("uniform", dtype)
    # The mantissa's bits: every multiple of 2^-52 (float32: 2^-23) in [0, 1).
    wide, width = (np.uint64, 52) if dtype == np.float64 else (np.uint32, 23)
    drawn = bits(key, shape, wide) >> wide(8 * np.dtype(wide).itemsize - width)
    low, high = cnp.asarray(minval, dtype=dtype), cnp.asarray(maxval, dtype=dtype)
    return cnp.maximum(low, drawn.astype(dtype) * dtype.type(2.0**-width) * (high - low) + low)


def normal(key: Any, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Standard normal numbers, float32 or float64.

    By the transform of Box and Muller, "A note on the generation of random normal deviates" (1958).

    >>> import ctrlgrad as cg
    >>> x = cg.random.normal(cg.random.key(0), (10_000,))
    >>> bool(abs(x.mean()) < 0.05 and abs(x.std() - 1) < 0.05)
    True
    """
    dtype = _float("normal", dtype)
    radius, angle = split(key)
    # 1 - u lies in (0, 1]: its logarithm is finite.
    length = cnp.sqrt(dtype.type(-2.0) * cnp.log1p(-uniform(radius, shape, dtype)))
    return length * cnp.cos(dtype.type(2 * math.pi) * uniform(angle, shape, dtype))


def bernoulli(key: Any, p: Any = 0.5, shape: Sequence[int] | None = None) -> Any:
    """Bools that are true with probability `p`, of the given shape or that of `p`.

    >>> import ctrlgrad as cg
    >>> bool(cg.random.bernoulli(cg.random.key(0), 1.0))
    True
    """
    p = cnp.asarray(p)
    return uniform(key, p.shape if shape is None else shape, np.float64) < p


def randint(key: Any, shape: Sequence[int], minval: Any, maxval: Any, dtype: Any = np.int64) -> Any:
    """Integers in [minval, maxval). Each has its probability up to a relative error of (maxval - minval) / 2^64.

    >>> import ctrlgrad as cg
    >>> x = cg.random.randint(cg.random.key(0), (100,), 0, 6)
    >>> int(x.min()), int(x.max())
    (0, 5)
    """
    span = cnp.asarray(maxval).astype(np.uint64) - cnp.asarray(minval).astype(np.uint64)
    drawn = bits(key, shape, np.uint64) % span
    return drawn.astype(dtype) + cnp.asarray(minval).astype(dtype)


def categorical(key: Any, logits: Any, axis: int = -1) -> Any:
    """Indices along an axis, each with the probability softmax(logits); int64, of the shape without that axis.

    By the largest of the logits with Gumbel noise added.

    >>> import ctrlgrad as cg
    >>> int(cg.random.categorical(cg.random.key(0), np.array([0.0, 100.0])))
    1
    """
    logits = cnp.asarray(logits)
    if any(not isinstance(n, int) for n in logits.shape):
        raise ShapeError(
            "random.categorical: the shape of the logits is not known", source=here(), got=str(logits.shape)
        )
    noise = -cnp.log(-cnp.log1p(-uniform(key, logits.shape, logits.dtype)))
    # Of a uniform 0 the noise would be -inf: never the largest, as it should be.
    return cnp.argmax(logits + noise, axis=axis)


def _tiny(dtype: Any) -> float:
    return float(np.finfo(dtype).tiny)


def exponential(key: Any, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Exponential numbers of mean 1; the numbers of `jax.random.exponential`.

    >>> import ctrlgrad as cg
    >>> bool(cg.random.exponential(cg.random.key(0), (3,)).min() >= 0)
    True
    """
    return -cnp.log1p(-uniform(key, shape, dtype))


def gumbel(key: Any, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Numbers of the Gumbel distribution.

    >>> import ctrlgrad as cg
    >>> cg.random.gumbel(cg.random.key(0), (3,)).shape
    (3,)
    """
    return -cnp.log(-cnp.log(uniform(key, shape, dtype, _tiny(dtype), 1.0)))


def laplace(key: Any, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Numbers of the Laplace distribution; those of `jax.random.laplace`.

    >>> import ctrlgrad as cg
    >>> cg.random.laplace(cg.random.key(0), (3,)).shape
    (3,)
    """
    drawn = uniform(key, shape, dtype, -1.0 + float(np.finfo(dtype).epsneg), 1.0)
    return cnp.sign(drawn) * cnp.log1p(-cnp.abs(drawn))


def logistic(key: Any, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Numbers of the logistic distribution.

    >>> import ctrlgrad as cg
    >>> cg.random.logistic(cg.random.key(0), (3,)).shape
    (3,)
    """
    drawn = uniform(key, shape, dtype, _tiny(dtype), 1.0)
    return cnp.log(drawn) - cnp.log1p(-drawn)


def cauchy(key: Any, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Numbers of the Cauchy distribution; those of `jax.random.cauchy`.

    >>> import ctrlgrad as cg
    >>> cg.random.cauchy(cg.random.key(0), (3,)).shape
    (3,)
    """
    drawn = uniform(key, shape, dtype, float(np.finfo(dtype).eps), 1.0)
    return cnp.tan(math.pi * (drawn - 0.5))


def rademacher(key: Any, shape: Sequence[int] = (), dtype: Any = np.int64) -> Any:
    """-1 or 1, each as likely; the numbers of `jax.random.rademacher`.

    >>> import ctrlgrad as cg
    >>> sorted({int(x) for x in cg.random.rademacher(cg.random.key(0), (20,))})
    [-1, 1]
    """
    drawn = bernoulli(key, 0.5, shape)
    return (2 * drawn.astype(dtype) - 1).astype(dtype)


def lognormal(key: Any, sigma: Any = 1.0, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Numbers whose logarithm is normal, with standard deviation `sigma`.

    >>> import ctrlgrad as cg
    >>> bool(cg.random.lognormal(cg.random.key(0), 2.0, (3,)).min() > 0)
    True
    """
    return cnp.exp(normal(key, shape, dtype) * cnp.asarray(sigma).astype(dtype))


def pareto(key: Any, b: Any, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Numbers of the Pareto distribution with tail index b; those of `jax.random.pareto`.

    >>> import ctrlgrad as cg
    >>> bool(cg.random.pareto(cg.random.key(0), 2.0, (3,)).min() >= 1)
    True
    """
    return cnp.exp(exponential(key, shape, dtype) / cnp.asarray(b).astype(dtype))


def weibull_min(key: Any, scale: Any, concentration: Any, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """Numbers of the Weibull distribution; those of `jax.random.weibull_min`.

    >>> import ctrlgrad as cg
    >>> bool(cg.random.weibull_min(cg.random.key(0), 1.0, 2.0, (3,)).min() >= 0)
    True
    """
    return exponential(key, shape, dtype) ** (1.0 / cnp.asarray(concentration).astype(dtype)) * scale


def permutation(key: Any, x: Any, axis: int = 0) -> Any:
    """The rows of an array, or the numbers below an integer, in a random order.

    By sorting random bits of 64 each, so that two are equal about once in 2^64 pairs.

    >>> import ctrlgrad as cg
    >>> sorted(int(i) for i in cg.random.permutation(cg.random.key(0), 5))
    [0, 1, 2, 3, 4]
    """
    if isinstance(x, int):
        return cnp.argsort(bits(key, (x,), np.uint64))
    x = cnp.asarray(x)
    return cnp.take(x, cnp.argsort(bits(key, (x.shape[axis],), np.uint64)), axis=axis)


def choice(key: Any, a: Any, shape: Sequence[int] = (), replace: bool = True, p: Any = None, axis: int = 0) -> Any:
    """Rows of an array, or numbers below an integer, drawn with or without replacement.

    Args:
        p: the probability of each row; without replacement they are drawn by adding Gumbel noise to log(p).

    >>> import ctrlgrad as cg
    >>> sorted(int(i) for i in cg.random.choice(cg.random.key(0), 4, (4,), replace=False))
    [0, 1, 2, 3]
    """
    size = a if isinstance(a, int) else cnp.asarray(a).shape[axis]
    shape = _shape("choice", shape)
    count = math.prod(shape)
    if not replace and count > size:
        raise UserInputError(
            "random.choice: more is drawn without replacement than there is",
            source=here(),
            expected=f"at most {size}",
            got=str(count),
            hint="draw fewer, or with replace=True",
        )
    if replace and p is None:
        numbers = randint(key, shape, 0, size)
    elif replace:
        sums = cnp.cumsum(cnp.asarray(p))
        numbers = cnp.searchsorted(sums, sums[-1] * (1 - uniform(key, shape, sums.dtype)))
    elif p is None:
        numbers = cnp.reshape(permutation(key, size)[:count], shape)
    else:
        order = cnp.argsort(gumbel(key, (size,)) + cnp.log(cnp.asarray(p)), descending=True)
        numbers = cnp.reshape(order[:count], shape)
    return numbers if isinstance(a, int) else cnp.take(cnp.asarray(a), numbers, axis=axis)


def _encrypted(key: Any, count: int) -> tuple[Any, Any]:
    """The ciphers of the counters 0, 1, ..., each in two halves."""
    numbers = np.arange(count, dtype=np.uint64)
    high, low = (numbers >> np.uint64(32)).astype(_U32), numbers.astype(_U32)
    return _threefry(key[:1], key[1:], high, low)


def _threefry(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Threefry-2x32, 20 rounds: a rotation after each, the key added after every fourth.

    All are arrays of one dimension: integers wrap in them, where NumPy's scalars would warn.
    """
    keys = (k0, k1, k0 ^ k1 ^ _U32(_PARITY))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << _U32(distance)) | (x1 >> _U32(32 - distance))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + _U32(group + 1)
    return x0, x1


def _key(operation: str, key: Any) -> Any:
    """A key as two uint32; one of `jax.random.key` is taken for its numbers."""
    if "jax" in sys.modules and str(getattr(key, "dtype", "")).startswith("key<"):
        key = sys.modules["jax"].random.key_data(key)
    if hasattr(key, "dtype"):
        key = cnp.asarray(key)
    dtype, shape = getattr(key, "dtype", None), tuple(getattr(key, "shape", ()))
    if dtype != np.uint32 or shape != (2,):
        raise TypeMismatchError(
            f"random.{operation}: not a key",
            source=here(),
            expected="uint32[2], as random.key and random.split make them",
            got=f"{dtype}{list(shape)}" if dtype is not None else type(key).__name__,
            hint="pass random.key(seed), or one row of random.split(key)",
        )
    return key


def _shape(operation: str, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if any(not isinstance(n, int | np.integer) or n < 0 for n in sizes):
        raise ShapeError(
            f"random.{operation}: not a shape of known sizes",
            source=here(),
            expected="a tuple of ints",
            got=repr(shape),
        )
    return tuple(int(n) for n in sizes)


def _float(operation: str, dtype: Any) -> np.dtype:
    found: np.dtype = np.dtype(dtype)
    if found not in (np.float32, np.float64):
        raise TypeMismatchError(
            f"random.{operation}: no such dtype", source=here(), expected="float32 or float64", got=found.name
        )
    return found


# As it is called in JAX.
PRNGKey = key

__all__ = [
    "PRNGKey",
    "bernoulli",
    "bits",
    "categorical",
    "cauchy",
    "choice",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "laplace",
    "logistic",
    "lognormal",
    "normal",
    "pareto",
    "permutation",
    "rademacher",
    "randint",
    "split",
    "uniform",
    "weibull_min",
]
