"""The dataflow engine agrees with the reference engine on one device: every program of the corpus and its gradient.

For windows 1, 2 and 32, ops run one by one or in clusters, and what is ready fires in order or at random.
"""

from __future__ import annotations

from typing import Any

import pytest
from instruments.comparing import assert_same
from instruments.dataflow_runs import run
from instruments.tables import programs_at_orders, some
from programs import BY_NAME, PROGRAMS, Program

from ctrlgrad.execution import run_on

WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"clusters": "none", "parallel_iterations": 1},
    {"clusters": "none", "parallel_iterations": 2, "order": 1},
    {"clusters": "flowing", "parallel_iterations": 32, "order": 2},
)


@programs_at_orders(0, 1, share=(0, 2))
def test_corpus(program: Program, order: int, request: pytest.FixtureRequest) -> None:
    graph, leaves = program.graph(order), program.leaves
    before = [x.copy() for x in leaves]
    expected = program.expected(order)
    for way in some(WAYS, 1, request.config, PROGRAMS.index(program) // 2):
        found, outcome = run(graph, leaves, **way)
        assert_same(found, expected)
        assert list(outcome.counts) == ["cpu:0"]
    assert_same(leaves, before, 0.0)


@pytest.mark.parametrize("name", ["lstm", "loop_in_a_branch_in_a_loop", "nested_data_dependent_counts"])
def test_second_order(name: str) -> None:
    graph, leaves = BY_NAME[name].graph(2), BY_NAME[name].leaves
    expected = run_on("reference", graph, leaves)
    for way in WAYS:
        assert_same(run(graph, leaves, **way)[0], expected)


@pytest.mark.parametrize("name", ["lstm", "nested_data_dependent_counts", "early_exit"])
def test_loops_that_stay_whole(name: str) -> None:
    graph, leaves = BY_NAME[name].graph(1), BY_NAME[name].leaves
    found, outcome = run(graph, leaves, loops="whole")
    assert_same(found, run_on("reference", graph, leaves))
    assert outcome.counts["cpu:0"].frames_opened == 1
