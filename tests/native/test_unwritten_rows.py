"""Arrays of rows that begin in a loop take the last iteration's memory, and never show its contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.stand_in_runs import on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.stacks import MOST_KEPT
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph, is_loop


def _total(rows, n, x, size, write):
    """A weighted sum over `n` rounds: each makes an array of `size` slots and fills it by `write`."""

    def body(i, total):
        array = cg.TensorArray("float64", size=size, element_shape=rows)
        found = write(array, i, x + total).stack()
        weights = cnp.arange(1.0, 1.0 + size).reshape((size, *(1 for _ in rows)))
        return total + 1e-2 * cnp.sum(found * weights)

    return cg.fori_loop(0, n, body, 0.0 * cnp.sum(x))


def _all(array, i, x):
    return cg.fori_loop(0, 8, lambda k, a: a.write(k, x * k), array)


def _one(array, i, x):
    """Write one slot a round; the other slots hold zeros."""
    return array.write(i % 8, x)


def _half(array, i, x):
    return cg.fori_loop(0, 4, lambda k, a: a.write(2 * k + i % 2, x * (k + i)), array)


WRITES: dict[str, Callable[..., Any]] = {"all": _all, "one": _one, "half": _half}


@pytest.mark.parametrize("x", [np.float64(0.5), np.array([0.5, 0.25, 2.0])], ids=["numbers", "rows"])
@pytest.mark.parametrize("write", WRITES)
def test_an_array_of_given_size_begins_again_without_asking(requests: list[Request], write: str, x) -> None:
    def fn(n, x):
        return _total(np.shape(x), n, x, 8, WRITES[write])

    for differentiated in (fn, cg.grad(fn, argnums=1)):
        f = cg.function(differentiated, engine="native")
        expected = cg.function(differentiated, engine="reference")
        f(20, x)
        requests.clear()
        for n in (20, 1, 13, 20):
            np.testing.assert_allclose(f(n, x), expected(n, x), rtol=1e-12)
        assert Request.NEW_STACK not in requests


def test_a_slot_may_be_written_once_in_each_round() -> None:
    """A slot written in the last round may be written again; a slot written in this round may not."""

    def fn(n, again):
        def body(i, total):
            array = cg.TensorArray("float64", size=3).write(i % 3, 2.0)
            array = cg.cond(i == again, lambda a: a.write(i % 3, 5.0), lambda a: a, array)
            return total + cnp.sum(array.stack())

        return cg.fori_loop(0, n, body, 0.0)

    f = cg.function(fn, engine="native")
    for _ in range(2):
        assert f(7, -1) == 14
        with pytest.raises(cg.CtrlgradError, match="written"):
            f(7, 5)


@pytest.mark.parametrize("change", [lambda i: i + 1, lambda i: cnp.maximum(i, 4) + 1, lambda i: 10 - i])
def test_sizes_that_change_from_round_to_round(change: Callable[[Any], Any]) -> None:
    def fn(n, x):
        def body(i, total):
            size = change(i)
            array = cg.TensorArray("float64", size=size).write(size // 2, x + i)
            found = array.stack()
            return total * 0.5 + cnp.sum(found) + cnp.cumsum(found)[-1] + array.size()

        return cg.fori_loop(0, n, body, 0.0)

    f, expected = cg.function(fn, engine="native"), cg.function(fn, engine="reference")
    for n in (9, 4, 9):
        np.testing.assert_allclose(f(n, 3.0), expected(n, 3.0), rtol=1e-13)


def test_rows_of_another_shape() -> None:
    """From call to call a loop's rows change in length, or in shape at the same length."""

    def fn(x, y):
        def body(i, total):
            rows = cg.TensorArray("float64", size=4).write(i, x + total).stack()
            return total + 1e-3 * cnp.sum(rows * y) + cnp.sum(rows[i, 1])

        return cg.fori_loop(0, 4, body, 0.0)

    f, expected = cg.function(fn, engine="native"), cg.function(fn, engine="reference")
    for shape in ((2, 5), (2, 3), (3, 2), (3, 2), (60, 20), (3, 2), (2, 7)):
        x = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
        np.testing.assert_allclose(f(x, 1 / x), expected(x, 1 / x), rtol=1e-13)
    assert f.traces < 4


