"""`ctrlgrad.random`: JAX's bits, the same in every engine and in loops, and distributions as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError

jax = pytest.importorskip("jax")
SEEDS = [0, 1, 42, 2**31, 2**40 + 3]


@pytest.fixture(autouse=True)
def wide_numbers() -> Any:
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        yield


def theirs(seed: int) -> Any:
    return jax.random.wrap_key_data(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32), impl="threefry2x32")


KINDS = [(shape, dtype) for shape in ((), (1,), (7,), (3, 4), (0,)) for dtype in ("uint32", "uint64")]
bits_of_jax = jax.jit(lambda key: [jax.random.bits(key, *kind) for kind in KINDS])


@pytest.mark.parametrize("seed", SEEDS)
def test_bits_are_those_of_jax(seed: int) -> None:
    key = cg.random.key(seed)
    for kind, expected in zip(KINDS, bits_of_jax(theirs(seed)), strict=True):
        np.testing.assert_array_equal(cg.random.bits(key, *kind), np.asarray(expected))


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_split_and_fold_in_are_those_of_jax(seed: int) -> None:
    key = cg.random.key(seed)
    for dtype in ("float32", "float64"):
        expected = jax.random.uniform(theirs(seed), (50,), dtype)
        np.testing.assert_array_equal(cg.random.uniform(key, (50,), dtype), np.asarray(expected))
    keys = jax.random.key_data(jax.random.split(theirs(seed), 5))
    np.testing.assert_array_equal(cg.random.split(key, 5), np.asarray(keys))
    folded = jax.random.key_data(jax.random.fold_in(theirs(seed), 9))
    np.testing.assert_array_equal(cg.random.fold_in(key, 9), np.asarray(folded))


def walk(key: Any, steps: Any) -> Any:
    def step(c: Any) -> Any:
        i, key, x = c
        key, now, coin = cg.random.split(key, 3)
        x = x + cg.random.normal(now, (3,)) * cg.random.bernoulli(coin)
        return i + 1, key, x + cg.random.randint(now, (3,), -2, 5)

    return cg.while_loop(lambda c: c[0] < steps, step, (0, key, np.zeros(3)))[2]


def test_loops_of_every_engine_draw_the_same() -> None:
    key = cg.random.key(3)
    expected = np.zeros(3)
    for _ in range(6):
        key, now, coin = cg.random.split(key, 3)
        expected = expected + cg.random.normal(now, (3,)) * cg.random.bernoulli(coin)
        expected = expected + cg.random.randint(now, (3,), -2, 5)
    for engine in ("reference", "native", "dataflow"):
        np.testing.assert_allclose(cg.function(walk, engine=engine)(cg.random.key(3), 6), expected, rtol=1e-12)


def test_a_seed_may_be_traced() -> None:
    traced = cg.function(lambda seed: cg.random.uniform(cg.random.key(seed), (4,)))
    for seed in (5, 2**35 + 1):
        np.testing.assert_array_equal(traced(np.int64(seed)), cg.random.uniform(cg.random.key(seed), (4,)))


def test_distributions() -> None:
    """Moments within five standard errors; the seed is fixed, so this does not flicker."""
    n = 200_000
    keys = cg.random.split(cg.random.key(11), 6)
    x = cg.random.normal(keys[0], (n,))
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 5 * np.sqrt(spread / n)
    u = cg.random.uniform(keys[1], (n,), minval=-1.0, maxval=3.0)
    assert u.min() >= -1 and u.max() < 3 and abs(u.mean() - 1) < 5 * np.sqrt(16 / 12 / n)
    counts = np.bincount(cg.random.randint(keys[2], (n,), 0, 6), minlength=6)
    assert ((counts - n / 6) ** 2 / (n / 6)).sum() < 30  # chi squared, 5 degrees of freedom
    p = cg.random.bernoulli(keys[3], 0.3, (n,)).mean()
    assert abs(p - 0.3) < 5 * np.sqrt(0.21 / n)
    logits = np.log(np.array([0.1, 0.2, 0.7]))
    drawn = cg.random.categorical(keys[4], np.broadcast_to(logits, (n, 3)).copy())
    shares = np.bincount(drawn, minlength=3) / n
    assert np.abs(shares - [0.1, 0.2, 0.7]).max() < 0.006


def test_the_gradient_passes_a_reparametrised_sample() -> None:
    sample = lambda mean, scale: cnp.sum(mean + scale * cg.random.normal(cg.random.key(0), (5,)))
    by_scale = cg.grad(sample, argnums=1)(0.5, 2.0)
    np.testing.assert_allclose(by_scale, cg.random.normal(cg.random.key(0), (5,)).sum(), rtol=1e-12)


def test_wrong_input_is_refused() -> None:
    key = cg.random.key(0)
    with pytest.raises(TypeMismatchError, match="not a key"):
        cg.random.uniform(np.zeros(2), (3,))
    with pytest.raises(TypeMismatchError, match="not a key"):
        cg.random.split(7)
    with pytest.raises(TypeMismatchError, match="no such dtype"):
        cg.random.normal(key, (3,), np.int32)
    with pytest.raises(TypeMismatchError, match="no such dtype"):
        cg.random.bits(key, (3,), np.int8)
    with pytest.raises(ShapeError, match="a negative size"):
        cg.random.bits(key, (-1,))
    with pytest.raises(UserInputError, match="64 bits"):
        cg.random.key(2**64)
