"""Callbacks under vmap: once for all rows, with the rows in front; not where no row takes part."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp


def test_rows_come_at_once_and_those_that_are_done_repeat_one_that_is_not() -> None:
    seen: list[Any] = []

    def f(n: Any, row: Any) -> Any:
        def body(i: Any) -> Any:
            cg.debug.callback(lambda v, at: seen.append((at, v[0].tolist(), float(v[1]))), (row, 1.5))
            return i + 1

        return cg.while_loop(lambda i: i < n, body, 0)

    np.testing.assert_array_equal(cg.vmap(f)(np.array([0, 2, 1]), np.arange(3)), [0, 2, 1])
    assert seen == [((0,), [1, 1, 2], 1.5), ((1,), [1, 1, 1], 1.5)]
    seen.clear()
    cg.vmap(f)(np.array([0, 0, 0]), np.arange(3))
    assert seen == []


def test_a_branch_that_no_row_takes_calls_nothing() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        def side(name: str, y: Any) -> Any:
            cg.debug.callback(lambda v, at: seen.append((name, v.tolist())), y)
            return y

        return cg.cond(x > 1.5, lambda: side("high", x), lambda: side("low", -x))

    cg.vmap(f)(np.array([1.0, 2.0, 3.0]))
    assert sorted(seen) == [("high", [2.0, 2.0, 3.0]), ("low", [-1.0, -1.0, -1.0])]
    seen.clear()
    cg.vmap(f)(np.array([4.0, 2.0]))
    assert seen == [("high", [4.0, 2.0])]


def test_cotangents() -> None:
    seen: list[Any] = []

    def f(n: Any, x: Any) -> Any:
        watched = lambda y: cg.debug.watch_cotangent(y, lambda ct, at: seen.append((at, ct.tolist())))
        return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, watched(c[1]) * x), (0, x))[1]

    n, x = np.array([0, 2, 1]), np.array([1.0, 2.0, 3.0])
    cg.grad(lambda x: cg.vmap(f)(n, x).sum())(x)
    assert seen == [((1,), [0.0, 2.0, 0.0]), ((0,), [0.0, 4.0, 3.0])]
    seen.clear()
    cg.vmap(cg.grad(f, 1))(n, x)
    assert seen == [((0,), [2.0, 2.0, 3.0]), ((1,), [4.0, 4.0, 4.0])]


def test_batch_axes_that_are_made_one_are_shown_apart() -> None:
    seen: list[Any] = []

    def f(n: Any, x: Any) -> Any:
        def body(c: Any) -> Any:
            cg.debug.callback(lambda v, at: seen.append((at, v.tolist())), c[0] * x)
            return c[0] + 1, c[1].push(c[0] * x)

        _, array = cg.while_loop(lambda c: c[0] < n, body, (0, cg.TensorArray("float64", element_shape=())))
        return cg.fori_loop(0, array.size(), lambda i, y: y + array.read(i) ** 2, 0.0)

    n, x = np.array([[1, 0], [2, 3], [0, 1]]), np.arange(6.0).reshape(3, 2)
    expected = [((0,), [[0.0, 0.0]] * 3), ((1,), [[2.0, 2.0], [2.0, 3.0], [2.0, 2.0]]), ((2,), [[6.0, 6.0]] * 3)]
    cg.vmap(cg.vmap(f))(n, x)
    assert seen == expected
    seen.clear()
    cg.vmap(cg.grad(lambda x, n: cg.vmap(f)(n, x).sum()))(x, n)
    assert seen == expected, "the forward pass alone shows itself"


def test_a_printed_line_shows_all_rows(capsys: Any) -> None:
    cg.vmap(lambda x: (cg.debug.print("{}", x), cnp.sin(x))[1])(np.array([1.0, 2.0]))
    assert capsys.readouterr().out == "[1. 2.]\n"
