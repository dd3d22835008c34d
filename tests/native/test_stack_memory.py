"""Requests for stack memory: a loop that begins a stack anew makes none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import stacks
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.runtime import Frame
from ctrlgrad.engines.native.stacks import FIRST_ROWS
from ctrlgrad.memory.pool import POOL
from ctrlgrad.runtime.stack import BlockStack, resident


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[Request]]:
    found: Counter[Request] = Counter()
    serve = Frame.serve

    def counted(self: Frame, request: int, a: int, b: int) -> None:
        found[Request(request)] += 1
        serve(self, request, a, b)

    monkeypatch.setattr(Frame, "serve", counted)
    yield found


def slopes(xs, steps):
    """In each iteration, the derivative of a branch that saves a number and of an inner loop of as many steps."""

    def slope(x):
        def chain(y):
            y = cg.cond(y > 0.0, lambda: cnp.sum(cnp.sin(y * xs[:2])), lambda: y * y)
            return cg.fori_loop(0, steps, lambda _, z: cnp.sin(z) + y, y)

        return cg.grad(chain)(x)

    return cg.scan(lambda total, x: (total + slope(x), slope(x)), 0.0, xs)


def test_a_stack_that_each_iteration_begins_keeps_its_block(requests: Counter[Request]) -> None:
    function = cg.function(slopes, signature=(cg.TensorSpec((None,)), cg.TensorSpec((), "int64")))
    counts = []
    for n in (10, 100):
        xs = np.linspace(-1.0, 1.0, n)
        function(xs, np.int64(3))
        requests.clear()
        found = function(xs, np.int64(3))
        counts.append((requests[Request.NEW_STACK], requests[Request.FULL]))
        with cg.options(engine="reference"):
            np.testing.assert_allclose(found[1], slopes(xs, np.int64(3))[1], rtol=1e-12)
    assert counts[0] == counts[1]


def test_a_block_that_was_emptied_serves_again(requests: Counter[Request]) -> None:
    """An emptied block is used again. Each iteration pushes more rows than the first block has."""
    function, counts = cg.function(slopes, signature=(cg.TensorSpec((None,)), cg.TensorSpec((), "int64"))), []
    steps = np.int64(3 * FIRST_ROWS)
    for n in (3, 12):
        xs = np.linspace(-1.0, 1.0, n)
        function(xs, steps)
        requests.clear()
        found = function(xs, steps)
        counts.append(sum(requests[r] for r in (Request.NEW_STACK, Request.FULL, Request.EMPTY)))
        with cg.options(engine="reference"):
            np.testing.assert_allclose(found[1], slopes(xs, steps)[1], rtol=1e-9)
    assert counts[1] <= counts[0]


def test_rows_of_an_iteration_are_not_those_of_the_one_before() -> None:
    """A stack that lives into another iteration is not begun anew in its own memory."""

    def f(xs):
        def body(t, carry):
            rows, total = carry
            fresh = cg.TensorArray(np.float64, element_shape=()).write(0, xs[t])
            return fresh, total * xs[t] + rows.read(0)

        first = cg.TensorArray(np.float64, element_shape=()).write(0, 5.0)
        return cg.fori_loop(0, xs.shape[0], body, (first, 0.0))[1]

    xs = np.linspace(0.5, 1.5, 6)
    total, rows = 0.0, 5.0
    for x in xs:
        total, rows = total * x + rows, x
    assert cg.function(f)(xs) == pytest.approx(total, rel=1e-12)
    with cg.options(engine="reference"):
        expected = cg.grad(f)(xs)
    np.testing.assert_allclose(cg.function(cg.grad(f))(xs), expected, rtol=1e-12)


@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 20])
def test_under_a_budget_stacks_are_begun_as_they_were(nbytes: int) -> None:
    xs = np.linspace(-1.0, 1.0, 40)
    function = cg.function(cg.grad(lambda xs: cnp.sum(slopes(xs, np.int64(5))[1])))
    expected = function(xs)
    with cg.memory.budget(device=nbytes):
        np.testing.assert_allclose(function(xs), expected, rtol=1e-12)


@pytest.mark.parametrize("steps", [700, 5000])
def test_rows_read_as_one_array_get_one_block_after_the_first_run(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Rows that are read as one array get one block after the first run.

    The cotangent of a product's matrix is one product over all rows of a chunk of a distributed loop.
    """
    gathered: list[int] = []
    gather = BlockStack._gathered
    monkeypatch.setattr(BlockStack, "_gathered", lambda *given: gathered.append(given[1]) or gather(*given))

    def loss(w, h):
        return cnp.sum(cg.fori_loop(0, steps, lambda _, h: cnp.tanh(w @ h), h))

    rng = np.random.default_rng(0)
    w, h = rng.normal(size=(64, 64)) / 9.0, rng.normal(size=64)
    function = cg.function(cg.grad(loss), engine="native")
    first = function(w, h)
    assert gathered
    gathered.clear()
    np.testing.assert_array_equal(function(w, h), first)
    assert not gathered
    np.testing.assert_allclose(cg.function(cg.grad(loss), engine="reference")(w, h), first, rtol=1e-9, atol=1e-12)


