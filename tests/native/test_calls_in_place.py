"""Elementary functions of numbers are inlined in innermost loops, and work that two functions share is done once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.passes import optimise
from ctrlgrad.plan.decisions import MOST_INLINED, with_vectors
from ctrlgrad.plan.printer import format_plan


def _text(function: Any, *arguments: Any) -> str:
    graph = optimise(cg.function(function).graph(*arguments))
    return PlanWriter(with_vectors(engine.plan_of(graph, engine.shapes_of(graph, arguments)), 32)).function("plan")


def _repeated(step: Any) -> Any:
    return lambda x, n: cg.fori_loop(0, n, lambda _, x: step(x), x)


def _turned(x: Any) -> Any:
    return cnp.sin(x) * 0.7 + cnp.cos(x)


ARGUMENTS = np.float64(0.3), np.int64(7)


def test_a_sine_and_a_cosine_reduce_their_angle_once() -> None:
    text = _text(_repeated(_turned), *ARGUMENTS)
    assert "call double @cg_" not in text
    assert text.count("double 0x3FE45F306DC9C883") == 1  # 2 / pi


def test_outside_of_loops_and_around_inner_ones_functions_are_called() -> None:
    def outer(x: Any) -> Any:
        return cg.while_loop(lambda x: x > 1.0, lambda x: 0.5 * cnp.exp(-x), cnp.sin(x))

    text = _text(lambda x, n: cnp.tanh(_repeated(outer)(x, n)), *ARGUMENTS)
    assert text.count("call double @cg_sin_float64") == text.count("call double @cg_tanh_float64") == 1
    assert "cg_exp" not in text


@pytest.mark.parametrize(
    ("count", "is_inline"), [(0, False), (1, True), (MOST_INLINED, True), (MOST_INLINED + 1, False)]
)
def test_the_text_of_a_plan_says_which_loops_inline(count: int, is_inline: bool) -> None:
    def step(x: Any) -> Any:
        for k in range(count):
            x = cnp.sin(x + k)
        return x * 0.5

    graph = optimise(cg.function(_repeated(step)).graph(*ARGUMENTS))
    plan = engine.plan_of(graph, engine.shapes_of(graph, ARGUMENTS))
    assert ("elementary functions inline" in format_plan(plan)) == is_inline == bool(plan.inlined)


def test_a_loop_of_many_calls_stays_short() -> None:
    def many(x: Any) -> Any:
        for k in range(MOST_INLINED + 1):
            x = cnp.sin(x + k)
        return x

    text = _text(_repeated(many), *ARGUMENTS)
    assert text.count("call double @cg_sin_float64") == MOST_INLINED + 1


def test_branches_in_a_loop_compute_what_they_share_each_for_itself() -> None:
    def step(x: Any) -> Any:
        return cg.cond(x > 0.0, lambda: cnp.sin(x) - 1.0, lambda: cnp.cos(x) + cnp.sin(x))

    function = cg.function(_repeated(step), engine="native")
    with cg.options(engine="reference"):
        expected = [_repeated(step)(np.float64(x), np.int64(50)) for x in (0.3, -2.0, 40.0)]
    found = [function(np.float64(x), np.int64(50)) for x in (0.3, -2.0, 40.0)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_angles_beyond_the_formula_in_a_loop() -> None:
    function = cg.function(_repeated(lambda x: 3e9 * _turned(x)), engine="native")
    angle = np.float64(5e8)
    expected = 3e9 * (np.sin(angle) * 0.7 + np.cos(angle))
    np.testing.assert_allclose(function(angle, np.int64(1)), expected, rtol=1e-12)
    for special in (np.inf, np.nan):
        assert np.isnan(function(np.float64(special), np.int64(2)))


def test_the_gradient_is_that_of_the_reference_engine() -> None:
    def loss(x: Any, a: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, x, total = carry
            x = a * cnp.sin(x) + cnp.exp(-x) * cnp.cos(x)
            return i + 1, x, total + x * x

        return cg.while_loop(lambda c: (c[0] < n) & (c[1] < 1e3), body, (0, x, 0.0))[2]

    gradient = cg.grad(loss, argnums=(0, 1))
    given = np.float64(0.4), np.float64(1.1), np.int64(20)
    found = cg.function(gradient, engine="native")(*given)
    with cg.options(engine="reference"):
        np.testing.assert_allclose(found, gradient(*given), rtol=1e-11)
    step = 1e-6
    sides = [loss(given[0] + s * step, *given[1:]) for s in (1.0, -1.0)]
    np.testing.assert_allclose(found[0], (sides[0] - sides[1]) / (2 * step), rtol=1e-6)
