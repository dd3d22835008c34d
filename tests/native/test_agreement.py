"""The native engine agrees with the reference engine: the corpus to second order, single floats, random programs.

CTRLGRAD_NATIVE_RANDOM_PROGRAMS says how many random programs (18).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.little_work import shared_by
from instruments.natively import compiled, run_natively
from instruments.tables import programs_at_orders
from programs import BY_NAME, Program
from random_programs.campaign import Batch, run_batch
from random_programs.engines import Settings

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.engines.native.runtime import Program as Compiled
from ctrlgrad.execution import run_on
from ctrlgrad.ir import TensorType
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Loop, Outside

RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_NATIVE_RANDOM_PROGRAMS", "18"))
PER_PART = 6

# Ops inside loops for which compiled code calls Python, by program: for the value, the gradient, the second derivative.
SUM, RESIZE = "stack_sum", "stack_resize"
# Ops on whole stacks, and ops that drop rows of a TensorArray.
OUTSIDE: dict[str, Sequence[dict[str, int]]] = {
    "tensor_array_of_unknown_size": ({}, {RESIZE: 1}, {RESIZE: 3}),
    "writes_that_append_in_a_loop": ({}, {SUM: 2, RESIZE: 1}, {SUM: 4, RESIZE: 3}),
    "a_captured_array_that_is_written_to_and_not_carried": ({}, {SUM: 1}, {SUM: 2}),
}


def outside_in_loops(program: Compiled) -> Counter[str]:
    """Count the ops for which loops call Python; an op of an inner loop counts once for each enclosing loop."""
    found: Counter[str] = Counter()
    for loop in walk(program.plan.body):
        if isinstance(loop, Loop):
            found.update(step.node.op.name for step in walk(loop.body) if isinstance(step, Outside))
    return found


@programs_at_orders(0, 1, 2)
def test_corpus(program: Program, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The plans of the corpus are checked in tests/plan.
    monkeypatch.delenv("CTRLGRAD_CHECK_PLANS", raising=False)
    graph, leaves = program.graph(order), program.leaves
    before = [x.copy() for x in leaves]
    assert_same(run_natively(graph, leaves), program.expected(order))
    for x, old in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(x, old)
    (found,) = compiled(graph)
    assert outside_in_loops(found) == OUTSIDE.get(program.name, ({},) * 3)[order]


@programs_at_orders(1, share=(0, 2))
def test_corpus_by_threads(program: Program, order: int) -> None:
    """Every nest that can be shared among threads is shared, however small it is."""
    graph = program.graph(order)
    with shared_by(3):
        assert_same(run_on("native", graph, program.leaves), program.expected(order))


def test_the_table_names_programs() -> None:
    assert set(OUTSIDE) <= set(BY_NAME)


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // PER_PART)))
def test_random_programs(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random programs agree to second order.

    One third of them runs with threads. Another third runs to first order, again under a shrinking memory budget. Long
    campaigns run optimised code.
    """
    monkeypatch.setenv("CTRLGRAD_QUICK_CODE", "1")
    within = part % 3 == 2
    settings = Settings("native", orders=2 if within else 3, budget=within, threads=part % 3 == 1)
    outcome = run_batch(Batch(0, part * PER_PART, PER_PART, settings))
    assert not outcome.failures, outcome.failures[0]
    assert outcome.examined >= PER_PART // 2


def in_float32(program: Program) -> tuple[Any, list[np.ndarray]]:
    """The gradient's graph with every float in single precision, and its arguments."""

    def single(x: Any) -> Any:
        array = np.asarray(x)
        return array.astype(np.float32) if array.dtype == np.float64 else array

    arguments = tuple(tree.map(single, a) for a in program.args)
    function = cg.function(cg.grad(program.loss, argnums=program.argnums))
    return function.graph(*arguments), [np.asarray(x) for x in tree.leaves(arguments)]


@pytest.mark.parametrize("name", ["lstm", "scan_over_pytrees", "branch_in_a_loop"])
def test_float32(name: str) -> None:
    graph, leaves = in_float32(BY_NAME[name])
    assert any(isinstance(v.type, TensorType) and v.type.dtype == np.float32 for v in graph.outputs)
    assert_same(run_natively(graph, leaves), run_on("reference", graph, leaves), 1e-5)


# Gradients taken inside a loop body.


def _branch(r: Any) -> Any:
    return cg.cond(r[0] > -9, lambda: cnp.exp(cnp.sum(r)), lambda: r[0])


def _nested_branch(r: Any) -> Any:
    return cg.cond(
        r[0] > 0, lambda: cg.cond(r[1] > 0, lambda: cnp.exp(r[0]) * r[1], lambda: cnp.sin(r[1])), lambda: r[1]
    )


def _branch_in_a_loop(r: Any) -> Any:
    return cg.fori_loop(0, 3, lambda i, c: cg.cond(c > i, lambda: cnp.exp(c / 8) * r[1], lambda: c - r[0]), r[0])


def _loop_in_a_branch(r: Any) -> Any:
    return cg.cond(r[0] > 0, lambda: cg.fori_loop(0, 3, lambda i, c: cnp.sin(c) * r[1], r[0]), lambda: r[1] ** 2)


def _switch(r: Any) -> Any:
    return cg.switch(
        (r[0] > 0) + 2 * (r[1] > 0), [lambda: cnp.exp(r[0]), lambda: r[1], lambda: cnp.sum(cnp.sin(r) ** 2)]
    )


@pytest.mark.parametrize("k", [_branch, _nested_branch, _branch_in_a_loop, _loop_in_a_branch, _switch])
def test_gradients_taken_inside_a_loop_through_branches(k: Any) -> None:
    def rows(v: Any) -> Any:
        return cg.map(lambda r: cg.grad(k)(r), v)

    def scanned(v: Any) -> Any:
        return cg.scan(
            lambda c, r: (c * 0.5 + cg.grad(k)(r + c), cg.grad(lambda x: cnp.sum(cg.grad(k)(x) ** 2))(r)), v[0], v
        )

    v = np.array([[0.1, 0.2], [-10.0, 0.3], [0.5, -0.4], [-0.5, -0.4]])
    for function in (rows, scanned, cg.grad(lambda v: sum(cnp.sum(x**2) for x in scanned(v)))):
        graph = cg.function(function).graph(v)
        assert_same(run_natively(graph, [v]), run_on("reference", graph, [v]))
