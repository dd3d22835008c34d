"""Bits of JAX's other generators, and of Threefry with its older numbering."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import ctrlgrad as cg
from ctrlgrad.errors import UnsupportedPrimitiveError

SHAPES = ((), (1,), (5,), (2, 3), (3, 5), (3, 4, 5), (0,))
LAST = 0xFFFFFFFF


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def _same(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm))
@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
def test_bits_and_the_state_behind_them_are_those_of_the_processor(algorithm: Any, dtype: str) -> None:
    def f(state: Any) -> list[Any]:
        bits = []
        for shape in SHAPES:
            state, drawn = lax.rng_bit_generator(state, shape, dtype=dtype, algorithm=algorithm)
            bits.append(drawn)
        return [state, *bits]

    found, expected = cg.from_jax(f), jax.jit(f)
    # Of the second and the third state the counter overflows while bits are drawn, of the third its upper half too.
    for words in ([1, 2, 3, 4], [1, 2, LAST - 1, LAST], [LAST, LAST, LAST - 1, LAST]):
        state = np.array(words, np.uint32)
        _same(found(state), expected(state))
    wide = np.array([1, 2, 3, 4], np.uint32).view(np.uint64)
    _same(found(wide), expected(wide))


def _drawn(key: Any) -> tuple[Any, ...]:
    first, second = jax.random.split(key)
    third = jax.random.fold_in(second, 7)
    keys = jax.random.split(first, 3)
    total = lax.fori_loop(
        0, 3, lambda i, s: s + jax.random.bits(jax.random.fold_in(first, i), dtype="uint32"), np.uint32(0)
    )
    return (
        jax.random.uniform(first, (3,)),
        jax.random.normal(third, (2, 2)).astype(np.float16),
        jax.vmap(lambda k: jax.random.bits(k, (4,)))(keys),
        jax.vmap(jax.random.fold_in, (None, 0))(first, np.arange(2)).reshape(1, 2).T,
        jax.random.permutation(third, 5),
        total,
    )


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_other_generators_give_their_bits(impl: str) -> None:
    of_seed = lambda seed: jax.tree.map(_words, _drawn(jax.random.key(seed, impl=impl)))
    _same(cg.from_jax(of_seed)(3), jax.jit(of_seed)(3))
    key = jax.random.key(3, impl=impl)
    draw = lambda key: jax.random.bits(key, (3,))
    np.testing.assert_array_equal(cg.from_jax(draw)(key), draw(key))


def _words(x: Any) -> Any:
    return jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def test_threefry_counts_as_it_did_where_a_program_asks_for_that() -> None:
    with jax.threefry_partitionable(False):
        of_seed = lambda seed: jax.tree.map(_words, _drawn(jax.random.key(seed)))
        _same(cg.from_jax(of_seed)(3), jax.jit(of_seed)(3))


def test_gamma_distributed_numbers_of_another_generator_have_derivatives() -> None:
    for draw in (jax.random.gamma, jax.random.loggamma):
        f = lambda a, draw=draw: draw(jax.random.key(1, impl="rbg"), a)
        expected, slope = jax.jit(jax.value_and_grad(f))(2.5)
        found, gradient = cg.value_and_grad(cg.from_jax(f))(2.5)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-8)


@pytest.mark.skipif(not hasattr(jax._src.random, "threefry4x32"), reason="this JAX has no such generator")
def test_a_generator_that_is_not_known_is_an_error_and_not_threefrys_bits() -> None:
    with pytest.raises(UnsupportedPrimitiveError, match=r"threefry4x32.*has no translation"):
        cg.from_jax(lambda seed: jax.random.uniform(jax.random.key(seed, impl="threefry4x32")))(3)
