"""Buffers are released with the last step that uses them, and the checker judges each release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plan.plans import graph_of, placed

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.effects import blocks_of, defines, reads, walk
from ctrlgrad.plan.model import Array, Block, Loop, Plan, Release, Stack
from ctrlgrad.plan.printer import format_plan

X, N = np.linspace(0.0, 1.0, 5), np.int64(4)


def collecting(x: Any, n: Any) -> Any:
    """A loop collects rows into one array whose size is known only at run time."""
    _, rows = cg.scan(lambda total, v: (total + v, np.sin(total) * x), 0.0, x[:n])
    return cnp.sum(cnp.sort(rows, axis=0)[0])


def looping(x: Any, n: Any) -> Any:
    """A value from before the loop is live in each iteration; a value of an iteration is live only in it."""
    first = cnp.sort(x[:n])

    def body(carry: Any) -> Any:
        i, total = carry
        return i + 1, total + cnp.sum(cnp.sort(first * total)[:2])

    return cg.while_loop(lambda c: c[0] < n, body, (0, 1.0))[1]


def test_rows_that_are_read_in_place_keep_their_stack() -> None:
    plan = placed(graph_of(collecting, X, N), (X, N))
    (rows,) = (array for array, place in plan.places.items() if place.kind == "row")
    last = [step for step in plan.body.steps if rows in reads(step)][-1]
    (handle,) = set(plan.handles.values())
    assert [step for step, found in plan.releases.items() if handle in found.stacks] == [last]
    assert f"release stack {handle}" in format_plan(plan)


def test_outer_arrays_of_a_loop_are_released_after_it() -> None:
    plan = placed(graph_of(looping, X, N), (X, N))
    (loop,) = (step for step in plan.body.steps if isinstance(step, Loop))
    inside = {n for step in walk(loop.body) for n in plan.releases.get(step, Release()).buffers}
    after = set(plan.releases[loop].buffers)
    assert inside and after and not inside & after


def moved_earlier(plan: Plan) -> Iterator[Plan]:
    """The plan with one release moved to the step before."""
    for block in blocks_in(plan.body):
        for before, step in zip(block.steps, block.steps[1:], strict=False):
            mine = plan.releases.get(step)
            if mine is None or blocks_of(before):
                continue
            made = set(defines(before)) | set(defines(step))
            needed = [v for v in reads(step) if v not in made]
            buffers = {
                plan.places[v].number for v in needed if isinstance(v, Array) and plan.places[v].kind == "buffer"
            }
            stacks = {plan.handles[v] for v in needed if isinstance(v, Stack)}
            if any(plan.places[v].kind == "row" for v in needed if isinstance(v, Array)):
                stacks |= set(mine.stacks)
            early = Release(
                tuple(b for b in mine.buffers if b in buffers), tuple(s for s in mine.stacks if s in stacks)
            )
            if early != Release():
                yield replace(plan, releases={**plan.releases, before: early})


def blocks_in(block: Block) -> Iterator[Block]:
    yield block
    for step in block.steps:
        for inner in blocks_of(step):
            yield from blocks_in(inner)


@pytest.mark.parametrize("function", [collecting, looping])
def test_the_checker_finds_what_is_released_too_early(function: Any) -> None:
    plan = placed(graph_of(function, X, N), (X, N))
    check(plan)
    mutants = list(moved_earlier(plan))
    assert mutants
    for mutant in mutants:
        with pytest.raises(PlanError):
            check(mutant)
