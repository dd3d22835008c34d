"""Windows that do not lie inside: values and derivatives of both orders are JAX's, in each mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax

X = np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
U = np.array([[0.5, 4.5], [2.5, 3.5], [1.5, 5.5]])


@pytest.fixture(autouse=True)
def _by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def _derivatives(xp: Any, ad: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """The value and its tangent, the gradient of a sum with terms between all results, and both derivatives of it."""
    tangents = tuple(np.cos(3 * x) for x in args)
    numbers = tuple(range(len(args)))

    def total(*args: Any) -> Any:
        y = xp.ravel(fn(*args))
        return xp.sum(y * (np.sin(np.arange(y.size**2.0).reshape(y.size, y.size)) @ y))

    gradient = ad.grad(total, numbers)
    along = lambda *args: sum(xp.sum(g * t) for g, t in zip(gradient(*args), tangents, strict=True))
    everything = lambda *args: (
        ad.jvp(fn, args, tangents),
        gradient(*args),
        ad.jvp(gradient, args, tangents)[1],
        ad.grad(along, numbers)(*args),
    )
    return jax.tree.leaves((ad.jit if ad is jax else ad.function)(everything)(*args))


def _assert_like_jax(fn: Callable[..., Any], *args: Any) -> None:
    expected, found = _derivatives(jnp, jax, fn, args), _derivatives(cnp, cg, cg.from_jax(fn), args)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-10)


def _traced(numbers: list[int], x: Any) -> Any:
    """Integers that are not known while tracing."""
    return jnp.array(numbers) + (0 * jax.lax.stop_gradient(x).ravel()[0]).astype(int)


@pytest.mark.parametrize("mode", [None, "clip", "fill", "promise_in_bounds"])
def test_reads_outside_bounds_agree_with_jax(mode: str | None) -> None:
    # JAX reads the fill value NaN: with another one there is something to compare.
    fill = {"fill_value": 7.0} if mode == "fill" else {}
    _assert_like_jax(lambda x: x.at[jnp.array([0, 2, 5])].get(mode=mode, **fill), X)
    _assert_like_jax(lambda x: x.at[_traced([-7, 1, 3], x)].get(mode=mode, **fill), X)


def test_a_cotangent_of_a_broken_promise_is_dropped_and_its_tangent_is_read() -> None:
    read = cg.from_jax(lambda x: x[jnp.array([0, 2, 5])])
    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(read(x), [1, 3, 3])
    np.testing.assert_array_equal(cg.grad(lambda x: cnp.sum(read(x)))(x), [1, 0, 1])
    np.testing.assert_array_equal(cg.jvp(read, (x,), (x,))[1], [1, 3, 3])
    np.testing.assert_array_equal(cg.jacrev(read)(x)[2], np.zeros(3))
    np.testing.assert_array_equal(cg.jacfwd(read)(x)[2], [0, 0, 1])


@pytest.mark.parametrize("mode", ["drop", "promise_in_bounds"])
@pytest.mark.parametrize("name", ["set", "add", "subtract", "min", "max"])
def test_writes_outside_bounds_agree_with_jax(name: str, mode: str) -> None:
    _assert_like_jax(lambda x, u: getattr(x.at[_traced([-7, 1, 5], x)], name)(u, mode=mode), X, U)


def test_a_product_outside_is_dropped() -> None:
    # JAX has no derivative of it.
    fn = lambda x, u: x.at[_traced([-7, 1, 5], x)].mul(u, mode="promise_in_bounds")
    np.testing.assert_array_equal(cg.from_jax(fn)(X, U), fn(jnp.asarray(X), U))


@pytest.mark.parametrize("start", [-1, -7, 9])
def test_slices_outside_are_moved_inside(start: int) -> None:
    read = lambda x: jax.lax.dynamic_slice(x, (_traced([start], x)[0], 0), (2, 1))
    write = lambda x, u: jax.lax.dynamic_update_slice(x, u, (_traced([start], x)[0], 1))
    _assert_like_jax(read, X)
    _assert_like_jax(write, X, U[:2, :1])


def test_reads_in_a_loop_and_over_rows() -> None:
    walk = lambda x: jax.lax.fori_loop(0, 5, lambda k, s: jnp.sin(s * x[k]) + x[k, 0], 1.0 + x[0])
    _assert_like_jax(walk, X)
    each = jax.vmap(lambda row, k: row[k])
    _assert_like_jax(lambda x: each(x, _traced([0, 1, 4], x)), X)


def test_a_promise_that_is_known_to_be_kept_costs_nothing() -> None:
    rows = lax.GatherDimensionNumbers((1,), (0,), (0,))

    def ops_with(last: int) -> set[str]:
        read = lambda x: lax.gather(x, np.array([[0], [2], [last]]), rows, (1, 2), mode="promise_in_bounds")
        gradient = cg.function(cg.grad(lambda x: cnp.sum(read(x) ** 2)))
        return {node.op.name for node in gradient.graph(X).nodes}

    assert ops_with(3) - ops_with(1) == {"where"}
