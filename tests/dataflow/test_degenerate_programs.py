"""Branches and loops with almost empty bodies: the dataflow engine agrees with the reference engine in every cut.

CTRLGRAD_DEGENERATE_PROGRAMS is the number of random programs (40).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from degenerate_programs import defined, degenerate_program
from instruments.comparing import assert_same
from instruments.dataflow_runs import at_random, run, settings_at_random

import ctrlgrad as cg
from ctrlgrad.dataflow import FlatBuilder
from ctrlgrad.dataflow.plan import CUTS
from ctrlgrad.execution import run_on
from ctrlgrad.ir import BOOL, INDEX, Graph

PARTS, PROGRAMS = 4, int(os.environ.get("CTRLGRAD_DEGENERATE_PROGRAMS", "40"))


def graphs(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Iterator[Graph]:
    """A function and its gradient with respect to its first two arguments."""

    def loss(*given: Any) -> Any:
        return sum((1.0 + k) * y for k, y in enumerate(function(*given)))

    for traced in (function, cg.grad(loss, argnums=(0, 1))):
        yield cg.function(traced).graph(*arguments)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_degenerate_programs(part: int) -> None:
    for number in range(part, PROGRAMS, PARTS):
        draw = random.Random(number)
        text = degenerate_program(draw)
        seen: list[Any] = []
        arguments = (np.float64(0.7), np.float64(-0.3), np.int64(draw.choice((0, 1, 2))))
        for graph in graphs(defined(text, seen), arguments):
            expected, seen_then = run_on("reference", graph, arguments), seen.copy()
            # Most loops stay whole.
            ways = settings_at_random(draw) | {"clusters": draw.choice(("whole", "whole", "flowing", "none"))}
            seen.clear()
            try:
                assert_same(run(graph, arguments, **ways)[0], expected)
                assert seen == seen_then
            except Exception as error:
                raise AssertionError(f"program {number}, {ways}: {error}\n\n{text}") from error
            seen.clear()


def agrees(function: Callable[..., Any]) -> None:
    """Check that a function agrees on one device and on two, in every cut, for each index."""
    for k in (0, 1, 2):
        arguments = (np.float64(0.7), np.float64(-0.3), np.int64(k))
        for graph in graphs(function, arguments):
            expected = run_on("reference", graph, arguments)
            for cut in CUTS:
                for devices in (1, 2):
                    found, _ = run(graph, arguments, clusters=cut, place=at_random(devices, k))
                    assert_same(found, expected)


def test_a_cond_of_constants_after_ops_that_its_predicate_waits_for() -> None:
    agrees(lambda x, y, k: (cg.fori_loop(0, 4, lambda i, c: c * y + cg.cond(c > 0.3, lambda: 1.5, lambda: -0.5), x),))


def test_a_switch_of_one_branch_inside_a_cond() -> None:
    def f(x: Any, y: Any, k: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            inner = cg.cond(c > 0.3, lambda: cg.switch(i, [lambda: c * y]), lambda: cg.switch(k, [lambda: 0.5]))
            return inner + c * 0.5

        return (cg.fori_loop(0, 3, body, x),)

    agrees(f)


def test_a_switch_of_one_branch_around_a_cond_that_passes_everything_through() -> None:
    def f(x: Any, y: Any, k: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            a, b = c
            a, b = cg.switch(i, [lambda: cg.cond(a > 0.3, lambda: (a, b), lambda: (a, b))])
            return a * 0.5 + b, b

        return cg.fori_loop(0, 3, body, (x, y))

    agrees(f)


def test_one_index_that_chooses_among_one_two_and_three_branches() -> None:
    """One index chooses among two and among three branches: side 1 of two is alive where side 1 of three may be
    dead."""

    def f(x: Any, y: Any, k: Any) -> Any:
        a, b, c = cg.switch(k, [lambda: (x, y, y), lambda: (y, y, x)])
        d = cg.switch(k, [lambda: a, lambda: b, lambda: b])
        return x, y, a, b, c, d, d * 0.5

    agrees(f)


def outputs_of(b: FlatBuilder, outputs: list[Any], arguments: list[Any]) -> None:
    graph = b.finish(outputs)
    expected, _ = run(graph, arguments, clusters="none")
    for cut in CUTS:
        assert_same(run(graph, arguments, clusters=cut)[0], expected)


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_a_merge_of_some_sides_is_dead_where_they_all_are(chosen: int) -> None:
    """A Merge of some sides is dead where all of them are dead, so its readers share no cluster with ops that always
    run."""
    b = FlatBuilder()
    k, x = b.input(INDEX, "k"), b.input(INDEX, "x")
    zero, one, two = b.switch(k, x, sides=3)
    some = b.merge(one, two)
    every = b.merge(*b.switch(k, x, sides=3))
    always = b.op("add", [every, every])
    sometimes = b.op("multiply", [some, some])
    outputs_of(b, [b.merge(b.op("subtract", [zero, zero]), sometimes), always], [np.int64(chosen), np.int64(5)])


@pytest.mark.parametrize("chosen", [False, True])
def test_an_op_waits_for_a_constant_that_alone_says_when_it_runs(chosen: bool) -> None:
    """An op runs only if its constant does, as an operand and as a control: a copy of the constant in the op's
    cluster would always be there."""
    b = FlatBuilder()
    p, x = b.input(BOOL, "p"), b.input(INDEX, "x")
    false, true = b.switch(p, x)
    here = b.constant(np.int64(3), controls=[true])
    as_operand = b.op("add", [x, here])
    as_control = b.op("subtract", [x, x], controls=[here])
    outputs_of(b, [b.merge(false, as_operand), b.merge(false, as_control)], [np.bool_(chosen), np.int64(5)])
