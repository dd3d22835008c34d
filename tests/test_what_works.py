"""The table on the page "What works": a test per row, checked by JAX, by finite differences or by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import Run, run_graph

PAGE = Path(__file__).resolve().parent.parent / "docs" / "what_works.md"

X, W = np.float64(0.5), np.float64(0.4)


def grow(x, w):
    """A loop whose number of iterations depends on its arguments: ten of them for X and W."""
    return cg.while_loop(lambda y: y < 3.0, lambda y: y + w * cnp.sin(y), x)


def by_hand(x, w, order):
    """Derivatives of `grow` in x by Taylor arithmetic: y, y', y'', y''' carried through the plain Python loop."""
    y = np.array([x, 1.0, 0.0, 0.0])
    while y[0] < 3.0:
        s, c = np.sin(y[0]), np.cos(y[0])
        sine = np.array(
            [s, c * y[1], c * y[2] - s * y[1] ** 2, c * y[3] - 3.0 * s * y[1] * y[2] - c * y[1] ** 3],
        )
        y = y + w * sine
    return y[order]


def test_reverse_through_an_unbounded_loop() -> None:
    np.testing.assert_allclose(cg.grad(grow)(X, W), by_hand(X, W, 1), rtol=1e-13)
    cg.check_grads(grow, (X, W), order=1, modes=("rev",))
    run = Run()
    run_graph(cg.function(cg.grad(grow)).graph(X, W), [X, W], run)
    assert list(run.counters.trips.values()) == [10, 10]


def test_second_and_third_order_through_it() -> None:
    second = cg.grad(cg.grad(grow))
    np.testing.assert_allclose(second(X, W), by_hand(X, W, 2), rtol=1e-12)
    np.testing.assert_allclose(cg.grad(second)(X, W), by_hand(X, W, 3), rtol=1e-11)
    cg.check_grads(grow, (X, W), order=3, modes=("rev",), against=("jax",))


def test_forward_through_it() -> None:
    value, tangent = cg.jvp(grow, (X, W), (1.0, 0.0))
    np.testing.assert_allclose([value, tangent], [by_hand(X, W, 0), by_hand(X, W, 1)], rtol=1e-13)
    graph = cg.function(lambda x, w: cg.jvp(grow, (x, w), (1.0, 0.0))).graph(X, W)
    run = Run()
    run_graph(graph, [X, W], run)
    assert run.counters.pushes == 0


def test_forward_over_reverse_and_reverse_over_forward() -> None:
    _, over_reverse = cg.jvp(cg.grad(grow), (X, W), (1.0, 0.0))
    over_forward = cg.grad(lambda x: cg.jvp(lambda x: grow(x, W), (x,), (1.0,))[1])(X)
    np.testing.assert_allclose([over_reverse, over_forward], by_hand(X, W, 2), rtol=1e-12)
    cg.check_grads(grow, (X, W), order=2, modes=("rev", "fwd"))


def test_nested_loops() -> None:
    """The inner loop's number of iterations depends on the outer one's state."""

    def f(x):
        def outer(c):
            i, y = c
            z = cg.while_loop(lambda z: z < 1.5 + 0.1 * i, lambda z: z * 1.2 + 0.05 * x, 0.2 + cnp.sin(y) ** 2)
            return i + 1, y + cnp.cos(z) * x

        return cg.while_loop(lambda c: c[0] < 5, outer, (0, x))[1]

    cg.check_grads(f, (np.float64(0.6),), order=2)


def test_branches_in_loops() -> None:
    def f(x):
        def body(c):
            i, y = c
            return i + 1, cg.cond(y > 1.0, lambda: cnp.sqrt(y) * x, lambda: y * y + x)

        return cg.while_loop(lambda c: c[0] < 6, body, (0, x))[1]

    cg.check_grads(f, (np.float64(0.7),), order=2)
    # The branch that is not taken is not computed: no NaN comes out of its derivative.
    root = lambda x: cg.fori_loop(0, 2, lambda i, y: y + cg.cond(y > 0.0, lambda: cnp.sqrt(y), lambda: 3.0 * y), x)
    assert cg.grad(root)(0.0) == 16.0


def test_carries_whose_shape_changes() -> None:
    def f(x):
        longer = lambda c: (c[0] + 1, cnp.concat([c[1], cnp.sin(c[1])]))
        return cnp.sum(cg.while_loop(lambda c: c[0] < 3, longer, (0, cg.unknown_dims(x)))[1])

    double = lambda x: cg.while_loop(lambda y: y.shape[0] < 9, lambda y: cnp.concat([y, y]), cg.unknown_dims(x))
    x = np.array([0.3, 0.9])
    assert cg.function(double)(x).shape == (16,)
    cg.check_grads(f, (x,), order=2, against=("finite_differences",))


def test_early_exit_by_break() -> None:
    pytest.importorskip("malt")

    @cg.function(autograph=True)
    def total(xs, limit):
        total = 0.0
        for x in xs:
            if total > limit:
                break
            total = total + x * x
        return total

    xs = np.arange(1.0, 6.0)
    assert total(xs, 10.0) == 14.0
    np.testing.assert_array_equal(cg.grad(total)(xs, 10.0), [2.0, 4.0, 6.0, 0.0, 0.0])


def test_a_cotangent_for_each_iteration() -> None:
    seen = {}

    def f(x):
        def body(i, y):
            return cg.debug.watch_cotangent(y, lambda ct, at: seen.update({at: float(ct)})) * x

        return cg.fori_loop(0, 4, body, 1.0)

    cg.grad(f)(2.0)
    assert seen == {(3,): 2.0, (2,): 4.0, (1,): 8.0, (0,): 16.0}
    assert list(seen) == [(3,), (2,), (1,), (0,)]


def test_python_control_flow_on_values() -> None:
    def power(x: Any) -> Any:
        y, steps = x, 0
        while y < 100.0:
            y, steps = y * x, steps + 1
        return y * 2.0 if steps > 3 else y

    # 3 ** 5 after four steps, 5 ** 3 after two.
    assert float(cg.grad(power)(3.0)) == 2.0 * 5 * 3.0**4
    assert float(cg.grad(power)(5.0)) == 3 * 5.0**2


def test_a_loop_of_jax() -> None:
    # JAX runs the loop before it refuses, in 32 bits unless told otherwise: the bound has to be within their reach.
    def root(a: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-4, lambda x: 0.5 * (x + a / x), a)

    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(root)(2.0)
    np.testing.assert_allclose(cg.grad(cg.from_jax(root, x64=True))(2.0), 0.5 / np.sqrt(2.0), rtol=1e-4)


def test_batches_of_loops() -> None:
    """Rows take 10, 7 and 1 iterations; each gets its own result and derivative."""
    xs = np.array([0.5, 1.0, 2.9])
    np.testing.assert_allclose(cg.vmap(grow, in_axes=(0, None))(xs, W), [by_hand(x, W, 0) for x in xs], rtol=1e-14)
    gradients = cg.vmap(cg.grad(grow), in_axes=(0, None))(xs, W)
    np.testing.assert_allclose(gradients, [by_hand(x, W, 1) for x in xs], rtol=1e-13)


def test_a_cache_that_grows_by_rows() -> None:
    """300 iterations write a row of a cache each and read all of it: 4.8 kB are saved, not 0.7 MB of caches."""

    def decode(ones, x):
        def body(i, state):
            cache, y = state
            cache = cache.at[i].set(y)
            return cache, ones.sin(y + 0.1 * (cache * cache).mean())

        loop = cg.fori_loop if ones is cnp else jax.lax.fori_loop
        return loop(0, 300, body, (ones.zeros(300), x))[1]

    slope = cg.function(cg.grad(lambda x: decode(cnp, x)), engine="native")
    with cg.memory.budget(device="1 MiB") as session:
        found = slope(X)
        assert session.manager().stats.peak_bytes["device"] <= 64 * 1024
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        expected = jax.grad(lambda x: decode(jnp, x))(X)
    assert abs(found) > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_loop_larger_than_its_memory() -> None:
    """5,000 iterations save 20 MB; within 256 KiB the gradient has the same bits."""
    drift = lambda x: cg.fori_loop(0, 5000, lambda i, x: x + 0.01 * np.sin(x), x).sum()
    slope, x = cg.function(cg.grad(drift), engine="native"), np.linspace(0.0, 1.0, 500)
    with cg.memory.budget(device="256 KiB") as session:
        bounded = slope(x)
        assert session.manager().stats.peak_bytes["device"] <= 256 * 1024
    np.testing.assert_array_equal(bounded, slope(x))


def test_the_table_names_these_tests() -> None:
    named = re.findall(r"`(test_\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    here = [name for name in globals() if name.startswith("test_") and name != "test_the_table_names_these_tests"]
    assert named == here
