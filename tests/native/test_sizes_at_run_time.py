"""Sizes known only at run time: a graph gets another plan where they differ from the usual pattern.

A plan assumes that broadcast sizes are equal. If a run has unequal ones, the plan is made again and decides in the
code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.natively import compiled, run_natively
from plan.plans import executed, graph_of

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.execution import run_on
from ctrlgrad.plan.lowering import broadcasting
from ctrlgrad.plan.sizes import ONE, ZERO

ANY = cg.TensorSpec((None,))
X = np.linspace(0.1, 0.9, 6)


def agree(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


def product_of_slices(x, k, m):
    return cnp.sin(x[:k] * x[:m])


def three_slices(x, k, m):
    return cnp.where(x[:k] > 0.3, x[:m], 2.0 * x[:k]) + x[:m] ** 2


def update_of_a_slice(x, k, m):
    return cnp.at(x)[:k].set(cnp.sin(x[:m])) * x


def added_at_a_slice(x, k, m):
    return cnp.at(x * x)[:k].add(cnp.cos(x[:m]))


def batches_of_products(x, k, m):
    a = cnp.reshape(x[:k], (-1, 1, 1)) * np.array([[1.0, 2.0], [0.5, 1.5]])
    b = cnp.reshape(x[:m], (-1, 1, 1)) * np.array([[0.2], [0.7]])
    return cnp.matmul(a, b)


def batches_of_systems(x, k, m):
    a = cnp.reshape(x[:k], (-1, 1, 1)) + np.array([[2.0, 0.1], [0.3, 3.0]])
    b = cnp.reshape(x[:m], (-1, 1, 1)) * np.array([[0.2], [0.7]])
    return cnp.linalg.solve(a, b)


def indices_of_two_arrays(x, k, m):
    table = cnp.reshape(x, (2, 3))
    return cnp.sin(table[cnp.arange(k) % 2, cnp.arange(m) % 3])


def in_a_loop(x, k, m):
    def body(t, total):
        return total + cnp.sum(x[: 1 + (k - 1) * t] * x[: 1 + (m - 1) * t] * total)

    return cg.fori_loop(0, 2, body, x[0])


FUNCTIONS = [
    product_of_slices,
    three_slices,
    update_of_a_slice,
    added_at_a_slice,
    batches_of_products,
    batches_of_systems,
    indices_of_two_arrays,
]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_a_size_that_turns_out_to_be_1_is_broadcast(fn: Callable[..., Any], order: int) -> None:
    for k, m in [(3, 3), (1, 3), (3, 1), (1, 1)]:
        if k == 1 < m and fn in (update_of_a_slice, added_at_a_slice):
            continue
        arguments = [X, np.int64(k), np.int64(m)]
        graph = graph_of(fn, *arguments, order=order)
        agree(executed(graph, arguments), run_on("reference", graph, arguments))


@pytest.mark.parametrize("fn", [product_of_slices, update_of_a_slice, batches_of_products, in_a_loop])
@pytest.mark.parametrize("k", [1, 3])
def test_machine_code_decides_which_size_is_1(fn: Callable[..., Any], k: int) -> None:
    arguments = [X, np.int64(3), np.int64(1)] if k == 3 else [X, np.int64(1), np.int64(1)]
    graph = graph_of(fn, *arguments, order=1)
    agree(run_natively(graph, arguments), run_on("reference", graph, arguments))


def test_one_more_plan_serves_all_sizes(compilations: list[Any]) -> None:
    fn = cg.function(cg.grad(lambda x, k, m: cnp.sum(product_of_slices(x, k, m))), engine="native")
    expected = cg.function(cg.grad(lambda x, k, m: cnp.sum(product_of_slices(x, k, m))), engine="reference")
    for k, m in [(3, 3), (2, 2), (1, 3), (3, 1), (4, 4), (5, 1), (1, 3)]:
        np.testing.assert_allclose(fn(X, k, m), expected(X, k, m), rtol=1e-12)
    assert len(compilations) == 2


def test_a_call_that_runs_the_new_plan_does_not_fail_before(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Any] = []
    drop = engine.Patterns.drop
    monkeypatch.setattr(engine.Patterns, "drop", lambda self, found: (failures.append(found), drop(self, found))[1])
    fn = cg.function(product_of_slices, engine="native")
    for k in (3, 1, 1, 1):
        assert fn(X, k, 3).shape == (3,)
    assert len(failures) == 1


def test_callbacks_are_called_once_though_a_run_begins_anew() -> None:
    seen: list[float] = []

    def fn(x, k, m):
        cg.debug.callback(lambda total, _: seen.append(float(total)), cnp.sum(x[:k]))
        y = x[:k] * x[:m]
        cg.debug.callback(lambda total, _: seen.append(float(total)), cnp.sum(y))
        return y

    arguments = [X, np.int64(1), np.int64(3)]
    graph = graph_of(fn, *arguments)
    agree(run_natively(graph, arguments), [X[:1] * X[:3]])
    np.testing.assert_allclose(seen, [X[0], X[0] * np.sum(X[:3])])


@pytest.mark.parametrize("order", [0, 1])
def test_rows_of_a_stack_may_differ_where_they_were_taken_to_be_of_one_shape(order: int) -> None:
    def fn(x, k, m):
        def body(t, total):
            part = cg.cond(t > 0, lambda: x[:k], lambda: x[:m])
            return total + cnp.sum(cnp.sin(part * total) * part)

        return cg.fori_loop(0, 3, body, 0.5)

    for k, m in [(2, 2), (3, 4)]:
        arguments = [X, np.int64(k), np.int64(m)]
        graph = graph_of(fn, *arguments, order=order)
        agree(executed(graph, arguments), run_on("reference", graph, arguments))


def test_sizes_that_never_fit_are_told_as_by_the_reference_engine() -> None:
    errors = []
    for name in ("reference", "native"):
        with pytest.raises(CtrlgradError) as found:
            cg.function(product_of_slices, engine=name)(X, 2, 3)
        errors.append(str(found.value))
    assert errors[0] == errors[1]


def test_sizes_that_do_not_fit_in_a_branch_that_is_not_taken_do_no_harm() -> None:
    def fn(x, y, flag):
        return cg.cond(flag, lambda: cnp.sum(x * y), lambda: cnp.sum(x))

    arguments = [np.zeros(0), np.ones(3), np.bool_(False)]
    graph = optimised_graph(
        cg.function(fn, signature=(ANY, cg.TensorSpec((3,)), cg.TensorSpec((), "bool"))).graph(*arguments)
    )
    agree(run_natively(graph, arguments), [np.float64(0.0)])


@pytest.mark.parametrize("order", [1, 2])
def test_the_gradient_of_a_product_over_an_unknown_size_needs_no_second_plan(order: int) -> None:
    graph = graph_of(lambda x: cnp.prod(x), X, order=order, signature=(ANY,))
    agree(executed(graph, [X]), run_on("reference", graph, [X]))
    run_natively(graph, [X])
    assert len(compiled(graph)) == 1


def test_a_stride_that_stands_still_is_caught_where_it_should_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants of the decision are caught: a stride that moves along an axis of size 1 reads out of bounds, and a
    stride of zero elsewhere repeats elements."""
    arguments = [X, np.int64(1), np.int64(3)]
    graph = graph_of(product_of_slices, *arguments)
    expected = run_on("reference", graph, arguments)
    moves = broadcasting._moves
    for wrong in (
        lambda state, size: ONE,
        lambda state, size: ZERO,
    ):
        monkeypatch.setattr(broadcasting, "_moves", wrong)
        with pytest.raises(AssertionError):
            agree(executed(graph, arguments), expected)
    monkeypatch.setattr(broadcasting, "_moves", moves)
    agree(executed(graph, arguments), expected)


@pytest.mark.parametrize(("spec", "looks"), [(cg.TensorSpec((6,)), 1), (ANY, 3)], ids=["known", "unknown"])
def test_arguments_are_looked_at_once_where_the_graph_knows_all_sizes(
    spec: Any, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    shapes_of = engine.shapes_of
    monkeypatch.setattr(engine, "shapes_of", lambda *given: (seen.append(True), shapes_of(*given))[1])
    graph = cg.function(lambda x: cnp.sin(x) * 2.0, signature=(spec,)).graph(X)
    for k in range(3):
        agree(engine.run(graph, [X + k]), [np.sin(X + k) * 2.0])
    assert len(seen) == looks


def test_a_graph_that_knows_all_sizes_gets_another_plan_where_slices_differ() -> None:
    graph = graph_of(product_of_slices, X, np.int64(2), np.int64(2))
    for k, m in ((2, 2), (1, 3), (3, 1), (4, 4)):
        arguments = [X, np.int64(k), np.int64(m)]
        agree(engine.run(graph, arguments), run_on("reference", graph, arguments))
