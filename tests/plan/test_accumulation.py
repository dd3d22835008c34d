"""Products that are added to a value accumulate into it by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.plan_machine import execute
from plan.plans import graph_of, reference_kernel, unplaced

import ctrlgrad as cg
from ctrlgrad.plan import PASSES
from ctrlgrad.plan.accumulation import accumulate
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel, Plan, Product
from ctrlgrad.plan.placement import place

A, B, C, D = (np.random.default_rng(k).normal(size=(5, 5)) for k in range(4))


def accumulated(fn: Any, *arguments: Any) -> Plan:
    """The plan with accumulating products, after a check that its execution gives the function's results."""
    plan = accumulate(unplaced(graph_of(fn, *arguments), arguments, without=PASSES))
    found = execute(place(plan), [x.copy() for x in arguments], reference_kernel)
    expected = fn(*arguments)
    for result, value in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-13)
    return plan


def adding(plan: Plan) -> int:
    """Number of products that accumulate, including those in loops and branches."""
    return sum(isinstance(step, Product) and step.base is not None for step in walk(plan.body))


def sums(plan: Plan) -> list[tuple[str, str, str]]:
    """Factors and base of each accumulating product, by the names of the plan's arguments."""
    names = dict(zip(plan.arguments, "abcd", strict=False))
    return [
        (names[step.a.array], names[step.b.array], names.get(step.base, "a product"))  # type: ignore[arg-type]
        for step in plan.body.steps
        if isinstance(step, Product) and step.base is not None
    ]


def count(plan: Plan, kind: type) -> int:
    return sum(isinstance(step, kind) for step in plan.body.steps)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_sum_of_a_product_and_something_else(dtype: Any) -> None:
    a, b, c = (x.astype(dtype) for x in (A, B, C))
    plan = accumulate(unplaced(graph_of(lambda a, b, c: a @ b + c, a, b, c), (a, b, c), without=PASSES))
    assert sums(plan) == [("a", "b", "c")] and count(plan, Kernel) == 0


def test_either_side_of_the_sum() -> None:
    assert sums(accumulated(lambda a, b, c: c + a @ b, A, B, C)) == [("a", "b", "c")]


def test_of_two_products_the_later_is_added() -> None:
    plan = accumulated(lambda a, b, c, d: a @ b + c @ d, A, B, C, D)
    assert sums(plan) == [("c", "d", "a product")] and count(plan, Product) == 2


def test_a_sum_that_another_kernel_reads_stays_there() -> None:
    plan = accumulated(lambda a, b, c: np.tanh(a @ b + c), A, B, C)
    assert sums(plan) == [] and count(plan, Kernel) == 2


def test_a_product_that_is_read_twice_stays_a_product() -> None:
    assert sums(accumulated(lambda a, b, c: (a @ b + c, a @ b), A, B, C)) == []


def test_a_product_added_to_itself_stays_a_product() -> None:
    def doubled(a: Any, b: Any) -> Any:
        product = a @ b
        return product + product

    assert sums(accumulated(doubled, A, B)) == []


def test_a_row_that_is_added_to_all_rows_is_no_sum_of_arrays() -> None:
    assert sums(accumulated(lambda a, b, c: a @ b + c, A, B, C[0])) == []


def test_a_difference_stays_a_kernel() -> None:
    assert sums(accumulated(lambda a, b, c: a @ b - c, A, B, C)) == []


def test_sums_of_a_loops_iterations() -> None:
    plan = accumulated(lambda a, b, c: cg.fori_loop(0, 3, lambda t, c: (a * t) @ b + c, c), A, B, C)
    assert adding(plan) == 1 and sums(plan) == []


def test_sums_of_branches() -> None:
    def fn(a: Any, b: Any, c: Any) -> Any:
        return cg.cond(a[0, 0] > b[0, 0], lambda: a @ b + c, lambda: c + b @ a)

    assert adding(accumulated(fn, A, B, C)) == 2
