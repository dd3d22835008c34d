"""Division of integers by a constant power of two becomes bit operations, for either sign; other divisors stay
divisions."""

from __future__ import annotations

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.execution import run_on
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Compute, Kernel

X = np.array([-9, -8, -7, -1, 0, 1, 5, 1 << 62, -(1 << 63), (1 << 63) - 1])


@pytest.mark.parametrize("divisor", [1, 2, 8, 1 << 62, 3, -2, 0])
def test_divided_by_a_constant(divisor: int) -> None:
    divided = cg.function(lambda x: (x // divisor, x % divisor))
    is_power = divisor > 0 and divisor & (divisor - 1) == 0
    for x in (X, X[0], X[-2]):
        graph = optimised_graph(divided.graph(x))
        plan = engine.plan_of(graph, engine.shapes_of(graph, [x]))
        steps = [step for step in walk(plan.body) if isinstance(step, Kernel | Compute)]
        ops = {instruction.op for step in steps for instruction in step.expression.instructions}
        assert is_power != bool(ops & {"divide", "remainder"})
        for found, expected in zip(engine.run(graph, [x]), run_on("reference", graph, [x]), strict=True):
            np.testing.assert_array_equal(found, expected)
