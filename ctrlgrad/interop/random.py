"""Keys and bits of `jax.random`: the same bits for the same key."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.interop.avals import is_key
from ctrlgrad.interop.primitives import Equation, entry, unsupported
from ctrlgrad.random.gammas import gamma, loggamma
from ctrlgrad.random.keys import threefry2x32
from ctrlgrad.transforms.vmap import vmap

_U32 = np.uint32


def _require_threefry(equation: Equation, *, partitionable: bool) -> None:
    """Refuse other generators, and where it matters the older numbering of Threefry's counters."""
    for aval in (*equation.inputs, *equation.outputs):
        if is_key(aval) and "fry" not in str(aval.dtype):
            raise unsupported(
                equation, f"the generator of {aval.dtype} is not Threefry", 'jax.random.key(seed, impl="threefry2x32")'
            )
    if partitionable and not getattr(equation.jax.ctx, "threefry_partitionable", True):
        hint = 'jax.config.update("jax_threefry_partitionable", True), JAX\'s default since 0.5'
        raise unsupported(equation, "jax_threefry_partitionable is off", hint)


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
    _require_threefry(equation, partitionable=False)
    return key


@entry("random_seed")
def _seed(equation: Equation, seed: Any) -> Any:
    _require_threefry(equation, partitionable=False)
    wide = seed.dtype.itemsize > 4
    # Smaller integers fill the low word; JAX extends none of them.
    high = (seed >> seed.dtype.type(32)).astype(_U32) if wide else cnp.zeros_like(seed).astype(_U32)
    return cnp.stack([high, seed.astype(_U32)], axis=-1)


@entry("random_split")
def _split(equation: Equation, key: Any) -> Any:
    _require_threefry(equation, partitionable=True)
    return cnp.stack(_encrypted(key, tuple(equation.params["shape"])), axis=-1)


@entry("random_fold_in")
def _fold_in(equation: Equation, key: Any, data: Any) -> Any:
    _require_threefry(equation, partitionable=False)
    low = cnp.asarray(data).astype(_U32)
    return cnp.stack(threefry2x32(key[..., 0], key[..., 1], cnp.zeros_like(low), low), axis=-1)


@entry("random_bits")
def _bits(equation: Equation, key: Any) -> Any:
    _require_threefry(equation, partitionable=True)
    width = equation.params["bit_width"]
    high, low = _encrypted(key, tuple(equation.params["shape"]))
    if width == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return (high ^ low).astype(np.dtype(f"uint{width}"))


@entry("random_gamma")
def _gamma(equation: Equation, key: Any, alpha: Any) -> Any:
    """For each key of an array the numbers of as many parameters as there are for it."""
    _require_threefry(equation, partitionable=True)
    draw = loggamma if equation.params["log_space"] else gamma
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
