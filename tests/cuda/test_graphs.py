"""Loops as CUDA graphs: one launch for any number of iterations, and which mistakes would be found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.driver import Driver
from instruments.graph_loops import loss, rnn, shrinking, without_graphs
from instruments.mutants import nothing, shows
from instruments.recorded import recorded_run
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in
from instruments.stand_in_sessions import FREE, RECOMPUTE, SWAP, force, run_within
from instruments.tables import in_turn
from programs import PROGRAMS, Program

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import stacks
from ctrlgrad.engines.cuda.prepared import graphs, reading, runner
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.prepared.graphs import FUNCTIONS
from ctrlgrad.errors import MemoryBudgetError


@pytest.fixture
def long_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "LEAST_ROWS", 256)


def test_calls_of_the_driver_do_not_grow_with_the_iterations(long_blocks: None) -> None:
    """Forward and backward: an iteration from the list, and the graph."""
    launched, called, counts = [], [], []
    for steps in (20, 40, 200):
        library, (graph, arguments) = StandIn(), rnn(steps)
        counts.append(on_stand_in(graph, arguments, library=library).counts)
        launched.append(library.driver.launches)
        called.append(dict(library.driver.graph_calls.calls))
        assert library.driver.graph_calls.turns == [steps - 1] * 2
    assert launched == [launched[0]] * 3 and called == [called[0]] * 3
    assert counts == [counts[0]] * 3 and (counts[0].runs, counts[0].graphs) == (4, 2)
    # They stay with their lists.
    captures = "cuStreamBeginCaptureToGraph", "cuStreamGetCaptureInfo_v3", "cuStreamEndCapture"
    assert called[0] == dict.fromkeys(FUNCTIONS, 2) | dict.fromkeys(captures, 4) | {"cuGraphExecDestroy": 0}


def test_the_iterations_of_a_chunk_of_products_are_a_graph(long_blocks: None) -> None:
    """A loop that products have left goes on while two counters are below their bounds."""

    def run(steps: int) -> tuple[Any, StandIn]:
        def loss(w: Any, u: Any, x: Any) -> Any:
            return cnp.sum(cg.fori_loop(0, steps, lambda t, h: cnp.tanh(x[t] @ w + h @ u), x[0, :, :64]) ** 2)

        rng, library = np.random.default_rng(0), StandIn()
        args = [rng.normal(size=(65, 64)) / 8, rng.normal(size=(64, 64)) / 8, rng.normal(size=(steps, 32, 65))]
        graph = cg.function(cg.value_and_grad(loss, argnums=(0, 1, 2))).graph(*args)
        assert "chunks_of=" in str(optimised_graph(graph, is_for_gpu=True))
        ran = on_stand_in(graph, args, library=library)
        assert_same(ran.results, on_reference(graph, args), 1e-9)
        return ran.counts, library

    (few, a), (many, b) = run(40), run(90)
    assert few == many and few.graphs == 2
    assert a.driver.launches == b.driver.launches and a.driver.graph_calls.turns == [39, 39]


# Blocks of 16, 32 and 64 rows, the last one not full; backwards it is the first one, whose first iteration, or
# all of them, are the list's.
@pytest.mark.parametrize(
    ("steps", "count"), [(16, 0), (17, 1), (18, 1), (31, 1), (64, 2 + 2), (65, 2 + 3), (67, 2 + 3)]
)
def test_the_same_bits_as_from_the_list(steps: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, arguments = rnn(steps)
    found = on_stand_in(graph, arguments)
    assert_same(found.results, on_reference(graph, arguments), 1e-9)
    assert found.counts.graphs == count
    without_graphs(monkeypatch)
    listed = on_stand_in(graph, arguments)
    assert not listed.counts.graphs
    for x, y in zip(found.results, listed.results, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_the_card_asks_the_predicate(long_blocks: None) -> None:
    """The list asks behind each of its 15 iterations; the host asks before, between and behind the two runs."""
    for trips in (17, 18, 101, 200):
        library, x = StandIn(), np.array([float(trips), 0.3])
        graph = cg.function(cg.grad(loss)).graph(x)
        ran = on_stand_in(graph, [x], library=library)
        assert_same(ran.results, on_reference(graph, [x]), 1e-9)
        assert ran.counts.predicate_reads == 15 + 3
        forward, *backward = library.driver.graph_calls.turns
        assert forward == trips - 15 and backward == [trips - 1]


def test_maximum_iterations_end_a_graph(long_blocks: None) -> None:
    def limited(x: Any, limit: int) -> Any:
        return cg.while_loop(lambda x: x[0] > 0.5, lambda x: x - 1.0, x, maximum_iterations=limit)

    for limit in (50, 51):
        x = np.array([float(limit), 1.0])
        graph = cg.function(lambda x, limit=limit: limited(x, limit)).graph(x)
        assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]))
        with pytest.raises(cg.CtrlgradError) as expected:
            on_reference(graph, [x + 1.0])
        with pytest.raises(cg.CtrlgradError) as found:
            on_stand_in(graph, [x + 1.0])
        assert str(found.value) == str(expected.value)


def test_long_loops_give_python_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LONGEST_RUN", 20)
    x = np.array([70.0, 0.3])
    graph = cg.function(lambda x: shrinking(x)[0]).graph(x)
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]))
    assert (ran.counts.graphs, ran.counts.predicate_reads) == (3, 15 + 5)


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, FREE])
@pytest.mark.parametrize("name", ["counted", "read"])
def test_in_sessions(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations that run again have the bits of the first time, whichever iterations a graph holds."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    x = np.array([60.0, 0.3])
    graph, arguments = rnn(60) if name == "counted" else (cg.function(cg.grad(loss)).graph(x), [x])
    expected = on_stand_in(graph, arguments)
    force(monkeypatch, way)
    started = []
    launch = graphs.LoopGraph.launch
    monkeypatch.setattr(graphs.LoopGraph, "launch", lambda *given: (started.append(1), launch(*given))[1])
    results, manager = run_within(None, graph, arguments)
    for limit in (manager.stats.peak_bytes["device"] * 3 // 4, manager.stats.peak_bytes["device"] // 2):
        with suppress(MemoryBudgetError):
            results, manager = run_within(limit, graph, arguments)
        for a, b in zip(results, expected.results, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert started


@in_turn("program, order", PROGRAMS, [0, 1, 2])
def test_corpus(program: Program, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loop of four iterations is a graph."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    for kinds in ("", "biuf"):
        library = StandIn()
        ran = on_stand_in(program.graph(order), program.leaves, kinds, library)
        assert_same(ran.results, program.expected(order))
        assert len(library.driver.graph_calls.turns) == ran.counts.graphs


# Mistakes.


def one_turn_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    text(monkeypatch, "a0 + int64(1) < a1", "a0 + int64(2) < a1")


def one_turn_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    text(monkeypatch, "a0 + int64(1) < a1", "a0 < a1")


def text(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    write = reading.Numbers.write
    monkeypatch.setattr(
        reading.Numbers, "write", lambda self, found: write(self, {n: x.replace(old, new) for n, x in found.items()})
    )


def off_by_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a graph is launched."""
    run = Binding.run

    def moved(self: Binding, iterations: int, rows: Any, integers: Any, in_graph: bool, moment: int) -> Any:
        step = {n: its.row_bytes for n, its in enumerate(self.body.carries) if n in rows}
        rows = {n: replace(its, address=its.address + in_graph * step[n]) for n, its in rows.items()}
        return run(self, iterations, rows, integers, in_graph, moment)

    monkeypatch.setattr(Binding, "run", moved)


