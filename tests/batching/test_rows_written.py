"""Loops and branches that write a part of an array, whose rows go different ways: a write costs what it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from batching.rows import check

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ir import TensorType, walk

Step = Callable[[Any, Any], Any]


def repeated(step: Step) -> Callable[[Any], Any]:
    """`step(i, row)` as often as the row's first element says."""

    def program(x: Any) -> Any:
        n = cnp.floor(4 * x[0]).astype(int)
        return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, step(c[0], c[1])), (0, x))[1]

    return program


def _moved(i: Any, a: Any) -> Any:
    return cg.lax.dynamic_update_slice(a, 0.5 * cg.lax.dynamic_slice(a, (i,), (3,)), (i + 1,))


def _branch(i: Any, a: Any) -> Any:
    return cg.cond(a[i] > 0.5, lambda a: a.at[i].set(cnp.sin(a[i])), lambda a: a.at[i + 2].add(a[i]), a)


def _loop(step: Step, n: Callable[[Any, Any], Any]) -> Step:
    """`step` as often as each row says, inside of what goes round differently already."""
    return lambda i, a: cg.while_loop(
        lambda c: c[0] < n(i, a), lambda c: (c[0] + 1, step((i + c[0]) % 6, c[1])), (0 * i, a)
    )[1]


def _set(i: Any, a: Any) -> Any:
    return a.at[i].set(cnp.sin(a[i + 1]) + 0.1)


def _some(i: Any, a: Any) -> Any:
    return 3 * a[2]


STEPS: dict[str, Step] = {
    "loop": _loop(_set, _some),
    "loop in a loop": _loop(_loop(_set, lambda i, a: 2 * a[3]), _some),
    "loop that all rows leave at once": lambda i, a: cg.fori_loop(0, 2, lambda k, a: _set((i + k) % 6, a), a),
    "loop in such a loop": lambda i, a: cg.fori_loop(0, 2, lambda k, a: _loop(_set, _some)((i + k) % 6, a), a),
    "loop in a branch": lambda i, a: cg.cond(a[i] > 0.5, lambda a: _loop(_set, _some)(i, a), lambda a: a, a),
    "branch in a loop": _loop(lambda i, a: _branch(i, a), _some),
    "loop, then a write": lambda i, a: _set(i, _loop(_set, _some)(i, a)),
    "loop of a row that another loop left": lambda i, a: _loop(_set, lambda i, a: 3 * a[4])(
        i, _loop(_set, _some)(i, a)
    ),
    "set": lambda i, a: a.at[i].set(a[i] * a[i] + 1),
    "add": lambda i, a: a.at[i].add(a[i + 1] * a[i]),
    "multiply": lambda i, a: a.at[i].multiply(0.5),
    "two": lambda i, a: a.at[i].set(cnp.sin(a[i])).at[i + 1].add(a[i]),
    "at a constant": lambda i, a: a.at[3].set(a[i] * 0.9),
    "slice": lambda i, a: a.at[2:5].set(a[i] * a[i]),
    "slice of a constant": lambda i, a: a.at[2:5].set(1.5),
    "dynamic slice": _moved,
    "positions": lambda i, a: a.at[cnp.array([1, 1, 4]) + i].add(a[i] * a[i]),
    "other positions": lambda i, a: a.at[cnp.array([1, 2, 4]) + i].set(cnp.sin(a[:3])),
    "root past the end": lambda i, a: a.at[i].set(cnp.sqrt(a[i] + i)),
    "branch": _branch,
    "one side": lambda i, a: cg.cond(a[i] > 0.5, lambda a: a.at[i].set(a[i] * 0.3), lambda a: a, a),
}
ROWS = np.random.default_rng(5).uniform(0.1, 0.99, (5, 9))
ROWS[:, 0] = [0.8, 0.1, 0.99, 0.3, 0.6]


def chosen_arrays(program: Callable[[Any], Any], rows: Any) -> list[str]:
    """The selections among whole arrays of rows in a program of many rows."""
    graph = cg.function(cg.vmap(program)).graph(rows)
    found = (node for node in walk(graph) if node.op.name == "where")
    return [str(n) for n in found if isinstance(n.result.type, TensorType) and n.result.tensor.shape == rows.shape]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("name", STEPS)
