"""Checked execution agrees with the reference engine, and reports faults of a plan."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from instruments.plan_machine import RunEndedError, drawn_parts, execute
from instruments.tables import programs_at_orders
from plan.plans import graph_of, placed, plan_of, reference_kernel
from plan.small_programs import SMALL, x5
from programs import Program
from random_programs.engines import optimised_graphs
from random_programs.generate import generate

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Graph
from ctrlgrad.plan import PASSES
from ctrlgrad.plan.checking import steps
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Assumption, Kernel

RANDOM_PROGRAMS, PER_RUN = 8, 4


def agree(
    graph: Graph,
    arguments: list[Any],
    rtol: float = 1e-9,
    without: Collection[str] = (),
    dropped: frozenset[Assumption] = frozenset(),
) -> None:
    """Compare with the reference engine, by one thread and by several."""
    expected = run_graph(graph, arguments)
    plan = placed(graph, arguments, without, dropped)
    for threads in (None, random.Random(0)):
        found = execute(plan, arguments, reference_kernel, rows_per_block=2, threads=threads, repeats=threads is None)
        for a, b in zip(found, expected, strict=True):
            assert np.asarray(a).dtype == np.asarray(b).dtype
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_small_programs(name: str) -> None:
    program = SMALL[name]
    graph = graph_of(program.fn, *program.arguments, order=program.order, signature=program.signature)
    agree(graph, [np.asarray(x) for x in program.arguments])


@programs_at_orders(0, 1, 2, share=(1, 3))
def test_the_corpus(program: Program, order: int) -> None:
    agree(optimised_graph(program.graph(order)), program.leaves)


@programs_at_orders(0, 1, 2, share=(0, 3))
def test_the_corpus_without_passes_over_plans(program: Program, order: int) -> None:
    """Without fusion and packing the corpus gives the same results."""
    graph = optimised_graph(program.graph(order))
    agree(graph, program.leaves, without=PASSES)


@pytest.mark.parametrize("part", range(RANDOM_PROGRAMS // PER_RUN))
def test_random_programs(part: int) -> None:
    compared = 0
    for number in range(part * PER_RUN, (part + 1) * PER_RUN):
        program = generate(1000 + number)
        arguments = [a.value for a in program.arguments]
        for graph in optimised_graphs(program):
            try:
                run_graph(graph, arguments)
            except CtrlgradError:
                continue
            try:
                agree(graph, arguments, rtol=1e-7)
            except RunEndedError as ended:
                # The run met sizes against the plan's assumption, so the engine would make another plan.
                if ended.status == "size":
                    continue
                assert ended.status in get_args(Assumption)
                agree(graph, arguments, rtol=1e-7, dropped=frozenset([ended.status]))
            compared += 1
    assert compared >= PER_RUN


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint8", "uint64", "float16", "float32", "complex64"])
def test_numbers_of_every_kind(dtype: str) -> None:
    x = np.array([[1, 0, 3], [2, 5, 1]]).astype(dtype)

    def fn(x: Any) -> Any:
        y = cnp.where(x == x[::-1], x, cnp.flip(x))
        return y.T, cnp.sum(y, axis=0), cnp.at(y)[0].set(y[1]), cg.fori_loop(0, 3, lambda t, c: cnp.flip(c), y)

    agree(graph_of(fn, x), [x], rtol=1e-3 if dtype == "float16" else 1e-6)


def test_a_guard_that_does_not_hold_ends_the_run() -> None:
    plan = plan_of(lambda x, i: x[i], x5, np.array(7))
    with pytest.raises(RunEndedError, match="index at site 0, found 7"):
        execute(plan, [x5, np.array(7)], reference_kernel)


def test_a_loop_beyond_its_maximum_ends_the_run() -> None:
    plan = plan_of(lambda x: cg.while_loop(lambda c: c > 0, lambda c: c + 1, x, maximum_iterations=3), 1.0)
    with pytest.raises(RunEndedError, match="iterations"):
        execute(plan, [1.0], reference_kernel)


def test_parts_that_read_what_others_write_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that read another part's writes are rejected: an array is written in place and read at other positions."""
    graph = graph_of(lambda x: cnp.flip(np.sin(x)) * 2, x5)
    plan = placed(graph, [x5], without=("fuse",))
    first, last = (step for step in walk(plan.body) if isinstance(step, Kernel))
    (found,) = execute(plan, [x5], reference_kernel, threads=random.Random(0))
    np.testing.assert_allclose(found, np.sin(x5)[::-1] * 2)
    in_place = replace(plan, places={**plan.places, first.writes[0].view.array: plan.places[last.writes[0].view.array]})
    monkeypatch.setattr(steps, "reads_only_what_it_writes", lambda operand, write: True)
    with pytest.raises(PlanError, match="two parts that may run at the same time touch one element"):
        execute(in_place, [x5], reference_kernel, threads=random.Random(0))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_parts_are_all_points_in_any_order(length: int) -> None:
    seen = set()
    for seed in range(40):
        parts = drawn_parts(length, random.Random(seed))
        assert sorted(i for part in parts for i in range(length)[part]) == list(range(length))
        seen.add(tuple(part.start for part in parts))
    assert len(seen) > 1 or length == 1


def test_rows_that_were_never_written_are_popped_as_zeros() -> None:
    def total(x: Any, n: Any) -> Any:
        empty = cg.TensorArray("float64", element_shape=(3,))
        return cnp.sum(cg.fori_loop(0, n, lambda i, c: empty.push(x), empty).stack())

    arguments = [np.array([0.1, 0.2, 0.3]), np.array(2)]
    agree(graph_of(cg.grad(total), *arguments), arguments)
