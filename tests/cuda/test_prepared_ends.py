"""Loops whose end depends on data, in prepared lists: behind each iteration the card says whether there is another."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same, assert_same_bits
from instruments.graph_loops import without_graphs
from instruments.mutants import nothing, shows
from instruments.stand_in import StandIn
from instruments.stand_in_runs import calls_on_stand_in, graph_of, on_reference, on_stand_in, step_by_step
from instruments.stand_in_sessions import FREE, RECOMPUTE, SWAP, same_in_sessions

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import stacks
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.engines.cuda.prepared.model import PreparedBody
from ctrlgrad.engines.cuda.prepared.reading import Launches
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import IndexOutOfRangeError, MaximumIterationsError
from ctrlgrad.ir import Graph

W = np.linspace(-0.4, 0.6, 9).reshape(3, 3)


def while_positive(step: Callable[[Any, Any], Any], init: Any, x: Any) -> Any:
    """As many iterations as the first element of `x` says; `step` is given how many are left."""
    return cg.while_loop(lambda c: c[0][0] > 0.5, lambda c: (c[0] - 1.0, step(c[0], c[1])), (x, init))[1]


def branching(x: Any) -> Any:
    """One side has products."""

    def step(left: Any, y: Any) -> Any:
        return cg.cond(cnp.sum(y) > 0.4, lambda y: cnp.tanh(y @ W) * 0.5 - left[1], lambda y: y * y + 0.3, y)

    return while_positive(step, cnp.broadcast_to(x[1:] * 0.1, (3, 3)), x)


def updating(x: Any) -> Any:
    """The carry is updated in place, by one side only."""

    def step(left: Any, c: Any) -> Any:
        y, total = c
        total = cg.cond(y[0] > 0.3, lambda total: cnp.at(total)[1].add(y[0] * left[1]), lambda total: total, total)
        return cnp.sin(y * 1.3 + 0.2), total

    y, total = while_positive(step, (x * 0.1, x * 1.0), x)
    return y + total


def chosen(x: Any) -> Any:
    """By an index on the card."""

    def step(left: Any, y: Any) -> Any:
        return cnp.sin(y) + y[cnp.argmax(y)] * 0.1

    return while_positive(step, x * 0.1, x)


def collected(x: Any) -> Any:
    """Rows that the program itself pushes, by one side two."""

    def step(left: Any, c: Any) -> Any:
        y, rows = c
        rows = cg.cond(
            cnp.sum(y) > 1.0, lambda y, rows: rows.push(y).push(y * 2.0), lambda y, rows: rows.push(y - 1.0), y, rows
        )
        return cnp.sin(y) * 1.5, rows

    return cnp.sum(while_positive(step, (x * 0.1, cg.TensorArray(np.float64, None, (4,))), x)[1].stack(), axis=0)


FUNCTIONS = [branching, updating, chosen, collected]


def argument(trips: int) -> np.ndarray:
    return np.array([float(trips), 0.3, 0.9, -0.4])


def launching_of(graph: Graph, x: np.ndarray, library: StandIn) -> list[str]:
    report = explain_on(library, optimised_graph(graph, is_for_gpu=True), [x])
    return [loop.launching for loop in report.all_loops()]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("in_graphs", [True, False], ids=["graphs", "lists"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_and_gradients(
    fn: Callable[[Any], Any], in_graphs: bool, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step they have the same bits."""
    if not in_graphs:
        without_graphs(monkeypatch)
    graph, x, library = graph_of(fn, order, argument(3)), argument(41), StandIn()
    ran = on_stand_in(graph, [x], library=library)
    assert_same(ran.results, on_reference(graph, [x]), 1e-9)
    assert_same_bits(ran.results, step_by_step(graph, [x]).results)
    assert bool(ran.counts.graphs) == in_graphs
    first, *others = launching_of(graph, x, library)
    assert first.startswith("from a list") and " the loop's end" in first
    assert all(text.startswith("from a list") for text in others)


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 14, 15, 16, 17, 18, 19, 47, 48, 49])
@pytest.mark.parametrize("fn", [branching, collected])
def test_every_trip_count(fn: Callable[[Any], Any], trips: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No iteration runs past the end: rows that are pushed are no more than on the reference engine."""
    graph, x = graph_of(fn, 1, argument(3)), argument(trips)
    pushed, commit = 0, stacks.DeviceStack.commit

    def counted(self: stacks.DeviceStack, count: int = 1) -> None:
        nonlocal pushed
        pushed += count
        commit(self, count)

    monkeypatch.setattr(stacks.DeviceStack, "commit", counted)
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]), 1e-9)
    run = Run()
    run_graph(graph, [x], run)
    assert pushed <= run.counters.pushes


def test_python_calls_do_not_grow_with_the_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first iterations are from the list, which waits for the branch and for the end; then there is a graph."""
    monkeypatch.setattr(stacks, "LEAST_ROWS", 512)
    calls, counted = [], []
    for trips in (40, 80, 200):
        library, graph, x = StandIn(), graph_of(branching, 0, argument(3)), argument(trips)
        counts = on_stand_in(graph, [x], library=library).counts
        counted.append((counts.runs, counts.graphs, counts.predicate_reads, counts.reads))
        calls.append(calls_on_stand_in(functools.partial(on_stand_in, graph, [x], library=library)))
    assert calls == [calls[0]] * 3
    # Fifteen iterations that ask twice each; before, behind and between the two runs the host asks, and counts them.
    assert counted == [(2, 1, 15 * 2 + 3, 2)] * 3


def test_a_loop_that_ends_soon_is_no_graph() -> None:
    library = StandIn()
    assert not on_stand_in(graph_of(branching, 0, argument(3)), [argument(15)], library=library).counts.graphs
    assert not library.driver.graph_calls.calls["cuGraphCreate"]
    assert on_stand_in(graph_of(branching, 0, argument(3)), [argument(16)], library=library).counts.graphs == 1


def test_maximum_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    for limit in (0, 5, 6, 20, 21):

        def limited(x: Any, limit: int = limit) -> Any:
            halved = lambda x: cg.cond(x[0] > 9.0, lambda x: x - 1.0, lambda x: x - 1.0 + 0.0 * x[1], x)
            return cg.while_loop(lambda x: x[0] > 0.5, halved, x, maximum_iterations=limit)

        graph = cg.function(limited).graph(argument(3))
        assert_same(on_stand_in(graph, [argument(limit)]).results, on_reference(graph, [argument(limit)]))
        with pytest.raises(MaximumIterationsError) as expected:
            on_reference(graph, [argument(limit + 1)])
        with pytest.raises(MaximumIterationsError) as found:
            on_stand_in(graph, [argument(limit + 1)])
        assert str(found.value) == str(expected.value)


def test_long_loops_give_python_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LONGEST_RUN", 20)
    graph, x = graph_of(branching, 0, argument(3)), argument(70)
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]), 1e-9)
    assert (ran.counts.runs, ran.counts.graphs) == (4, 3)


