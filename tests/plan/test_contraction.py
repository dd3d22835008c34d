"""Sums of products are contracted to FMA, with one rounding a product; nothing else is contracted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import without_passes
from ctrlgrad.engines.native import target
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel
from tests.plan.plans import graph_of, plan_of, unplaced

X = np.linspace(0.1, 2.0, 12).reshape(4, 3)


@pytest.mark.parametrize(
    ("program", "dtype", "expected"),
    [
        (lambda x: cnp.sum(x * x), "f8", ["dot"]),
        (lambda x: cnp.sum(x * np.sin(x), axis=0), "f4", ["dot"]),
        (lambda x: cnp.sum(x * x) + cnp.sum(x * 2.0), "f8", ["dot", "dot"]),
        (lambda x: cnp.sum(x + x * x), "f8", ["sum"]),
        (lambda x: cnp.max(x * x), "f8", ["max"]),
        (lambda x: cnp.sum(x * x), "i8", ["sum"]),
        (lambda x: cnp.sum(x * x), "c16", ["sum"]),
        (lambda x: cnp.sum(x * x), "f2", ["sum"]),
        (lambda x: (x * x, cnp.sum(x * x)), "f8", ["store", "sum"]),
        (lambda x: (cnp.sum(x * x), cnp.sum((x * x) / 3.0)), "f8", ["sum", "sum"]),
    ],
)
def test_products_that_are_only_added_are_contracted(
    program: Callable[[Any], Any], dtype: str, expected: list[str]
) -> None:
    plan = plan_of(program, X.astype(dtype))
    hows = [write.how for step in walk(plan.body) if isinstance(step, Kernel) for write in step.writes]
    assert [how for how in hows if how != "store" or "store" in expected] == expected


def test_the_pass_can_be_left_out() -> None:
    graph = graph_of(lambda x: cnp.sum(x * x), X)
    for without, how in (((), "dot"), (("contract",), "sum")):
        (kernel,) = (s for s in walk(unplaced(graph, [X], without=without).body) if isinstance(s, Kernel))
        assert [write.how for write in kernel.writes] == [how]


@pytest.mark.skipif(not target.host().has("fma"), reason="this processor rounds twice")
def test_a_product_is_rounded_once_with_its_sum() -> None:
    """Each lane adds -1 and (1 + e)(1 - e), which rounds to 1 on its own: only a contracted sum is below zero."""
    ones, step = np.ones(64), np.full(64, 2.0**-30)
    x, y = np.concatenate([ones, ones + step]), np.concatenate([-ones, ones - step])
    function = cg.function(lambda x, y: cnp.sum(x * y), engine="native")
    assert function(x, y) < 0.0
    with without_passes("contract"):
        assert function(x, y) == 0.0
