"""Loops in prepared lists: a list of the inner loop's iteration, gone through by a count or by what the card says."""

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
from ctrlgrad.engines.cuda.prepared import body, graphs, placement, runner
from ctrlgrad.engines.cuda.prepared.entries import ListWriter
from ctrlgrad.engines.cuda.prepared.model import Affine, CarriedRows
from ctrlgrad.engines.cuda.prepared.reading import Numbers

X = np.linspace(-0.5, 1.0, 9).reshape(3, 3)
STEPS = 24


def looped(step: Callable[[Any, Any], Any], x: Any) -> Any:
    return cg.fori_loop(0, STEPS, step, x)


def counted(x: Any) -> Any:
    """A number that goes by both counters, and an array that goes on behind the loop inside."""

    def step(i: Any, c: Any) -> Any:
        y, total = c
        found = cg.fori_loop(0, 3, lambda j, z: cnp.tanh(z @ x) + 0.1 * j + 0.01 * i, y)
        return found * 0.5, total + found

    y, total = looped(step, (x, x * 0.0))
    return y + total


def exchanged(x: Any) -> Any:
    """Carries that change places, and one that is the other as it was."""

    def step(i: Any, c: Any) -> Any:
        a, b = c
        a, b, old = cg.fori_loop(0, 5, lambda j, c: (c[1] * 0.9, cnp.sin(c[0]) + 0.1, c[0]), (a, b, a))
        return a + old * 0.1, b

    a, b = looped(step, (x, x * 0.5))
    return a + b


def layers(x: Any) -> Any:
    """A recurrent network of several layers: states that a scan inside reads and collects."""
    weights = cnp.stack([x, x * 0.5, cnp.sin(x)])

    def step(states: Any, row: Any) -> Any:
        def layer(below: Any, c: Any) -> Any:
            w, state = c
            new = cnp.tanh(below @ w + state @ w * 0.5)
            return new, new

        above, states = cg.scan(layer, row, (weights, states))
        return states, above

    return cg.scan(step, cnp.zeros((3, 2, 3)), cnp.broadcast_to(x[:2], (STEPS, 2, 3)))[1]


def deep(x: Any) -> Any:
    """Three loops, with numbers that go by all of their counters, and an array that is added to in place."""

    def inner(i: Any, j: Any, c: Any) -> Any:
        return cg.fori_loop(0, 2, lambda k, c: (cnp.sin(c[0]) * 0.9 + 0.01 * (i + 2 * j + 3 * k), c[1]), c)

    def middle(i: Any, j: Any, c: Any) -> Any:
        y, total = inner(i, j, c)
        return y, cnp.at(total)[j].add(y[j])

    y, total = looped(lambda i, c: cg.fori_loop(0, 3, lambda j, c: middle(i, j, c), c), (x, x * 0.0))
    return y + total


def branched(x: Any) -> Any:
    """A branch in a loop inside, and a loop in a branch inside that; both push."""

    def side(y: Any) -> Any:
        return cg.fori_loop(0, 2, lambda k, z: cnp.sin(z) * 1.1, y)

    def inner(j: Any, y: Any) -> Any:
        return cg.cond(cnp.sum(y) > 1.0, side, lambda y: y * y * 0.5 + 0.2, y)

    return looped(lambda i, y: cg.fori_loop(0, 2, inner, y) + 0.01, x)


def grows(x: Any) -> Any:
    """As often as there were iterations before, at first never."""
    inner = lambda i, y: cg.fori_loop(0, i, lambda j, z: cnp.sin(z) * 0.9 + 0.1 * j, y)
    return cg.fori_loop(0, STEPS + 1, lambda i, y: inner(i, y) * 0.99 + 0.01, x)


GRADIENTS = [counted, exchanged, layers, deep, branched, grows]