def test_an_index_that_leaves_the_array() -> None:
    """The host knows it: step by step the error is what it would be. Past the end nothing is read."""

    def reads(x: Any, rows: Any) -> Any:
        def step(c: Any) -> Any:
            i, x = c
            return i + 1, cg.cond(x[1] > 0.0, lambda x: x - rows[i], lambda x: x - rows[i] * 2.0, x)

        return cg.while_loop(lambda c: c[1][0] > 0.5, step, (0, x))

    rows = np.ones((30, 4))
    rows[:, 1] = 0.0
    graph = cg.function(reads).graph(argument(3), rows)
    x = argument(30)
    assert_same(on_stand_in(graph, [x, rows]).results, on_reference(graph, [x, rows]))
    with pytest.raises(IndexOutOfRangeError) as expected:
        on_reference(graph, [x + 3.0, rows])
    with pytest.raises(IndexOutOfRangeError) as found:
        on_stand_in(graph, [x + 3.0, rows])
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_blocks_that_are_soon_full(fn: Callable[[Any], Any], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "LEAST_ROWS", rows)
    monkeypatch.setattr(stacks, "BLOCK_BYTES", rows * 8 * 4)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    graph, x = graph_of(fn, 1, argument(3)), argument(23)
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]), 1e-9)


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, FREE])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_in_sessions(fn: Callable[[Any], Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, whichever way blocks come back."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    graph, x = graph_of(fn, 1, argument(3)), argument(37)
    same_in_sessions(monkeypatch, way, graph, [x])


# Mistakes.


def end_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Launches.check
    monkeypatch.setattr(Launches, "check", lambda self, stacks, asked=None: check(self, stacks))


def predicate_of_the_iteration_before(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Launches.check

    def early(self: Launches, *given: Any) -> None:
        items = [*self.items]
        self.items[:] = []
        check(self, *given)
        self.items += items

    monkeypatch.setattr(Launches, "check", early)


def word_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list goes on, whatever the card says."""
    monkeypatch.setattr(PreparedBody, "is_known", property(lambda self: True))


MISTAKES = [end_is_not_asked, predicate_of_the_iteration_before, word_is_not_read]


@pytest.mark.parametrize("mistake", [nothing, *MISTAKES])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    graph = graph_of(branching, 1, argument(3))
    is_found = any(shows(monkeypatch, graph, [argument(trips)]) for trips in (8, 40, 41))
    assert is_found == (mistake is not nothing)
