"""Clusters run in machine code where a setting asks for them, and agree with the reference engine up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.dataflow_runs import at_random, run
from instruments.part_plans import interpreted_parts
from instruments.sessions import checked_session
from instruments.tables import programs_at_orders
from programs import PROGRAMS, Program

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import engine, pieces
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph

SIZE = 256


def layers(x: Any, w: Any) -> Any:
    """Two layers, each on its own device, large enough for machine code."""

    def body(carry: Any) -> Any:
        i, low, high = carry
        with cg.device("cpu:0"):
            low = cnp.tanh(low @ w + x) * (1 - 0.25 * low * low) + 0.5 * x
        with cg.device("cpu:1"):
            high = cnp.tanh(high @ w + low) * (1 - 0.25 * high * high) + 0.5 * low
        return i + 1, low, high

    return cg.while_loop(lambda c: c[0] < 5, body, (0, x, x))[2].sum()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Log of the graphs that run as plans, one entry a run."""
    found: list[Graph] = []
    run_plan = engine.run
    monkeypatch.setattr(engine, "run", lambda graph, values: (found.append(graph), run_plan(graph, values))[1])
    return found


@pytest.mark.parametrize("window", [1, 32])
def test_two_layers_on_two_devices(runs: list[Graph], window: int) -> None:
    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=(SIZE, SIZE)), 0.1 * rng.normal(size=(SIZE, SIZE))]
    graph = cg.function(cg.value_and_grad(layers, argnums=(0, 1))).graph(*arguments)
    expected = run_on("reference", graph, arguments)
    for _ in range(2):
        found, _ = run(graph, arguments, pieces="native", parallel_iterations=window)
        assert_same(found, expected, 1e-11)
    assert len(runs) >= 2 * 2 * 2 * 5, "both layers, forward and backward, in every iteration of both calls"


# The values of all pieces of the corpus are compared in tests/native/test_pieces_agreement.py.
@programs_at_orders(1, share=(2, 3))
def test_corpus(program: Program, order: int) -> None:
    graph, leaves = program.graph(order), program.leaves
    place = at_random(2, PROGRAMS.index(program))
    with interpreted_parts() as ran:
        found, _ = run(graph, leaves, pieces="native", place=place, order=1)
    assert_same(found, program.expected(order), 1e-9)
    assert ran or repr(program) == "zero_gradient", "that one only gives a constant"


def test_plans_differ_by_what_runs_their_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    original = pieces.compile_piece
    monkeypatch.setattr(
        pieces, "compile_piece", lambda *given, **named: (asked.append(True), original(*given, **named))[1]
    )
    graph = cg.function(lambda x: x * x + 1.0).graph(np.ones(5))
    run(graph, [np.ones(5)])
    assert not asked
    run(graph, [np.ones(5)], pieces="native")
    assert asked


def test_in_a_session_their_memory_counts_and_saved_values_leave(runs: list[Graph]) -> None:
    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=(SIZE, SIZE)), 0.1 * rng.normal(size=(SIZE, SIZE))]
    graph = cg.function(cg.value_and_grad(layers, argnums=(0, 1))).graph(*arguments)
    expected = run_on("reference", graph, arguments)
    with checked_session() as session:
        assert_same(run(graph, arguments, pieces="native")[0], expected, 1e-11)
        peak = session.manager().stats.peak_bytes["device"]
    assert runs
    with checked_session(peak // 2) as session:
        assert_same(run(graph, arguments, pieces="native")[0], expected, 1e-11)
        assert session.manager().stats.copies_out
    with checked_session(SIZE * 8), pytest.raises(MemoryBudgetError):
        run(graph, arguments, pieces="native")