def newton(x: Any) -> Any:
    """As often as the data says, with a count that is read behind the loop."""

    def step(i: Any, total: Any) -> Any:
        value = x * x + 0.5 + i * 0.3

        def body(c: Any) -> Any:
            return 0.5 * (c[0] + value / c[0]), c[1] + 1

        root, count = cg.while_loop(lambda c: cnp.max(cnp.abs(c[0] * c[0] - value)) > 1e-9, body, (value, 0))
        return total * 0.9 + root + count * 0.01

    return looped(step, x)


def indexed(x: Any) -> Any:
    """Rows that are read and written by the counter of the loop inside, up and down."""

    def step(i: Any, c: Any) -> Any:
        y, total = c
        total = cg.fori_loop(0, 3, lambda j, t: cnp.at(t)[2 - j].add(y[j] * 0.1), total)
        return cnp.cos(y) + total * 0.1, total

    return looped(step, (x, x))[1]


def kept(x: Any) -> Any:
    """The inner loop's first carry and its captures are read behind it too."""

    def step(i: Any, y: Any) -> Any:
        z = cnp.sin(y)
        found = cg.fori_loop(0, 3, lambda j, a: cnp.at(a)[j].add(z[j]) * 0.5, z)
        return found + z * 0.5

    return looped(step, x)


def changed(x: Any) -> Any:
    """Each iteration of the inner loop changes a copy of its own of `z`; nothing reads it after the loop."""

    def step(i: Any, y: Any) -> Any:
        z = cnp.sin(y)
        return cg.fori_loop(0, 3, lambda j, a: a * 0.5 + cnp.at(z)[j].add(a[j]), y) * 0.7

    return looped(step, x)


def computed_late(x: Any) -> Any:
    """Found: a number that the card computes where it is read, inside of or behind a loop that begins with what it is
    computed of: the loop overwrote that."""

    def step(i: Any, y: Any) -> Any:
        first = cg.cond(y[0, 0] < 0.3, lambda: 0.5, lambda: -0.5)
        late = first * 0.3
        last = cg.fori_loop(0, 3, lambda j, a: cnp.sin(a + late) + cnp.sum(y) * 0.1, first)
        return cnp.sin(y * last + late * 0.7)

    return looped(step, x)


def searched(x: Any) -> Any:
    """Rows by a counter of which only the card knows the end, inside the loop and behind it."""
    rows = cnp.stack([x * k for k in range(12)])

    def step(i: Any, y: Any) -> Any:
        def body(c: Any) -> Any:
            return c[0] + cnp.abs(cnp.sum(rows[c[1]])) + 2.0, c[1] + 1, c[2] * 0.9 + rows[c[1]]

        init = cnp.sum(y) * 0.0, 0, y
        _, count, z = cg.while_loop(lambda c: cnp.logical_and(c[0] < 30.0, c[1] < 11), body, init)
        return z * 0.5 + rows[count] * 0.1 + 0.01 * i

    return looped(step, x)


FUNCTIONS = [*GRADIENTS, newton, indexed, kept, changed, computed_late, searched]


@pytest.fixture
def long_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "LEAST_ROWS", 1024)


