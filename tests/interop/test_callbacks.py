"""Python that a program of JAX calls while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ctrlgrad as cg
from ctrlgrad.errors import DifferentiationError


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def test_debug_callbacks_happen_in_every_iteration_and_in_the_branch_that_is_taken() -> None:
    seen: list[Any] = []

    @cg.from_jax
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            show = lambda x: jax.debug.callback(lambda v, *, step: seen.append((float(v), int(step))), x, step=i)
            lax.cond(x > 2.0, show, lambda x: None, x)
            return 2.0 * x

        return lax.fori_loop(0, 4, body, x)

    assert float(f(1.0)) == 16.0
    assert seen == [(4.0, 2), (8.0, 3)]
    seen.clear()
    assert float(cg.grad(f)(1.0)) == 16.0
    assert seen == [(4.0, 2), (8.0, 3)]


def test_pure_callbacks_compute_and_have_the_rule_that_is_around_them() -> None:
    def sine(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")

    def ruled(x: Any) -> Any:
        return jnp.sum(known(x) * x)

    known = jax.custom_jvp(sine)
    known.defjvp(lambda primals, tangents: (known(*primals), jnp.cos(primals[0]) * tangents[0]))
    x = np.array([0.3, 0.7])
    read = cg.from_jax(ruled)
    np.testing.assert_allclose(read(x), ruled(x))
    np.testing.assert_allclose(cg.grad(read)(x), jax.grad(ruled)(x))
    np.testing.assert_allclose(
        cg.vmap(cg.grad(read))(np.stack([x, 2 * x])), jax.vmap(jax.grad(ruled))(np.stack([x, 2 * x]))
    )
    with pytest.raises(DifferentiationError, match="pure_callback has no derivative"):
        cg.grad(cg.from_jax(lambda x: jnp.sum(sine(x))))(x)


def test_a_callback_that_does_not_say_how_it_takes_rows_is_called_for_each() -> None:
    shapes: list[Any] = []

    def total(x: Any) -> Any:
        shapes.append(np.shape(x))
        return np.sum(x)

    read = cg.from_jax(lambda x: jax.pure_callback(total, jax.ShapeDtypeStruct((), np.float64), x))
    np.testing.assert_array_equal(cg.vmap(read)(np.arange(6.0).reshape(3, 2)), [1.0, 5.0, 9.0])
    assert shapes == [(2,)] * 3
