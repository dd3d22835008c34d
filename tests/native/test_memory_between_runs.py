"""A program keeps the memory of its stacks between runs, and little else."""

from __future__ import annotations

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.frame_memory import IDLE_BYTES
from ctrlgrad.engines.native.stacks import FrameStack


@pytest.mark.parametrize("size", [100, 20_000])
def test_a_program_keeps_little_memory_between_calls(size: int) -> None:
    """A program keeps little memory between calls; memory of large calls goes back to the pool, which a budget
    empties."""

    def rows(x, k):
        return cnp.sort(cnp.sort(x[:k]) * 2.0 + x[:k])

    x, k = np.linspace(1.0, 0.0, size + 1), np.int64(size)
    graph = optimised_graph(cg.function(rows).graph(x, k))
    program = engine.patterns_of(graph).program((x, k))
    for _ in range(2):
        np.testing.assert_allclose(program((x, k))[0], np.sort(np.sort(x[:k]) * 2.0 + x[:k]))
        (frame,) = program.idle
        assert frame.memory.nbytes <= IDLE_BYTES
        assert bool(frame.memory.nbytes) == (size == 100)
    with cg.memory.budget("1 MiB") as session:
        session.manager()
        assert not program.idle


def _powers(x, n):
    """The sum of n powers' sines, by a loop that pushes."""

    def body(c):
        i, x, total = c
        return i + 1, 1.001 * cnp.sin(x), total + x

    return cnp.sum(cg.while_loop(lambda c: c[0] < n, body, (0, x, cnp.zeros_like(x)))[2])


@pytest.mark.parametrize("x", [np.float64(0.7), np.linspace(0.1, 0.9, 5)], ids=["numbers", "rows"])
def test_a_second_run_finds_the_memory_of_its_stacks(requests: list[Request], x) -> None:
    f = cg.function(cg.value_and_grad(_powers), engine="native")
    expected = cg.function(cg.value_and_grad(_powers), engine="reference")
    f(x, 700)
    assert {Request.NEW_STACK, Request.FULL, Request.EMPTY} <= set(requests)
    for n, asked in ((700, False), (3, False), (3000, True), (3000, False)):
        requests.clear()
        value, gradient = f(x, n)
        assert bool(set(requests) & {Request.NEW_STACK, Request.FULL, Request.EMPTY}) == asked, n
        np.testing.assert_allclose(value, expected(x, n)[0], rtol=1e-13)
        np.testing.assert_allclose(gradient, expected(x, n)[1], rtol=1e-12)


def test_a_block_with_room_for_a_run_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block with room for a run is kept, so that short calls with many stacks do not allocate it again."""
    begun: list[int] = []
    begin = FrameStack.begin
    monkeypatch.setattr(FrameStack, "begin", lambda self, *given: (begun.append(self.handle), begin(self, *given))[1])
    f = cg.function(cg.value_and_grad(_powers), engine="native")
    expected = cg.function(cg.value_and_grad(_powers), engine="reference")
    for n, anew in ((700, True), (700, False), (3, False), (0, False), (3000, True)):
        begun.clear()
        value, gradient = f(0.7, n)
        assert bool(begun) == anew, n
        np.testing.assert_allclose((value, gradient), expected(0.7, n), rtol=1e-12)


def test_rows_of_another_shape_do_not_go_where_the_last_ones_were() -> None:
    f = cg.function(cg.grad(_powers), engine="native")
    expected = cg.function(cg.grad(_powers), engine="reference")
    for size in (5, 7, 3, 5):
        x = np.linspace(0.1, 0.9, size)
        np.testing.assert_allclose(f(x, 40), expected(x, 40), rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_stacks_of_derivatives_of_loops_inside_begin_again_without_being_asked_for(
    requests: list[Request], order: int
) -> None:
    """The cotangent of a stack that an inner loop emptied starts empty in each outer iteration, without a request."""

    def powers(x, n):
        inner = lambda y: cg.fori_loop(0, 3, lambda j, y: cnp.sin(y) * x + 0.1 * j, y)
        return cnp.sum(cg.fori_loop(0, n, lambda i, y: inner(y) * 0.9 + 0.1, x))

    def derivative(x, n):
        fn = powers
        for _ in range(order):
            fn = (lambda its: lambda x, n: cnp.sum(cg.grad(its)(x, n) ** 2))(fn)
        return fn(x, n)

    f = cg.function(derivative, engine="native")
    expected = cg.function(derivative, engine="reference")
    x = np.linspace(0.1, 0.9, 4)
    f(x, 5)
    for n in (5, 4, 0, 5):
        requests.clear()
        np.testing.assert_allclose(f(x, n), expected(x, n), rtol=1e-11)
        assert not requests, n
    # Rows of another shape get other memory.
    for x in (np.linspace(0.1, 0.9, 6), np.linspace(0.1, 0.9, 4)):
        np.testing.assert_allclose(f(x, 5), expected(x, 5), rtol=1e-11)


def test_rows_that_a_run_gives_are_not_those_of_the_next() -> None:
    def f(x, n):
        array = cg.fori_loop(0, n, lambda i, array: array.push(x * i), cg.TensorArray("float64", element_shape=(3,)))
        return array, cg.fori_loop(0, n, lambda i, array: array.push(x + i), array)

    function = cg.function(f, engine="native")
    first = function(np.ones(3), 40)
    function(np.full(3, 7.0), 30)
    np.testing.assert_array_equal(first[0].stack()[:, 0], np.arange(40.0))
    np.testing.assert_array_equal(first[1].stack()[:, 0], [*np.arange(40.0), *np.arange(1.0, 41.0)])


def test_a_loop_has_its_turn_no_sooner_than_the_last_run_showed(requests: list[Request]) -> None:
    f = cg.function(lambda x, n: cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.5), (0, x))[1])
    f(np.float64(1.0), 4000)
    assert Request.POLL in requests
    requests.clear()
    f(np.float64(1.0), 4000)
    assert Request.POLL not in requests
