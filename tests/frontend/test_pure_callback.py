"""`pure_callback`: values by Python functions while a program runs, in loops and branches, by rows, on each engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import DifferentiationError, TypeMismatchError, UserInputError

NUMBER = cg.TensorSpec((), np.float64)


def norm(x: Any) -> Any:
    assert isinstance(x, np.ndarray)
    return np.sqrt((x * x).sum(-1))


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_it_computes_in_loops_and_in_the_branch_that_is_taken(engine: str) -> None:
    calls: list[float] = []

    def half(x: Any) -> Any:
        calls.append(float(x))
        return {"half": np.asarray(x / 2), "n": np.int64(len(calls))}

    def body(carry: Any) -> Any:
        x, n = carry
        stated = {"half": NUMBER, "n": cg.TensorSpec((), np.int64)}
        return cg.cond(x > 3.0, lambda: tuple(cg.pure_callback(half, stated, x).values()), lambda: (x - 1.0, n))

    with cg.options(engine=engine):
        found = cg.while_loop(lambda c: c[0] > 0.5, body, (np.float64(10.0), np.int64(0)))
    assert calls == [10.0, 5.0]
    assert [float(x) for x in found] == [0.5, 2.0]


def test_outside_of_a_trace_it_is_called_at_once() -> None:
    assert float(cg.pure_callback(norm, NUMBER, np.array([3.0, 4.0]))) == 5.0


def test_a_place_that_is_not_reached_calls_nothing_though_its_arguments_are_known() -> None:
    def fail(x: Any) -> Any:
        raise RuntimeError("called")

    f = cg.function(lambda x: cg.cond(x > 0, lambda: x, lambda: cg.pure_callback(fail, NUMBER, np.float64(1.0))))
    assert float(f(2.0)) == 2.0
    with pytest.raises(RuntimeError, match="called"):
        f(-2.0)


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_rows_reach_it_as_it_says(engine: str) -> None:
    shapes: list[Any] = []

    def product(x: Any, y: Any) -> Any:
        shapes.append((x.shape, y.shape))
        return (x * y).sum(-1)

    def f(x: Any, y: Any, method: Any) -> Any:
        return cg.pure_callback(product, NUMBER, x, y, vmap_method=method)

    x, y = np.arange(6.0).reshape(3, 2), np.array([1.0, 2.0])
    seen = {
        "sequential": [((2,), (2,))] * 3,
        "expand_dims": [((3, 2), (1, 2))],
        "broadcast_all": [((3, 2), (3, 2))],
    }
    with cg.options(engine=engine):
        for method, expected in seen.items():
            shapes.clear()
            np.testing.assert_array_equal(cg.vmap(lambda x, m=method: f(x, y, m))(x), x @ y)
            assert shapes == expected
        empty = cg.vmap(lambda x: f(x, y, "sequential"))(np.zeros((0, 2)))
        assert empty.shape == (0,)
    with pytest.raises(TypeMismatchError, match="does not say how its function takes rows"):
        cg.vmap(lambda x: f(x, y, None))(x)


def test_its_derivative_is_refused_and_a_rule_around_it_is_used() -> None:
    f = lambda x: cg.pure_callback(norm, NUMBER, x)
    x = np.array([3.0, 4.0])
    for derivative in (cg.grad(f), lambda x: cg.jvp(f, (x,), (x,))):
        with pytest.raises(DifferentiationError, match=r"pure_callback .* has no derivative"):
            derivative(x)
    ruled = cg.custom_jvp(f)
    ruled.defjvp(lambda primals, tangents: (f(*primals), cnp.sum(primals[0] * tangents[0]) / f(*primals)))
    np.testing.assert_allclose(cg.grad(ruled)(x), [0.6, 0.8])


def test_mistakes() -> None:
    x = np.array([3.0, 4.0])
    with pytest.raises(TypeMismatchError, match="returned another type than was stated"):
        cg.function(lambda x: cg.pure_callback(norm, cg.TensorSpec((2,), np.float64), x))(x)
    with pytest.raises(TypeMismatchError, match="callback is not a function"):
        cg.pure_callback(NUMBER, norm, x)  # type: ignore[arg-type]
    with pytest.raises(UserInputError, match="no such vmap_method"):
        cg.pure_callback(norm, NUMBER, x, vmap_method="rows")


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("found", [None, (1.0, 2.0)])
def test_more_or_fewer_results_than_stated_are_a_mistake_that_is_named(engine: str, found: Any) -> None:
    """So is a function that forgets to return anything."""
    f = cg.function(lambda x: cg.fori_loop(0, 2, lambda i, s: cg.pure_callback(lambda s: found, NUMBER, s), x))
    with cg.options(engine=engine), pytest.raises(TypeMismatchError, match="pytree of another size") as caught:
        f(1.0)
    assert "in iteration 0 of the fori_loop" in str(caught.value)
