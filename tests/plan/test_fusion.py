"""Limits that an engine sets for fused kernels, and the steps that go before an update."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from plan.plans import executed, graph_of, placed, unplaced

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.plan.effects import reads, walk
from ctrlgrad.plan.fusion import Limits, fuse
from ctrlgrad.plan.model import Array, Kernel, Plan, Product, Push, Step
from ctrlgrad.plan.printer import format_plan

X = np.arange(3.0)


def before_fusion(fn: Any, *arguments: Any) -> Plan:
    return unplaced(graph_of(fn, *arguments), arguments, without=("fuse",))


def kernels(plan: Plan) -> list[Kernel]:
    return [step for step in plan.body.steps if isinstance(step, Kernel)]


def sum_of_many(*xs: Any) -> Any:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def products_of_one(x: Any) -> Any:
    return [x * float(k) for k in range(2, 10)]


def chain(x: Any) -> Any:
    for _ in range(8):
        x = np.sin(x)
    return x


@pytest.mark.parametrize(
    ("fn", "count", "limits"),
    [
        (sum_of_many, 9, Limits(reads=4, writes=9, nodes=99)),
        (products_of_one, 1, Limits(reads=9, writes=3, nodes=99)),
        (chain, 1, Limits(reads=9, writes=9, nodes=3)),
    ],
)
def test_kernels_keep_an_engines_bounds(fn: Any, count: int, limits: Limits) -> None:
    plan = before_fusion(fn, *(X + k for k in range(count)))
    assert len(kernels(fuse(plan))) == 1
    found = kernels(fuse(plan, limits))
    assert len(found) == 3
    for kernel in found:
        assert len(kernel.operands) + len(kernel.numbers) <= limits.reads
        assert len(kernel.writes) <= limits.writes and len(kernel.nodes) <= limits.nodes


def test_arrays_are_read_before_they_are_overwritten() -> None:
    """A kernel reads an array before it is overwritten: a product that may take a factor's memory comes after the
    kernel that reads the factor."""
    a = np.ones((5, 5))
    plan = before_fusion(lambda a, b: (np.sin(a), a @ b), a, a + 1.0)

    def updated(step: Step) -> list[Array]:
        return [array for array in reads(step) if isinstance(array, Array)] if isinstance(step, Product) else []

    assert [type(step) for step in fuse(plan).body.steps] == [Product, Kernel]
    assert [type(step) for step in fuse(plan, updated=updated).body.steps] == [Kernel, Product]


def rows(x: Any) -> Any:
    return cg.TensorArray("float64", rewritable=True).push(x)


def kernels_and_pushes(fn: Any) -> list[type]:
    """Kernels and pushes of the fused function of X, after a comparison with the function's results."""
    for found, expected in zip(executed(graph_of(fn, X), [X]), cg.tree.leaves(cg.function(fn)(X)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    return [type(step) for step in fuse(before_fusion(fn, X)).body.steps if isinstance(step, Kernel | Push)]


def test_a_push_waits_for_kernels_that_join_that_of_its_row() -> None:
    def fn(x: Any) -> Any:
        one, two, y = rows(x), rows(x), np.sin(x)
        one, two = one.push(y), two.push(np.cos(y) * x)
        return one.stack(), two.stack()

    assert kernels_and_pushes(fn) == [Push, Push, Kernel, Push, Push]


def test_pushes_that_wait_keep_their_order_on_a_stack() -> None:
    fn = lambda x: rows(x).push(np.sin(x)).push(np.cos(x)).stack()
    assert kernels_and_pushes(fn) == [Push, Kernel, Push, Push]


def test_an_lstm_is_one_kernel_forwards_with_all_that_it_saves_and_copies_no_row_that_it_has_made() -> None:
    def loss(w: Any, x: Any) -> Any:
        def body(carry: Any) -> Any:
            t, h, c = carry
            i, f, g, o = cnp.split(cnp.concat([x[t], h], axis=1) @ w, 4, axis=1)
            c = cnp.sigmoid(f) * c + cnp.sigmoid(i) * cnp.tanh(g)
            return t + 1, cnp.sigmoid(o) * cnp.tanh(c), c

        return cnp.sum(cg.while_loop(lambda carry: carry[0] < 4, body, (0, np.zeros((5, 16)), np.zeros((5, 16))))[1])

    w, x = np.ones((23, 64)) / 9, np.ones((4, 5, 7))
    plan = placed(graph_of(cg.grad(loss), w, x), [w, x])
    first = next(step for step in walk(plan.body) if isinstance(step, Kernel) and len(step.writes) > 2)
    assert [plan.places[write.view.array].kind for write in first.writes].count("slot") >= 4
    assert sum(i.op == "call" for i in first.expression.instructions) == 5
    text = format_plan(plan)
    assert "updates a copy of" not in text and len(re.findall("made in its slot", text)) == 4


def update_beside_a_read(i: Any, square: Any) -> tuple[Any, Any]:
    """A value and a function of it; a product reads an update of the same value."""
    y = square @ square
    wave = np.sin(y)
    return y, np.exp(wave + square @ cnp.at(y)[i].set(0.0))


def functions_of_kernels(plan: Plan) -> list[list[str]]:
    """The elementary functions that each kernel computes; an update computes none."""
    return [[str(i.value) for i in kernel.expression.instructions if i.op == "call"] for kernel in kernels(plan)]


def test_a_read_goes_before_an_update_of_what_nobody_else_needs() -> None:
    arguments = np.int64(2), np.ones((5, 5))
    plan = placed(graph_of(lambda *args: update_beside_a_read(*args)[1], *arguments), arguments)
    assert "updates a copy of" not in format_plan(plan)
    assert functions_of_kernels(plan) == [["sin"], [], ["exp"]]


def test_a_read_waits_where_an_update_needs_a_copy_anyway() -> None:
    arguments = np.int64(2), np.ones((5, 5))
    plan = placed(graph_of(update_beside_a_read, *arguments), arguments)
    assert "updates a copy of" in format_plan(plan)
    assert functions_of_kernels(plan) == [[], ["sin", "exp"]]


def test_a_row_is_made_before_its_push_where_an_update_has_readers_go_first() -> None:
    """A row is computed before its push, though the readers of an updated array go before the update's kernel."""

    def f(n: Any, x: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            x, _ = carry
            total = np.sum(x * x, axis=(0, 1), keepdims=True)
            mixed = (total + x) * 0.5
            changed = cnp.at(total)[..., i % 3].add(0.25)
            return mixed * 0.5, np.max(np.sum(changed * changed, axis=2), axis=1, keepdims=True)

        return np.sum(np.sin(cg.fori_loop(0, n, body, (x, np.zeros((1, 1))))[1]))

    arguments = np.int64(2), np.linspace(-0.3, 0.5, 24).reshape(2, 4, 3)
    graph = graph_of(cg.value_and_grad(f, argnums=1), *arguments)
    for found, expected in zip(executed(graph, arguments), run_graph(graph, arguments), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