def all_from_lists(library: StandIn, graph: Any) -> bool:
    """Return true if outermost loops are listed, and inner loops are in the lists of these."""
    report = explain_on(library, optimised_graph(graph, is_for_gpu=True), [X])
    found = [loop.launching for loop in report.loops], [x.launching for loop in report.loops for x in loop.inner]
    outer, inner = (
        all(x.startswith(text) for x in xs) for xs, text in zip(found, ("from a list", "from the list"), strict=True)
    )
    return outer and inner and all(" inside" in x for x in found[0])


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("in_graphs", [True, False], ids=["graphs", "lists"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_and_gradients(
    fn: Callable[[Any], Any], in_graphs: bool, order: int, long_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_graphs:
        without_graphs(monkeypatch)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    library, graph = StandIn(), graph_of(fn, order, X)
    ran = on_stand_in(graph, [X], library=library)
    assert_same(ran.results, on_reference(graph, [X]), 1e-9)
    if not order or fn in GRADIENTS:
        assert all_from_lists(library, graph), str(explain_on(library, optimised_graph(graph, is_for_gpu=True), [X]))
        assert bool(ran.counts.graphs) == in_graphs


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("fn", [counted, newton, layers])
def test_the_same_bits_as_step_by_step(fn: Callable[[Any], Any], order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(fn, order, X)
    found = on_stand_in(graph, [X])
    monkeypatch.setattr(runner.Iterations, "_count", lambda self, form, most: 0)
    stepped = on_stand_in(graph, [X])
    assert found.counts.runs and not stepped.counts.runs
    for a, b in zip(found.results, stepped.results, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_python_calls_do_not_grow_with_either_count(long_blocks: None) -> None:
    """Forward and backward; how often the loop inside goes on is an argument."""
    calls, counted = [], []

    def loss(x: Any, n: Any, m: Any) -> Any:
        inner = lambda y: cg.fori_loop(0, m, lambda j, z: cnp.tanh(z @ x) + 0.1 * j, y)
        return cnp.sum(cg.fori_loop(0, n, lambda i, y: inner(y) * 0.9, x))

    for trips in ((24, 2), (24, 9), (60, 2), (61, 12)):
        library, given = StandIn(), [X, *map(np.int64, trips)]
        graph = cg.function(cg.grad(loss)).graph(*given)
        ran = on_stand_in(graph, given, library=library)
        assert_same(ran.results, on_reference(graph, given), 1e-9)
        counted.append((ran.counts.runs, ran.counts.graphs, ran.counts.predicate_reads))
        calls.append(calls_on_stand_in(functools.partial(on_stand_in, graph, given, library=library)))
    assert counted == [(4, 2, 0)] * 4
    assert len(set(calls[:3])) == 1 and abs(calls[3] - calls[0]) <= 8, calls


def test_a_loop_that_counts_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that follows from data is asked for before each of its iterations, but by a graph."""
    without_graphs(monkeypatch)
    for fn, waits in ((counted, False), (grows, False), (newton, True)):
        ran = on_stand_in(cg.function(fn).graph(X), [X])
        assert ran.counts.runs == 2 and bool(ran.counts.predicate_reads) == waits


@pytest.mark.parametrize("in_graphs", [True, False], ids=["graphs", "lists"])
def test_a_loop_inside_that_asks_the_card_often(in_graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few iterations of the outer loop are a graph, too, if a loop inside asks."""
    if not in_graphs:
        without_graphs(monkeypatch)

    def slow(c: Any) -> Any:
        inner = lambda y: cg.while_loop(lambda y: cnp.max(y) > 0.1, lambda y: y * 0.99, y)
        return c[0] - 1.0, c[1] + inner(c[1] * 0.0 + 1.0)

    def fn(x: Any) -> Any:
        return cg.while_loop(lambda c: c[0][0, 0] > 0.5, slow, (x + 10.0, x))[1]

    ran = on_stand_in(graph_of(fn, 0, X), [X])
    assert_same(ran.results, on_reference(graph_of(fn, 0, X), [X]), 1e-9)
    assert bool(ran.counts.graphs) == in_graphs
    # A list asks 231 times for the loop inside and once for its own; the host asks before, between and behind the runs.
    assert ran.counts.predicate_reads == (1 if in_graphs else 9) * (231 + 1) + 3


@pytest.mark.parametrize("rows", [1, 4, 7])
@pytest.mark.parametrize("fn", GRADIENTS)
def test_blocks_that_are_soon_full(fn: Callable[[Any], Any], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations for which a block has not enough rows run step by step."""
    monkeypatch.setattr(stacks, "LEAST_ROWS", rows)
    monkeypatch.setattr(stacks, "BLOCK_BYTES", rows * X.nbytes)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    graph = graph_of(fn, 1, X)
    assert_same(on_stand_in(graph, [X]).results, on_reference(graph, [X]), 1e-9)


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, FREE])
@pytest.mark.parametrize("fn", GRADIENTS)
def test_in_sessions(fn: Callable[[Any], Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, whichever way blocks come back."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    same_in_sessions(monkeypatch, way, graph_of(fn, 1, X), [X])


def test_explain_says_what_is_inside_and_why_not() -> None:
    def launching(fn: Callable[[Any], Any]) -> list[str]:
        library, graph = StandIn(), cg.function(fn).graph(X)
        on_stand_in(graph, [X], library=library)
        return [
            loop.launching for loop in explain_on(library, optimised_graph(graph, is_for_gpu=True), [X]).all_loops()
        ]

    outer, inner = launching(newton)
    assert " an iteration with 1 loop inside, which waits for 1 loop, in a graph" in outer
    assert inner == "from the list of the loop around it"

    def pushing(x: Any) -> Any:
        def body(c: Any) -> Any:
            return c[0] * 0.7, c[1].push(c[0])

        rows = cg.TensorArray(np.float64, None, (3, 3))
        step = lambda i, c: (cnp.cos(c[0]), cg.while_loop(lambda c: cnp.max(c[0]) > 0.1, body, (c[0], c[1]))[1])
        return looped(step, (x, rows))[1].stack()

    assert " with 1 loop inside, which waits for 1 loop and how many rows there are" in launching(pushing)[0]


# Mistakes.


def counter_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter of a loop inside is not 0 when it begins."""
    write = Numbers.write
    text = lambda x: "int64(1)" if x == "int64(0)" else x
    monkeypatch.setattr(Numbers, "write", lambda self, found: write(self, {n: text(x) for n, x in found.items()}))


def first_value_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement.Sharing, "_gone_through", lambda self, items, has, names: names)


def never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = ListWriter._switch

    def wrong(self: ListWriter, word: int, deltas: Any) -> tuple[int, int]:
        return switch(self, word, [max(x, 1) for x in deltas])

    monkeypatch.setattr(ListWriter, "_switch", wrong)


def one_time_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    trips = body.trips_of

    def more(*given: Any) -> Affine | None:
        found = trips(*given)
        return None if found is None else found.plus(Affine(1))

    monkeypatch.setattr(body, "trips_of", more)


def needed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value read last by the first iteration of an inner loop is gone afterwards."""
    monkeypatch.setattr(placement, "_keep_in_loops", lambda *given: None)


def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that an inner loop reads again in its next iteration is overwritten."""

    def once(self: placement.Sharing, item: Any, has: Any, names: Any) -> Any:
        return self._gone_through(item.items, has, names)

    monkeypatch.setattr(placement.Sharing, "_after_passes", once)


def asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A while node inside has its condition from the iteration before."""
    write = graphs._Writer.write

    def wrong(self: Any, graph: Any, parts: Any) -> None:
        write(self, graph, [replace(x, put=lambda *given: None) if x.is_loop else x for x in parts])

    monkeypatch.setattr(graphs._Writer, "write", wrong)


def rows_of_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CarriedRows, "needed", lambda self, iterations, integers: np.ones(iterations, np.int64))


MISTAKES = [
    counter_goes_on,
    first_value_is_not_copied,
    never_goes_back,
    one_time_too_many,
    needed_once,
    read_once,
    asked_once,
    rows_of_one_iteration,
]


@pytest.mark.parametrize("mistake", [nothing, *MISTAKES])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    mistake(monkeypatch)
    tried = ((counted, 1), (exchanged, 0), (layers, 1), (grows, 0), (kept, 0), (changed, 0), (newton, 0))
    is_found = any(shows(monkeypatch, graph_of(fn, order, X), [X]) for fn, order in tried)
    assert is_found == (mistake is not nothing)
