"""Branches in prepared lists: the card says which side is gone through, and how many rows were pushed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.graph_loops import without_graphs
from instruments.mutants import nothing, shows
from instruments.stand_in import StandIn
from instruments.stand_in_runs import calls_on_stand_in, graph_of, on_reference, on_stand_in
from instruments.stand_in_sessions import FREE, RECOMPUTE, SWAP, same_in_sessions

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import stacks
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.prepared import graphs, runner
from ctrlgrad.engines.cuda.prepared.binding import StackRows
from ctrlgrad.engines.cuda.prepared.model import CarriedRows
from ctrlgrad.engines.cuda.prepared.placement import Sharing
from ctrlgrad.engines.cuda.prepared.reading import Launches
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.engines.cuda.stacks import DeviceStack

X = np.linspace(-0.5, 1.0, 9).reshape(3, 3)
STEPS = 24


def looped(step: Callable[[Any, Any], Any], x: Any) -> Any:
    return cg.fori_loop(0, STEPS, step, x)


def computed(x: Any) -> Any:
    """By what is computed; one side has products."""

    def step(i: Any, y: Any) -> Any:
        return cg.cond(cnp.sum(y) > 1.0, lambda y: cnp.tanh(y @ x) * 0.5 - 0.1, lambda y: y * y * 0.5 + 0.3, y)

    return looped(step, x)


def seldom(x: Any) -> Any:
    """One side is gone through once in a while."""

    def step(i: Any, y: Any) -> Any:
        return cg.cond(cnp.max(y) > 2.0, lambda y: cnp.sin(y) * x, lambda y: y * 1.1 + 0.05, y)

    return looped(step, x)


def nested(x: Any) -> Any:
    """Branches in branches, of three sides."""

    def inner(y: Any, i: Any) -> Any:
        low = cnp.asarray(cnp.floor(cnp.sum(y))).astype("int64")
        return (
            cg.switch(low % 4 - 1, [lambda y: y * 0.5, lambda y: cnp.sin(y) + 0.4, lambda y: y @ y * 0.3], y) + i * 0.01
        )

    def step(i: Any, y: Any) -> Any:
        return cg.cond(y[0, 0] > y[1, 1], lambda y: cnp.cos(y), lambda y: inner(y, i), y)

    return looped(step, x)


def updated(x: Any) -> Any:
    """An array that one side changes in place, and another one that goes on as it is."""

    def step(i: Any, c: Any) -> Any:
        y, total = c
        y, total = cg.cond(
            y[0, 0] > 0.3,
            lambda y, total: (y * 0.7, cnp.at(total)[1].add(y[1])),
            lambda y, total: (y + 0.4, total),
            y,
            total,
        )
        return y, total

    y, total = looped(step, (x, x))
    return y + total


def numbered(x: Any) -> Any:
    """By a number of the host."""
    return looped(lambda i, y: cg.cond(i % 3 == 1, lambda y: cnp.sin(y) + y, lambda y: y * 0.5, y), x)


def indexed(x: Any) -> Any:
    """Reads that would leave the array where the side is not gone through."""
    xs = cnp.broadcast_to(x[None], (STEPS, 3, 3))

    def step(i: Any, y: Any) -> Any:
        return cg.cond(i > 0, lambda y: y * 0.5 + xs[i - 1] * y, lambda y: y * 2.0, y)

    return looped(step, x)


def collected(x: Any) -> Any:
    """Rows that the program itself pushes, by one side two."""

    def step(i: Any, c: Any) -> Any:
        y, rows = c
        rows = cg.cond(
            cnp.sum(y) > 1.0, lambda y, rows: rows.push(y).push(y * 2.0), lambda y, rows: rows.push(y - 1.0), y, rows
        )
        return cnp.sin(y) * 2.0, rows

    return looped(step, (x, cg.TensorArray(np.float64, None, (3, 3))))[1].stack()


def collected_again(x: Any) -> Any:
    """Behind a branch that pushes on the same stack, a row that was pushed before is read, and carried."""

    def step(i: Any, c: Any) -> Any:
        y, z, rows = c
        z = cnp.sin(y) * 1.1 + z * 0.1
        rows = rows.push(z)
        w, rows = cg.cond(
            cnp.sum(z) > 1.0,
            lambda z, rows: (z * 0.3, rows.push(z * 2.0)),
            lambda z, rows: (z @ z * 0.1 + 0.4, rows),
            z,
            rows,
        )
        return w + z * 0.5, z, rows

    return looped(step, (x, x, cg.TensorArray(np.float64, None, (3, 3))))[2].stack()


def collected_and_yielded(x: Any) -> Any:
    """Each side yields the row that it pushes first; the sides push one and two."""

    def twice(y: Any, rows: Any) -> Any:
        z = cnp.cos(y) * 0.8
        return z, rows.push(z).push(z * 2.0)

    def once(y: Any, rows: Any) -> Any:
        z = cnp.sin(y) + 0.3
        return z, rows.push(z)

    def step(i: Any, c: Any) -> Any:
        z, rows = cg.cond(cnp.sum(c[0]) > 1.0, once, twice, *c)
        return z * 0.9, rows

    y, rows = looped(step, (x, cg.TensorArray(np.float64, None, (3, 3))))
    return cnp.concatenate([rows.stack(), y[None]])


def shared(x: Any) -> Any:
    """A side yields one array twice: both results have it."""

    def once(y: Any) -> Any:
        y = cnp.sin(y) * 0.9
        return y, y

    def step(i: Any, y: Any) -> Any:
        a, b = cg.cond(cnp.sum(y) + i % 3 > 1.0, once, lambda y: (cnp.cos(y), y * x), y)
        return a + b * 0.3

    return looped(step, x)


FUNCTIONS = [computed, seldom, nested, updated, numbered, indexed, collected, shared]
FUNCTIONS += [collected_again, collected_and_yielded]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("in_graphs", [True, False], ids=["graphs", "lists"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_and_gradients(
    fn: Callable[[Any], Any], in_graphs: bool, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_graphs:
        without_graphs(monkeypatch)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    library, graph = StandIn(), graph_of(fn, order, X)
    ran = on_stand_in(graph, [X], library=library)
    assert_same(ran.results, on_reference(graph, [X]), 1e-9)
    assert bool(ran.counts.graphs) == in_graphs
    report = explain_on(library, optimised_graph(graph, is_for_gpu=True), [X])
    assert all(loop.launching.startswith("from a list") for loop in report.all_loops()), str(report)


def test_a_graph_that_is_not_launched_is_run_from_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """To its end, wherever a run ends that the graph would have ended by itself."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    for order in range(3):
        library = StandIn()
        library.driver.graph_calls.refusals["cuGraphLaunch"] = 2
        graph = graph_of(computed, order, X)
        ran = on_stand_in(graph, [X], library=library)
        assert_same(ran.results, on_reference(graph, [X]), 1e-9)
        assert library.driver.graph_calls.calls["cuGraphLaunch"] and not ran.counts.graphs


