"""The executor updates in place: an update of a row costs the row, and a stack is not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.dataflow_runs import run

import ctrlgrad as cg
from ctrlgrad.engines.reference import stack_kernels
from ctrlgrad.execution import run_on

EVERY_CUT: tuple[dict[str, Any], ...] = (
    {},
    {"clusters": "flowing"},
    {"clusters": "none"},
    {"clusters": "none", "parallel_iterations": 1},
)


def graph_of(fn: Any, *arguments: Any) -> Any:
    return cg.function(fn).graph(*arguments)


def rows(n: Any) -> Any:
    def body(carry: Any) -> Any:
        i, table = carry
        return i + 1, table.at[i].set(table[i - 1] + 1.0)

    return cg.while_loop(lambda carry: carry[0] < n, body, (1, np.zeros(400)))[1]


def table_read_by_an_inner_loop(n: Any) -> Any:
    def body(carry: Any) -> Any:
        i, table = carry
        total = cg.fori_loop(0, 3, lambda j, s: s + table[i - j], 0.0)
        return i + 1, table.at[i].set(np.sin(total))

    return cg.while_loop(lambda carry: carry[0] < n, body, (3, np.ones(400)))[1]


def table_read_by_a_branch(n: Any) -> Any:
    def body(carry: Any) -> Any:
        i, table = carry
        value = cg.cond(i % 2 == 0, lambda: table[i - 1] * 2.0, lambda: 1.0)
        return i + 1, table.at[i].set(value)

    return cg.while_loop(lambda carry: carry[0] < n, body, (1, np.ones(400)))[1]


@pytest.mark.parametrize("cut", EVERY_CUT, ids=str)
@pytest.mark.parametrize("fn", [rows, table_read_by_an_inner_loop, table_read_by_a_branch])
def test_an_update_of_a_row_costs_the_row(fn: Any, cut: dict[str, Any]) -> None:
    graph = graph_of(fn, 5)
    found, outcome = run(graph, [np.int64(390)], **cut)
    assert_same(found, run_on("reference", graph, [np.int64(390)]), 0.0)
    # The first update copies the loop's constant initial value.
    assert outcome.runs["cpu:0"].counters.copied_bytes <= 400 * 8


@pytest.mark.parametrize("cut", EVERY_CUT, ids=str)
def test_a_gradient_through_rows_costs_rows(cut: dict[str, Any]) -> None:
    def loss(w: Any) -> Any:
        return cg.while_loop(
            lambda carry: carry[0] < 390,
            lambda carry: (carry[0] + 1, carry[1].at[carry[0]].set(carry[1][carry[0] - 1] * w)),
            (1, np.ones(400)),
        )[1].sum()

    _, outcome = run(graph_of(cg.grad(loss), 0.99), [np.float64(0.99)], **cut)
    assert outcome.runs["cpu:0"].counters.copied_bytes <= 4 * 400 * 8


@pytest.mark.parametrize("cut", EVERY_CUT, ids=str)
def test_a_stack_is_not_copied(cut: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [0]
    own = stack_kernels.own_stack

    def counted(operands: list[Any]) -> list[Any]:
        before = id(operands[0])
        taken = own(operands)
        copies[0] += id(taken) != before
        return taken

    monkeypatch.setattr(stack_kernels, "own_stack", counted)

    def loss(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, array, y = carry
            y = y + array.size() * 1.0
            return i + 1, array.write(i, y * x), np.sin(y)

        start = (0, cg.TensorArray("float64", element_shape=()), x)
        return cg.while_loop(lambda carry: carry[0] < 60, body, start)[1].stack().sum()

    graph = graph_of(cg.grad(loss), 0.9)
    found, _ = run(graph, [np.float64(0.9)], **cut)
    assert_same(found, run_on("reference", graph, [np.float64(0.9)]))
    in_reference, copies[0] = copies[0], 0
    run(graph, [np.float64(0.9)], **cut)
    # In both engines the operand list alone holds a new stack; an empty stack may be copied.
    assert copies[0] <= in_reference
