"""The dataflow engine agrees with the reference engine on one device: every program of the corpus and its gradient.

Windows are 1, 2 and 32, ops run one by one or in clusters, and ready nodes fire in order or at random.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from instruments.cards import registered
from instruments.comparing import assert_same
from instruments.dataflow_runs import run, settings_at_random
from instruments.stand_in import StandIn
from instruments.tables import programs_at_orders, some
from op_cases import MAKERS, cases_of
from op_cases.looped import FORMS, assert_each_agrees_in_one_form, assert_loop_agrees
from programs import BY_NAME, PROGRAMS, Program
from random_programs.campaign import Batch, run_batch
from random_programs.engines import Settings, judge
from random_programs.expected import UnsuitableError
from random_programs.generate import generate

from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph

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


# Every op on every dtype that it takes, in loops, agrees with the reference engine.


# Cases of an op in a short run, which starts at another case on each engine.
MOST, FIRST = 6, 1

by_dataflow = partial(run_on, "dataflow")


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op_agrees_with_the_reference_engine(op: str, request: pytest.FixtureRequest) -> None:
    assert_each_agrees_in_one_form(by_dataflow, some(cases_of(op), MOST, request.config, FIRST))


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op_in_every_form(op: str, form: str) -> None:
    assert_loop_agrees(by_dataflow, cases_of(op), form)


# The dataflow engine agrees with the reference engine on random programs and their gradients.
# CTRLGRAD_DATAFLOW_RANDOM_PROGRAMS is their number (20). Every other part also has devices `cuda:N`, on the stand-in.


# Duration of copies: none beyond the thread's own work, or longer than all other work.
COPIES = ({"latency": 0.0}, {"latency": 1.0})
RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_DATAFLOW_RANDOM_PROGRAMS", "20"))
PER_PART = 10


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // PER_PART)))
def test_random_programs(part: int) -> None:
    draw = random.Random(part)
    cuda = 2 * (part % 2)
    libraries = {f"cuda:{n}": StandIn(seed=part, **COPIES[n]) for n in range(cuda)}

    def by_dataflow(settings: Settings, graph: Graph, arguments: Sequence[Any], _: random.Random) -> list[Any]:
        return run(graph, arguments, **settings_at_random(draw, cuda))[0]

    examined = 0
    with registered(libraries):
        for number in range(part * PER_PART, (part + 1) * PER_PART):
            with suppress(UnsuitableError):
                judge(generate(number), Settings(orders=2), chosen=by_dataflow)
                examined += 1
    for library in libraries.values():
        library.copier().close()
    assert examined >= PER_PART // 2


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // (2 * PER_PART))))
def test_random_programs_within_budgets(part: int) -> None:
    settings = Settings("dataflow", budget=True)
    outcome = run_batch(Batch(1, part * 4, 4, settings))
    assert not outcome.failures, outcome.failures[0]
    assert outcome.compared["budgets"] > 0
