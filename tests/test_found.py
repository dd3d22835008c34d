"""Wrong results that were found once, each under its name."""

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError, TypeMismatchError


def test_a_pullback_does_not_see_later_changes_of_outputs_and_inputs() -> None:
    x = np.array([1.0, 2.0])
    y, pullback = cg.vjp(np.exp, x)
    y -= 1.0
    np.testing.assert_allclose(pullback(np.ones(2))[0], np.exp([1.0, 2.0]))
    _, pullback = cg.vjp(lambda x: x**3, x)
    x -= 0.5
    np.testing.assert_allclose(pullback(np.ones(2))[0], [3.0, 12.0])


def test_python_numbers_as_carries_do_not_widen_float32() -> None:
    x = np.ones(3, np.float32)
    loops = (
        lambda x: cg.fori_loop(0, 3, lambda i, s: s + np.sum(x), 0.0),
        lambda x: cg.scan(lambda c, row: (c + row, c), 0.0, x)[1],
        lambda x: cg.foldl(lambda a, b: a + b, x, 0.0),
        lambda x: cg.cond(x[0] > 0, lambda: 1.0, lambda: 0.0) * x,
    )
    for loop in loops:
        assert cg.function(loop)(x).dtype == np.float32


def test_a_rule_may_call_its_own_function() -> None:
    @cg.custom_vjp
    def f(x):
        return np.sin(x)

    f.defvjp(lambda x: (f(x), np.cos(x)), lambda cosine, ct: (ct * cosine,))
    np.testing.assert_allclose(cg.grad(f)(1.0), np.cos(1.0))
    np.testing.assert_allclose(cg.grad(cg.grad(f))(1.0), -np.sin(1.0))


def test_updates_of_a_scalar_run_in_machine_code() -> None:
    """Whatever the key, the part that is updated is the whole number."""

    def f(x):
        def body(i, c):
            c = cnp.at(c)[...].set(np.sin(c) * x)
            c = cnp.at(c)[None].add(np.ones(1) * i)
            return cnp.at(c)[()].multiply(1.0 + 0.1 * x)

        return cg.fori_loop(0, 3, body, 2.0 * x)

    def plain(x):
        y = 2.0 * x
        for i in range(3):
            y = (np.sin(y) * x + i) * (1.0 + 0.1 * x)
        return y

    slope = (plain(0.5 + 1e-6) - plain(0.5 - 1e-6)) / 2e-6
    for engine in ("reference", "native"):
        np.testing.assert_allclose(cg.function(f, engine=engine)(0.5), plain(0.5), rtol=1e-14)
        np.testing.assert_allclose(cg.function(cg.grad(f), engine=engine)(0.5), slope, rtol=1e-8)
    np.testing.assert_allclose(f(0.5), plain(0.5), rtol=1e-14)
    given = np.array(3.0)
    changed = cnp.at(np.array(1.0))[()].set(given)
    given += 1.0
    assert changed == 3.0
    with pytest.raises(ShapeError, match="the value does not fit"):
        cg.function(lambda x: cnp.at(x)[None].set(np.ones(3)))(1.0)


def test_a_trip_count_that_follows_from_two_computed_bounds_is_saved() -> None:
    """The trip count is computed in front of the inner loop. Found: values computed there were never pushed."""

    def f(x: Any, starts: Any, ends: Any) -> Any:
        def body(carry: Any) -> Any:
            t, x = carry
            first, last = cnp.sum(starts[t] * starts), cnp.sum(ends[t] * ends)
            return t + 1, cg.fori_loop(first, last, lambda i, x: cnp.sin(x) * 1.1, x)

        return cg.while_loop(lambda c: c[0] < 3, body, (0, x))[1]

    starts, ends = np.array([1, 2, 0]), np.array([2, 1, 3])
    with cg.options(engine="reference"):
        assert cg.check_grads(f, (0.7, starts, ends), order=2).ok


@pytest.mark.parametrize("engine", ["reference", "native", "dataflow"])
def test_numbers_whose_bytes_are_in_another_order_are_numbers(engine: str) -> None:
    """As files and networks have them: machine code took them for the machine's own, and other calls for no dtype."""
    swapped = np.linspace(-1.0, 1.0, 12).astype(">f8").reshape(3, 4)

    def f(x: Any, i: Any) -> Any:
        return cg.fori_loop(0, 2, lambda k, c: cnp.at(c)[k].add(c[k + 1] * i), x).sum()

    plain, index = swapped.astype(np.float64), np.arange(4)
    with cg.options(engine=engine):
        run = cg.value_and_grad(f)
        for _ in range(2):  # the second call is known
            value, gradient = run(swapped, index.astype(">i8"))
            expected = run(plain, index)
            np.testing.assert_array_equal(value, expected[0])
            np.testing.assert_array_equal(gradient, expected[1])
            assert gradient.dtype == np.float64 and gradient.dtype.isnative
        constant = cg.function(lambda x: f(cnp.asarray(swapped) * x, index))(1.0)
        np.testing.assert_array_equal(constant, expected[0])
        scalar = np.array(2.0, ">f8")
        assert float(cg.grad(lambda x: cg.cond(x > 1.0, lambda: x * x, lambda: x))(scalar)) == 4.0
    assert cnp.asarray(swapped).dtype.isnative and cnp.zeros(2, ">i4").dtype == np.int32


@pytest.mark.parametrize("key", [0, [0, 0], "mask"])
def test_parts_of_integers_are_not_divided(key: Any) -> None:
    """Found: errors of another operation, with advice to cast the divisor."""

    def halved(x: Any) -> Any:
        return x.at[x > 4 if key == "mask" else np.array(key)].divide(2)

    with pytest.raises(TypeMismatchError, match=r"at\[...\].divide: quotients are floats"):
        cg.function(halved)(np.array([4, 6]))
    assert cg.function(halved)(np.array([4.0, 6.0])).dtype == np.float64
