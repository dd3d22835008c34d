"""An array is overwritten only after every read of its old value.

In each body the new carry is elementwise and comes first, so it could take the old carry's memory; the old carry's last
reader comes later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.natively import compiled, run_natively

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.execution import run_on
from ctrlgrad.plan.model import Loop

VECTOR = np.array([1.0, -2.0, 3.0])
MATRIX = np.array([[4.0, 1.0, 0.5], [0.0, -3.0, 1.0], [1.0, 2.0, 5.0]])
ORDER = np.array([2, 0, 1])


def assert_engines_agree(function: Callable[..., Any], *args: Any) -> None:
    graph = cg.function(function).graph(*args)
    expected = run_on("reference", graph, list(args))
    found = run_natively(graph, list(args))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def _array_of(t: Any, c: Any) -> Any:
    return cg.TensorArray("float64", size=3, element_shape=(3,)).write(t, c).stack()


# Last readers of the old carry `c`, from the iteration, the matrix of results so far, and both carries.
READERS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "set": lambda t, out, c, new: cnp.at(out)[t].set(c),
    "add": lambda t, out, c, new: cnp.at(out)[t].add(c),
    "multiply": lambda t, out, c, new: cnp.at(out)[t].multiply(c),
    "scatter rows": lambda t, out, c, new: cnp.at(out)[ORDER[:2]].set(c),
    "scatter elements": lambda t, out, c, new: cnp.at(out)[ORDER, ORDER].add(c),
    "TensorArray.write": lambda t, out, c, new: out + _array_of(t, c),
    "TensorArray.unstack": lambda t, out, c, new: cnp.at(out)[t].set(cg.TensorArray("float64").unstack(c).read(t)),
    "gather": lambda t, out, c, new: out + c[ORDER],
    "take": lambda t, out, c, new: out + cnp.take(c, ORDER),
    "take_along_axis": lambda t, out, c, new: out + cnp.take_along_axis(c, ORDER, axis=0),
    "cond": lambda t, out, c, new: out + cg.cond(t > 0, lambda: c, lambda: 2 * c),
    "switch": lambda t, out, c, new: out + cg.switch(t, [lambda: c, lambda: 2 * c, lambda: c + 1]),
    "inner loop that captures": lambda t, out, c, new: out + cg.fori_loop(0, 2, lambda i, x: x + c, cnp.zeros(3)),
    "inner loop that carries": lambda t, out, c, new: out + cg.fori_loop(0, 2, lambda i, x: x * 1.5, c),
    "linalg.solve": lambda t, out, c, new: out + cnp.linalg.solve(MATRIX, c),
    "sort": lambda t, out, c, new: out + cnp.sort(c),
    "where of two shapes": lambda t, out, c, new: cnp.where(out > 1, new, c),
    "concat": lambda t, out, c, new: out + cnp.concat([new[:1], c[:2]]),
    "matmul": lambda t, out, c, new: out + c @ (MATRIX * new),
    "sum": lambda t, out, c, new: out + cnp.sum(new) * cnp.sum(c),
    "flip": lambda t, out, c, new: out + cnp.flip(c) * new,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_carry_is_read_before_it_is_overwritten(reader: str) -> None:
    def function(c: Any, q: Any) -> Any:
        def body(t: Any, carry: Any) -> Any:
            c, out = carry
            new = c * 0.5 + q
            return new, READERS[reader](t, out, c, new)

        return cg.fori_loop(0, 3, body, (c, cnp.ones((3, 3))))

    assert_engines_agree(function, VECTOR, VECTOR[::-1] / 8)
    for order in (1, 2):
        derivative: Callable[..., Any] = lambda c, q: sum(cnp.sum(x**2) for x in function(c, q))
        for _ in range(order):
            inner = cg.grad(derivative)
            derivative = lambda c, q, inner=inner: cnp.sum(inner(c, q) ** 2)
        assert_engines_agree(inner, VECTOR, VECTOR[::-1] / 8)


def test_a_row_of_history_has_the_carry_as_it_was_when_it_was_written() -> None:
    def history(h: Any, b: Any) -> Any:
        return cg.fori_loop(0, 3, lambda t, s: (s[0] * 0.5, cnp.at(s[1])[t].set(s[0])), (h, b))[1]

    expected = [[1.0, 2.0], [0.5, 1.0], [0.25, 0.5]]
    for engine in ("reference", "native", "auto"):
        found = cg.function(history, engine=engine)(np.array([1.0, 2.0]), np.zeros((3, 2)))
        np.testing.assert_array_equal(found, expected)


def test_the_gradient_of_a_scan_that_keeps_its_carry() -> None:
    def loss(x: Any) -> Any:
        kept = cg.scan(lambda c, q: (cnp.at(c)[:, 0].add(q[:, 1]), c), x[0], x)[1]
        return cnp.sum(kept**2)

    x = np.arange(12.0).reshape(3, 2, 2)
    assert_engines_agree(cg.grad(loss), x)
    cg.check_grads(cg.function(loss, engine="reference"), (x,), against=("finite_differences",))


@pytest.mark.parametrize(
    "body",
    [
        lambda i, c: cnp.flip(c),
        lambda i, c: c.T,
        lambda i, c: cnp.at(c)[0].set(c[1] * 2).T,
        lambda i, c: cnp.at(c)[:].set(cnp.flip(c)),
        lambda i, c: cnp.at(c)[1:].set(c[:-1]),
        lambda i, c: cnp.at(c)[:].set(c.T),
        lambda i, c: cnp.at(c)[1:].add(c.T[1:]),
        lambda i, c: cnp.at(c)[0].set(cnp.flip(c)[0]),
    ],
    ids=["flip", "transpose", "update, transpose", "set flip", "set rows", "set transpose", "add transpose", "set row"],
)
def test_a_carry_that_becomes_a_view_of_itself_or_is_updated_by_one(body: Any) -> None:
    assert_engines_agree(lambda c: cg.fori_loop(0, 3, body, c), MATRIX)
    assert_engines_agree(lambda c: cg.fori_loop(0, 2, lambda i, c: cg.fori_loop(0, 3, body, c) + 1, c), MATRIX)


@pytest.mark.parametrize(
    "body",
    [
        lambda i, p: cnp.at(p)[p].set(np.array([1, 2, 0])),
        lambda i, p: cnp.at(p)[cnp.flip(p)].set(np.array([1, 2, 0])),
        lambda i, p: cnp.at(p)[p].set(cnp.flip(p)),
        lambda i, p: cnp.at(p)[p].add(p[p]) % 3,
    ],
)
def test_a_permutation_that_is_updated_at_its_own_indices(body: Any) -> None:
    assert_engines_agree(lambda p: cg.fori_loop(0, 3, body, p), ORDER)


def rows_written(c: Any) -> Any:
    """The old carry is written to a row of a carried TensorArray."""

    def body(t: Any, carry: Any) -> Any:
        c, rows = carry
        return c * 0.5, rows.write(t, c)

    rows = cg.TensorArray("float64", size=3, element_shape=(3,))
    return cg.fori_loop(0, 3, body, (c, rows))[1].stack()


def rows_read(rows: Any, c: Any) -> Any:
    """Rows of an array are read by index; their cotangents are accumulated in a stack."""
    rows = cg.TensorArray("float64").unstack(rows)
    return cg.fori_loop(0, 4, lambda t, c: rows.read(t % 3) + c * 0.5, c)


def test_rows_have_the_carry_as_it_was_when_they_were_written() -> None:
    assert_engines_agree(rows_written, VECTOR)
    assert_engines_agree(cg.grad(lambda c: cnp.sum(rows_written(c) ** 2)), VECTOR)


def test_cotangents_are_added_to_rows_before_they_are_replaced() -> None:
    gradient = cg.grad(lambda rows, c: cnp.sum(rows_read(rows, c) ** 2), argnums=(0, 1))
    assert_engines_agree(gradient, MATRIX, VECTOR)
    assert_engines_agree(cg.grad(lambda rows, c: sum(cnp.sum(g**2) for g in gradient(rows, c))), MATRIX, VECTOR)


# Carries that swap places: an array and a vector.
@pytest.mark.parametrize(
    "body",
    [
        lambda i, a, b: (b, a),
        lambda i, a, b: (b, a * 0.5),
        lambda i, a, b: (b * 1.5, a * 0.5),
        lambda i, a, b: (b, cnp.at(a)[i].set(b[0])),
        lambda i, a, b: (cnp.at(b)[i].set(a[0]), cnp.at(a)[i].set(b[0])),
        lambda i, a, b: (cnp.flip(b), cnp.at(a)[i].add(1.0)),
        lambda i, a, b: (b, b),
    ],
)
def test_carries_that_change_places(body: Any) -> None:
    assert_engines_agree(lambda a, b: cg.fori_loop(0, 3, lambda i, s: body(i, *s), (a, b)), VECTOR, VECTOR * 3)


# A pushed value lies in its row of the stack, which no later op may overwrite.


def _pushes(after: Callable[[Any, Any, Any, Any], Any]) -> Callable[..., Any]:
    def function(c: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            rows, c = carry
            y = c * 2
            rows = rows.push(y)
            return after(i, rows, c, y)

        rows, c = cg.fori_loop(0, 3, body, (cg.TensorArray("float64", element_shape=(3,)), c))
        return rows.stack(), c

    return function


@pytest.mark.parametrize(
    "after",
    [
        lambda i, rows, c, y: (rows, cnp.at(y)[0].set(7.0)),
        lambda i, rows, c, y: (rows, cnp.at(y)[0].set(7.0) + (y + 1)),
        lambda i, rows, c, y: (rows, cnp.at(y)[ORDER[:1]].add(7.0)),
        lambda i, rows, c, y: (rows, rows.read(i) * 0.5 + c),
        lambda i, rows, c, y: (rows.push(c), y),
        lambda i, rows, c, y: (rows.push(y + c), rows.read(i) + y),
    ],
)
def test_a_pushed_row_keeps_its_value(after: Any) -> None:
    assert_engines_agree(_pushes(after), VECTOR)


def test_a_pushed_concatenation_keeps_its_parts() -> None:
    def function(c: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            rows, c = carry
            y = c * 2
            both = cnp.concat([y, c])
            rows = rows.push(both)
            return rows, cnp.at(y)[0].set(3.0) + cnp.at(both)[0].set(5.0)[:3]

        rows, c = cg.fori_loop(0, 3, body, (cg.TensorArray("float64", element_shape=(6,)), c))
        return rows.stack(), c

    assert_engines_agree(function, VECTOR)


@pytest.mark.parametrize(
    "body",
    [
        lambda i, x: cnp.at(x)[i].set(x[i] * 2 + i),
        lambda i, x: cnp.at(x)[i].set(cnp.tanh(x[i - 1])),
        lambda i, x: cnp.at(x)[i].set(x[i - 1]),
        lambda i, x: cnp.at(x)[i].add(cnp.flip(x[0]) * x[:, 1]),
        lambda i, x: cnp.at(x)[ORDER[:2], i].add(cnp.flip(x)[0, :2]),
        lambda i, x: cnp.at(x)[ORDER[:2]].set(cnp.sin(x[ORDER[1:]])),
        lambda i, x: cnp.at(x)[:, i].set(x[i]),
    ],
)
def test_an_update_costs_what_it_writes(body: Any) -> None:
    """An update writes only its own elements, also where it reads the array elsewhere: no iteration copies the whole
    array."""
    function = lambda x: cg.fori_loop(0, 3, body, x)
    assert_engines_agree(function, MATRIX)
    graph = cg.function(function).graph(MATRIX)
    run_natively(graph, [MATRIX])
    (program,) = compiled(graph)
    (loop,) = (step for step in program.plan.body.steps if isinstance(step, Loop))
    assert not loop.body.moves
    assert all(b.count.factor < MATRIX.size for b in program.plan.buffers if b.result is None)