def test_python_calls_do_not_grow_with_the_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, though only the card knows how many rows each iteration pushes."""
    monkeypatch.setattr(stacks, "LEAST_ROWS", 256)
    calls, counted = [], []
    for steps in (40, 80, 200):

        def step(i: Any, y: Any, x: Any) -> Any:
            return cg.cond(cnp.sum(y) > 1.0, lambda y: cnp.tanh(y @ x) - 0.1, lambda y: cnp.sin(y) + 0.3, y)

        def loss(x: Any, n: Any) -> Any:
            return cnp.sum(cg.fori_loop(0, n, lambda i, y: step(i, y, x), x))

        library, given = StandIn(), [X, np.int64(steps)]
        graph = cg.function(cg.grad(loss)).graph(*given)
        counts = on_stand_in(graph, given, library=library).counts
        counted.append((counts.runs, counts.graphs, counts.predicate_reads))
        calls.append(calls_on_stand_in(functools.partial(on_stand_in, graph, given, library=library)))
    assert calls == [calls[0]] * 3
    # Forward and backward an iteration from the list, which asks twice, and the graph.
    assert counted == [(4, 2, 2 * 2)] * 3


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("fn", [computed, seldom, nested, collected])
def test_blocks_that_are_soon_full(fn: Callable[[Any], Any], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card ends a run where another iteration might have no memory for its rows."""
    monkeypatch.setattr(stacks, "LEAST_ROWS", rows)
    monkeypatch.setattr(stacks, "BLOCK_BYTES", rows * X.nbytes)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    graph = graph_of(fn, 1, X)
    ran = on_stand_in(graph, [X])
    assert_same(ran.results, on_reference(graph, [X]), 1e-9)