def test_memory_for_joined_rows_is_used_again() -> None:
    def rows() -> np.ndarray:
        return resident((1 << 15,), np.dtype(np.float64)).array

    held = rows().nbytes
    before = POOL.nbytes
    assert before >= held
    assert [rows().nbytes for _ in range(3)] == 3 * [held]
    assert POOL.nbytes == before


def test_rows_whose_size_is_computed_after_the_stack_was_made_get_room_in_each_run(requests: Counter[Request]) -> None:
    """Rows whose size is computed after their stack was made get room in each run: the last run's memory may be too
    small."""

    def last(xs, steps):
        start = cnp.ones((xs.shape[0] - 1, 8))
        return cg.fori_loop(0, steps, lambda t, y: cnp.sin(y) * xs[t], start).sum()

    slope = cg.function(cg.grad(last), signature=(cg.TensorSpec((None, 8)), cg.TensorSpec((), "int64")))
    rng = np.random.default_rng(0)
    for rows in (20, 60, 1, 40, 40):
        xs = rng.standard_normal((rows, 8))
        # So few steps that an unchecked count would let the rows into the first run's memory.
        steps = np.int64(min(rows, 3))
        requests.clear()
        found = slope(xs, steps)
        # Each iteration saves a row of the state, and a row of another shape with the factors.
        assert requests[Request.FULL] >= 1
        with cg.options(engine="reference"):
            np.testing.assert_allclose(found, cg.grad(last)(xs, steps), rtol=1e-12)


def table_of_paths(x, y):
    """An inner loop collects rows that the next inner loop reads; backwards, their cotangents are rows of a stack."""

    def row(above, x):
        def cell(left, given):
            y, above = given
            found = cnp.sin(x * y) + 0.5 * cnp.tanh(left + above)
            return found, found

        return cg.scan(cell, 0.0, (y, above))[1], None

    return cnp.sum(cg.scan(row, cnp.zeros_like(y), x)[0])


