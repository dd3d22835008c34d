"""Pieces overwrite only memory of their own, fail as the reference engine does, and are compiled where that pays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from native.piece_agreement import assert_agrees, by_reference, graph_of, piece_of

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native.parts import is_free, parted
from ctrlgrad.engines.native.pieces import compile_piece
from ctrlgrad.engines.reference import FiniteCheck, Run
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, ShapeError
from ctrlgrad.ir import Graph
from ctrlgrad.plan.model import Plan

SINGLE = ("float32", "complex64")

# Memory that may be overwritten.


def accumulation(total: Any, x: Any, y: Any) -> Any:
    return total + x.T @ y, cnp.tanh(x) * x - 1


def updates(a: Any, row: Any, i: Any) -> Any:
    return a.at[i].add(row * row + 1).at[0, :2].set(row[:2])


TOTAL, X, Y = np.ones((3, 4)), np.arange(6.0).reshape(2, 3), np.arange(8.0).reshape(2, 4)


HELD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the array": lambda x: x,
    "a view": lambda x: x[:],
    "a row of another": lambda x: np.stack([x, x])[1],
    "read-only": lambda x: np.frombuffer(x.tobytes()).reshape(x.shape),
    "stretched": lambda x: np.broadcast_to(x[0], x.shape),
}


@pytest.mark.parametrize("holding", HELD, ids=str)
def test_an_array_that_somebody_holds_is_left_alone(holding: str, parts_run: list[Graph]) -> None:
    graph = graph_of(accumulation, TOTAL, X, Y)
    held = HELD[holding](TOTAL.copy())
    operands = [held[...] if holding == "stretched" else held, X, Y]
    found = piece_of(graph)(operands, Run())
    assert_same(found, by_reference(graph, [TOTAL, X, Y]))
    np.testing.assert_array_equal(held, TOTAL)
    assert not np.shares_memory(found[0], held)


@pytest.mark.parametrize("holding", ["a view", "a row of another", "read-only", "stretched"])
def test_memory_that_an_operand_shares_is_left_alone(holding: str, parts_run: list[Graph]) -> None:
    """Memory of another object is left unchanged, also when the piece gets the only reference to an operand in it."""
    graph = graph_of(accumulation, TOTAL, X, Y)
    operands = [HELD[holding](TOTAL.copy()), X, Y]
    memory = operands[0].base
    found = piece_of(graph)(operands, Run())
    assert_same(found, by_reference(graph, [TOTAL, X, Y]))
    assert (np.frombuffer(memory) == 1.0).all() if isinstance(memory, bytes) else (memory == 1.0).all()


def test_an_indexed_update_costs_the_row(parts_run: list[Graph]) -> None:
    """An indexed update writes in place where the piece owns the array, and in a copy otherwise."""
    a, row = np.zeros((4, 3)), np.arange(3.0)
    graph = graph_of(updates, a, row, np.int64(2))
    piece = piece_of(graph)
    kept = piece([a, row, np.int64(2)], Run())[0]
    operands = [a.copy(), row, np.int64(2)]
    address = operands[0].ctypes.data
    (taken,) = piece(operands, Run())
    assert taken.ctypes.data == address and not a.any() and kept is not a
    assert_same([taken, kept], by_reference(graph, [a, row, np.int64(2)]) * 2)


def test_an_array_that_is_also_a_result_is_kept(parts_run: list[Graph]) -> None:
    def fn(total: Any, x: Any, y: Any) -> Any:
        return total + x.T @ y, total, (x + 1) * (x - 1)

    graph = graph_of(fn, TOTAL, X, Y)
    found = piece_of(graph)([TOTAL.copy(), X, Y], Run())
    assert_same(found, by_reference(graph, [TOTAL, X, Y]))


def test_a_view_that_is_a_result_keeps_what_it_shows(parts_run: list[Graph]) -> None:
    def fn(total: Any, x: Any, y: Any, i: Any) -> Any:
        return total[1:], total.T, (total + x.T @ y) * 2, total.at[i].set(y[0]), total[i]

    graph = graph_of(fn, TOTAL, X, Y, np.int64(1))
    found = piece_of(graph)([TOTAL.copy(), X, Y, np.int64(1)], Run())
    assert_same(found, by_reference(graph, [TOTAL, X, Y, np.int64(1)]))


def test_results_are_not_buffers_of_the_next_call(parts_run: list[Graph]) -> None:
    graph = graph_of(lambda x: (cnp.tanh(x) * 2, cnp.sum(x * x)), X)
    piece = piece_of(graph)
    first = piece([X], Run())
    before = [np.array(x) for x in first]
    piece([X + 1], Run())
    assert_same(first, before, 0.0)


# Errors.


def rows(x: Any, i: Any, j: Any) -> Any:
    first = x[i] * 2 + 1
    return first + x[j] * first


@pytest.mark.parametrize("indices", [(5, 0), (0, -6), (9, 9)])
def test_an_index_out_of_range(indices: tuple[int, int], parts_run: list[Graph]) -> None:
    x = np.arange(15.0).reshape(5, 3)
    graph = graph_of(rows, x, np.int64(0), np.int64(0))
    args = [x, *map(np.int64, indices)]
    with pytest.raises(IndexOutOfRangeError) as expected:
        by_reference(graph, args)
    with pytest.raises(IndexOutOfRangeError) as caught:
        piece_of(graph)(list(args), Run())
    assert parts_run
    assert str(caught.value) == str(expected.value)
    assert caught.value.source == expected.value.source and caught.value.source is not None


def test_the_first_error_is_named(parts_run: list[Graph]) -> None:
    """The first error is reported, whether machine code or a reference kernel raised it."""

    def fn(x: Any, i: Any, m: Any) -> Any:
        row = x[i] * 2 + 1
        lower = cnp.linalg.cholesky(m)
        return row * x[i + 1], lower * 2 + m

    x, bad, good = np.ones((4, 2)), -np.eye(2), np.eye(2)
    graph = graph_of(fn, x, np.int64(0), good)
    for args in ([x, np.int64(9), bad], [x, np.int64(3), bad], [x, np.int64(0), bad], [x, np.int64(3), good]):
        with pytest.raises(ExecutionError) as expected:
            by_reference(graph, args)
        with pytest.raises(ExecutionError) as caught:
            piece_of(graph)(list(args), Run())
        assert str(caught.value) == str(expected.value)


def test_shapes_that_do_not_fit(parts_run: list[Graph]) -> None:
    graph = cg.function(lambda x, y: (x + y) * x).graph(cg.TensorSpec((None,)), cg.TensorSpec((None,)))
    with pytest.raises(ShapeError) as expected:
        by_reference(graph, [np.ones(3), np.ones(4)])
    with pytest.raises(ShapeError) as caught:
        piece_of(graph)([np.ones(3), np.ones(4)], Run())
    assert str(caught.value) == str(expected.value)


def test_the_next_call_works_after_an_error(parts_run: list[Graph]) -> None:
    x = np.arange(15.0).reshape(5, 3)
    graph = graph_of(rows, x, np.int64(0), np.int64(0))
    piece = piece_of(graph)
    for _ in range(2):
        with pytest.raises(IndexOutOfRangeError):
            piece([x, np.int64(7), np.int64(0)], Run())
        args = [x, np.int64(1), np.int64(-1)]
        assert_same(piece(list(args), Run()), by_reference(graph, args))


# Products.


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_products(dtype: str, parts_run: list[Graph]) -> None:
    def drawn(*shape: int) -> np.ndarray:
        rng = np.random.default_rng(0)
        found = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype.startswith("c") else 0)
        return found.astype(dtype)

    def fn(a: Any, b: Any, v: Any, total: Any) -> Any:
        return a @ b, b.T @ a.T, (a @ v) * 2, (v @ b) * 2, total + a @ b, a[1:, :3] @ b[2:5]

    assert_agrees(fn, drawn(6, 5), drawn(5, 7), drawn(5), drawn(6, 7), rtol=1e-5 if dtype in SINGLE else 1e-13)
    assert parts_run


# Sizes.


def test_one_function_for_all_sizes(parts_run: list[Graph], compilations: list[Plan]) -> None:
    def fn(x: Any, w: Any) -> Any:
        return cnp.tanh(x @ w + 1) * 2, cnp.sum(x, axis=0)

    graph = cg.function(fn).graph(cg.TensorSpec((None, 3)), cg.TensorSpec((3, 4)))
    piece, w = piece_of(graph), np.ones((3, 4))
    for n in (7, 2, 100, 3, 5):
        x = np.random.default_rng(n).normal(size=(n, 3))
        assert_same(piece([x, w], Run()), by_reference(graph, [x, w]))
    assert len(parts_run) == 5 and len(compilations) == 1
    for n in (0, 1):  # known to the plan
        x = np.ones((n, 3))
        assert_same(piece([x, w], Run()), by_reference(graph, [x, w]))
    assert len(parts_run) == 7 and len(compilations) == 3


def test_sizes_that_are_operands(parts_run: list[Graph]) -> None:
    graph = cg.function(lambda x, n: cnp.broadcast_to(x * 2, (n,)) + cnp.arange(n)).graph(1.0, 3)
    piece = piece_of(graph)
    for n in (3, 5, 3, 1, 0):
        args = [np.float64(2.0), np.int64(n)]
        assert_same(piece(list(args), Run()), by_reference(graph, args))


# Compilation: when a piece is compiled, and when not.


def test_nothing_is_gained_by_little() -> None:
    assert compile_piece(graph_of(lambda i: i + 1, 0)) is None
    assert compile_piece(graph_of(lambda i, n: i < n, 0, 1)) is None
    assert compile_piece(graph_of(lambda x: x * x, np.ones(8))) is None
    assert compile_piece(graph_of(lambda x: x * x + x, np.ones(8))) is None
    assert compile_piece(cg.function(lambda x: x * x + x).graph(cg.TensorSpec((None, None)))) is None
    assert compile_piece(graph_of(lambda x, w: x @ w, np.ones((64, 64)), np.ones((64, 64)))) is None
    assert compile_piece(graph_of(lambda x: x.T, np.ones((64, 64)))) is None
    assert compile_piece(graph_of(cnp.linalg.cholesky, np.eye(64))) is None


def test_a_dozen_ops_pay_on_thousands_of_elements_and_not_on_hundreds() -> None:
    def chain(x: Any, y: Any) -> Any:
        for _ in range(6):
            x = x * y + y
        return x

    assert compile_piece(graph_of(chain, np.ones(500), np.ones(500))) is None
    assert compile_piece(graph_of(chain, np.ones(20000), np.ones(20000))) is not None


def test_something_is_gained_by_much() -> None:
    big = np.ones((512, 512))
    assert compile_piece(graph_of(lambda x: (x * x + x) * 2 - 1, big)) is not None
    assert compile_piece(graph_of(lambda t, x: t + x.T @ x, big, big)) is not None


def test_a_part_is_compiled_at_its_first_call(parts_run: list[Graph], compilations: list[Plan]) -> None:
    piece = piece_of(graph_of(lambda x: (x + 1) * x, X))
    assert not compilations
    for _ in range(2):
        assert_same(piece([X], Run()), [(X + 1) * X])
        assert len(compilations) == 1


def test_arrays_that_lie_otherwise_need_no_other_function(parts_run: list[Graph], compilations: list[Plan]) -> None:
    graph = graph_of(lambda x: (x + 1) * x, X)
    piece = piece_of(graph)
    for x in (X, np.asfortranarray(X), np.broadcast_to(X[0], X.shape), np.broadcast_to(1.0, X.shape)):
        assert_same(piece([x], Run()), by_reference(graph, [x]))
    assert len(parts_run) == 4 and len(compilations) == 1


def test_observers_see_every_op(parts_run: list[Graph]) -> None:
    graph = graph_of(lambda x: (x + 1) * x - 2, X)
    seen: list[str] = []
    piece_of(graph)([X], Run(observer=lambda node, operands: seen.append(node.op.name)))
    assert [name for name in seen if name != "constant"] == ["add", "multiply", "subtract"]
    with pytest.raises(cg.errors.NonFiniteError, match="log makes"), np.errstate(all="ignore"):
        logs = graph_of(lambda x: cnp.log(x) * 2 + 1, X)
        piece_of(logs)([-X - 1], Run(finite=FiniteCheck()))


def test_views_are_taken_where_they_are_needed(parts_run: list[Graph]) -> None:
    def fn(x: Any, m: Any) -> Any:
        y = (x.T * 2)[1:]
        return y, y.T, cnp.sort(m) @ y[:2, :2].T, x.reshape(-1)

    assert_agrees(fn, X, np.eye(2))
    split = parted(graph_of(fn, X, np.eye(2)))
    assert split is not None
    assert [n.op.name for n in split.nodes if not is_free(n)] == ["argsort", "part"]


# Threads.


def test_two_threads_at_once(parts_run: list[Graph]) -> None:
    rng = np.random.default_rng(0)
    total, x = rng.normal(size=(64, 64)), rng.normal(size=(64, 64))

    def fn(total: Any, x: Any) -> Any:
        y = cnp.tanh(total @ x) * x
        return cnp.sum(y * y), total + y.T @ x, y[3] - 1

    graph = graph_of(fn, total, x)
    piece = piece_of(graph)
    tasks = [(total * k, x + k) for k in range(4)]
    expected = [by_reference(graph, task) for task in tasks]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for k in range(100):
                which = (k + number) % len(tasks)
                assert_same(piece(list(tasks[which]), Run()), expected[which], 1e-9)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(parts_run) == 200


def test_the_lock_is_free_while_it_runs(parts_run: list[Graph]) -> None:
    """The interpreter lock is free while a piece runs: another thread runs Python meanwhile."""
    x = np.random.default_rng(0).normal(size=(700, 700))
    piece = piece_of(graph_of(lambda x: x @ x @ x + 1, x))
    piece([x], Run())
    ticks: list[int] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            ticks.append(len(ticks))
            done.wait(1e-4)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(20):
        piece([x], Run())
    done.set()
    thread.join()
    assert len(ticks) > 10
