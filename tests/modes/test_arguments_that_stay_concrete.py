"""A transform's function that needs a number is called once more, on values; after any other mistake it is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import TracingError

X = np.array([0.5, 2.0])


class Counted:
    """A function that counts how often it is called."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.calls = fn, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.fn(*args)


def _assigned(w: Any) -> Any:
    y = np.zeros(2)
    y[0] = w
    return y


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, n: w * 3.0 if n > 0 else w,
        lambda w, n: w * (3.0 if np.sin(n) ** 2 > 0 and n * 2 > 1 else 1.0),
        lambda w, n: sum((w for _ in range(int(n))), 0.0),
        lambda w, n: w * np.array([n, 0.0]).sum(),
        lambda w, n: w * _assigned(n)[0],
        lambda w, n: w * np.linspace(0.0, 1.0, int(n) + 1)[-1] * n,
    ],
)
def test_arguments_not_differentiated_stay_concrete(fn: Callable[..., Any]) -> None:
    counted = Counted(fn)
    gradient = cg.grad(counted)
    assert float(gradient(2.0, np.float64(3.0))) == pytest.approx(3.0)
    assert counted.calls == 2
    assert float(gradient(2.0, np.float64(3.0))) == pytest.approx(3.0)
    # Now it is known that the arguments stay as they are.
    assert counted.calls == 3


def test_a_function_that_only_another_library_has_gets_numbers() -> None:
    special = pytest.importorskip("scipy.special")
    found = cg.grad(lambda w, x: w * special.jv(1, x))(2.0, np.float64(1.5))
    np.testing.assert_allclose(found, special.jv(1, 1.5))
    with pytest.raises(TracingError, match=r"scipy\.special\.jv is not supported"):
        cg.grad(lambda w: special.jv(1, w))(2.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.__setitem__(0, 7.0),
        lambda x: np.add.at(x, [0], 1.0),
        lambda x: np.copyto(x, 1.0),
        lambda x: np.add(x, 1.0, out=x),
    ],
)
def test_arguments_are_not_changed_in_place(change: Callable[[Any], Any]) -> None:
    given = X.copy()
    counted = Counted(lambda w, x: change(x) or w * x.sum())
    with pytest.raises(TracingError):
        cg.grad(counted)(2.0, given)
    assert counted.calls == 1
    np.testing.assert_array_equal(given, X)


def test_an_error_while_the_program_runs_is_no_reason_to_begin_again() -> None:
    calls = []

    def shown(x: Any, iterations: Any) -> None:
        calls.append(x)
        raise TracingError("of the user's own")

    def f(w: Any) -> Any:
        cg.debug.callback(shown, w)
        return w * w

    with pytest.raises(Exception, match="of the user's own"):
        cg.grad(f)(2.0)
    assert len(calls) == 1


def test_the_trace_is_not_kept_with_the_error() -> None:
    gradient = cg.grad(lambda w, n: w if n > 0 else -w)
    gradient(2.0, 3.0)
    with pytest.raises(TracingError) as caught:
        gradient.graph(2.0, 3.0)
    assert caught.value.asks_for_values and caught.value.refused == ()


def _logged(x: Any, log: list[float]) -> Any:
    y = x * x
    log.append(y.item())
    return y * x


@pytest.mark.parametrize(
    "fn, held",
    [
        (lambda x: x[0] ** 2 * x[1].item() + x.item(0), lambda x, c: x[0] ** 2 * c[1] + c[0]),
        (lambda x: x[0] ** 3 if x[0].item() < 1 else x[0], lambda x, c: x[0] ** 3),
    ],
)
def test_numbers_are_read_under_a_bare_gradient_and_have_no_derivative(fn: Any, held: Any) -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        expected = np.asarray(jax.grad(held)(jax.numpy.asarray(X), X))
    differences = [(held(X + d, X) - held(X - d, X)) / 2e-6 for d in 1e-6 * np.eye(2)]
    np.testing.assert_allclose(differences, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(cg.grad(fn)(X), expected)
    np.testing.assert_allclose(cg.vjp(fn, X)[1](1.0)[0], expected)


def test_numbers_that_are_read_are_those_of_each_call() -> None:
    log: list[float] = []
    gradient = cg.grad(lambda x: _logged(x, log))
    assert [float(gradient(x)) for x in (3.0, 4.0)] == [27.0, 48.0]
    assert log == [9.0, 16.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: cg.function(cg.grad(lambda x: x * float(x)))(3.0),
        lambda: cg.function(lambda x: x * x.item())(3.0),
        lambda: cg.vmap(lambda x: x * x.tolist()[0])(np.ones((2, 3))),
        lambda: cg.grad(lambda x: cg.fori_loop(0, 3, lambda i, y: y * float(y), x))(3.0),
        lambda: cg.grad(lambda x: x * float(x))(3.0),
        lambda: cg.grad(lambda x: x.sum() * x.tolist()[1])(X),
    ],
)
def test_a_number_that_is_not_there_is_said_with_where_it_would_be(call: Callable[[], Any]) -> None:
    with pytest.raises(TracingError, match=r"without ctrlgrad\.function and outside of loops"):
        call()


def test_functions_of_math_lose_no_derivative_unseen() -> None:
    with pytest.raises(TracingError, match=r"numpy\.sin"):
        cg.grad(lambda x: x * math.sin(x))(3.0)
