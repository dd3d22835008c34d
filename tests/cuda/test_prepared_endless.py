"""Loops inside prepared lists that push as often as data says, as their gradients' forward halves do, and pop as often
as the stack of trip counts says."""

from __future__ import annotations

import functools
from collections import Counter as Tally
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
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.prepared import binding as row_memory
from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.engines.cuda.prepared.binding import Binding, RowMemory, StackRows
from ctrlgrad.engines.cuda.prepared.model import CarriedRows
from ctrlgrad.engines.cuda.prepared.reading import Launches
from ctrlgrad.errors import MemoryBudgetError

X = np.linspace(-0.5, 1.0, 9).reshape(3, 3)
STEPS = 24


def shrunk(y: Any, to: Any = 0.5) -> Any:
    """As many times as it takes."""
    return cg.while_loop(lambda y: cnp.sum(y * y) > to, lambda y: cnp.sin(y) * 0.8, y)


def scanned(x: Any) -> Any:
    """A while loop in a scan: never for some rows, more and more often for the rest."""

    def step(h: Any, row: Any) -> Any:
        h = shrunk(h + row)
        return h * 0.9, cnp.sum(h)

    rows = x[0] * 3.0 * cnp.arange(STEPS)[:, None] / STEPS
    h, ys = cg.scan(step, x[1], rows)
    return h + cnp.sum(ys)


def newton(x: Any) -> Any:
    """With a count that is read behind the loop."""

    def step(i: Any, total: Any) -> Any:
        value = x * x + 0.5 + i * 0.3

        def body(c: Any) -> Any:
            return 0.5 * (c[0] + value / c[0]), c[1] + 1

        root, count = cg.while_loop(lambda c: cnp.max(cnp.abs(c[0] * c[0] - value)) > 1e-9, body, (value, 0))
        return total * 0.9 + root + count * 0.01

    return cg.fori_loop(0, STEPS, step, x)


def twice(x: Any) -> Any:
    """Two such loops, one behind the other, and products."""

    def step(i: Any, y: Any) -> Any:
        y = shrunk(cnp.tanh(y @ x) * 2.0 + 0.1 * i)
        return shrunk(y * 3.0 + x, 2.0)

    return cg.fori_loop(0, STEPS, step, x)


def deep(x: Any) -> Any:
    """One in another."""

    def outer(y: Any) -> Any:
        return shrunk(y * 1.5, 1.0) * 0.9

    def step(i: Any, y: Any) -> Any:
        grown = y + 0.2 * i
        return cg.while_loop(lambda c: cnp.max(c[0]) > 0.3, lambda c: (outer(c[0]), c[1] + 1), (grown, 0))[0] + x * 0.1

    return cg.fori_loop(0, STEPS, step, x)


def updated(x: Any) -> Any:
    """An array that is updated in place beside it: a run that is made again begins with it as it was."""

    def step(i: Any, c: Any) -> Any:
        y, total = c
        y = shrunk(y + 0.3 * i)
        return y, cnp.at(total)[i % 3].add(y[0])

    y, total = cg.fori_loop(0, STEPS, step, (x, x * 0.0))
    return y + total


def counted(x: Any) -> Any:
    """As often as a loop that follows from data went on, and a loop in that which goes on as often as it has so far."""

    def step(i: Any, y: Any) -> Any:
        z, n = cg.while_loop(lambda c: cnp.sum(c[0] ** 2) > 0.5, lambda c: (cnp.sin(c[0]) * 0.7, c[1] + 1), (y + i, 0))

        def inner(j: Any, z: Any) -> Any:
            return cg.fori_loop(0, j, lambda k, z: cnp.cos(z) * 0.5 + 0.01 * k, z * 0.9)

        return cg.fori_loop(0, n, inner, z) + x * 0.1

    return cg.fori_loop(0, STEPS, step, x)


def sided(x: Any) -> Any:
    """In a side of a branch, of which some push too."""

    def step(i: Any, y: Any) -> Any:
        y = cg.cond(cnp.sum(y) > 1.0, lambda y: shrunk(y * 1.2), lambda y: cnp.sin(y) + 0.4, y)
        return y + x * 0.1

    return cg.fori_loop(0, STEPS, step, x)


