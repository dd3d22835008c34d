"""Devices `cuda:N` agree with the reference engine, on the stand-in, whatever copies beside the computation take.

The corpus and its gradients over cpu:0 and one or two cuda devices with ops placed at random, windows 1, 2 and 32, and
random orders. Copies take their time, by threads or by a clock, and memory is poison until they are over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.cards import COPIES, Cards, among
from instruments.comparing import assert_same
from instruments.dataflow_runs import run, short_delays
from instruments.tables import programs_at_orders, some
from programs import BY_NAME, PROGRAMS, Program

from ctrlgrad.engines.cuda.devices import registered
from ctrlgrad.execution import run_on

WAYS: tuple[dict[str, Any], ...] = (
    {"parallel_iterations": 1},
    {"parallel_iterations": 2, "order": 3, "delay": short_delays},
    {"parallel_iterations": 32, "order": 4},
    {"clusters": "whole", "parallel_iterations": 2},
    {"clusters": "none", "parallel_iterations": 32},
)
DEVICES = (["cuda:0"], ["cpu:0", "cuda:0"], ["cpu:0", "cuda:0", "cuda:1"])


@programs_at_orders(0, 1, share=(0, 2))
def test_corpus(program: Program, order: int, request: pytest.FixtureRequest) -> None:
    graph, leaves = program.graph(order), program.leaves
    expected = program.expected(order)
    number = PROGRAMS.index(program) + order
    found = Cards(COPIES[number % 3])
    with registered({name: lambda library=library: library for name, library in found.libraries.items()}):
        for turn, names in some(tuple(enumerate(DEVICES)), 1, request.config, number // 3):
            way = WAYS[(number + 2 * turn) % len(WAYS)]
            results, _ = run(graph, leaves, place=among(names, number + turn), **way)
            assert_same(results, expected)
            assert all(isinstance(x, np.ndarray | np.generic) for x in results)
    found.assert_nothing_is_left()
    for library in found.libraries.values():
        library.copier().close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["loop_in_a_branch_in_a_loop", "nested_data_dependent_counts", "triple_nesting"])
def test_nested_loops_in_many_placements(cards: Cards, name: str, seed: int) -> None:
    graph, leaves = BY_NAME[name].graph(1), BY_NAME[name].leaves
    place = among(["cpu:0", "cuda:0", "cuda:1"], seed)
    found, _ = run(graph, leaves, place=place, order=seed, parallel_iterations=(1, 2, 3, 32)[seed])
    assert_same(found, run_on("reference", graph, leaves))
    cards.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["lstm", "early_exit"])
def test_second_order(cards: Cards, name: str) -> None:
    graph, leaves = BY_NAME[name].graph(2), BY_NAME[name].leaves
    expected = run_on("reference", graph, leaves)
    for names in (["cuda:0"], ["cpu:0", "cuda:1"]):
        assert_same(run(graph, leaves, place=among(names, 5))[0], expected)
    cards.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["lstm", "nested_data_dependent_counts", "early_exit"])
def test_loops_that_stay_whole(cards: Cards, name: str) -> None:
    graph, leaves = BY_NAME[name].graph(1), BY_NAME[name].leaves
    found, outcome = run(graph, leaves, loops="whole", place=lambda node: "cuda:0")
    assert_same(found, run_on("reference", graph, leaves))
    assert outcome.counts["cuda:0"].frames_opened == 1
