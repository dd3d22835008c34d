"""Loops inside prepared lists that pop as often as only the card knows: how often they go on is a number there."""

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
from instruments.stand_in_runs import calls_on_stand_in, graph_of, most_pushes, on_reference, on_stand_in, step_by_step
from instruments.stand_in_sessions import FREE, RECOMPUTE, SWAP, same_in_sessions

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import stacks
from ctrlgrad.engines.cuda.engine import explain_on, run_with
from ctrlgrad.engines.cuda.prepared import binding as row_memory
from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.engines.cuda.prepared.binding import Binding, RowMemory, StackRows
from ctrlgrad.engines.cuda.prepared.model import CarriedRows
from ctrlgrad.engines.cuda.prepared.reading import Launches
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.errors import MemoryBudgetError

X = np.linspace(-0.5, 1.0, 9).reshape(3, 3)
STEPS = 24
SPEC, NUMBER = cg.TensorSpec((3, 3), "float64"), cg.TensorSpec((), "int64")


def often(x: Any) -> Any:
    """Trip count of an inner loop, on the card: mostly once or never, and sometimes again and again."""
    return (cnp.max(x) * cnp.asarray([1.0, 0.0, 1.0, 9.0, 1.0, 17.0, 0.0])).astype("int64")


def alike(x: Any) -> Any:
    """In all iterations as often."""
    n = (cnp.max(x) * 3.0).astype("int64")
    inner = lambda y: cg.fori_loop(0, n, lambda j, z: cnp.sin(z @ x) * 0.8 + 0.1 * j, y)
    return cg.fori_loop(0, STEPS, lambda i, y: inner(y) * 0.5 + x, x)


def varied(x: Any) -> Any:
    """Two such loops, one behind the other, and products."""
    ns = often(x)

    def step(i: Any, y: Any) -> Any:
        y = cg.fori_loop(0, ns[i % 7], lambda j, z: cnp.tanh(z @ x) + 0.01 * i, y)
        return cg.fori_loop(0, ns[(i + 2) % 7], lambda j, z: cnp.sin(z) * 0.7, y + x) + 0.1

    return cg.fori_loop(0, STEPS, step, x)


def deep(x: Any) -> Any:
    """One in another, in a side of a branch."""
    ns = often(x)

    def step(i: Any, y: Any) -> Any:
        inner = lambda j, z: cg.fori_loop(0, ns[(i + j) % 7], lambda k, w: cnp.cos(w) * 0.9, z * 1.1)
        many = lambda y: cg.fori_loop(0, ns[i % 7], inner, y)
        return cg.cond(cnp.sum(y) > 0.5, many, lambda y: cnp.sin(y) + 0.4, y) + x * 0.1

    return cg.fori_loop(0, STEPS, step, x)


def updated(x: Any) -> Any:
    """An array that is updated in place beside it: a run that is made again begins with it as it was."""
    ns = often(x)

    def step(i: Any, c: Any) -> Any:
        y, total = c
        y = cg.fori_loop(0, ns[i % 7], lambda j, z: cnp.sin(z) * 0.9 + 0.1, y + 0.3)
        return y, cnp.at(total)[i % 3].add(y[0])

    y, total = cg.fori_loop(0, STEPS, step, (x, x * 0.0))
    return y + total


def numbered(x: Any) -> Any:
    """Rows with the number of their iteration; with a wrong row an index is out of its axis."""
    ns, table = often(x), cnp.stack([x[0], x[1], x[2]])

    def step(i: Any, y: Any) -> Any:
        def inner(j: Any, c: Any) -> Any:
            z, number = c
            found = lambda z, number, j: cnp.sin(z) * table[(number - j + 0.5).astype("int64") + 2] + 0.3
            return cg.checkpoint(found)(z, number, j), number + cnp.exp(z[0, 0] * 0.0)

        return cg.fori_loop(0, ns[i % 7], inner, (y, cnp.sum(x) * 0.0))[0] + x * 0.1

    return cg.fori_loop(0, STEPS, step, x)


def searched(x: Any) -> Any:
    """A loop that follows from data is gone through again backwards: by other rows it would not end."""
    ns = often(x)

    def step(i: Any, y: Any) -> Any:
        def inner(j: Any, c: Any) -> Any:
            z, number = c

            def scaled(z: Any, number: Any, j: Any) -> Any:
                times = cg.while_loop(
                    lambda k: k != 3.0 - 4.0 * (number - j), lambda k: cnp.floor(k + 1.5), number * 0.0
                )
                return cnp.sin(z) * cg.stop_gradient(times) * 0.3

            return cg.checkpoint(scaled)(z, number, j), number + cnp.exp(z[0, 0] * 0.0)

        return cg.fori_loop(0, ns[i % 7], inner, (y, cnp.sum(x) * 0.0))[0] + x * 0.1

    return cg.fori_loop(0, STEPS, step, x)


