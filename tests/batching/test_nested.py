"""vmap inside of what is mapped: loops, branches and derivatives around a mapped function whose arrays grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from batching.rows import CLOSE, by_hand, check, checked, unknown_sizes

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ir import count_ops

X = np.random.default_rng(0).uniform(0.2, 1.0, (2, 3))
N = np.array([[0, 12, 7], [11, 3, 20]])
W = np.array([[0.3, 0.8], [1.1, 0.2]])


def grown(x: Any, n: Any, w: Any) -> Any:
    """Pushes n elements, past the first capacity for some rows, and reads them all."""
    array = cg.TensorArray("float64", element_shape=(2,))
    push = lambda c: (c[0] + 1, c[1].push(cnp.sin(w @ cnp.stack([c[0] * x, x]))))
    _, array = cg.while_loop(lambda c: c[0] < n, push, (0, array))
    return cg.fori_loop(0, array.size(), lambda i, y: cnp.sin(y + (w @ array.read(i)).sum()), x)


def batched(x: Any, n: Any, w: Any) -> Any:
    return cg.vmap(grown, in_axes=(0, 0, None))(x, n, w).sum()


def one_by_one(x: Any, n: Any, w: Any) -> Any:
    return sum(grown(x[i], n[i], w) for i in range(3))


@pytest.mark.parametrize("argnum", [0, 2])
@pytest.mark.parametrize("axes", [(0, 0, 0), (0, 0, None)])
def test_gradients_of_sums_over_rows(argnum: int, axes: tuple[int | None, ...]) -> None:
    w = W if axes[2] is None else np.stack([W, W * 0.7])
    found = checked(cg.vmap(cg.grad(batched, argnum), in_axes=axes), X, N, w)
    np.testing.assert_allclose(found, by_hand(cg.grad(one_by_one, argnum), X, N, w, axes=axes), **CLOSE)


def test_gradients_of_sums_over_rows_with_sizes_unknown() -> None:
    gradient = lambda row: cg.grad(lambda x, n: batched(x, n, W))(X[0] * row, N[0])
    scale = np.array([0.5, 1.5])
    np.testing.assert_allclose(unknown_sizes(cg.vmap(gradient), scale), by_hand(gradient, scale), **CLOSE)
    spec = [cg.TensorSpec((None, None)), cg.TensorSpec((None, None), "int64")]
    both = cg.function(cg.vmap(cg.grad(lambda x, n: batched(x, n, W))), signature=spec)
    np.testing.assert_allclose(both(X, N), by_hand(cg.grad(lambda x, n: one_by_one(x, n, W)), X, N), **CLOSE)


DERIVATIVES: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "forward": lambda f: lambda x, n: cg.jvp(lambda x, w: f(x, n, w), (x, W), (x * 2, W * 3))[1],
    "forward over reverse": lambda f: lambda x, n: cg.jvp(lambda x: cg.grad(f)(x, n, W), (x,), (x * 2,))[1],
    "reverse over reverse": lambda f: lambda x, n: cg.grad(lambda w: (cg.grad(f)(x, n, w) ** 2).sum())(W),
    "reverse over forward": lambda f: lambda x, n: cg.grad(lambda w: cg.jvp(lambda x: f(x, n, w), (x,), (x,))[1])(W),
    "hessian": lambda f: lambda x, n: cg.hessian(f)(x, n, W),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_further_derivatives(name: str) -> None:
    derivative = DERIVATIVES[name]
    found = checked(cg.vmap(derivative(batched)), X, N)
    np.testing.assert_allclose(found, by_hand(derivative(one_by_one), X, N), **CLOSE)


AROUND: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "loop": lambda f: (
        lambda x, n: cg.while_loop(
            lambda c: c[0] < x.sum() * 2, lambda c: (c[0] + 1, c[1] + f(x, n - 3 * c[0], W)), (0, 0.0)
        )[1]
    ),
    "branch": lambda f: lambda x, n: cg.cond(x.sum() > 1.8, lambda: f(x, n, W), lambda: f(x, n // 2, W)),
    "checkpoint": lambda f: lambda x, n: cg.checkpoint(lambda x: f(x, n, W))(x),
}


@pytest.mark.parametrize("name", AROUND)
def test_inside_of_what_rows_go_through_differently(name: str) -> None:
    f, judge = AROUND[name](batched), AROUND[name](one_by_one)
    np.testing.assert_allclose(checked(cg.vmap(f), X, N), by_hand(judge, X, N), **CLOSE)
    np.testing.assert_allclose(checked(cg.vmap(cg.grad(f)), X, N), by_hand(cg.grad(judge), X, N), **CLOSE)


def test_three_deep() -> None:
    f = lambda x, n: cg.grad(lambda x: cg.vmap(lambda x, n: batched(x, n, W))(x, n).sum())(x)
    x, n = np.stack([X, X * 0.5]), np.stack([N, N + 1])
    each = by_hand(lambda x, n: cg.vmap(cg.grad(one_by_one), in_axes=(0, 0, None))(x, n, W), x, n)
    np.testing.assert_allclose(checked(cg.vmap(f), x, n), each, **CLOSE)


def test_elements_of_a_size_that_is_not_known() -> None:
    def f(x: Any) -> Any:
        array = cg.TensorArray("float64", element_shape=(None,))
        push = lambda c: (c[0] + 1, c[1].push(c[0] * x))
        _, array = cg.while_loop(lambda c: c[0] < 12 * x[0], push, (0.0, array))
        return cg.fori_loop(0, array.size(), lambda i, y: cnp.sin(y + (array.read(i) ** 2).sum()), x[1])

    rows = np.random.default_rng(1).uniform(0.1, 1.0, (2, 3, 2))
    check(lambda row: cg.vmap(f)(row).sum(), rows, order=1)


@pytest.mark.parametrize("grows", [False, True])
def test_an_array_of_the_row_around(grows: bool) -> None:
    """The inner function reads an array that belongs to the outer row; `grows`: of a length of its own."""

    def around(x: Any, n: Any, mapped: bool) -> Any:
        array = cg.TensorArray("float64", element_shape=()).unstack(x * x)
        if grows:
            more = lambda c: (c[0] + 1, c[1].push(c[0] * x[0]))
            _, array = cg.while_loop(lambda c: c[0] < n[2], more, (0, array))

        def inner(y: Any, m: Any) -> Any:
            own = cg.TensorArray("float64", element_shape=())
            push = lambda c: (c[0] + 1, c[1].push(cnp.sin(c[0] * y + array.read(c[0] % 3))))
            _, own = cg.while_loop(lambda c: c[0] < m, push, (0, own))
            return cg.fori_loop(0, own.size(), lambda i, y: cnp.sin(y + own.read(i)), y)

        return cg.vmap(inner)(x, n).sum() if mapped else sum(inner(x[i], n[i]) for i in range(3))

    f, judge = (lambda x, n, mapped=mapped: around(x, n, mapped) for mapped in (True, False))
    np.testing.assert_allclose(checked(cg.vmap(f), X, N), by_hand(judge, X, N), **CLOSE)
    if not grows:
        np.testing.assert_allclose(checked(cg.vmap(cg.grad(f)), X, N), by_hand(cg.grad(judge), X, N), **CLOSE)


@pytest.mark.parametrize("out_axes", [0, (0, None)])
def test_a_result_that_does_not_depend_on_the_inner_rows(out_axes: Any) -> None:
    def f(x: Any, n: Any, s: Any) -> Any:
        a, b = cg.vmap(lambda y, m: (grown(y, m, W), s * s * 3), out_axes=out_axes)(x, n)
        return (a * b).sum()

    judge = lambda x, n, s: one_by_one(x, n, W) * s * s * 3
    s = np.array([0.5, 2.0])
    for argnum in (0, 2):
        found = checked(cg.vmap(cg.grad(f, argnum)), X, N, s)
        np.testing.assert_allclose(found, by_hand(cg.grad(judge, argnum), X, N, s), **CLOSE)
    shared = cg.vmap(cg.grad(f, 2), in_axes=(0, 0, None))(X, N, 1.5)
    np.testing.assert_allclose(shared, by_hand(cg.grad(judge, 2), X, N, 1.5, axes=(0, 0, None)), **CLOSE)


def test_directions_of_a_jacobian_share_the_loops_of_the_primal() -> None:
    """Forward mode is mapped over tangents alone: the loop of the inner rows is not made for each of them."""
    f = lambda x: cg.vmap(lambda x, n: grown(x, n, W))(x, N[0])
    graph = cg.jacfwd(f).graph(X[0])
    pushes = next(n for n in graph.nodes if n.op.name == "while")
    assert pushes.results[0].tensor.shape == (3,)
    np.testing.assert_allclose(cg.jacfwd(f)(X[0]), np.diag(np.diag(cg.jacrev(f)(X[0]))), **CLOSE)


def test_no_call_is_left_where_nothing_around_is_mapped() -> None:
    f = lambda x: cg.vmap(lambda x, n: batched(x, n, W))(x, N).sum()
    graphs = [cg.function(g).graph(X) for g in (f, cg.grad(f))]
    assert [count_ops(graph)["call"] for graph in graphs] == [0, 0]


def test_an_array_that_changes_in_a_loop_around_is_saved_by_its_rows() -> None:
    def f(x: Any, n: Any) -> Any:
        def inner(y: Any, m: Any, array: Any) -> Any:
            own = cg.TensorArray("float64", element_shape=())
            _, own = cg.while_loop(lambda c: c[0] < m, lambda c: (c[0] + 1, c[1].push(y * array.read(0))), (0, own))
            return cg.fori_loop(0, own.size(), lambda i, y: y + own.read(i), y)

        def body(c: Any) -> Any:
            i, array, y = c
            mapped = cg.vmap(lambda y, m: inner(y, m, array))
            return i + 1, array.push(y), y + mapped(x, n).sum()

        array = cg.TensorArray("float64", element_shape=()).unstack(x)
        return cg.while_loop(lambda c: c[0] < 3 * x[1], body, (0, array, x[2]))[2]

    cg.check_grads(lambda x: f(x, N[0]), (X[0],), order=1)
    np.testing.assert_allclose(checked(cg.vmap(cg.grad(f)), X, N), by_hand(cg.grad(f), X, N), **CLOSE)
