"""Loops of the CUDA engine under a budget: same values, never more counted bytes, nothing left behind.

The stand-in's arrays count as CuPy's do, and the simulated device overwrites what is freed, so a row that is read after
its block has left gives another result. The plan checker replays what the memory manager did, as if all streams ran
beside each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import recurrent
from instruments.comparing import assert_same
from instruments.stand_in_runs import on_reference
from instruments.stand_in_sessions import FREE, LIBRARY, RECOMPUTE, SWAP, counts_of, force, run_within, unlimited
from instruments.tables import in_turn
from passes.pass_cases import LAYERS, layer_of_layers
from programs import BY_NAME, PROGRAMS, Program
from recurrent import recomputing, sequence, swapping

import ctrlgrad as cg
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import chunks
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.prepared import runner as forms
from ctrlgrad.engines.cuda.prepared.model import CannotPrepare
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir import Graph, StackType, walk

lstm = partial(recurrent.lstm, "cuda")


def gradient_of(program: Program, order: int) -> tuple[Graph, list[Any]]:
    return program.graph(order), program.leaves


@in_turn("program, way", PROGRAMS, [SWAP, RECOMPUTE], share=(1, 2))
def test_corpus_in_less_and_less_memory(
    program: Program, way: str, short_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same_in_less_and_less_memory(program, 1, way, monkeypatch)


OF_SECOND_ORDER = ["lstm", "masked_rnn", "early_exit", "triple_nesting", "soft_sorting_network", "branch_in_a_loop"]


@in_turn("name, way", OF_SECOND_ORDER, [SWAP, RECOMPUTE, FREE])
def test_second_order_in_less_and_less_memory(
    name: str, way: str, short_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same_in_less_and_less_memory(BY_NAME[name], 2, way, monkeypatch)


def assert_same_in_less_and_less_memory(
    program: Program, order: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to a budget that does not do: until then the values are those of the reference engine."""
    graph, leaves = gradient_of(program, order)
    if not any(isinstance(v.type, StackType) for node in graph.nodes for v in node.results):
        return  # nothing is pushed
    force(monkeypatch, way)
    expected = program.expected(order)
    results, manager = run_within(None, graph, leaves, "biuf")
    assert_same(results, expected)
    limit = manager.stats.peak_bytes["device"]
    while limit:
        limit = limit // 3
        try:
            results, manager = run_within(limit, graph, leaves, "biuf")
        except MemoryBudgetError as error:
            assert "device" in str(error)
            return
        assert_same(results, expected)
        assert manager.stats.peak_bytes["device"] <= limit


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, pytest.param(FREE, marks=pytest.mark.long)])
def test_loops_over_chunks_inside_loops_over_chunks(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a distributed inner loop pushes belong to the chunk of the outer loop."""
    monkeypatch.setattr("ctrlgrad.passes.heavy.HEAVY", 1)
    monkeypatch.setattr("ctrlgrad.passes.heavy.WORTH_INSIDE", 1)
    xs, *weights = LAYERS
    leaves = [np.concatenate([xs] * 2), *weights]
    graph = cg.function(cg.grad(layer_of_layers, argnums=(1, 2, 3))).graph(*leaves)
    outer = [n for n in optimised_graph(graph, is_for_gpu=True).nodes if "chunks_of" in n.attrs.given()]
    assert [any("chunks_of" in n.attrs.given() for n in walk(n.regions[1])) for n in outer] == [True, True]
    expected = on_reference(graph, leaves)
    force(monkeypatch, way)
    limit = run_within(None, graph, leaves)[1].stats.peak_bytes["device"]
    fitted = 0
    while limit := limit * 3 // 5:
        try:
            results, manager = run_within(limit, graph, leaves)
        except MemoryBudgetError:
            break
        assert_same(results, expected)
        assert manager.stats.peak_bytes["device"] <= limit
        fitted += 1
    assert fitted >= 3


def test_the_corpus_is_really_moved(short_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass if nothing ever left the device."""
    graph, leaves = gradient_of(BY_NAME["adaptive_runge_kutta"], 1)
    for way in (SWAP, RECOMPUTE):
        with monkeypatch.context() as patch:
            force(patch, way)
            peak = run_within(None, graph, leaves, "biuf")[1].stats.peak_bytes["device"]
            stats = run_within(peak * 4 // 5, graph, leaves, "biuf")[1].stats
        assert (stats.copies_in if way == SWAP else stats.recomputed_chunks) > 5


@cache
def expected_of(steps: int) -> list[Any]:
    """Results of the recurrent layer without a budget, in chunks of 16 KiB."""
    arguments = sequence(steps)
    return unlimited(lstm().graph(*arguments), arguments)


@pytest.mark.parametrize("loop", [cg.while_loop, swapping, recomputing])
def test_a_long_sequence_has_the_same_bits(loop: Callable[..., Any], chunks_of_16_kib: None) -> None:
    arguments, expected = sequence(400), expected_of(400)
    limit = (160 << 10) + arguments[1].nbytes
    found, manager = run_within(limit, lstm(loop).graph(*arguments), arguments)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)
    stats = manager.stats
    assert stats.peak_bytes["device"] <= limit
    # The saved values are many times larger than the budget.
    if loop is swapping:
        assert stats.bytes_in > 4 * (160 << 10) and not stats.recomputed_chunks
    if loop is recomputing:
        assert stats.recomputed_chunks > 20 and not stats.copies_out


def test_recomputation_without_a_budget(chunks_of_16_kib: None) -> None:
    """`checkpoint` acts by itself; memory grows with the square root of the length."""
    peaks = []
    for steps in (20, 80, 320):
        arguments, expected = sequence(steps), expected_of(steps)
        found, manager = run_within(None, lstm(recomputing).graph(*arguments), arguments)
        np.testing.assert_array_equal(found[1], expected[1])
        peaks.append(manager.stats.peak_bytes["device"] - arguments[1].nbytes)
        assert manager.stats.recomputed_chunks
    assert peaks[1] < 2.5 * peaks[0] and peaks[2] < 2.5 * peaks[1]


@pytest.mark.parametrize("states", [1, 3])
def test_a_number_of_states(states: int, chunks_of_16_kib: None) -> None:
    arguments, expected = sequence(120), expected_of(120)
    graph = lstm(lambda *args: cg.while_loop(*args, checkpoint=states)).graph(*arguments)
    found, manager = run_within(None, graph, arguments)
    np.testing.assert_array_equal(found[1], expected[1])
    assert 0 < manager.stats.most_states <= states


def test_a_loop_that_follows_data_is_run_again(short_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(x: Any) -> Any:
        return np.sum(cg.while_loop(lambda x: np.sum(x * x) > 1.0, lambda x: np.tanh(x) * 0.98, x))

    monkeypatch.setattr(chunks, "MOST_ITERATIONS", 5)
    for start in np.linspace(0.5, 3.0, 8):
        x = np.full(4, start)
        graph = cg.function(cg.grad(loss)).graph(x)
        expected = on_reference(graph, [x])
        for way in (SWAP, RECOMPUTE):
            with monkeypatch.context() as patch:
                force(patch, way)
                assert_same(run_within(None, graph, [x])[0], expected)
                assert_same(run_within(700, graph, [x])[0], expected)


def test_a_predicate_that_calls_back_does_so_once(short_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a loop is not run again. Once its chunks were, and the callback with them."""
    seen: list[float] = []

    def loss(x: Any) -> Any:
        def goes_on(carry: Any) -> Any:
            cg.debug.callback(lambda value, _: seen.append(float(value)), carry[0])
            return carry[0] > 0.5

        return np.sum(cg.while_loop(goes_on, lambda c: (c[0] - 1.0, np.tanh(c[1]) * 0.98), (x[0], x))[1])

    x = np.array([20.0, 0.3, 0.4, 0.5])
    graph = cg.function(cg.grad(loss)).graph(x)
    expected = on_reference(graph, [x])
    for limit in (None, 700):
        seen.clear()
        results, manager = run_within(limit, graph, [x])
        assert_same(results, expected)
        assert seen == list(range(20, -1, -1)) and not manager.stats.recomputed_chunks


def refused(*_: object) -> Any:
    raise CannotPrepare("the test runs launches one by one")


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE])
@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_row_that_is_carried_on_does_not_keep_its_block(
    is_prepared: bool, way: str, short_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iteration's value is written to the stack and read there by the next one, which may be in the next chunk.

    Prepared iterations carry it in a buffer, too.
    """
    force(monkeypatch, way)
    if not is_prepared:
        monkeypatch.setattr(forms, "prepared", refused)
    x = np.linspace(0.1, 1.0, 50)
    graph = cg.function(cg.grad(lambda x: np.sum(cg.fori_loop(0, 40, lambda i, x: np.exp(-x), x)))).graph(x)
    context = Context(LIBRARY)
    run_with(context, optimised_graph(graph, is_for_gpu=True), [x])
    if way == SWAP:
        # One copy a chunk.
        assert counts_of(graph, [x]).calls - context.counts.calls == (0 if is_prepared else 21)
    found, manager = run_within(5000, graph, [x])
    assert_same(found, on_reference(graph, [x]))
    assert manager.stats.copies_in > 10 if way == SWAP else manager.stats.recomputed_chunks > 10