FUNCTIONS = [alike, varied, deep, updated, numbered, searched]


def few_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Blocks that are soon empty, and no more rows aside than are expected to be popped."""
    for module, name, value in (
        (stacks, "LEAST_ROWS", rows),
        (stacks, "BLOCK_BYTES", 1),
        (row_memory, "OWN_BYTES", 1),
        (runner, "LEAST_IN_GRAPH", 3),
    ):
        monkeypatch.setattr(module, name, value)


def agrees(graph: Any, library: StandIn | None = None) -> None:
    assert_same(on_stand_in(graph, [X], library=library).results, on_reference(graph, [X]), 1e-9)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("in_graphs", [True, False], ids=["graphs", "lists"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients(fn: Callable[[Any], Any], in_graphs: bool, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_graphs:
        without_graphs(monkeypatch)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    library, graph = StandIn(), graph_of(fn, order, X)
    agrees(graph, library)
    report = explain_on(library, optimised_graph(graph, is_for_gpu=True), [X])
    assert all(loop.launching.startswith("from a list") for loop in report.loops), str(report)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One for each run that turned out to pop more rows than it had."""
    found, more = [], runner.Iterations._more

    def noted(self: runner.Iterations, *given: Any) -> Any:
        found.extend([self] * self._is_short)
        return more(self, *given)

    monkeypatch.setattr(runner.Iterations, "_more", noted)
    return found


