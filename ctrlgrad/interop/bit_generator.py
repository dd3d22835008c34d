"""XLA's generators of bits, as JAX's `rng_bit_generator` has them on the processor.

The state is four words, or two of 64 bits, low half first: a key and a counter. Which is the default is the platform's
choice; on processors and on NVIDIA's cards it is Philox.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.interop.arrays import recorded
from ctrlgrad.interop.primitives import Equation, entry
from ctrlgrad.random.keys import threefry2x32

_U32, _U64 = np.uint32, np.uint64
_THREE_FRY = 1

# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3, and the authors' Random123.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _halves(x: Any) -> tuple[Any, Any]:
    """The low and the high half of 64 bits."""
    return x.astype(_U32), (x >> _U64(32)).astype(_U32)


def _joined(low: Any, high: Any) -> Any:
    return low.astype(_U64) | (high.astype(_U64) << _U64(32))


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Counters of four words, the lowest first, encrypted with a key of two."""
    a, b, c, d = counter
    first, second = key
    for _ in range(_ROUNDS):
        low0, high0 = _halves(a.astype(_U64) * _U64(_MULTIPLIERS[0]))
        low1, high1 = _halves(c.astype(_U64) * _U64(_MULTIPLIERS[1]))
        a, b, c, d = high1 ^ b ^ first, low1, high0 ^ d ^ second, low0
        first, second = first + _U32(_KEY_STEPS[0]), second + _U32(_KEY_STEPS[1])
    return a, b, c, d


def _philox(key: Any, counter: Any, shape: tuple[int, ...], wide: bool) -> tuple[Any, int]:
    """Bits of a shape, and by how much the counter grows; each number of it makes four words."""
    size = math.prod(shape)
    count = -(-size * (1 + wide) // 4)
    low = counter + np.arange(count, dtype=_U64)
    # The state has no place for the upper half of the counter: XLA takes the key for it.
    high = key + (low < counter).astype(_U64)
    a, b, c, d = philox4x32((*_halves(low), *_halves(high)), _halves(key))
    words = [_joined(a, b), _joined(c, d)] if wide else [a, b, c, d]
    return cnp.reshape(cnp.ravel(cnp.stack(words, axis=1))[:size], shape), count


def _threefry(key: Any, counter: Any, shape: tuple[int, ...], wide: bool) -> tuple[Any, int]:
    """As `_philox`; each number of the counter makes two words, which become neighbours along one axis."""
    sizes = shape or (1,)
    even = [a for a, n in enumerate(sizes) if n % 2 == 0]
    axis = even[0] if even else sizes.index(max(sizes))
    half = sizes if wide else tuple((n + 1) // 2 if a == axis else n for a, n in enumerate(sizes))
    count = math.prod(half)
    words = threefry2x32(*_halves(key), *_halves(counter + np.arange(count, dtype=_U64)))
    if wide:
        return cnp.reshape(_joined(*words), shape), count
    pairs = cnp.stack([cnp.reshape(word, half) for word in words], axis=axis + 1)
    both = cnp.reshape(pairs, tuple(2 * n if a == axis else n for a, n in enumerate(half)))
    return cnp.reshape(both[tuple(map(slice, sizes))], shape), count


@entry("rng_bit_generator")
def _rng_bit_generator(equation: Equation, state: Any) -> Any:
    state, dtype = recorded(state), np.dtype(equation.params["dtype"])
    # Of one element each: integers wrap in arrays, where NumPy's scalars would warn.
    parts = [state[i : i + 1] for i in range(state.shape[0])]
    has_words = len(parts) == 4
    key, counter = (_joined(*parts[:2]), _joined(*parts[2:])) if has_words else parts
    draw = _threefry if int(equation.params["algorithm"]) == _THREE_FRY else _philox
    bits, count = draw(key, counter, tuple(equation.params["shape"]), dtype == _U64)
    after = counter + _U64(count)
    return cnp.concatenate([*_halves(key), *_halves(after)] if has_words else [key, after]), bits.astype(dtype)