def test_an_array_that_stays_is_not_begun_again() -> None:
    """An array that stays is not begun again: the loop carries the last round's array, and captures another."""

    def fn(n, x):
        def body(i, carry):
            kept, last, total = carry
            new = cg.TensorArray("float64", size=3, element_shape=()).write(i % 3, x + i)
            total = total + cnp.sum(last.stack() * np.array([1.0, 10.0, 100.0]))
            kept = cg.cond(i == 2, lambda a, b: b, lambda a, b: a, kept, new)
            return kept, new, total

        empty = cg.TensorArray("float64", size=3, element_shape=())
        kept, last, total = cg.fori_loop(0, n, body, (empty, empty, 0.0))
        return kept.stack(), last.stack(), total

    f, expected = cg.function(fn, engine="native"), cg.function(fn, engine="reference")
    results = [(n, f(n, 0.5)) for n in (6, 2, 6, 0, 7)]
    for n, found in results:
        for x, y in zip(found, expected(n, 0.5), strict=True):
            np.testing.assert_array_equal(x, y)


def test_an_array_that_was_copied_is_not_begun_again() -> None:
    """An array that a branch copied before its rows are read is not begun again."""

    def fn(n, x):
        def body(i, carry):
            kept, total = carry
            new = cg.TensorArray("float64", size=3, element_shape=()).write(i % 3, x + i)
            kept = cg.cond(i == 2, lambda a, b: b, lambda a, b: a, kept, new)
            return kept, total + cnp.sum(cnp.sin(new.stack()) * np.array([1.0, 10.0, 100.0]))

        kept, total = cg.fori_loop(0, n, body, (cg.TensorArray("float64", size=3, element_shape=()), 0.0))
        return kept.stack(), total

    f, expected = cg.function(fn, engine="native"), cg.function(fn, engine="reference")
    for n in (6, 3, 2, 9):
        for x, y in zip(f(n, 0.5), expected(n, 0.5), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13)


def test_much_memory_is_not_kept_for_the_next_call() -> None:
    size = MOST_KEPT // 8 + 1
    f = cg.function(lambda x: _total((), 2, x, size, _one), engine="native")
    f(1.0)
    (bound,) = f._known._bound.values()
    (frame,) = bound.program.idle
    kept = sum(s.open.storage.array.nbytes for s in frame.stacks if s.open is not None)
    assert kept <= MOST_KEPT


@pytest.mark.parametrize("row", [(), (1,), (11,), (3, 4)])
@pytest.mark.parametrize("slots", [1, 10, 300])
def test_unwritten_rows_of_an_argument_have_the_shape_of_its_type(slots: int, row: tuple[int, ...]) -> None:
    """Unwritten rows of an argument have the shape of its type. Memory for scalars was once made, and written out of
    bounds."""

    def program(x: Any) -> Any:
        array = cg.TensorArray(np.float64, slots, row, rewritable=True)
        write = lambda c: (c[0] + 1, c[1] * 0.5, c[2].write(c[0] % slots, c[1]))
        return cg.while_loop(lambda c: c[0] < 20, write, (0, x, array))[2].stack()

    expected = np.zeros((slots, *row))
    for i in range(20):
        expected[i % slots] = 0.5**i
    graph = cg.function(program).graph(np.ones(row))
    place = next(i for i, node in enumerate(graph.nodes) if is_loop(node))
    loop = graph.nodes[place]
    inputs = tuple(dict.fromkeys(loop.operands))
    values = run_on("reference", Graph(graph.inputs, graph.nodes[:place], inputs), [np.ones(row)])
    values = run_on("native", Graph(inputs, (loop,), loop.results), values)
    (found,) = run_on("reference", Graph(loop.results, graph.nodes[place + 1 :], graph.outputs), values)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("slot", [0, 1, 4])