FUNCTIONS = [scanned, newton, twice, deep, updated, counted, sided]


def one_by_one(library: StandIn, graph: Any) -> list[str]:
    """Loops that no other one is around and that were run step by step."""
    report = explain_on(library, optimised_graph(graph, is_for_gpu=True), [X])
    return [loop.launching for loop in report.loops if not loop.launching.startswith("from a list")]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("in_graphs", [True, False], ids=["graphs", "lists"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients(fn: Callable[[Any], Any], in_graphs: bool, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_graphs:
        without_graphs(monkeypatch)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    library, graph = StandIn(), graph_of(fn, order, X)
    ran = on_stand_in(graph, [X], library=library)
    assert_same(ran.results, on_reference(graph, [X]), 1e-9)
    assert not one_by_one(library, graph)
    assert bool(ran.counts.graphs) == in_graphs


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_same_bits_as_step_by_step(fn: Callable[[Any], Any], order: int) -> None:
    graph = graph_of(fn, order, X)
    for a, b in zip(on_stand_in(graph, [X]).results, step_by_step(graph, [X]).results, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_python_calls_do_not_grow_with_trip_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the scan nor of the loop inside, forward and backward."""
    monkeypatch.setattr(stacks, "LEAST_ROWS", 4096)
    monkeypatch.setattr(row_memory, "OWN_BYTES", 1 << 20)

    def loss(x: Any, n: Any, to: Any) -> Any:
        return cnp.sum(cg.fori_loop(0, n, lambda i, y: shrunk(y + x + 0.5, to) * 0.9, x))

    calls, counted, trips = [], [], []
    for n, to in ((24, 4.0), (24, 0.3), (60, 4.0), (60, 0.3)):
        library, given = StandIn(), [X, np.int64(n), np.float64(to)]
        graph = cg.function(cg.grad(loss)).graph(*given)
        ran = on_stand_in(graph, given, library=library)
        assert_same(ran.results, on_reference(graph, given), 1e-9)
        counted.append((ran.counts.runs, ran.counts.graphs, ran.counts.reads))
        trips.append(most_pushes(graph, given))
        calls.append(calls_on_stand_in(functools.partial(on_stand_in, graph, given, library=library)))
    assert len(set(counted)) == 1 and len(set(calls)) == 1, (counted, calls)
    assert trips[1] > 3 * trips[0] and trips[3] > 2 * trips[1]


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_blocks_that_are_soon_full(fn: Callable[[Any], Any], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that turn out to push more than there is memory for are made again."""
    for module, name, value in (
        (stacks, "LEAST_ROWS", rows),
        (stacks, "BLOCK_BYTES", rows * X.nbytes),
        (row_memory, "OWN_BYTES", 1),
        (runner, "LEAST_IN_GRAPH", 3),
    ):
        monkeypatch.setattr(module, name, value)
    restored, full = Tally[str](), True
    restore, new = Binding.restore, stacks.DeviceStack._new_block

    def noted(self: Binding, saved: Any) -> None:
        restored["runs"] += 1
        restore(self, saved)

    def block(self: stacks.DeviceStack, *given: Any) -> Any:
        nonlocal full
        full &= all(its.count == len(its.storage.array) for its in self.blocks)
        return new(self, *given)

    monkeypatch.setattr(Binding, "restore", noted)
    monkeypatch.setattr(stacks.DeviceStack, "_new_block", block)
    graph = graph_of(fn, 1, X)
    assert_same(on_stand_in(graph, [X]).results, on_reference(graph, [X]), 1e-9)
    assert full and (restored["runs"] > 0 or fn is counted)


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, FREE])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_in_sessions(fn: Callable[[Any], Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, whichever way blocks come back."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    monkeypatch.setattr(row_memory, "OWN_BYTES", 1)
    same_in_sessions(monkeypatch, way, graph_of(fn, 1, X), [X])


def test_there_is_no_memory_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the iterations run step by step, from where the run began."""
    monkeypatch.setattr(row_memory, "OWN_BYTES", 1)

    def refused(self: StackRows, rows: int) -> RowMemory:
        raise MemoryBudgetError("no more")

    monkeypatch.setattr(StackRows, "more", refused)
    for fn in (updated, scanned):
        library, graph = StandIn(), graph_of(fn, 1, X)
        assert_same(on_stand_in(graph, [X], library=library).results, on_reference(graph, [X]), 1e-9)
        assert "there is no memory for its buffers" in str(
            explain_on(library, optimised_graph(graph, is_for_gpu=True), [X])
        )


def test_iterations_with_many_passes_are_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At last one iteration a run."""
    graph = graph_of(deep, 1, X)
    for most in (40, 1):
        monkeypatch.setattr(runner, "MOST_INSIDE", most)
        assert_same(on_stand_in(graph, [X]).results, on_reference(graph, [X]), 1e-9)


# Mistakes.


def slots_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launches, "move", lambda self, *given: None)


def slots_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written behind the memory that there is."""
    monkeypatch.setattr(CarriedRows, "at_least", property(lambda its: -1000))


def never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that had no memory for its rows counts."""
    monkeypatch.setattr(CarriedRows, "usable", lambda its, capacity: 1 << 40)


def not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = Binding.restore
    monkeypatch.setattr(Binding, "restore", lambda self, saved: restore(self, []))


def numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the host's, that were popped."""
    moved = StackRows._moved_on_host
    monkeypatch.setattr(
        StackRows, "_moved_on_host", lambda self, stack, rows, aside: moved(self, stack, max(rows, 0), aside)
    )


def off_by_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = StackRows._memory

    def wrong(self: StackRows, array: Any, count: int, capacity: int) -> RowMemory:
        found = memory(self, array, count, capacity)
        return replace(found, address=found.address + 8 * (self.its.is_on_host and not self.its.pushes))

    monkeypatch.setattr(StackRows, "_memory", wrong)


MISTAKES = [
    slots_stand_still,
    slots_without_end,
    never_again,
    not_restored,
    numbers_stay,
    off_by_one_number,
]


@pytest.mark.parametrize("mistake", [nothing, *MISTAKES])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (runner, "LEAST_IN_GRAPH", 3),
        (stacks, "LEAST_ROWS", 7),
        (row_memory, "OWN_BYTES", 1),
    ):
        monkeypatch.setattr(module, name, value)
    mistake(monkeypatch)
    is_found = any(shows(monkeypatch, graph_of(fn, 1, X), [X]) for fn in (scanned, updated, deep, counted))
    assert is_found == (mistake is not nothing)


def in_both(x: Any) -> Any:
    """Rows of one stack are pushed around a loop that follows data, and inside of it."""

    def step(i: Any, c: Any) -> Any:
        def inner(c: Any) -> Any:
            z, rows = c
            return z * 0.7, rows.push(z)

        y, rows = c
        z, rows = cg.while_loop(lambda c: cnp.sum(c[0]) > 1.0, inner, (y, rows.push(y)))
        return cnp.sin((y + z) * 1.5) * 1.5 + 0.4, rows

    return cg.fori_loop(0, 20, step, (x, cg.TensorArray(np.float64, None, (3, 3))))[1].stack()


def test_a_pass_inside_has_memory_behind_the_rows_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of the inner loop pushes one row behind a row of the outer iteration: memory must have room for both."""
    monkeypatch.setattr(row_memory, "OWN_BYTES", 1)
    bodies, prepared = [], runner.prepared
    monkeypatch.setattr(runner, "prepared", lambda *given: (bodies.append(prepared(*given)), bodies[-1])[1])
    x = np.linspace(0.2, 0.9, 9).reshape(3, 3)
    graph = cg.function(in_both).graph(x)
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]), 1e-9)
    (rows,) = (its for body in bodies for its in body.carries if isinstance(its, CarriedRows))
    assert rows.is_endless and (rows.least, rows.at_least) == (1, 2)
