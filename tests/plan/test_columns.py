"""Columns of a matrix are laid out where a loop reduces its short rows and leaves it unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.plan.columns import MOST_ELEMENTS
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Block, Columns, Kernel, Loop, Plan
from tests.plan.plans import plan_of


def columns(block: Block) -> list[Columns]:
    """The column layouts of a block, without those of inner blocks."""
    return [step for step in block.steps if isinstance(step, Columns)]


def readers(plan: Plan) -> list[Kernel]:
    kernels = [step for step in walk(plan.body) if isinstance(step, Kernel)]
    return [kernel for kernel in kernels if any(operand.columns is not None for operand in kernel.operands)]


def distances(matrix: Any, points: Any) -> Any:
    start = cnp.zeros(matrix.shape[0])
    return cg.fori_loop(0, 3, lambda t, s: s + cnp.sum((matrix - points[t]) ** 2, axis=1), start)


def of_rows(reduce: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda matrix, points: cg.fori_loop(0, 3, lambda t, s: s + reduce(matrix * points[t]), 0.0)


@pytest.mark.parametrize(
    ("rows", "terms", "expected"),
    [(100, 8, 1), (8, 2, 1), (100, 16, 1), (1024, 16, 1), (7, 8, 0), (100, 17, 0), (1025, 16, 0), (100, 1, 0)],
)
def test_short_rows_of_near_matrices_have_columns(rows: int, terms: int, expected: int) -> None:
    plan = plan_of(distances, np.ones((rows, terms)), np.ones((3, terms)))
    assert len(columns(plan.body)) == len(readers(plan)) == expected
    for step in columns(plan.body):
        assert step.result.count.factor == rows * terms


def test_run_time_sizes_decide_on_columns() -> None:
    unknown = (cg.TensorSpec((None, None)),) * 2
    plan = plan_of(distances, np.ones((100, 99)), np.ones((3, 99)), signature=unknown)
    (step,) = columns(plan.body)
    assert step.result.count.factor == MOST_ELEMENTS
    assert [operand.columns is not None for operand in readers(plan)[0].operands] == [True, False]


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (lambda x: cnp.sum(cnp.max(x, axis=1)), 1),
        (lambda x: cnp.sum(cnp.argmin(x, axis=1)) * 1.0, 1),
        (lambda x: cnp.sum(x), 0),  # one number
        (lambda x: cnp.sum(cnp.sum(x, axis=0)), 0),  # columns are contiguous already
        (lambda x: cnp.sum(cnp.sum(x, axis=1)[::-1] * cnp.sum(x * 2.0)), 0),  # the kernel does other work
        (lambda x: cnp.sum(cnp.sum(x + 1j, axis=1).real), 0),
    ],
)
def test_kernels_that_only_reduce_rows_read_columns(reduce: Callable[[Any], Any], expected: int) -> None:
    plan = plan_of(of_rows(reduce), np.ones((30, 4)), np.ones((3, 4)))
    assert len(readers(plan)) == expected


def test_columns_are_laid_out_before_the_outermost_loop_that_leaves_the_matrix() -> None:
    def stays(matrix: Any, points: Any) -> Any:
        return cg.fori_loop(0, 3, lambda t, s: s * 0.5 + distances(matrix, points), cnp.zeros(30))

    def changes(matrix: Any, points: Any) -> Any:
        return cg.fori_loop(0, 3, lambda t, m: m + distances(m, points)[:, None], matrix)

    for program, outside, inside in ((stays, 1, 0), (changes, 0, 1)):
        plan = plan_of(program, np.ones((30, 4)), np.ones((3, 4)))
        (loop,) = (step for step in plan.body.steps if isinstance(step, Loop))
        assert (len(columns(plan.body)), len(columns(loop.body))) == (outside, inside)


def test_kernels_share_columns_of_one_matrix() -> None:
    def twice(matrix: Any, points: Any) -> Any:
        def body(t: Any, s: Any) -> Any:
            nearest = cnp.argmin(cnp.sum((matrix - points[t]) ** 2, axis=1))
            return s + cnp.sum((matrix - points[nearest]) ** 2, axis=1)

        return cg.fori_loop(0, 3, body, cnp.zeros(30))

    plan = plan_of(twice, np.ones((30, 4)), np.ones((30, 4)))
    assert len(columns(plan.body)) == 1 and len(readers(plan)) == 2


def test_nothing_is_laid_out_for_a_branch() -> None:
    def sometimes(matrix: Any, points: Any) -> Any:
        def body(t: Any, s: Any) -> Any:
            far = lambda: cnp.sum((matrix - points[t]) ** 2, axis=1)
            return cg.cond(t > 1, lambda: s + far(), lambda: s)

        return cg.fori_loop(0, 3, body, cnp.zeros(30))

    plan = plan_of(sometimes, np.ones((30, 4)), np.ones((3, 4)))
    assert not any(isinstance(step, Columns) for step in walk(plan.body))


def test_outside_of_loops_nothing_is_laid_out() -> None:
    plan = plan_of(lambda m, p: cnp.sum((m - p) ** 2, axis=1), np.ones((30, 4)), np.ones(4))
    assert not columns(plan.body)
