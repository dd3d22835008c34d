"""Rules that take a derivative of a loop themselves, inside loops, branches and `vmap`, to second order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import DifferentiationError

X = np.array([0.4, -0.7, 1.1])
ROWS = np.stack([X, 0.6 * X])
Function = Callable[[Any], Any]


def counted(x: Any) -> Any:
    return cg.fori_loop(0, 3, lambda i, y: np.sin(y) * x + 0.1 * i, x)


def unbounded(x: Any) -> Any:
    """A loop of 3 iterations for X, and of 4 for the second row."""
    push = lambda c: (c[0] + 0.3 + 0.1 * cnp.tanh(np.sum(c[1] ** 2)), 0.5 * np.sin(c[1]) + np.cos(x))
    return cg.while_loop(lambda c: c[0] < 1.2, push, (0.1 * np.sum(x**2), x))[1]


def pulls_later(f: Function) -> Any:
    ruled = cg.custom_vjp(f)
    ruled.defvjp(lambda x: (f(x), x), lambda x, ct: cg.vjp(f, x)[1](ct))
    return ruled


def pulls_later_and_calls_itself(f: Function) -> Any:
    ruled = cg.custom_vjp(f)
    ruled.defvjp(lambda x: (ruled(x), x), lambda x, ct: cg.vjp(f, x)[1](ct))
    return ruled


def keeps_the_pullback(f: Function) -> Any:
    ruled = cg.custom_vjp(f)
    ruled.defvjp(lambda x: cg.vjp(f, x), lambda pullback, ct: pullback(ct))
    return ruled


def gives_the_pullback(f: Function) -> Any:
    return cg.custom_gradient(lambda x: cg.vjp(f, x))


def pushes_by_two_pullbacks(f: Function) -> Any:
    ruled = cg.custom_jvp(f)

    def rule(primals: Any, tangents: Any) -> Any:
        y, pullback = cg.vjp(f, *primals)
        return y, cg.vjp(lambda ct: pullback(ct)[0], cnp.zeros(3))[1](tangents[0])[0]

    ruled.defjvp(rule)
    return ruled


RULES = [pulls_later, pulls_later_and_calls_itself, keeps_the_pullback, gives_the_pullback, pushes_by_two_pullbacks]
PLACES: dict[str, Callable[[Function], Function]] = {
    "alone": lambda f: f,
    "scan": lambda f: lambda x: cg.scan(lambda c, row: (0.5 * f(c) + row, np.sum(c)), x, x)[0],
    "while": lambda f: lambda x: cg.while_loop(lambda c: c[0] < 1.2, lambda c: (c[0] + x[2] / 2, f(c[1])), (0.0, x))[1],
    "cond": lambda f: lambda x: cg.cond(np.sum(x) > 0.6, f, np.sin, x) + x,
    "branch of a loop": lambda f: lambda x: cg.fori_loop(0, 3, lambda i, y: cg.cond(i == 1, f, np.sin, y) * x, x),
}


@pytest.mark.parametrize("loop", [counted, unbounded])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_pulls_back_through_a_loop(rule: Any, place: str, loop: Function) -> None:
    """The derivative is that of the loop without a rule, also under `vmap` and once more."""
    ruled, plain = ((lambda x, f=f: np.sum(np.sin(PLACES[place](f)(x)) * x)) for f in (rule(loop), loop))
    second = lambda f: cg.jacrev(cg.grad(f))
    with cg.options(engine="reference"):
        slopes = [cg.grad(plain)(x) for x in ROWS]
        np.testing.assert_allclose(cg.vmap(cg.grad(ruled))(ROWS), slopes, rtol=1e-12)
        np.testing.assert_allclose(cg.grad(lambda x: np.sum(cg.vmap(ruled)(x)))(ROWS), slopes, rtol=1e-12)
        curvatures = [second(plain)(x) for x in ROWS]
        np.testing.assert_allclose(second(ruled)(X), curvatures[0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(cg.vmap(second(ruled))(ROWS), curvatures, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rule", [keeps_the_pullback, gives_the_pullback])
def test_a_pullback_that_is_kept_in_a_loop_runs_in_machine_code(rule: Any) -> None:
    ruled, plain = ((lambda x, f=f: np.sum(np.sin(PLACES["scan"](f)(x)))) for f in (rule(unbounded), unbounded))
    for transform in (cg.grad, lambda f: cg.vmap(cg.grad(f))):
        with cg.options(engine="reference"):
            expected = transform(plain)(ROWS if transform is not cg.grad else X)
        found = cg.function(transform(ruled), engine="native")(ROWS if transform is not cg.grad else X)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("loop", [counted, unbounded])
def test_a_second_derivative_of_a_pullback_that_is_kept_in_a_branch_runs_in_machine_code(loop: Function) -> None:
    """A branch gives the cotangent of the rows that the pullback saved, as many as that branch has counted."""
    losses = [lambda x, f=f: np.sum(PLACES["cond"](f)(x) ** 2) for f in (keeps_the_pullback(loop), loop)]
    with cg.options(engine="reference"):
        expected = [cg.hessian(losses[1])(x) for x in ROWS]
    # The first row goes through the rule, the second one does not.
    second = cg.function(cg.hessian(losses[0]), engine="native")
    for x, curvature in zip(ROWS, expected, strict=True):
        np.testing.assert_allclose(second(x), curvature, rtol=1e-12, atol=1e-14)


def reads(array: Any, x: Any) -> Any:
    return np.sin(array.read(0)) * x + array.read(1) * x


def with_a_reverse_rule() -> Any:
    ruled = cg.custom_vjp(reads)
    ruled.defvjp(lambda array, x: (reads(array, x), (array, x)), lambda kept, ct: cg.vjp(reads, *kept)[1](ct))
    return ruled


def with_a_forward_rule() -> Any:
    ruled = cg.custom_jvp(reads)
    ruled.defjvp(lambda primals, tangents: cg.jvp(reads, primals, tangents))
    return ruled


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("make", [with_a_reverse_rule, with_a_forward_rule, lambda: cg.checkpoint(reads)])
def test_a_rule_of_an_array_that_changes_in_the_loop_around(make: Any, inner: bool) -> None:
    """The array is saved as it was in each iteration; `inner`: it is used in a loop inside that one."""

    def loss(read: Any, x: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            array, y = c
            y = cg.fori_loop(0, 2, lambda _, y: read(array, np.cos(y)), y) if inner else read(array, y)
            return array.write(i % 2, y * x[0]), y

        rows = cg.TensorArray("float64", 2, element_shape=(), rewritable=True).unstack(x[1:])
        return cg.fori_loop(0, 3, step, (rows, x[2]))[1]

    with cg.options(engine="reference"):
        cg.check_grads(lambda x: loss(reads, x), (X,), order=1)
        ruled, plain = (cg.grad(lambda x, read=read: loss(read, x)) for read in (make(), reads))
        np.testing.assert_allclose(ruled(X), plain(X), rtol=1e-12)
        np.testing.assert_allclose(cg.jacrev(ruled)(X), cg.jacrev(plain)(X), rtol=1e-12, atol=1e-14)


def test_a_pullback_whose_rows_have_unknown_sizes_is_made_again_in_the_backward_loop() -> None:
    """Rows that differ in size make no array that an iteration could save."""

    def growing(x: Any) -> Any:
        grow = lambda i, y: np.concatenate([y, np.sin(y[-1:] * y[:1])])
        return np.sum(cg.fori_loop(0, 2, grow, cg.unknown_dims(x))) * x

    twice = lambda f: keeps_the_pullback(PLACES["scan"](keeps_the_pullback(f)))
    for rule, loop in ((keeps_the_pullback, growing), (twice, counted)):
        plain = PLACES["scan"](loop) if rule is twice else loop
        losses = [lambda x, f=f: np.sum(PLACES["scan"](f)(x)) for f in (rule(loop), plain)]
        with cg.options(engine="reference"):
            ruled, expected = (cg.grad(loss)(X) for loss in losses)
            np.testing.assert_allclose(ruled, expected, rtol=1e-12)
            rows, expected = (cg.vmap(cg.jacrev(cg.grad(loss)))(ROWS) for loss in losses)
            np.testing.assert_allclose(rows, expected, rtol=1e-12, atol=1e-14)


def test_an_array_of_rows_of_unknown_sizes_is_not_saved_in_a_loop() -> None:
    """A rule whose argument is such an array, which changes in the loop around."""

    def loss(x: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            array, y = c
            read = cg.checkpoint(lambda array, y: np.sin(np.sum(array.read(i)) * y))
            return array.push(x[: i + 1]), read(array, y)

        return cg.fori_loop(0, 2, step, (cg.TensorArray("float64", element_shape=(None,)).push(x[:1]), x[2]))[1]

    with pytest.raises(DifferentiationError, match="whose elements have unknown sizes") as caught:
        cg.grad(loss)(X)
    assert caught.value.source is not None and caught.value.source.file == __file__


def test_derivatives_along_an_array_of_rows() -> None:
    """Tangents and cotangents of a `TensorArray` are such arrays, in `jvp`, `vjp` and both kinds of rules."""
    rows = lambda x: cg.TensorArray("float64", 2, element_shape=()).unstack(x)
    x, t = X[:2], np.array([0.3, -1.2])
    slope = np.array([np.cos(x[0]) * 2.0, 2.0])

    def value(read: Any) -> Any:
        return lambda x: read(rows(x), 2.0)

    for read in (reads, with_a_reverse_rule(), with_a_forward_rule()):
        np.testing.assert_allclose(cg.grad(value(read))(x), slope, rtol=1e-14)
    pushed = cg.function(lambda x, t: cg.jvp(reads, (rows(x), 2.0), (rows(t), 0.0))[1])
    np.testing.assert_allclose(pushed(x, t), slope @ t, rtol=1e-14)
    pulled = cg.function(lambda x, ct: cg.vjp(lambda x: rows(x * x), x)[1](rows(ct))[0])
    np.testing.assert_allclose(pulled(x, t), 2 * x * t, rtol=1e-14)