def test_values_and_derivatives(name: str, order: int) -> None:
    check(lambda x: cnp.sum(cnp.sin(repeated(STEPS[name])(x))), ROWS, order)


@pytest.mark.parametrize("name", STEPS)
def test_no_array_is_chosen_for_what_is_written(name: str) -> None:
    assert chosen_arrays(repeated(STEPS[name]), ROWS) == []


def test_arrays_changed_beside_row_writes_are_selected_whole() -> None:
    program = repeated(lambda i, a: a.at[i].set(a[i] * 0.3) * 0.9)
    assert chosen_arrays(program, ROWS) != []
    check(lambda x: cnp.sum(program(x)), ROWS, 1)
    swapped = lambda x: cg.while_loop(
        lambda c: c[0] < 2 * x[0], lambda c: (c[0] + 1, c[2], c[1].at[1].set(3.0)), (0.0, x, 2 * x)
    )
    check(lambda x: cnp.sum(swapped(x)[1] * x), ROWS, 1)


def test_integers_and_booleans_that_ghosts_would_write() -> None:
    def program(n: Any) -> Any:
        start = (0, cnp.zeros(4, dtype=int), cnp.zeros(4, dtype=bool), cnp.zeros(4, dtype=complex))
        body = lambda c: (c[0] + 1, c[1].at[0].add(c[0]), c[2].at[c[0]].set(True), c[3].at[1].add(1j))
        return cg.while_loop(lambda c: c[0] < n, body, start)

    counts = np.array([2, 0, 4])
    for got, *each in zip(cg.vmap(program)(counts), *(program(n) for n in counts), strict=True):
        np.testing.assert_array_equal(got, each)


def test_a_side_that_all_rows_take_together_in_a_loop_that_they_leave_one_by_one() -> None:
    def program(x: Any, flag: Any) -> Any:
        side = lambda i, a: cg.cond(flag, lambda a: _set(i, a), lambda a: a.at[i].add(a[i + 2] * a[1]), a)
        return repeated(side)(x)

    for flag in (True, False):
        check(lambda x, flag=flag: cnp.sum(program(x, cnp.asarray(flag)) ** 2), ROWS, 1)
    graph = cg.function(cg.vmap(program, in_axes=(0, None))).graph(ROWS, np.bool_(True))
    selected = [n for n in walk(graph) if n.op.name == "where" and n.result.tensor.shape == ROWS.shape]
    assert selected == [] and sum(n.op.name == "cond" for n in walk(graph)) == 1


def test_both_results_of_a_branch_from_one_array() -> None:
    def program(x: Any) -> Any:
        one, other = cg.cond(
            x[0] > 0.5, lambda a: (a.at[1].set(a[2]), a), lambda a: (a.at[2].set(a[0]), a.at[0].add(1.0)), x
        )
        return cnp.sum(one * other)

    check(program, ROWS, 2)


def test_sides_of_a_branch_that_update_different_arrays() -> None:
    program = lambda x: cnp.sum(
        cg.cond(x[0] > 0.5, lambda a, b: a.at[1].set(b[1]), lambda a, b: b.at[2].set(a[1]), x, x * x)
    )
    check(program, ROWS, 2)


def test_an_array_that_was_updated_before_a_branch_that_updates_it_again() -> None:
    """In a branch that some rows take: the branch inside gets an update of the carry, not the carry itself."""

    def f(p):
        def body(i, a):
            v = cnp.at(a)[np.array([0, 1])].add(0.1)
            w = cg.cond(i == 2, lambda: v, lambda: cnp.at(v)[np.array([0, 1])].add(cnp.sum(v) * 0.1))
            return cnp.at(w)[-1].set(cnp.sin(cnp.sum(w)))

        return cg.cond(cnp.sum(p) < 0.5, lambda: cg.fori_loop(0, 4, body, p), lambda: p * 2.0)

    x = np.array([[0.1, 0.2, -0.3], [1.0, 2.0, 3.0], [-1.0, 0.5, 0.2]])
    slope = cg.grad(lambda p: cnp.sum(cnp.cos(f(p))))
    for g in (f, slope):
        np.testing.assert_allclose(cg.vmap(g)(x), np.stack([np.asarray(g(row)) for row in x]), rtol=1e-12)