def test_a_slot_that_a_backward_loop_cleared_may_be_written(shape: tuple[int, ...], slot: int) -> None:
    """The gradient of an array of slots holds nothing where the loop writes, so that a write there is its first."""

    def fn(x):
        array = cg.TensorArray("float64", size=5, element_shape=shape).write(0, x)

        def loss(array):
            array = cg.fori_loop(1, 4, lambda i, a: a.write(i, x * i), array)
            return cnp.sum(array.read(1) * array.read(2) + array.read(0))

        return cg.grad(loss)(array.write(4, x)).write(slot, 7.0 * x).stack()

    x = np.full(shape, 2.0)
    if slot == 0:  # its gradient is a row, which is not written again
        with pytest.raises(cg.CtrlgradError, match="slot 0 is written twice"):
            cg.function(fn, engine="native")(x)
        return
    np.testing.assert_array_equal(cg.function(fn, engine="native")(x), cg.function(fn, engine="reference")(x))


TRANSFORMED = {
    "value": lambda f: f,
    "slope": cg.grad,
    "second": lambda f: cg.grad(lambda x: cnp.sum(cg.grad(f)(x) ** 2)),
    "rows": lambda f: cg.vmap(lambda k, x: cg.grad(f)(k * x), (0, None)),
    "rows inside": lambda f: cg.grad(lambda x: cnp.sum(cg.vmap(lambda k: f(k * x))(np.arange(3.0)))),
}


@pytest.mark.parametrize("transformed", TRANSFORMED)
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("slots", [2, 5, 300])
def test_slots_cleared_in_the_rows_of_a_tensor(slots: int, shape: tuple[int, ...], transformed: str) -> None:
    """The gradient of `stack` is an array all of whose slots are written, until the backward loop clears them."""

    def fn(x):
        array = cg.TensorArray("float64", size=slots, element_shape=shape)

        def loss(array):
            written = cg.fori_loop(0, slots - 1, lambda i, a: a.write(i, cnp.sin(x * i)), array)
            return cnp.sum(written.stack() ** 2)

        again = cg.fori_loop(0, slots - 1, lambda i, a: a.write(i, cnp.cos(x * i)), cg.grad(loss)(array))
        return cnp.sum(again.stack() ** 2)

    program = TRANSFORMED[transformed](fn)
    x = (np.arange(3.0), np.full(shape, 0.7)) if transformed == "rows" else (np.full(shape, 0.7),)
    expected = cg.function(program, engine="reference")(*x)
    found = cg.function(program, engine="native")
    for _ in range(2):
        np.testing.assert_allclose(found(*x), expected, rtol=1e-9, atol=1e-9)
    with memory.budget(device=1 << 20):
        np.testing.assert_allclose(found(*x), expected, rtol=1e-9, atol=1e-9)
    graph = cg.function(program).graph(*x)
    np.testing.assert_allclose(on_stand_in(graph, list(x)).results[0], expected, rtol=1e-9, atol=1e-9)


def test_cleared_slots_that_leave_a_call_may_be_written_in_the_next() -> None:
    def loss(x, array):
        return cnp.sum(cg.fori_loop(0, 4, lambda i, a: a.write(i, x * i), array).stack() ** 2)

    def shown(engine: str) -> list[float]:
        array = cg.TensorArray("float64", size=5, element_shape=()).write(4, np.float64(3.0))
        left = cg.function(cg.grad(loss, argnums=1), engine=engine)(np.float64(2.0), array)
        write = cg.function(lambda a, i: a.write(i, 7.0).stack(), engine=engine)
        with pytest.raises(cg.CtrlgradError, match="slot 4 is written twice"):
            write(left, 4)
        return write(left, 2).tolist()

    assert shown("native") == shown("reference") == [0, 0, 7, 0, 6]
