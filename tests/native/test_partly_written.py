"""Rows pushed onto a stack with unwritten rows count as written."""

from __future__ import annotations

import numpy as np
import pytest
from plan.plans import placed, plan_of

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.stack_text import cleared, partly_written
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph, StackType, TensorType
from ctrlgrad.ir.builder import Builder
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Push, WriteRow

NUMBER = TensorType(np.dtype(np.float64), ())


@pytest.mark.parametrize("grown", [0, 3, 300])
def test_a_loop_at_once_pushes_onto_rows_that_were_given(grown: int) -> None:
    given = cg.TensorArray("float64").push(7.0).push(8.0)
    with cg.options(engine="native"):
        found = cg.fori_loop(0, grown, lambda i, a: a.push(i * 1.0), given)
    assert given.stack().tolist() == [7, 8]
    assert found.stack().tolist() == [7, 8, *range(grown)]
    assert [found.read(i) for i in range(found.size())] == [7, 8, *range(grown)]


def changed(size: int, pops: int, pushes: int) -> Graph:
    """A stack of unwritten rows, after some pops and pushes."""
    b = Builder()
    x = b.input(NUMBER)
    stack = b.emit("stack_new", [b.constant(np.int64(size))], {"element": NUMBER})
    for _ in range(pops):
        stack, _ = b.emit_all("stack_pop", [stack])
    for factor in range(pushes):
        stack = b.emit("stack_push", [stack, b.emit("multiply", [x, b.constant(factor + 1.0)])])
    return b.finish([stack])


@pytest.mark.parametrize("pushes", [1, 2, 40])
@pytest.mark.parametrize(("size", "pops"), [(3, 0), (3, 1), (3, 3)])
def test_pops_and_pushes(size: int, pops: int, pushes: int) -> None:
    graph = changed(size, pops, pushes)
    arguments = [np.float64(2.0)]
    (expected,) = run_on("reference", graph, arguments)
    (found,) = engine.run(graph, arguments)
    assert found.rows() == expected


@pytest.mark.parametrize(("pops", "pushes"), [(0, 0), (2, 0), (2, 1), (1, 3), (0, 40)])
def test_the_next_run_begins_with_as_many_rows(pops: int, pushes: int) -> None:
    """Each run begins with the stack's initial rows, however many rows the last run left in its memory."""
    b = Builder()
    x = b.input(NUMBER)
    stack = b.emit("stack_new", [b.constant(np.int64(3))], {"element": NUMBER})
    for _ in range(pops):
        stack, _ = b.emit_all("stack_pop", [stack])
    for factor in range(pushes):
        stack = b.emit("stack_push", [stack, b.emit("multiply", [x, b.constant(factor + 1.0)])])
    rows = []
    for position in range(3 - pops + pushes):
        rows.append(b.emit("stack_read", [stack, b.constant(np.int64(position))]))
    graph = b.finish(rows)
    for number in (2.0, 3.0, 4.0):
        found = engine.run(graph, [np.float64(number)])
        assert found == [0.0] * (3 - pops) + [number * (k + 1) for k in range(pushes)]


def test_a_stack_that_is_given_may_be_partly_written() -> None:
    b = Builder()
    given = b.input(StackType(NUMBER))
    graph = b.finish([b.emit("stack_push", [given, b.constant(1.0)])])
    (found,) = engine.run(graph, [[np.float64(5.0), None]])
    assert found.rows() == [5.0, None, 1.0]


def test_stacks_of_saved_values_have_no_marks_to_look_at() -> None:
    plan = plan_of(lambda x: cg.while_loop(lambda h: h < 9.0, lambda h: h * h + x, x), np.float64(2.0), order=1)
    assert any(isinstance(step, Push) for step in walk(plan.body))
    assert partly_written(plan) == set()


def test_marks_are_kept_where_rows_come_from_a_stack_of_given_size() -> None:
    plan = placed(changed(2, 0, 1), [np.float64(2.0)])
    assert len(partly_written(plan)) == 1


@pytest.mark.parametrize("is_written_again", [False, True])
def test_only_slots_that_are_written_again_have_marks_when_they_are_cleared(is_written_again: bool) -> None:
    """The gradient of a loop that writes clears slots of all-written rows, which it then forgets."""

    def gradient(x):
        def loss(array):
            return cnp.sum(cg.fori_loop(0, 3, lambda i, a: a.write(i, x * i), array).stack() ** 2)

        rows = cg.grad(loss)(cg.TensorArray("float64", 3, ()))
        return (rows.write(0, x) if is_written_again else rows).stack()

    plan = placed(cg.function(gradient).graph(np.float64(2.0)), [np.float64(2.0)])
    assert any(isinstance(step, WriteRow) and step.how == "clear" for step in walk(plan.body))
    assert bool(cleared(plan)) == is_written_again
