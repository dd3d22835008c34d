"""Loops that run a known number of times are JAX's own scans: `to_jax` makes no primitive of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruments.tables import in_turn
from jax import lax

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.interop.to_jax import CountedLoops
from ctrlgrad.ir import is_loop, walk


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


def number(i: Any) -> Any:
    return cnp.asarray(i).astype(np.float32)


def power(x: Any) -> Any:
    return cg.fori_loop(0, 5, lambda i, c: c * x + number(i), x)


def countdown(x: Any) -> Any:
    return cg.while_loop(lambda c: c[0] >= 2, lambda c: (c[0] - 3, c[1] * x + number(c[0])), (17, x))[1]


def triangle(x: Any) -> Any:
    """An inner counter that starts at a number, of which the outer loop counts nothing."""
    return cg.fori_loop(1, 4, lambda i, c: cg.fori_loop(2, 4, lambda j, d: cnp.sin(d * x) + number(i * j), c), x)


def rows(x: Any) -> Any:
    return cnp.stack([x, x * x, 2 * x])


def recurrent(x: Any) -> Any:
    last, ys = cg.scan(lambda c, v: (cnp.tanh(c * v + c), c + v), x, rows(x))
    return last + (ys * np.array([1, 2, 3], np.float32)).sum()


def backwards(x: Any) -> Any:
    last, ys = cg.scan(lambda c, v: (cnp.tanh(c * v + c), c + v), x, rows(x), reverse=True)
    return last + (ys * np.array([1, 2, 3], np.float32)).sum()


def nested(x: Any) -> Any:
    """A scan in each iteration of a scan; the inner one's rows become one number."""

    def outer(c: Any, v: Any) -> Any:
        c, ys = cg.scan(lambda d, w: (cnp.sin(d * w), (d * v, d)), c, rows(v))
        return c, ys[0].sum() * ys[1].sum()

    last, zs = cg.scan(outer, x, rows(x))
    return last + (zs * zs).sum()


def of_jax(x: Any) -> Any:
    last, ys = lax.scan(lambda c, i: (jnp.sin(c * x) + i, c), x, jnp.arange(3, dtype=jnp.float32), reverse=True)
    return lax.fori_loop(0, 4, lambda i, c: jnp.sin(c * x) + ys[i % 3], last)


COUNTED: list[Callable[[Any], Any]] = [power, countdown, triangle, recurrent, backwards, nested]


@in_turn("fn, floats", [*COUNTED, cg.from_jax(of_jax)], ["32 bits", "64 bits"])
def test_a_counted_loop_is_a_scan_of_jax(fn: Callable[[Any], Any], floats: str) -> None:
    with jax.enable_x64(floats == "64 bits"):
        f, x = cg.to_jax(fn), np.float32(0.7)
        assert f.explain(x).form == "pure JAX", f.explain(x)
        text = str(jax.make_jaxpr(f)(x))
        assert "scan[" in text
        assert "ctrlgrad" not in text
        value, slope = cg.function(lambda x: fn(x))(x), cg.grad(lambda x: fn(x))(x)
        # One program of all, since most of the time goes into compiling.
        of_jax = lambda x: {
            "value": f(x),
            "reverse": jax.grad(f)(x),
            "forward": jax.jvp(f, (x,), (np.float32(1),))[1],
            "of a batch": jax.vmap(jax.grad(f))(x[None])[0],
            "second": jax.hessian(f)(x),
        }
        found = jax.jit(of_jax)(x)
        np.testing.assert_allclose(found["value"], value, rtol=1e-5)
        for way in ("reverse", "forward", "of a batch"):
            assert found[way].dtype == slope.dtype
            np.testing.assert_allclose(found[way], slope, rtol=1e-4)
        np.testing.assert_allclose(found["second"], cg.hessian(lambda x: fn(x))(x), rtol=2e-4)


def until(start: Any, end: Any, step: int, by: str) -> Callable[[Any], Any]:
    goes_on = {
        "<": lambda c: c < end,
        "<=": lambda c: c <= end,
        ">": lambda c: c > end,
        ">=": lambda c: c >= end,
        "swapped": lambda c: cnp.asarray(end) > c,
        "!=": lambda c: c != end,
    }[by]
    return lambda x: cg.while_loop(lambda c: goes_on(c[0]), lambda c: (c[0] + step, c[1] * x), (start, x))[1]


@pytest.mark.parametrize(
    ("start", "end", "step", "by", "trips"),
    [
        (0, 5, 1, "<", 5),
        (0, 5, 2, "<", 3),
        (0, 4, 2, "<=", 3),
        (1, 5, 2, "swapped", 2),
        (5, 5, 1, "<", 0),
        (9, 5, 1, "<", 0),
        (5, 0, -2, ">", 3),
        (4, 0, -2, ">=", 3),
        # A loop that would not end, or that the arithmetic does not cover, or whose comparison has no counter.
        (0, 5, -1, "<", None),
        (0, 5, 0, "<", None),
        (0, 6, 2, "!=", None),
        (np.int8(0), np.int8(127), 2, "<", None),
    ],
)
def test_the_number_of_iterations(start: Any, end: Any, step: int, by: str, trips: int | None) -> None:
    graph = cg.function(until(start, end, step, by)).graph(1.0)
    (loop,) = filter(is_loop, walk(graph))
    assert CountedLoops(graph).trips.get(loop) == trips
    if trips is not None:
        with jax.enable_x64(True):
            assert float(cg.to_jax(until(start, end, step, by))(2.0)) == 2.0 ** (trips + 1)


def test_loops_that_a_known_count_does_not_help() -> None:
    """Rows that are read again, data in the condition, saved values under a wish for memory."""

    def read_again(x: Any) -> Any:
        array = cg.fori_loop(0, 4, lambda i, a: a.push(x * number(i)), cg.TensorArray(np.float32))
        return cg.fori_loop(0, 3, lambda i, c: c + array.read(i + 1), 0 * x)

    def watched(x: Any) -> Any:
        return cg.while_loop(lambda c: (c[0] < 5) & (c[1] < 9), lambda c: (c[0] + 1, c[1] * x), (0, x))[1]

    def swapping(x: Any) -> Any:
        return cg.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * x), (0, x), swap_memory=True)[1]

    for fn, reason in [(read_again, "stack"), (watched, "a loop whose iterations"), (swapping, "saved values")]:
        f = cg.to_jax(fn)
        assert reason in str(f.explain(np.float32(2.0)))
        np.testing.assert_allclose(jax.grad(f)(np.float32(2.0)), cg.grad(fn)(np.float32(2.0)), rtol=1e-6)


def test_an_integer_of_64_bits_that_may_be_large_is_not_narrowed() -> None:
    def hashed(x: Any) -> Any:
        return cg.fori_loop(0, 9, lambda i, c: (c[0] * 31 + i, c[1] * x), (7, x))

    with jax.enable_x64(False):
        f = cg.to_jax(hashed)
        assert "values of int64" in str(f.explain(np.float32(1.0)))
