"""Keys and bits of `jax.random`, the same bits for the same key, and XLA's generators of bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.interop.array_rules import recorded
from ctrlgrad.interop.avals import dtype_of, is_key, key_words
from ctrlgrad.interop.primitives import Equation, entry
from ctrlgrad.random.distributions import differentiable, gamma, loggamma
from ctrlgrad.random.keys import threefry2x32
from ctrlgrad.transforms.vmap import vmap

_U32 = np.uint32


def _is_threefry(aval: Any) -> bool:
    return str(aval.dtype) == "key<fry>"


def _is_native(equation: Equation) -> bool:
    """True if an equation's keys are Threefry's, with counters numbered as JAX does by default since 0.5."""
    avals = [aval for aval in (*equation.inputs, *equation.outputs) if is_key(aval)]
    return all(map(_is_threefry, avals)) and _is_partitionable(equation)


def _is_partitionable(equation: Equation) -> bool:
    return bool(getattr(equation.jax.ctx, "threefry_partitionable", True))


def _read(equation: Equation, fn: Callable[..., Any], *operands: Any) -> Any:
    """Apply a function of JAX on arrays of words in place of an equation."""
    struct: Any = jax.ShapeDtypeStruct
    avals = [struct((*aval.shape, *key_words(aval)), dtype_of(aval)) for aval in equation.inputs]
    with jax.threefry_partitionable(_is_partitionable(equation)):
        traced = equation.implementation(fn, *avals)
    (found,) = equation.read(traced, *operands)
    return found


def _mapped(fn: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """A function of one key for arrays of keys, as JAX maps it: of some generators that draws other bits."""
    for _ in range(rank):
        fn = jax.vmap(fn)
    return fn


def _generator(aval: Any) -> Any:
    """The functions of words that a generator is in JAX."""
    return aval.dtype._impl


def _counters(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    return (numbers >> np.uint64(32)).astype(_U32), numbers.astype(_U32)


def _encrypted(key: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """For each key of an array, words[..., 2], the ciphers of the counters of a shape."""
    one = key.shape[:-1] + (1,) * len(shape)
    first, second = (cnp.reshape(key[..., i], one) for i in (0, 1))
    high, low = _counters(shape)
    lead = (1,) * (len(key.shape) - 1)
    return threefry2x32(first, second, high.reshape(lead + shape), low.reshape(lead + shape))


@entry("random_wrap", "random_unwrap", "random_clone")
def _same_words(equation: Equation, key: Any) -> Any:
    return key


@entry("random_seed")
def _seed(equation: Equation, seed: Any) -> Any:
    (made,) = equation.outputs
    if not _is_threefry(made):
        return _read(equation, _mapped(_generator(made).seed, made.ndim), seed)
    wide = seed.dtype.itemsize > 4
    # Smaller integers fill the low word; JAX extends none of them.
    high = (seed >> seed.dtype.type(32)).astype(_U32) if wide else cnp.zeros_like(seed).astype(_U32)
    return cnp.stack([high, seed.astype(_U32)], axis=-1)


@entry("random_split")
def _split(equation: Equation, key: Any) -> Any:
    (keys,), shape = equation.inputs, tuple(equation.params["shape"])
    if not _is_native(equation):
        return _read(equation, _mapped(lambda k: _generator(keys).split(k, shape), keys.ndim), key)
    return cnp.stack(_encrypted(key, shape), axis=-1)


@entry("random_fold_in")
def _fold_in(equation: Equation, key: Any, data: Any) -> Any:
    keys, numbers = equation.inputs
    if not _is_threefry(keys):
        fold = _generator(keys).fold_in
        shape = np.broadcast_shapes(keys.shape, numbers.shape)

        def fold_in(key: Any, data: Any) -> Any:
            key = jax.numpy.broadcast_to(key, shape + key_words(keys))
            return _mapped(fold, len(shape))(key, jax.numpy.broadcast_to(data, shape))

        return _read(equation, fold_in, key, data)
    low = cnp.asarray(data).astype(_U32)
    return cnp.stack(threefry2x32(key[..., 0], key[..., 1], cnp.zeros_like(low), low), axis=-1)


@entry("random_bits")
def _bits(equation: Equation, key: Any) -> Any:
    (keys,), width, shape = equation.inputs, equation.params["bit_width"], tuple(equation.params["shape"])
    if not _is_native(equation):
        return _read(equation, _mapped(lambda k: _generator(keys).random_bits(k, width, shape), keys.ndim), key)
    high, low = _encrypted(key, shape)
    if width == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return (high ^ low).astype(np.dtype(f"uint{width}"))


@entry("random_gamma")
def _gamma(equation: Equation, key: Any, alpha: Any) -> Any:
    """For each key of an array the numbers of as many parameters as there are for it."""
    log_space = equation.params["log_space"]
    if not _is_native(equation):

        def of_words(words: Any, alpha: Any) -> Any:
            keys = jax.random.wrap_key_data(words, impl=_generator(equation.inputs[0]).name)
            return equation.jax.primitive.impl(keys, alpha, **equation.params)

        return differentiable(lambda key, alpha: _read(equation, of_words, key, alpha), log_space)(key, alpha)
    draw = loggamma if log_space else gamma
    if len(key.shape) == 1:
        return draw(key, alpha, dtype=alpha.dtype)
    rows = int(np.prod(key.shape[:-1]))
    drawn = vmap(lambda key, a: draw(key, a, dtype=a.dtype))(
        cnp.reshape(key, (rows, 2)), cnp.reshape(alpha, (rows, *alpha.shape[len(key.shape) - 1 :]))
    )
    return cnp.reshape(drawn, alpha.shape)


@entry("threefry2x32")
def _threefry(equation: Equation, *operands: Any) -> Any:
    return threefry2x32(*operands)


@entry("iota_2x32_shape")
def _iota_2x32(equation: Equation) -> Any:
    return tuple(map(recorded, _counters(tuple(equation.params["shape"]))))


# XLA's generators of bits, as JAX's `rng_bit_generator` has them on the processor.
#
# The state is four words, or two of 64 bits, low half first: a key and a counter. Which is the default is the
# platform's choice; on processors and on NVIDIA's cards it is Philox.


_U64 = np.uint64
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


def _threefry_bits(key: Any, counter: Any, shape: tuple[int, ...], wide: bool) -> tuple[Any, int]:
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
    # Arrays of one element: integers wrap in arrays, where NumPy's scalars would warn.
    parts = [state[i : i + 1] for i in range(state.shape[0])]
    has_words = len(parts) == 4
    key, counter = (_joined(*parts[:2]), _joined(*parts[2:])) if has_words else parts
    draw = _threefry_bits if int(equation.params["algorithm"]) == _THREE_FRY else _philox
    bits, count = draw(key, counter, tuple(equation.params["shape"]), dtype == _U64)
    after = counter + _U64(count)
    return cnp.concatenate([*_halves(key), *_halves(after)] if has_words else [key, after]), bits.astype(dtype)