def test_rows_of_an_array_become_those_of_a_stack_in_memory_that_it_had(requests: Counter[Request]) -> None:
    f = cg.function(cg.grad(table_of_paths, argnums=(0, 1)), engine="native")
    expected = cg.function(cg.grad(table_of_paths, argnums=(0, 1)), engine="reference")
    last = None
    for rows, cells in ((30, 9), (30, 9), (30, 8), (20, 5), (20, 5), (10, 0), (10, 30), (10, 30)):
        x, y = np.linspace(0.1, 0.9, rows), np.linspace(-0.4, 0.7, cells)
        requests.clear()
        found = f(x, y)
        # Only the first iteration asks, if the last run had less memory or belonged to another plan.
        assert requests[Request.NEW_ROWS] <= (0 if (rows, cells) == last else 2), (rows, cells)
        last = rows, cells
        for a, b in zip(found, expected(x, y), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_each_stack_of_an_arrays_rows_is_as_long_as_the_array(requests: Counter[Request]) -> None:
    """A stack of an array's rows has the array's length, also when the array is a view of a longer one."""

    def f(x, n):
        def body(i, carry):
            total, kept = carry
            rows = cg.TensorArray("float64", rewritable=True).unstack(x[: (i * 3) % 5] * (i + 1.0))
            kept = cg.cond(i % 4 == 2, lambda: rows, lambda: kept)
            changed = cg.cond(rows.size() > 1, lambda: rows.write(1, total[:2] * 0.5), lambda: rows)
            return total + changed.stack().sum() + rows.stack().sum() * 0.25, kept

        empty = cg.TensorArray("float64", element_shape=(2,), rewritable=True)
        total, kept = cg.fori_loop(0, n, body, (cnp.zeros(3), empty))
        return total, kept.stack()

    x, n = np.linspace(-0.5, 1.0, 10).reshape(5, 2), np.int64(11)
    found, expected = (cg.function(f, engine=name)(x, n) for name in ("native", "reference"))
    assert requests[Request.NEW_ROWS]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


@pytest.mark.parametrize("row", [(), (3,)])
def test_slots_that_nobody_wrote_are_made_at_once(monkeypatch: pytest.MonkeyPatch, row: tuple[int, ...]) -> None:
    """Unwritten slots are made at once; a Python loop over them took longer than the loop that fills them."""
    one_by_one: list[int] = []
    by_rows = stacks.from_rows
    monkeypatch.setattr(
        stacks, "from_rows", lambda d, s, rows, *more: (one_by_one.append(1), by_rows(d, s, rows, *more))[1]
    )

    def f(x, n):
        array = cg.TensorArray("float64", size=n, element_shape=row)
        array = cg.fori_loop(0, n // 2, lambda i, array: array.write(2 * i, x * (i + 1.0)), array)
        return array.stack(), cnp.sum(array.stack() ** 2)

    x = np.float64(0.5) if row == () else np.array([0.5, -1.0, 2.0])
    for n in (7, 4, 0, 9, 9):
        for function in (f, cg.grad(lambda x, n: f(x, n)[1])):
            found, expected = (cg.function(function, engine=name)(x, np.int64(n)) for name in ("native", "reference"))
            for a, b in zip(cg.tree.leaves(found), cg.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(a, b)
    assert not one_by_one


LONG_ROWS = """
import resource
import numpy as np
import ctrlgrad as cg
import ctrlgrad.numpy as cnp

def loss(x):
    return cnp.sum(cg.fori_loop(0, 2, lambda i, y: cnp.sin(y) * y, x))

gradient = cg.function(cg.grad(loss), engine="native")
expected = gradient(np.full(3, 0.5))
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (900 << 20),) * 2)
found = gradient(np.full(1 << 23, 0.5))
assert found.min() == found.max() and abs(found[0] - expected[0]) < 1e-15
"""


def test_a_block_of_long_rows_has_few_rows() -> None:
    """Two iterations save rows of 64 MiB in 900 MiB. A block had 16 rows at least, so rows of 2 GiB asked for 32."""
    environment = {**os.environ, "CTRLGRAD_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", LONG_ROWS], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(4096 - 8, 16), (4096, 16), (4096 + 8, 15), (1 << 16, 1), (1 << 17, 1)]
)
def test_rows_of_the_first_block(nbytes: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just below, at and just above the most bytes of a block that is made ahead, 64 KiB here."""
    monkeypatch.setattr(stacks, "MOST_AHEAD", 1 << 16)
    monkeypatch.setattr(stacks, "CHUNK_BYTES", 1)
    made: list[int] = []
    lend = stacks.FrameStack.lend
    monkeypatch.setattr(
        stacks.FrameStack,
        "lend",
        lambda self, source, shape, rows: made.append(rows) or lend(self, source, shape, rows),
    )
    x = np.full(nbytes // 8, 0.5)
    cg.grad(
        lambda x: cnp.sum(cg.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, cnp.sin(c[1]) * c[1]), (0, x))[1])
    )(x)
    assert set(made) == {expected}