@pytest.mark.parametrize(("order", "rows"), [(1, 1), (1, 7), (2, 3)])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_same_bits_as_step_by_step(
    fn: Callable[[Any], Any], order: int, rows: int, short: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that turn out to pop more rows than they have are made again."""
    few_rows(monkeypatch, rows)
    graph = graph_of(fn, order, X)
    for a, b in zip(on_stand_in(graph, [X]).results, step_by_step(graph, [X]).results, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert short or fn is alike


@pytest.mark.parametrize("in_graphs", [True, False], ids=["graphs", "lists"])
def test_python_calls_do_not_grow_with_trip_counts(in_graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the loop nor of the one inside, forward and backward."""
    if not in_graphs:
        without_graphs(monkeypatch)
    monkeypatch.setattr(stacks, "LEAST_ROWS", 4096)
    monkeypatch.setattr(row_memory, "OWN_BYTES", 1 << 20)

    def loss(x: Any, n: Any, m: Any) -> Any:
        inner = lambda y: cg.fori_loop(0, m, lambda j, z: cnp.sin(z @ x) * 0.8 + 0.1 * j, y)
        return cnp.sum(cg.fori_loop(0, n, lambda i, y: inner(y) * 0.5 + x, x))

    calls, counted, trips = [], [], []
    for n, m in ((24, 1), (24, 9), (60, 2), (60, 11)):
        library, given = StandIn(), [X, np.int64(n), np.array(m)]
        graph = cg.function(cg.grad(loss), signature=(SPEC, NUMBER, NUMBER)).graph(*given)
        expected, context = on_reference(graph, given), Context(library)
        trips.append(most_pushes(graph, given))
        given[-1] = library.upload(given[-1])
        assert_same(run_with(context, optimised_graph(graph, is_for_gpu=True), given), expected, 1e-9)
        run = functools.partial(run_with, Context(library), optimised_graph(graph, is_for_gpu=True), given)
        counted.append((context.counts.runs, context.counts.graphs, context.counts.reads))
        calls.append(calls_on_stand_in(run))
    # In a list that asks the card Python has a turn now and then.
    assert len(set(counted)) == 1 and max(calls) - min(calls) <= 8 * (not in_graphs), (counted, calls)
    assert bool(counted[0][1]) == in_graphs
    assert trips[1] > 3 * trips[0] and trips[3] > 2 * trips[1]


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, FREE])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_in_sessions(fn: Callable[[Any], Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, whichever way blocks come back."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    monkeypatch.setattr(row_memory, "OWN_BYTES", 1)
    same_in_sessions(monkeypatch, way, graph_of(fn, 1, X), [X])


def test_there_is_no_memory_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the iterations run step by step, from where the run began."""
    taken, calls = StackRows.taken_aside, 0

    def refused(self: StackRows, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise MemoryBudgetError("no more")
        return taken(self, *given)

    monkeypatch.setattr(StackRows, "taken_aside", refused)
    few_rows(monkeypatch, 3)
    for fn in (updated, varied):
        calls, library, graph = 0, StandIn(), graph_of(fn, 1, X)
        agrees(graph, library)
        calls = 0
        assert "there is no memory for its buffers" in str(
            explain_on(library, optimised_graph(graph, is_for_gpu=True), [X])
        )


def test_rows_of_passes_that_differ() -> None:
    """If passes pop different numbers of rows, there is memory below the last row."""
    its = CarriedRows(False, None, (1, 3), (2,), np.dtype(np.float64))
    context = Context(StandIn())
    for count, wanted, expected in ((0, 5, (3, True)), (1, 5, (3, True)), (7, 5, (7, False)), (7, 9, (9, True))):
        stack = stacks.DeviceStack(context.library, np.dtype(np.float64))
        for number in range(count):
            stack.extend(context.on_device(np.full((1, 2), float(number))))
        rows = StackRows(context, 0, its)
        found = rows.taken_aside(stack, wanted)
        usable = its.usable(found.capacity)
        assert (found.capacity, found.is_whole) == expected
        assert found.capacity >= its.at_least and (found.is_whole or usable == wanted)
        # As they come off, the last one last.
        taken = min(count, wanted)
        (lies,) = context.on_host(rows._aside)
        np.testing.assert_array_equal(lies[found.capacity - taken :, 0], np.arange(count - taken, count))


# Mistakes.


def never_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass begins without a look at whether there are rows for it."""
    monkeypatch.setattr(Launches, "enter", lambda self, slots: None)


def slots_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launches, "move", lambda self, *given: None)


def shortage_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that had too few rows counts."""
    launch = runner.Iterations._launch

    def wrong(self: runner.Iterations, *given: Any) -> None:
        launch(self, *given)
        self._is_short = False

    monkeypatch.setattr(runner.Iterations, "_launch", wrong)


def not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = Binding.restore
    monkeypatch.setattr(Binding, "restore", lambda self, saved: restore(self, []))


def flag_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted reads of missing rows are raised."""
    restore = Binding.restore
    monkeypatch.setattr(
        Binding, "restore", lambda self, saved: restore(self, [x for x in saved if x[0] is not self._flag])
    )


def rows_from_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aside lie the rows that were pushed first."""

    def wrong(self: stacks.DeviceStack, target: Any) -> int:
        lies = [row for block in self.blocks for row in self.used(block)]
        for number, row in enumerate(lies[: len(target)]):
            target[number] = row
        return 1

    monkeypatch.setattr(stacks.DeviceStack, "copy_to", wrong)


def rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several blocks the rows of the one on top alone are taken off."""
    monkeypatch.setattr(
        stacks.DeviceStack, "take_off", lambda self, count: self.drop(min(count, self.blocks[-1].count))
    )


def one_row_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass may begin behind the last row."""
    aside = StackRows.taken_aside

    def wrong(self: StackRows, *given: Any) -> RowMemory:
        found = aside(self, *given)
        return replace(found, capacity=found.capacity + 1)

    monkeypatch.setattr(StackRows, "taken_aside", wrong)


def any_number_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another iteration begins whether there are rows for it or not, and no block is too short."""
    monkeypatch.setattr(CarriedRows, "usable", lambda its, capacity: 1 << 40)


MISTAKES = [
    never_short,
    slots_stand_still,
    shortage_does_not_count,
    not_restored,
    flag_stays,
    rows_from_below,
    rows_stay,
    one_row_too_many,
    any_number_fits,
]


@pytest.mark.parametrize("mistake", [nothing, *MISTAKES])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    few_rows(monkeypatch, 3)
    mistake(monkeypatch)
    is_found = any(shows(monkeypatch, graph_of(fn, 1, X), [X]) for fn in (updated, numbered))
    assert is_found == (mistake is not nothing)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_rows_without_elements_have_no_bytes(order: int) -> None:
    """The number of rows with memory does not depend on their bytes; found by a random program."""

    def inside(x: Any, v: Any) -> Any:
        def step(i: Any, y: Any) -> Any:
            goes_on = lambda c: (c[0] < i) & (v < 0.9)
            return cg.while_loop(goes_on, lambda c: (c[0] + 1, cnp.sin(c[1])), (0, y))[1]

        return cg.fori_loop(0, STEPS, step, x)

    fn = lambda x, v: cnp.sum(inside(x, v)) + v
    for _ in range(order):
        fn = (lambda its: lambda x, v: cnp.sum(cg.grad(its)(x, v) ** 2) + v)(fn)
    x, v = np.ones((2, 0)), np.float64(0.3)
    graph = cg.function(fn).graph(x, v)
    for kinds in ("", "f"):
        assert_same(on_stand_in(graph, [x, v], kinds).results, on_reference(graph, [x, v]))
