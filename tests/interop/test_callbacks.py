"""Python that a program of JAX calls while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import ctrlgrad as cg
from ctrlgrad.errors import DifferentiationError, UnsupportedPrimitiveError


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


@pytest.mark.parametrize("x64", [False, True])
def test_debug_prints_and_callbacks_show_the_arrays_of_jax(x64: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """With `!r` an array of JAX prints itself otherwise than one of NumPy."""
    kinds: list[Any] = []

    def f(a: Any) -> Any:
        jax.debug.print("{a!r} {b:.3f} {!r} {c[0]!s:>5}", a + 1, a=a, b=a, c=jnp.stack([a, a]))
        jax.debug.callback(lambda a: kinds.append((isinstance(a, jax.Array), a.dtype)), a)
        io_callback(lambda a: kinds.append((isinstance(a, jax.Array), a.dtype)), None, a)
        return a

    with jax.enable_x64(x64):
        jax.jit(f)(1.5)
        jax.effects_barrier()
        expected, wanted = capsys.readouterr().out, sorted(kinds)
        kinds.clear()
        cg.from_jax(f, x64=x64)(1.5)
    assert capsys.readouterr().out == expected
    assert sorted(kinds) == wanted


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


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_io_callbacks_without_results_happen_once_in_order_and_have_no_derivative(ordered: bool, engine: str) -> None:
    seen: list[Any] = []

    def told(x: Any, show: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            io_callback(lambda v, *, step: seen.append((float(v), int(step))), None, show(x), step=i, ordered=ordered)
            io_callback(lambda v: seen.append(float(v)), None, show(2.0 * x), ordered=ordered)
            return 2.0 * x

        return lax.fori_loop(0, 2, body, x)

    wanted = [(1.0, 0), 2.0, (2.0, 1), 4.0]
    with cg.options(engine=engine):
        assert float(cg.from_jax(lambda x: told(x, jnp.asarray))(1.0)) == 4.0 and seen == wanted
        seen.clear()
        assert float(cg.grad(cg.from_jax(lambda x: told(x, lax.stop_gradient)))(1.0)) == 4.0 and seen == wanted
        for derivative in (cg.grad, cg.jacfwd):
            with pytest.raises(DifferentiationError, match=r"io_callback is given(.|\n)*test_callbacks.py"):
                derivative(cg.from_jax(lambda x: told(x, jnp.asarray)))(1.0)
    seen.clear()
    cg.vmap(cg.from_jax(lambda x: told(x, jnp.asarray)))(np.array([1.0, 1.0]))
    assert len(seen) == 8


def test_an_io_callback_with_results_is_refused_by_name() -> None:
    read = cg.from_jax(lambda x: io_callback(np.sin, jax.ShapeDtypeStruct((), np.float64), x))
    with pytest.raises(UnsupportedPrimitiveError, match=r"'io_callback' is not supported: it has results and effects"):
        read(1.0)


@pytest.mark.parametrize("method", [None, "sequential", "expand_dims", "broadcast_all"])
def test_a_pure_callback_is_given_arrays_of_jax(method: str | None) -> None:
    def last_doubled(x: Any, n: Any) -> Any:
        assert isinstance(x, jax.Array) and isinstance(n, jax.Array)
        return x.at[..., -1].multiply(2.0)  # a NumPy array has no `at`

    def f(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(last_doubled, shape, x, jnp.sum(x), vmap_method=method)

    x = np.arange(6.0).reshape(2, 3)
    mapped = f if method is None else jax.vmap(f)
    for engine in ("reference", "native", "dataflow"):
        found = cg.function(cg.from_jax(mapped), engine=engine)(x)
        np.testing.assert_array_equal(found, mapped(x))