def test_rows_of_a_side_that_is_seldom_gone_through_end_no_run() -> None:
    """Of 24 iterations two push: forward and backward each is the first one from the list, and a graph."""
    xs = np.zeros(STEPS)
    xs[[5, 20]] = 1.0

    def loss(x: Any, xs: Any) -> Any:
        step = lambda i, y: cg.cond(xs[i] > 0.5, lambda y: cnp.tanh(y @ x), lambda y: y * 1.01, y)
        return cnp.sum(cg.fori_loop(0, STEPS, step, x))

    graph = cg.function(cg.grad(loss)).graph(X, xs)
    ran = on_stand_in(graph, [X, xs])
    assert_same(ran.results, on_reference(graph, [X, xs]), 1e-9)
    # Backwards a run ends with the last row that there is.
    assert ran.counts.runs <= 6 and ran.counts.graphs == 1


def test_a_stack_that_is_empty_is_not_popped() -> None:
    """Rows that a side has popped where there were none are an error as with all engines."""
    library = StandIn()
    for stack in (DeviceStack(library, X.dtype), list[Any]()):
        rows = StackRows(Context(library), 0, CarriedRows(False, 1, (1, 1), X.shape, X.dtype))
        carry: list[Any] = [stack]
        assert rows.there(carry) == 1
        rows.lent(carry, 0)
        rows.moved(carry, 0)
        rows.lent(carry, 0)
        with pytest.raises(cg.CtrlgradError, match="popped more values than were pushed"):
            rows.moved(carry, -1)


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, FREE])
@pytest.mark.parametrize("fn", [computed, seldom, nested, updated])
def test_in_sessions(fn: Callable[[Any], Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, whichever way blocks come back."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    same_in_sessions(monkeypatch, way, graph_of(fn, 1, X), [X])


def test_explain_says_what_waits() -> None:
    library, graph = StandIn(), graph_of(computed, 1, X)
    on_stand_in(graph, [X], library=library)
    found = [loop.launching for loop in explain_on(library, optimised_graph(graph, is_for_gpu=True), [X]).all_loops()]
    assert all(" an iteration, which waits for 1 branch and how many rows there are, in a graph" in x for x in found)


def test_a_side_that_launches_nothing_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before CUDA 12.8 a node with an empty body never ends; the stand-in refuses it."""
    chosen: list[tuple[int, ...]] = []
    choice = graphs.choice
    monkeypatch.setattr(graphs, "choice", lambda numbers: (chosen.append(tuple(numbers)), choice(numbers))[1])

    def sometimes(x: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            y, total = c
            y = cnp.sin(y) * 1.3 + 0.1
            return y, cg.cond(cnp.sum(y) <= 6.0, lambda t: t, lambda t: cnp.at(t)[1].add(y[0]), total)

        return looped(step, (x, x))[1]

    def never(x: Any) -> Any:
        """All sides leave everything as it is."""
        step = lambda i, y: cg.cond(cnp.sum(y) > 6.0, lambda y: y, lambda y: y, cnp.sin(y) * 1.3 + 0.1)
        return looped(step, x)

    for fn, expected in ((sometimes, {(0,), (1,)}), (never, {(1,)})):
        chosen.clear()
        graph = cg.function(fn).graph(X)
        ran = on_stand_in(graph, [X])
        assert_same(ran.results, on_reference(graph, [X]), 1e-9)
        assert ran.counts.graphs == 1 and set(chosen) == expected


# Mistakes.


def the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = graphs.choice
    monkeypatch.setattr(
        graphs, "choice", lambda numbers: choice(numbers if numbers == (1,) else [n + 1 for n in numbers])
    )


def sides_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launches, "move", lambda self, *given: None)


def rows_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Launches.check

    def checked(self: Launches, stacks: dict[int, CarriedRows], *asked: Any) -> None:
        check(self, {position: replace(its, total=-99) for position, its in stacks.items()}, *asked)

    monkeypatch.setattr(Launches, "check", checked)


def updated_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side overwrites what is read after the branch."""
    monkeypatch.setattr(Sharing, "_after_sides", lambda self, item, has, names: has)


def kept(x: Any) -> Any:
    """A value that one side changes is read behind the branch."""

    def step(i: Any, c: Any) -> Any:
        y, total = c
        z = cnp.sin(y)
        found = cg.cond(cnp.sum(y) > 1.0, lambda z: cnp.at(z)[1].add(z[0]), lambda z: z * 0.5, z)
        return found + z * 0.5, total + z

    y, total = looped(step, (x, x))
    return y + total


MISTAKES = [the_other_side, sides_are_not_counted, rows_without_end, updated_beside_others]


@pytest.mark.parametrize("mistake", [nothing, *MISTAKES])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    monkeypatch.setattr(stacks, "LEAST_ROWS", 4)
    mistake(monkeypatch)
    is_found = any(shows(monkeypatch, graph_of(fn, 1, X), [X]) for fn in (computed, kept, collected))
    assert is_found == (mistake is not nothing)
