"""JAX's conventions for empty arrays, derivatives of integers and 16-bit floats hold in programs that `from_jax`
reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import ctrlgrad as cg

NOTHING: dict[str, Callable[[Any], Any]] = {
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=-1),
    "max": lambda x: jnp.max(x, axis=-1, initial=-1),
    "min": lambda x: jnp.min(x, axis=-1, initial=7),
    "variance": lambda x: jnp.var(x, axis=-1),
    "mean": lambda x: jnp.mean(x, axis=-1),
}


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0)])
def test_functions_of_no_elements(name: str, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for engine in ("native", "reference"):
        found = cg.function(cg.from_jax(NOTHING[name]), engine=engine)(x)
        np.testing.assert_array_equal(found, jax.jit(NOTHING[name])(x))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16"])
def test_extremes_of_no_numbers(dtype: str) -> None:
    limits = np.iinfo(dtype) if dtype[-1] != "6" else np.finfo(dtype)
    x = np.zeros((2, 0), dtype)
    for fn, initial in ((jnp.max, limits.min), (jnp.min, limits.max)):
        of_none = lambda x, fn=fn, initial=initial: fn(x, axis=1, initial=initial)
        np.testing.assert_array_equal(cg.from_jax(of_none)(x), jax.jit(of_none)(x))


@pytest.mark.parametrize("ddof", [0, 1, 2, 5])
def test_variances_with_few_degrees_of_freedom(ddof: int) -> None:
    x = np.array([1.0, 2.0], np.float32)
    for fn in (jnp.var, jnp.std):
        np.testing.assert_array_equal(cg.from_jax(lambda x, fn=fn: fn(x, ddof=ddof))(x), fn(x, ddof=ddof))


@pytest.mark.parametrize("fn", [jnp.var, jnp.std])
def test_the_gradient_of_a_variance_without_degrees_of_freedom_is_that_of_the_selected_constant(fn: Any) -> None:
    x = np.array([1.0, 2.0, 4.0], np.float32)
    for ddof in (3, 4):
        read = cg.from_jax(lambda x, ddof=ddof: fn(x, ddof=ddof))
        np.testing.assert_array_equal(cg.grad(read)(x), [0.0, 0.0, 0.0])
        with cg.options(strong_zeros=False):
            np.testing.assert_array_equal(cg.grad(read)(x), jax.grad(lambda x, ddof=ddof: fn(x, ddof=ddof))(x))


def test_softmax_of_nothing_in_other_programs() -> None:
    assert cg.nn.softmax(np.zeros((3, 0)), axis=1).shape == (3, 0)
    assert cg.numpy.logsumexp(np.zeros(0)) == -np.inf


def test_derivatives_with_respect_to_integers_are_float0() -> None:
    gradient = jax.grad(lambda x, n, b: x * n.sum() * b, argnums=(0, 1, 2), allow_int=True)
    given = (np.float32(2), np.array([3, 4], np.int32), np.bool_(True))
    read = cg.from_jax(gradient)
    for found in (read(*given), cg.function(lambda *xs: read(*xs))(*given)):
        assert found[0] == 7
        assert [(x.dtype, x.shape) for x in found[1:]] == [(jax.dtypes.float0, (2,)), (jax.dtypes.float0, ())]
    assert cg.grad(lambda x: read(x, *given[1:])[0] * x)(given[0]) == 7

    def forward(x: Any, n: Any, t: Any) -> Any:
        return jax.jvp(lambda x, n: (x * n, n + 1), (x, n), (x, t))

    (value, kept), (tangent, none) = cg.from_jax(forward)(np.float32(2), np.int32(3), np.zeros((), jax.dtypes.float0))
    assert (value, kept, tangent, none.dtype) == (6, 4, 6, jax.dtypes.float0)


DRAWN = ["uniform", "normal", "exponential", "gumbel", "laplace", "logistic", "cauchy", "maxwell"]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", DRAWN)
def test_numbers_of_16_bits_are_those_of_jax(name: str, dtype: Any) -> None:
    expected = getattr(jax.random, name)(jax.random.PRNGKey(3), (50,), dtype=dtype)
    drawn = getattr(cg.random, name)(cg.random.key(3), (50,), dtype=dtype)
    read = cg.from_jax(lambda key: getattr(jax.random, name)(key, (50,), dtype=dtype))(jax.random.PRNGKey(3))
    for found in (drawn, read):
        assert found.dtype == dtype
        # The last digit, where a function is rounded.
        eps = float(jnp.finfo(dtype).eps)
        wide = np.asarray(expected, np.float32)
        np.testing.assert_allclose(np.asarray(found, np.float32), wide, rtol=3 * eps, atol=eps)


def test_debug_prints_with_formats_are_printed_for_each_lane(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(x: Any) -> Any:
        jax.debug.print("x={x:.3f} {}", x + 1, x=x)
        jax.debug.callback(lambda x: print(f"{x:.1f}"), x * 2)
        return x * 2

    x = np.array([1.0, 2.0], np.float32)
    for fn in (cg.vmap(cg.from_jax(shown)), cg.from_jax(jax.vmap(shown))):
        fn(x)
        assert capsys.readouterr().out == "x=1.000 2.0\nx=2.000 3.0\n2.0\n4.0\n"
    cg.vmap(cg.vmap(cg.from_jax(shown)))(x[None])
    assert capsys.readouterr().out == "x=1.000 2.0\nx=2.000 3.0\n2.0\n4.0\n"
