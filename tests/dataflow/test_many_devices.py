"""The dataflow engine agrees with the reference engine on one to four devices with ops placed at random.

The corpus and its gradients run with windows 1, 2 and 32, random orders of firing and delayed messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.dataflow_runs import at_random, run, short_delays
from instruments.tables import programs_at_orders, some
from programs import BY_NAME, PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad.errors import IndexOutOfRangeError
from ctrlgrad.execution import run_on

WAYS: tuple[dict[str, Any], ...] = (
    {"parallel_iterations": 1},
    {"parallel_iterations": 2, "order": 3, "delay": short_delays},
    {"parallel_iterations": 32, "order": 4},
    {"clusters": "whole", "parallel_iterations": 2},
    {"clusters": "none", "parallel_iterations": 32},
)


@programs_at_orders(0, 1, share=(1, 2))
def test_corpus(program: Program, order: int, request: pytest.FixtureRequest) -> None:
    graph, leaves = program.graph(order), program.leaves
    expected = program.expected(order)
    number = PROGRAMS.index(program) + order
    for turn in some((0, 1), 1, request.config):
        devices = 2 + (number + turn) % 3
        way = WAYS[(number + 2 * turn) % len(WAYS)]
        found, _ = run(graph, leaves, place=at_random(devices, number), **way)
        assert_same(found, expected)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["loop_in_a_branch_in_a_loop", "nested_data_dependent_counts"])
def test_nested_loops_in_many_placements(name: str, seed: int) -> None:
    graph, leaves = BY_NAME[name].graph(1), BY_NAME[name].leaves
    found, _ = run(graph, leaves, place=at_random(3, seed), order=seed, parallel_iterations=(1, 2, 3, 5, 32)[seed % 5])
    assert_same(found, run_on("reference", graph, leaves))


def test_shared_arrays_are_copied_before_changes() -> None:
    """A shared array is copied before a device changes it: one device sets a row, and the other reads the array in
    the same iteration."""

    def both(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, table, total = carry
            with cg.device("cpu:1"):
                total = total + table.sum()
            with cg.device("cpu:0"):
                table = table.at[i].set(-1.0)
            return i + 1, table, total

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, x, 0.0))

    arguments = [np.arange(40.0), np.asarray(30)]
    graph = cg.function(both).graph(*arguments)
    for order in range(5):
        assert_same(run(graph, arguments, order=order, delay=short_delays)[0], run_on("reference", graph, arguments))


def test_a_failure_on_one_device_stops_all_and_the_next_call_works() -> None:
    @cg.function(engine="dataflow")
    def f(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y, z = carry
            with cg.device("cpu:1"):
                y = y + x[i]
            with cg.device("cpu:2"):
                z = z * 1.01
            return i + 1, y, z

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.0, 1.0))

    for _ in range(3):
        with pytest.raises(IndexOutOfRangeError) as caught:
            f(np.ones(5), 50)
        assert caught.value.source.file == __file__
        assert "in iteration 5 of the while_loop" in str(caught.value)
        assert f(np.ones(5), 5)[1] == 5.0
