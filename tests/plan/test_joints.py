"""Kernels over joined arrays become one with those that make the parts, where that saves something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Array, Kernel, Loop, Plan
from tests.plan.plans import graph_of, plan_of, unplaced

VECTOR = (cg.TensorSpec((None,)),)


def runge_kutta(x: Any) -> Any:
    def slope(y: Any) -> Any:
        return cnp.concat([x[:1], x[1:] * y[:-1]])

    def step(_: Any, y: Any) -> Any:
        k1 = slope(y)
        k2 = slope(y + 0.1 * k1)
        k3 = slope(y + 0.1 * k2)
        k4 = slope(y + 0.2 * k3)
        return y + 0.2 / 6 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    return cg.fori_loop(0, 4, step, cnp.zeros_like(x))


def euler(x: Any) -> Any:
    """What a later part needs of the carry is beside what would be written over it."""
    return cg.fori_loop(0, 4, lambda _, y: y + 0.1 * cnp.concat([x[:1], x[1:] * y[:-1]]), x * 0.5)


def several(x: Any) -> Any:
    """Three parts; two results of all of it; and a piece of the whole is read elsewhere."""
    joined = cnp.concat([np.sin(x[:2]), np.exp(-x[2:]) * 2.0, np.cos(x)])
    return joined * 3.0, np.tanh(joined) + joined, joined[1:] * 2.0


def rows(x: Any) -> Any:
    table = cnp.concat([x[:, None] * np.arange(3.0), x[:1, None] - np.arange(3.0)])
    return np.sqrt(abs(table)) + table * np.arange(3.0)


def halves(x: Any) -> Any:
    """Parts of one size: the second would be computed with the first."""
    return 1.0 / (2.0 + np.sin(cnp.concat([x * x, x + 1.0])))


def read_beside(x: Any) -> Any:
    joined = cnp.concat([x * 2.0, x * 3.0])
    return joined[1:] + joined[:-1], joined - 1.0


PROGRAMS = [runge_kutta, euler, several, rows, halves, read_beside]


def kernels(plan: Plan) -> list[Kernel]:
    return [step for step in walk(plan.body) if isinstance(step, Kernel)]


def in_loop(plan: Plan) -> tuple[list[Kernel], Loop]:
    loop = next(step for step in plan.body.steps if isinstance(step, Loop))
    return [step for step in loop.body.steps if isinstance(step, Kernel)], loop


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_those_of_the_whole(program: Callable[..., Any], dtype: str) -> None:
    native = cg.function(program, signature=(cg.TensorSpec((None,), dtype),), engine="native")
    for length in (1, 2, 3, 17, 300):
        x = np.random.default_rng(length).random(length).astype(dtype)
        found = native(x)
        with cg.options(engine="reference"):
            expected = program(x)
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == "float32" else 1e-12, strict=True)


def test_each_part_of_a_step_is_one_kernel_with_what_makes_it() -> None:
    found, loop = in_loop(plan_of(runge_kutta, np.ones(9), signature=VECTOR))
    # Four slopes, each of two parts; the whole of none is gone through.
    assert len(found) == 8
    assert not any(kernel.space == kernel.writes[0].view.array.shape for kernel in found)
    # What is carried on is updated in place, and the last slope is nowhere written.
    assert loop.body.moves == ()
    assert [len(kernel.writes) for kernel in found] == [2] * 6 + [1] * 2


def test_a_carry_that_a_later_part_reads_elsewhere_is_not_split() -> None:
    found, loop = in_loop(plan_of(euler, np.ones(9), signature=VECTOR))
    assert len(found) == 3 and loop.body.moves == ()


def test_a_whole_that_others_read_is_written_too() -> None:
    written = [w.view.array.name for k in kernels(plan_of(several, np.ones(9), signature=VECTOR)) for w in k.writes]
    assert len(written) == 10  # two results and the whole, of three parts each, and the piece
    written = [w.view.array.name for k in kernels(plan_of(rows, np.ones(9), signature=VECTOR)) for w in k.writes]
    assert len(written) == 2  # the result


@pytest.mark.parametrize(
    ("parts", "axis", "expected"),
    [
        ([(300,), (20,)], 0, 2),
        ([(100,), (20,)], 0, 3),  # short
        ([(100,), (101,), (102,), (103,)], 0, 4),
        ([(100,), (101,), (102,), (103,), (104,)], 0, 6),  # many
        ([(20, 30), (21, 30)], 0, 2),
        ([(20, 30), (20, 31)], 1, 3),  # side by side
        ([(1, 300), (1, 20)], 1, 2),
    ],
)
def test_long_wholes_of_few_parts_are_split(parts: list[tuple[int, ...]], axis: int, expected: int) -> None:
    arrays = [np.ones(shape) for shape in parts]

    def program(*arrays: Any) -> Any:
        return np.sin(cnp.concat([2.0 * a for a in arrays], axis=axis))

    assert len(kernels(plan_of(program, *arrays))) == expected


def test_without_fusion_nothing_is_split() -> None:
    x = np.ones(9)
    graph = graph_of(rows, x, signature=VECTOR)

    def over_the_whole(plan: Plan) -> int:
        (result,) = plan.results
        assert isinstance(result, Array)
        return sum(kernel.space == result.shape for kernel in kernels(plan))

    assert over_the_whole(unplaced(graph, [x], without=("fuse",))) > 0
    assert over_the_whole(unplaced(graph, [x])) == 0
