"""Every plan passes the checker: plans of the corpus to second order, optimised and not, of small and of random
programs."""

from __future__ import annotations

import os

import pytest
from instruments.tables import programs_at_orders
from plan.plans import graph_of, placed
from plan.small_programs import SMALL
from programs import Program
from random_programs.engines import optimised_graphs
from random_programs.generate import generate

from ctrlgrad.engines import optimised_graph
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.decisions import check_vectors
from ctrlgrad.plan.chunks import loop_plan, loops_in_chunks
from ctrlgrad.plan.decisions import with_vectors
from ctrlgrad.plan.model import Plan
from ctrlgrad.plan.placement import place

# Number of random programs, each checked with its first and second derivative.
PROGRAMS_CHECKED = int(os.environ.get("CTRLGRAD_RANDOM_PLANS", "10"))
PER_RUN = 10


def check_all(plan: Plan) -> None:
    """Check the plan, for vectors of each width, and again with chunks of its loops run a second time."""
    for nbytes in (16, 32, 64):
        check_vectors(with_vectors(plan, nbytes), pytest.fail)
    check(plan)
    for found in loops_in_chunks(plan):
        if found.can_repeat:
            check(place(loop_plan(plan, found.loop).plan))


@pytest.mark.parametrize("name", SMALL)
def test_the_plan_of_a_small_program_holds(name: str) -> None:
    program = SMALL[name]
    graph = graph_of(program.fn, *program.arguments, order=program.order, signature=program.signature)
    check_all(placed(graph, program.arguments))


@programs_at_orders(0, 1, 2, share=(0, 2))
def test_the_plans_of_the_corpus_hold(program: Program, order: int) -> None:
    graph = program.graph(order)
    arguments = program.leaves
    for each in (graph, optimised_graph(graph)):
        check_all(placed(each, arguments))


@pytest.mark.parametrize("part", range(-(-PROGRAMS_CHECKED // PER_RUN)))
def test_the_plans_of_random_programs_hold(part: int) -> None:
    checked = 0
    for number in range(part * PER_RUN, (part + 1) * PER_RUN):
        program = generate(number)
        for graph in optimised_graphs(program):
            check_all(placed(graph, [a.value for a in program.arguments]))
            checked += 1
    assert checked >= PER_RUN
