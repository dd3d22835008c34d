"""Functions of plans, and what they keep near, are in the plan's text; the checker rejects each wrong decision."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plan.plans import graph_of, placed
from plan.small_programs import SMALL
from programs import BY_NAME

import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.plan import decisions, outlining
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.decisions import MOST_LOCAL
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Piece, Plan
from ctrlgrad.plan.printer import format_plan


def scalar_loop() -> Plan:
    """A gradient whose two loops push and pop numbers."""
    program = BY_NAME["newton_iteration"]
    return placed(optimised_graph(program.graph(1)), program.leaves)


def sums_of_sums() -> Plan:
    """Small temporaries, which kernels and products leave for each other."""
    program = SMALL["update_of_what_is_read_elsewhere"]
    return placed(graph_of(program.fn, *program.arguments), program.arguments)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every plan into functions of one loop, or of one kernel."""
    monkeypatch.setattr(outlining, "WHOLE", 0)
    monkeypatch.setattr(outlining, "PIECE", 60)


def test_a_whole_plan_says_what_it_keeps_near() -> None:
    plan, text = scalar_loop(), format_plan(scalar_loop())
    assert not plan.pieces and plan.near
    assert f"  keep near: {', '.join(f'stack {handle}' for handle in plan.near)}\n" in text
    plan = sums_of_sums()
    lines = [line for line in format_plan(plan).splitlines() if ", on the machine's stack: " in line]
    assert [line.split(":")[0] for line in lines] == [f"  buffer b{number}" for number in plan.local] != []


def test_a_long_plan_says_what_each_function_keeps_near(cuts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sums_of_sums()
    text = format_plan(plan)
    assert not plan.near and not plan.local and len(plan.pieces) > 1
    assert [line for line in text.splitlines() if line.startswith("  function of ")] == [
        f"  function of {len(piece.steps)} steps: {', '.join(f'b{n}' for n in piece.local) or 'nothing'} near"
        for piece in plan.pieces.values()
    ]
    monkeypatch.setattr(outlining, "PIECE", 1500)
    plan = scalar_loop()
    (piece,) = plan.pieces.values()
    assert piece.steps == plan.body.steps and piece.near
    assert f"  function of {len(piece.steps)} steps: {', '.join(f'stack {h}' for h in piece.near)}" in format_plan(plan)


@pytest.mark.parametrize("name", ["update_of_what_is_read_elsewhere", "gradient_of_a_loop", "branch_that_passes_on"])
def test_a_temporary_of_several_functions_on_the_stack_of_one_is_rejected(
    name: str, cuts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = SMALL[name]
    graph = graph_of(program.fn, *program.arguments, order=program.order, signature=program.signature)
    check(placed(graph, program.arguments))
    right = outlining.touched
    monkeypatch.setattr(outlining, "touched", lambda plan, block: Counter(dict.fromkeys(right(plan, block), 1)))
    with pytest.raises(PlanError, match="where nothing lies"):
        check(placed(graph, program.arguments))


def test_a_temporary_on_the_stack_of_the_function_around_is_rejected(cuts: None) -> None:
    plan = sums_of_sums()
    buffers = range(len(plan.buffers))
    with pytest.raises(PlanError, match="where nothing lies"):
        check(replace(plan, local=outlining.local_buffers(plan, buffers)))


def test_a_result_on_the_machines_stack_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "local_buffers", lambda plan, numbers: tuple(numbers))
    with pytest.raises(PlanError, match="outlives the function"):
        check(sums_of_sums())


@pytest.mark.parametrize("elements", [MOST_LOCAL // 16 - 1, MOST_LOCAL // 16, MOST_LOCAL // 16 + 1])
def test_temporaries_that_are_too_large_for_the_machines_stack_are_rejected(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones((elements, 1))
    graph = graph_of(lambda x: cnp.cumsum(cnp.cumsum(x[:, 0])[::-1]), x)
    assert placed(graph, [x]).local == ()
    for name in ("SMALL", "MOST_SMALL"):
        monkeypatch.setattr(outlining, name, 1 << 30)
    plan = placed(graph, [x])
    assert sum(plan.buffers[n].count.factor for n in plan.local) == 2 * elements
    if 16 * elements <= MOST_LOCAL:
        check(plan)
    else:
        with pytest.raises(PlanError, match="bytes on the machine's stack"):
            check(plan)


def test_words_near_that_a_function_inside_changes_are_rejected(cuts: None) -> None:
    plan = scalar_loop()
    check(plan)
    assert len(plan.pieces) > 1
    for handle in set(plan.handles.values()):
        with pytest.raises(PlanError, match=f"the words of stack handle {handle} are kept by the function around"):
            check(replace(plan, near=(handle,)))


def test_functions_that_share_steps_are_rejected(cuts: None) -> None:
    plan = scalar_loop()
    (inner, *_), outer = plan.pieces.values(), plan.body.steps
    assert inner.steps[0] in walk(plan.body)
    wrong: list[dict[Any, Piece]] = [
        plan.pieces | {outer[0]: Piece(outer)},
        {inner.steps[0]: Piece((*inner.steps, outer[-1], outer[0]))},
    ]
    for pieces in wrong:
        with pytest.raises(PlanError, match="the steps of a function do not follow one another"):
            check(replace(plan, pieces=pieces))
