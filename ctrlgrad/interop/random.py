"""Keys and bits of `jax.random`: the same bits for the same key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.interop.arrays import recorded
from ctrlgrad.interop.avals import dtype_of, is_key, key_words
from ctrlgrad.interop.primitives import Equation, entry
from ctrlgrad.random.gammas import differentiable, gamma, loggamma
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