def block_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph goes on in the blocks that it was made for."""
    run, first = Binding.run, {}

    def with_old_blocks(self: Binding, iterations: int, rows: Any, integers: Any, in_graph: bool, moment: int) -> Any:
        rows = first.setdefault(self, rows) if in_graph else rows
        return run(self, iterations, rows, integers, in_graph, moment)

    monkeypatch.setattr(Binding, "run", with_old_blocks)


def condition_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "_condition", lambda self, handle: np.zeros((), np.uint64))


def last_iteration_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Binding.run
    monkeypatch.setattr(Binding, "run", lambda self, n, *rest: run(self, n if n != 1 else 0, *rest))


MISTAKES = [
    one_turn_too_few,
    one_turn_too_many,
    off_by_one_slot,
    block_stays,
    condition_is_not_written,
    last_iteration_forgotten,
]


@pytest.mark.parametrize("mistake", [nothing, *MISTAKES])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run under a budget: it fails, gives something else, or does what only luck keeps from going wrong."""
    # Chunks of 4, 8, 16, 32 and 17 iterations.
    graph, arguments = rnn(77)
    mistake(monkeypatch)
    assert shows(monkeypatch, graph, arguments) == (mistake is not nothing)


def test_nodes_are_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch of a graph is all that its nodes read and write, on the compute stream: a row is pushed and popped by
    each iteration, as many by a graph as by the list."""
    graph, arguments = rnn(67)

    def rows() -> list[int]:
        _, entries, _ = recorded_run(monkeypatch, graph, arguments, 1 << 20, 0.5)
        spans = [span for entry in entries if entry[0] == "launched" for span in (*entry[2], *entry[3])]
        return [sum(size == nbytes for _, size in spans) for nbytes in (2 * 3 * 8, 2 * 4 * 8)]

    found = rows()
    without_graphs(monkeypatch)
    assert found == rows() and found[0] >= 2 * 67
