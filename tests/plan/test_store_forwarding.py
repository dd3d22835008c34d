"""Elements read of an array of which one was just replaced: without the array, and equal to what it holds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from plan.plans import graph_of, reference_kernel, unplaced

import ctrlgrad as cg
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.errors import IndexOutOfRangeError
from ctrlgrad.ir import Graph
from ctrlgrad.plan import PASSES
from ctrlgrad.plan.checking.machine import execute
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel, Plan
from ctrlgrad.plan.placement import place
from ctrlgrad.plan.store_forwarding import forward_stores

X, V = np.array([0.3, -0.7, 1.1]), np.float64(5.5)
M = np.arange(6.0).reshape(2, 3) + 0.5


def forwarded(graph: Graph, *arguments: Any) -> tuple[Plan, list[Any]]:
    """The plan, and what checked execution of it gives."""
    plan = forward_stores(unplaced(graph, arguments, without=PASSES))
    return plan, execute(place(plan), [np.array(x) for x in arguments], reference_kernel)


def updates(plan: Plan) -> int:
    """How many kernels replace elements of an array."""
    return sum(write.base is not None for s in walk(plan.body) if isinstance(s, Kernel) for write in s.writes)


def read_again(x: Any, v: Any, i: Any, j: Any) -> Any:
    return x.at[i].set(v)[j] + x[0]


@pytest.mark.parametrize(("i", "j"), list(product(range(-3, 3), repeat=2)))
def test_every_pair_of_indices(i: int, j: int) -> None:
    arguments = X, V, np.int64(i), np.int64(j)
    plan, (found,) = forwarded(graph_of(read_again, *arguments), *arguments)
    assert updates(plan) == 0
    updated = X.copy()
    updated[i] = V
    assert found == updated[j] + X[0]
    assert cg.function(read_again)(*arguments) == found


@pytest.mark.parametrize("place", [(0, 1), (1, 0), (1, 1), (-1, -2)])
def test_elements_of_matrices(place: tuple[int, int]) -> None:
    """Of which the two indices count together, and one may be known."""

    def crossed(x: Any, v: Any, i: Any, j: Any) -> Any:
        updated = x.at[i, j].set(v)
        return updated[j, i] + 10.0 * updated[1, 1] + x[0, 0]

    arguments = M, V, *map(np.int64, place)
    plan, (found,) = forwarded(graph_of(crossed, *arguments), *arguments)
    assert updates(plan) == 0
    updated = M.copy()
    updated[place] = V
    assert found == updated[place[::-1]] + 10.0 * updated[1, 1] + M[0, 0]


def test_sizes_that_only_a_run_knows() -> None:
    signature = cg.TensorSpec((None, None)), cg.TensorSpec(()), cg.TensorSpec((), "int64"), cg.TensorSpec((), "int64")

    def element(x: Any, v: Any, i: Any, j: Any) -> Any:
        return x.at[i, j].set(v)[j, i] + x[0, 0]

    graph = cg.function(element, signature=signature).graph(M, V, np.int64(1), np.int64(1))
    for i, j, expected in ((1, 1, V), (1, 0, M[0, 1]), (0, 1, M[1, 0])):
        plan, (found,) = forwarded(graph, M, V, np.int64(i), np.int64(j))
        assert updates(plan) == 0 and found == expected + M[0, 0]


def test_a_chain_of_updates_loses_its_last_one() -> None:
    def chain(x: Any, v: Any, i: Any, j: Any) -> Any:
        return x.at[i].set(v).at[j].set(2.0 * v)[1] + x[0]

    for i, j in product(range(3), repeat=2):
        arguments = X, V, np.int64(i), np.int64(j)
        plan, (found,) = forwarded(graph_of(chain, *arguments), *arguments)
        assert updates(plan) == 1
        assert found == (2.0 * V if j == 1 else V if i == 1 else X[1]) + X[0]


def test_what_is_added_to_an_element_is_no_replacement() -> None:
    def added(x: Any, v: Any, i: Any, j: Any) -> Any:
        return x.at[i].add(v)[j] + x[0]

    for i, j in ((1, 1), (1, 2), (-1, 2)):
        arguments = X, V, np.int64(i), np.int64(j)
        _, (found,) = forwarded(graph_of(added, *arguments), *arguments)
        assert found == X[j] + (V if i % 3 == j else 0.0) + X[0]
        assert cg.function(added)(*arguments) == found


@pytest.mark.parametrize(
    "kept",
    [
        lambda y, i, j: (y[j], y),
        lambda y, i, j: (y[j], y + 1.0),
        lambda y, i, j: y[i] + y[j] + y[2],
        lambda y, i, j: y[j] + y.at[j].set(0.0)[i],
        lambda y, i, j: cg.fori_loop(0, 3, lambda k, s: s + y[k], y[j]),
        lambda y, i, j: cg.cond(i > j, lambda: y[i], lambda: y[j]),
        lambda y, i, j: y[i : i + 2],
    ],
    ids=["result", "read whole", "read often", "updated", "read in a loop", "read in branches", "sliced"],
)
def test_an_array_that_is_needed_stays(kept: Callable[..., Any]) -> None:
    def fn(x: Any, v: Any, i: Any, j: Any) -> Any:
        return kept(x.at[i].set(v), i, j)

    arguments = X, V, np.int64(1), np.int64(0)
    graph = graph_of(fn, *arguments)
    plan, found = forwarded(graph, *arguments)
    assert updates(plan) >= 1
    for a, b in zip(found, run_graph(graph, list(arguments)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex128", "bool", "int8", "uint64"])
def test_every_dtype(dtype: str) -> None:
    """A number that its array holds with fewer bits is read with those."""

    def fn(x: Any, v: Any, i: Any, j: Any) -> Any:
        return x.at[i].set((v * v).astype(x.dtype))[j]

    x = cg.numpy.asarray([1.0, 0.0, 3.0]).astype(dtype)
    value = np.float64(1.1)
    for i, j in product(range(3), repeat=2):
        arguments = x, value, np.int64(i), np.int64(j)
        graph = graph_of(fn, *arguments)
        (expected,) = run_graph(graph, [np.asarray(a) for a in arguments])
        _, (found,) = forwarded(graph, *map(np.asarray, arguments))
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.asarray(cg.function(fn)(*arguments)), expected)


@pytest.mark.parametrize(("i", "j"), [(3, 0), (0, 3), (-4, 0), (0, -4)])
def test_an_index_that_is_out_of_range_is_an_error_as_before(i: int, j: int) -> None:
    with pytest.raises(IndexOutOfRangeError):
        cg.function(read_again)(X, V, np.int64(i), np.int64(j))


def test_gradients_by_two_judges() -> None:
    """The linked list that a loop shortens by one element and reads, with derivatives by what it holds."""

    def walk_list(x: Any, v: Any) -> Any:
        def step(k: Any, total: Any) -> Any:
            y = x.at[k % 3].set(v * total)
            return total + np.sin(y[(k * k) % 3]) * x[k % 3]

        return cg.fori_loop(0, 5, step, 0.4)

    # The reference engine has no plans.
    with cg.options(engine="reference"):
        expected = cg.grad(walk_list, argnums=(0, 1))(X, V)
    for found, value in zip(cg.grad(walk_list, argnums=(0, 1))(X, V), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-13)
    cg.check_grads(walk_list, (X, V), order=2)
