"""Layers, and attention with lengths, windows and a cache."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import nn
from ctrlgrad.errors import ShapeError, UserInputError

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _in_double_precision_by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def test_norms_and_their_derivatives():
    x, scale, bias = rng.normal(size=(3, 5)), rng.normal(size=5), rng.normal(size=5)
    found = nn.layer_norm(x, scale, bias)
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, expected * scale + bias, rtol=1e-9)
    np.testing.assert_allclose(nn.rms_norm(x), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), rtol=1e-12)
    for f in (lambda x, s: cnp.sum(cnp.sin(nn.layer_norm(x, s))), lambda x, s: cnp.sum(cnp.sin(nn.rms_norm(x, s)))):
        cg.check_grads(f, (x, scale), against=("finite_differences",))


def test_dropout_keeps_the_mean():
    x, key = np.ones(20_000), cg.random.key(0)
    found = nn.dropout(key, x, 0.25)
    assert set(np.unique(found)) == {0.0, 1 / 0.75}
    assert abs(found.mean() - 1) < 0.02
    np.testing.assert_array_equal(nn.dropout(key, x, 0.25, deterministic=True), x)
    np.testing.assert_array_equal(nn.dropout(key, x, 1.0), 0 * x)
    np.testing.assert_array_equal(cg.grad(lambda x: cnp.sum(nn.dropout(key, x, 0.25)))(x), found)
    with pytest.raises(UserInputError, match="not a probability"):
        nn.dropout(key, x, 1.5)


def test_embedding_and_its_derivative():
    table, ids = rng.normal(size=(4, 2)), np.array([[1, 1], [3, 0]])
    np.testing.assert_array_equal(nn.embedding(table, ids), table[ids])
    found = cg.grad(lambda t: cnp.sum(nn.embedding(t, ids)))(table)
    np.testing.assert_array_equal(found, np.repeat([[1.0], [2.0], [0.0], [1.0]], 2, axis=1))


def test_products_of_scaled_blocks():
    a, b = rng.normal(size=(2, 3, 8)), rng.normal(size=(2, 5, 8))
    s, t = rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 5, 4))
    found = nn.scaled_matmul(a, b, s, t, np.float64)
    expected = (a * np.repeat(s, 4, -1)) @ np.swapaxes(b * np.repeat(t, 2, -1), 1, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(ShapeError, match="scales do not fit"):
        nn.scaled_matmul(a, b, s[..., :1].repeat(3, -1), t)


def test_attention_with_lengths_and_windows():
    q, k, v = (rng.normal(size=(2, 4, 2, 3)).astype(np.float32) for _ in range(3))
    for settings in (
        {"query_seq_lengths": np.int32([2, 4]), "key_value_seq_lengths": np.int32([3, 1])},
        {"local_window_size": (1, 0)},
        {"local_window_size": 2, "is_causal": True},
    ):
        found = nn.dot_product_attention(q, k, v, **settings)
        judge = jax.jit(lambda q, k, v, settings=settings: jax.nn.dot_product_attention(q, k, v, **settings))
        np.testing.assert_allclose(found, judge(q, k, v), atol=1e-6)
    with pytest.raises(ShapeError, match="do not divide"):
        nn.dot_product_attention(q, np.ones((2, 4, 3, 3)), np.ones((2, 4, 3, 3)))


def test_steps_with_a_cache_are_causal_attention():
    q, k, v = (rng.normal(size=(1, 5, 2, 3)) for _ in range(3))
    whole = nn.dot_product_attention(q, k, v, is_causal=True)

    def steps(q):
        def step(cache, x):
            found, cache = nn.attend(cache, *(part[:, None] for part in x))
            return cache, found[:, 0]

        rows = tuple(cnp.moveaxis(x, 1, 0) for x in (q, k, v))
        return cnp.moveaxis(cg.scan(step, nn.attention_cache(1, 8, 2, 3, np.float64), rows)[1], 0, 1)

    np.testing.assert_allclose(steps(q), whole, rtol=1e-10)
    total = lambda f: cg.grad(lambda q: cnp.sum(cnp.sin(f(q))))(q)
    plain = lambda q: nn.dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(total(steps), total(plain), rtol=1e-9)
    cache = nn.attention_cache(1, 8, 2, 3, np.float64)
    first, cache = nn.attend(cache, q[:, :3], k[:, :3], v[:, :3])
    second, cache = nn.attend(cache, q[:, 3:], k[:, 3:], v[:, 3:])
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, rtol=1e-10)
    assert int(cache["length"]) == 5
