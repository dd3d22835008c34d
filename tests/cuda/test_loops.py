"""Loops: every trip count around the ends of runs, iterations that are counted, and iterations that follow data."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.graph_loops import without_graphs
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.prepared.runner import LEAST_IN_GRAPH
from ctrlgrad.errors import IndexOutOfRangeError, MaximumIterationsError
from ctrlgrad.ir import Graph

# Iterations after which a run ends, by order: those that a loop has before a graph is worth it; and blocks, of 16 rows,
# 32, 64 and 128, of which a run fills the rest of the first too.
ENDS = [[LEAST_IN_GRAPH - 1], [LEAST_IN_GRAPH - 1, 16, 16 + 32, 48 + 64, 112 + 128]]


def halving(x: Any) -> Any:
    """As many iterations as it takes for the sum to fall below 1; the counter stays on the host."""

    def body(carry: Any) -> Any:
        count, x = carry
        return count + 1, np.tanh(x * 0.5) * 0.999

    return cg.while_loop(lambda carry: np.sum(np.abs(carry[1])) > 1.0, body, (0, x))


def counting(x: Any) -> Any:
    """One iteration less than the sum says."""

    def body(carry: Any) -> Any:
        count, x, total = carry
        return count + 1, x - 1.0, total + np.sin(x * 0.1 * count)

    return cg.while_loop(lambda carry: carry[1][0] > 0.5, body, (0, x, np.zeros(3)))


def mode_of(graph: Graph, *args: Any) -> list[str]:
    library = StandIn()
    with library.running():
        report = explain_on(library, optimised_graph(graph, is_for_gpu=True), args)
    return [loop.mode for loop in report.all_loops()]


@pytest.fixture(params=[False, True], ids=["from lists", "in graphs"])
def in_graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        without_graphs(monkeypatch)
    return bool(request.param)


TRIPS = sorted({0, 1, 2, 3, 60, 61, 124, 130, *(end + d for end in ENDS[1][:4] for d in (-1, 0, 1))})


@cache
def counted(order: int) -> Graph:
    """The loop or its gradient, the same for any number of trips."""

    def loss(x: Any) -> Any:
        count, x, total = counting(x)
        return np.sum(np.sin(x)) + np.sum(total * total) + count

    return cg.function(cg.grad(loss) if order else counting).graph(np.zeros(3))


@pytest.mark.parametrize("trips", TRIPS)
@pytest.mark.parametrize("order", [0, 1])
def test_every_trip_count(trips: int, order: int, in_graphs: bool) -> None:
    x = np.array([float(trips), 2.0, 3.0])
    graph = counted(order)
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]))
    # The host asks before and behind each run, and a list asks behind each iteration; what is left of the first block
    # is too short for a graph. The loop of the gradient counts down on the host, from the number of iterations: it asks
    # nothing.
    runs = (trips > 0) + sum(trips > end for end in ENDS[order])
    assert ran.counts.predicate_reads == 1 + runs + min(trips, ENDS[order][:2][-1] if in_graphs else trips)
    assert mode_of(graph, x) == ["read", "counted"][: order + 1]
    if not order:
        assert ran.results[0] == trips


def test_no_iteration_runs_past_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    without_graphs(monkeypatch)

    def kernels(trips: int) -> int:
        library = StandIn()
        on_stand_in(counted(0), [np.array([float(trips), 2.0, 3.0])], library=library)
        return library.work

    first = kernels(1)
    each = kernels(2) - first
    # The kernels that begin a run, once more.
    again = kernels(LEAST_IN_GRAPH) - first - (LEAST_IN_GRAPH - 1) * each
    for trips in range(1, 70):
        assert kernels(trips) == first + (trips - 1) * each + again * (trips > ENDS[0][0])


def test_maximum_iterations() -> None:
    def limited(x: Any, limit: int) -> Any:
        return cg.while_loop(lambda x: x[0] > 0.5, lambda x: x - 1.0, x, maximum_iterations=limit)

    x = np.array([6.0, 1.0])
    for limit in (6, 7, 12, 13):
        graph = cg.function(lambda x, limit=limit: limited(x, limit)).graph(x)
        assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]))
    for limit in (0, 3, 4, 5):
        graph = cg.function(lambda x, limit=limit: limited(x, limit)).graph(x)
        assert same_error(graph, x) is MaximumIterationsError


def same_error(graph: Graph, *args: Any) -> type[Exception]:
    """The error of both engines, which has the same text."""
    with pytest.raises(cg.CtrlgradError) as expected:
        on_reference(graph, args)
    with pytest.raises(cg.CtrlgradError) as found:
        on_stand_in(graph, args)
    assert type(found.value) is type(expected.value)
    assert str(found.value) == str(expected.value)
    return type(found.value)


def rows_while(x: Any, rows: Any) -> Any:
    """Reads a row per iteration, by a counter that is on the host."""

    def body(carry: Any) -> Any:
        count, x = carry
        return count + 1, x - rows[count]

    return cg.while_loop(lambda carry: np.sum(carry[1]) > 0.5, body, (0, x))


def test_nothing_is_read_past_the_end() -> None:
    x, rows = np.array([5.0, 1.0]), np.ones((3, 2))
    graph = cg.function(rows_while).graph(x, rows)
    assert_same(on_stand_in(graph, [x, rows]).results, on_reference(graph, [x, rows]))
    empty = np.ones((0, 2))
    graph = cg.function(rows_while).graph(x * 0, empty)
    assert_same(on_stand_in(graph, [x * 0, empty]).results, on_reference(graph, [x * 0, empty]))


def test_a_read_out_of_range_before_the_end_is_the_error() -> None:
    x, rows = np.array([50.0, 1.0]), np.ones((3, 2))
    assert same_error(cg.function(rows_while).graph(x, rows), x, rows) is IndexOutOfRangeError


def test_the_gradient_of_a_loop_that_follows_data() -> None:
    x = np.array([3.0, 4.0, 5.0])
    graph = cg.function(cg.grad(lambda x: np.sum(np.exp(halving(x)[1])))).graph(x)
    assert mode_of(graph, x) == ["read", "counted"]
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]))


def _branch(x: Any) -> Any:
    return cg.cond(x[0] > 3.0, lambda: x * 0.5, lambda: x - 1.0)


def _update(x: Any) -> Any:
    return cnp.at(x)[0].add(-1.0)


def _solve(x: Any) -> Any:
    return x - cnp.linalg.solve(np.eye(3) * 2.0, x[:, None])[:, 0]


def _inner(x: Any) -> Any:
    return cg.fori_loop(0, 2, lambda i, x: x - 0.5, x)


def _index(x: Any) -> Any:
    return x - 1.0 + 0.0 * x[(x[1] * 0.0).astype(int)]


@pytest.mark.parametrize("body", [_branch, _update, _solve, _inner, _index])
def test_a_predicate_that_is_read_before_each_iteration(body: Callable[[Any], Any]) -> None:
    x = np.array([6.0, 1.0, 2.0])
    graph = cg.function(lambda x: cg.while_loop(lambda x: x[0] > 0.5, body, x)).graph(x)
    assert mode_of(graph, x)[0] == "read"
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]))


def test_callbacks_run_once_per_iteration() -> None:
    seen: list[tuple[float, ...]] = []

    def body(x: Any) -> Any:
        cg.debug.callback(lambda x, iterations: seen.append((*iterations, float(x[0]))), x)
        return x - 1.0

    x = np.array([3.0, 1.0])
    graph = cg.function(lambda x: cg.while_loop(lambda x: x[0] > 0.5, body, x)).graph(x)
    on_stand_in(graph, [x])
    assert seen == [(0, 3.0), (1, 2.0), (2, 1.0)]


def test_an_index_on_the_device_that_is_out_of_range() -> None:
    """The error names the index and the line."""
    x, index = np.arange(4.0), np.array([1, 7, 2])
    graph = cg.function(lambda x, i: x[i]).graph(x, index)
    with pytest.raises(IndexOutOfRangeError, match="index 7 is out of bounds for an axis with size 4") as error:
        on_stand_in(graph, [x, index])
    assert error.value.source is not None and not error.value.notes
    # In a loop it is raised where the predicate is read: the loop would not end by itself.
    graph = cg.function(lambda x, i: cg.while_loop(lambda x: x[0] < 1.0, lambda x: x[i] * 0.0, x[:3])).graph(x, index)
    with pytest.raises(IndexOutOfRangeError, match="index 7 is out of bounds for an axis with size 3"):
        on_stand_in(graph, [x, index])
