"""Random programs of which rounding makes something else are not held against an engine, and hide no mistake of one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from random_programs import engines
from random_programs.choices import Choices
from random_programs.conditioning import FACTOR, spread
from random_programs.engines import Settings, judge
from random_programs.expected import ProgramMismatch, UnsuitableError
from random_programs.generate import write
from random_programs.kinds import SCALAR, Variable
from random_programs.program import Argument, Block, Carried, For, Line, Program, Structure

import ctrlgrad as cg
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run, interpret
from ctrlgrad.ir import Graph

Change = Callable[[Callable[..., Any]], Callable[..., Any]]


def mutant(op: str, change: Change) -> Kernels:
    """The reference engine with another kernel for one op."""
    entry = REFERENCE.pure[op]
    changed = lambda node: change(entry(node))
    return Kernels(
        f"mutant of {op} {id(change)}", {**REFERENCE.pure, op: changed}, REFERENCE.in_place, REFERENCE.control
    )


def run_by(kernels: Kernels) -> engines.Runner:
    def run(settings: Settings, graph: Graph, arguments: Sequence[Any], draw: random.Random) -> list[Any]:
        return interpret(graph, arguments, Run(), kernels)

    return run


def without_last(x: Any) -> Any:
    found = np.array(x)
    found[..., -1:] = 0
    return found


SWAPPED = mutant("subtract", lambda kernel: lambda a, b: kernel(b, a))
TERM_DROPPED = mutant("sum", lambda kernel: lambda x: kernel(without_last(x) if x.ndim else x))
ROW_OFF_BY_ONE = mutant("getitem", lambda kernel: lambda x, *at: kernel(np.roll(x, 1, 0) if x.ndim else x, *at))
INACCURATE = mutant("cos", lambda kernel: lambda x: kernel(x) * (1.0 + 1e-8))


def logistic(iterations: int) -> Program:
    """The logistic map, whose error doubles with every iteration."""
    body = Block((Line("v5", "3.99 * c3 * (1.0 - c3)", "3.99 * c3 * (1.0 - c3)", "update"),), ("v5",))
    loop = For("i4", "0", str(iterations), (Carried("c3", "x1", "v6"),), Structure("bare"), body)
    argument = Argument(Variable("x1", SCALAR), np.asarray(0.37))
    return Program((argument,), Block((loop,), ("v6",)), (SCALAR,), cuts=False)


def rounded_otherwise(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: kernel(a, b) * (1.0 + 2.0**-52)


def test_the_spread_of_results_is_what_rounding_makes_of_them() -> None:
    """Within the last places of a number after one step; ten more iterations take it a thousand times as far."""

    def found(iterations: int) -> float:
        step = lambda i, x: 3.99 * x * (1.0 - x)
        graph = cg.function(lambda x: cg.fori_loop(0, iterations, step, x)).graph(0.37)
        (result,) = spread(graph, [np.asarray(0.37)], interpret(graph, [np.asarray(0.37)], Run(), REFERENCE))
        return result

    assert 0.0 < found(1) < 1e-15 and found(10) < 1e-12
    assert 1e3 * found(10) < found(30) < 1e7 * found(10)


def test_whole_numbers_and_moved_ones_do_not_spread() -> None:
    graph = cg.function(lambda x: (np.floor(x * 3.0), x[::-1], x + x)).graph(np.arange(4.0))
    arguments = [np.arange(4.0)]
    assert spread(graph, arguments, interpret(graph, arguments, Run(), REFERENCE)) == [0.0, 0.0, 0.0]


def test_a_difference_that_rounding_explains_is_counted() -> None:
    compared = judge(logistic(30), Settings("reference", orders=1), 1, run_by(mutant("multiply", rounded_otherwise)))
    assert compared["differences that rounding explains"] == 1
    assert not judge(logistic(3), Settings("reference"), 1, run_by(mutant("multiply", rounded_otherwise)))[
        "differences that rounding explains"
    ]


@pytest.mark.parametrize(
    "kernels", [SWAPPED, mutant("multiply", lambda k: lambda a, b: k(a, b) * (1 + 1e3 * FACTOR * 2.0**-52))]
)
def test_more_than_rounding_explains_is_found_in_a_chaotic_program(kernels: Kernels) -> None:
    with pytest.raises(ProgramMismatch, match="result 0"):
        judge(logistic(30), Settings("reference", orders=1), 1, run_by(kernels))


def found_of(kernels: Kernels, programs: Sequence[Program]) -> set[int]:
    """The programs in which an engine's mistake is found."""
    found = set()
    for number, program in enumerate(programs):
        try:
            judge(program, Settings("reference"), 1, run_by(kernels))
        except ProgramMismatch:
            found.add(number)
        except UnsuitableError:
            pass
    return found


@pytest.mark.parametrize(
    ("kernels", "least"),
    [(SWAPPED, 3), (TERM_DROPPED, 3), (ROW_OFF_BY_ONE, 2), (INACCURATE, 3)],
    ids=("operands swapped", "a term dropped", "a row off by one", "a function of eight digits"),
)
def test_conditioning_hides_no_mistake(kernels: Kernels, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [write(Choices(random.Random(f"424201 {number}"))) for number in range(12)]
    found = found_of(kernels, programs)
    monkeypatch.setattr(engines, "explains", lambda *judged: False)
    assert found == found_of(kernels, programs)
    assert len(found) >= least
