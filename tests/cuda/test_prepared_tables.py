"""Arrays of rows that loops read and write by index, in prepared lists: values, gradients, and rows never written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same, assert_same_bits
from instruments.mutants import nothing, shows
from instruments.stand_in import StandIn
from instruments.stand_in_runs import calls_on_stand_in, graph_of, launching_of, on_reference, on_stand_in, step_by_step
from instruments.stand_in_sessions import FREE, RECOMPUTE, SWAP, force, run_within

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda.prepared import binding as table_rows
from ctrlgrad.engines.cuda.prepared import ops as tables
from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.engines.cuda.prepared.reading import Launches, Reading, TableValue
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, MemoryBudgetError

X = np.linspace(-0.5, 1.0, 3)
STEPS = 24


def array(size: Any, rewritable: bool = False, shape: tuple[int, ...] = (3,)) -> Any:
    return cg.TensorArray(np.float64, size, shape, rewritable=rewritable)


def filled(x: Any) -> Any:
    """All rows but the last two are written."""

    def step(i: Any, c: Any) -> Any:
        y, rows = c
        return cnp.sin(y * 1.2) + i * 0.01, rows.write(i, y * x)

    y, rows = cg.fori_loop(0, STEPS, step, (x, array(STEPS + 2)))
    return cnp.sum(rows.stack() ** 2, axis=0) + y


def backwards(x: Any) -> Any:
    """Written from the last row to the first, and read the other way: a row is zeros that was not."""
    write = lambda i, c: (cnp.sin(c[0]) + 0.1, c[1].write(STEPS + 1 - i, c[0]))
    _, rows = cg.fori_loop(0, STEPS, write, (x, array(STEPS + 2)))
    return cg.fori_loop(0, STEPS, lambda i, y: cnp.sin(y * 0.9) + rows.read(i) * rows.read(i + 2), x)


def recurrent(x: Any) -> Any:
    """Of two rows before, in the array that is being written."""

    def step(i: Any, rows: Any) -> Any:
        return rows.write(i + 2, cnp.sin(rows.read(i)) + rows.read(i + 1) * 0.4)

    rows = cg.fori_loop(0, STEPS, step, array(STEPS + 2).write(0, x).write(1, x * 2.0))
    return rows.read(STEPS + 1) + cnp.sum(rows.stack() ** 2, axis=0)


def again(x: Any) -> Any:
    """Slots that are written again, by an index that goes by no steps."""

    def step(i: Any, c: Any) -> Any:
        y, slots = c
        slots = slots.write(i % 3, y * x)
        return cnp.sin(y) + slots.read((i * i) % 4), slots

    y, slots = cg.fori_loop(0, STEPS, step, (x, array(5, rewritable=True)))
    return y + cnp.sum(slots.stack() ** 3, axis=0)


def two_ways(x: Any) -> Any:
    """An array is a value: what it was before is read behind a write."""

    def step(i: Any, c: Any) -> Any:
        a, b = c
        changed = a.write(1, cnp.sin(a.read(0) * x) + i * 0.1)
        return changed, b.write(i % 3, changed.read(1) + a.read(1))

    base = array(3, rewritable=True).write(0, x)
    a, b = cg.fori_loop(0, STEPS, step, (base, base.write(2, x * 2.0)))
    return cnp.sum(a.stack() ** 2 + b.stack() ** 3 + base.stack(), axis=0)


def chosen(x: Any) -> Any:
    """By an index on the card, in a loop whose end is there too."""

    def step(c: Any) -> Any:
        y, count, rows = c
        rows = rows.write(cnp.argmax(y), cnp.sin(y) + rows.read(cnp.argmin(y)))
        return y * 0.9 + rows.read(1) * 0.1 - 0.02, count + 1.0, rows

    found = cg.while_loop(lambda c: cnp.sum(c[1]) < 20.5, step, (x, x * 0.0, array(3, rewritable=True)))
    return cnp.sum(found[2].stack(), axis=0) + found[0]


def by_sides(x: Any) -> Any:
    """One side writes, another one reads; a third passes the array on."""

    def step(i: Any, c: Any) -> Any:
        y, rows = c
        sides = [
            lambda y, rows: (cnp.sin(y), rows.write(i // 3, y)),
            lambda y, rows: (y * 0.9 + rows.read(i // 3), rows),
            lambda y, rows: (y + 0.1, rows),
        ]
        return cg.switch(i % 3, sides, y, rows)

    y, rows = cg.fori_loop(0, STEPS, step, (x, array(STEPS)))
    return y + cnp.sum(rows.stack() ** 2, axis=0)


def exchanged(x: Any) -> Any:
    """By one side another array than was given: it is copied."""

    def step(i: Any, c: Any) -> Any:
        y, a, b = c
        a, b = cg.cond(y[0] > 0.4, lambda a, b: (a.write(0, y), b), lambda a, b: (a, a.write(1, b.read(0) * y)), a, b)
        return cnp.sin(y * 1.5) + a.read(1), a, b

    slots = array(2, rewritable=True).write(0, x)
    y, a, b = cg.fori_loop(0, STEPS, step, (x, slots, slots))
    return y + cnp.sum(a.stack() * 2.0 + b.stack() ** 2, axis=0)


def scalars(x: Any) -> Any:
    """Rows of one number."""

    def step(i: Any, c: Any) -> Any:
        y, rows = c
        return cnp.sin(y) + rows.read(i), rows.write(i + 1, cnp.sum(y * x))

    y, rows = cg.fori_loop(0, STEPS, step, (x, array(STEPS + 1, shape=()).write(0, x[0])))
    return y + cnp.sum(rows.stack())


def kept(x: Any) -> Any:
    """An array from before a write is carried beside the written one."""

    def step(i: Any, c: Any) -> Any:
        y, new, old = c
        return cnp.sin(y) + old.read(i % 2), new.write(i % 3, y), new

    slots = array(4, rewritable=True).write(0, x)
    y, new, old = cg.fori_loop(0, STEPS, step, (x, slots, slots))
    return y + cnp.sum(new.stack() * 2.0 + old.stack() ** 2, axis=0)


def finished(x: Any) -> Any:
    """The last row is written when the loop is over: that it was not before is known then."""
    rows = cg.fori_loop(0, STEPS, lambda i, rows: rows.write(i, x * i), array(STEPS + 1)).write(STEPS, x)
    return cnp.sum(rows.stack() ** 2, axis=0)


FUNCTIONS = [filled, backwards, recurrent, again, two_ways, chosen, by_sides, exchanged, scalars, kept, finished]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_and_gradients(fn: Callable[[Any], Any], order: int) -> None:
    """Step by step they have the same bits."""
    graph = graph_of(fn, order, X)
    ran = on_stand_in(graph, [X])
    assert_same(ran.results, on_reference(graph, [X]), 1e-9)
    assert_same_bits(ran.results, step_by_step(graph, [X]).results)
    # How long an array is, the gradient of loops that exchange arrays keeps on a stack of the host's.
    is_listed = fn not in (exchanged, kept) or not order
    assert all(text.startswith("from a list") for text in launching_of(graph, [X])) == is_listed, launching_of(
        graph, [X]
    )


@pytest.mark.parametrize("fn", [recurrent, again])
def test_python_calls_do_not_grow_with_the_iterations(fn: Callable[[Any], Any]) -> None:
    """Of arrays whose rows are all written, and in the end there are as many as before."""

    def calls(steps: int) -> int:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(f"{__name__}.STEPS", steps)
            graph, library = cg.function(fn).graph(X), StandIn()
        on_stand_in(graph, [X], library=library)
        return calls_on_stand_in(lambda: on_stand_in(graph, [X], library=library))

    found = [calls(steps) for steps in (40, 80, 200)]
    assert found == [found[0]] * 3


def test_rows_never_written_are_empty() -> None:
    """A row that nothing was added to is zeros; rows that are not written again are those of before."""
    empty = array(6)

    def loss(x: Any) -> Any:
        rows = cg.fori_loop(0, 3, lambda i, rows: rows.write(2 * i, x * -0.0), empty)
        return cg.fori_loop(0, 3, lambda i, y: y + rows.read(2 * i), -x * 0.0)

    graph = cg.function(cg.grad(lambda x: cnp.sum(loss(x)))).graph(X)
    for found, expected in zip(on_stand_in(graph, [X]).results, on_reference(graph, [X]), strict=True):
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def test_a_row_that_is_written_twice() -> None:
    """The card notes the first one that is."""
    graph = cg.function(lambda x: cg.fori_loop(0, 6, lambda i, a: a.write(i // 2 + 1, x), array(9)).stack()).graph(X)
    with pytest.raises(ExecutionError, match="slot 1 is written twice"):
        on_stand_in(graph, [X])

    def negative(x: Any) -> Any:
        return cg.fori_loop(0, 6, lambda i, a: a.write(i % 2 - 4, x), array(9)).stack()

    with pytest.raises(ExecutionError, match="slot 5 is written twice"):
        on_stand_in(cg.function(negative).graph(X), [X])


def test_a_row_that_was_cleared_may_be_written() -> None:
    """The gradient of an array is one whose slots may be written once, if the loop's gradient has cleared them."""

    def loss(rows: Any) -> Any:
        rows = cg.fori_loop(1, 4, lambda i, rows: rows.write(i, cnp.sin(rows.read(0)) * i), rows)
        return cnp.sum(cg.fori_loop(0, 4, lambda i, y: y + rows.read(i) ** 2, X))

    def written(x: Any) -> Any:
        return cg.fori_loop(1, 5, lambda i, rows: rows.write(i, x * i), cg.grad(loss)(array(6).write(0, x))).stack()

    graph = cg.function(written).graph(X)
    assert_same(on_stand_in(graph, [X]).results, on_reference(graph, [X]))
    assert all(text.startswith("from a list") for text in launching_of(graph, [X]))


@pytest.mark.parametrize("index", [lambda i: i, lambda i: i * i])
def test_a_slot_that_there_is_not(index: Callable[[Any], Any]) -> None:
    graph = cg.function(lambda x: cg.fori_loop(0, 6, lambda i, a: a.write(index(i), x), array(5)).stack()).graph(X)
    with pytest.raises(IndexOutOfRangeError) as found:
        on_stand_in(graph, [X])
    with pytest.raises(IndexOutOfRangeError) as expected:
        on_reference(graph, [X])
    assert (found.value.problem, found.value.hint) == (expected.value.problem, expected.value.hint)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda i, a, x: a.write(a.size(), x), "an array that may grow is written"),
        (lambda i, a, x: a.push(x).write(0, x), "a stack is a list of rows"),
    ],
)
def test_why_a_loop_runs_step_by_step(fn: Callable[..., Any], reason: str) -> None:
    empty = cg.TensorArray(np.float64, None, (3,), rewritable=True)

    def loop(x: Any) -> Any:
        step = lambda i, c: (cnp.sin(c[0]), fn(i, c[1], c[0]))
        return cg.fori_loop(0, 5, step, (x, empty.write(0, x)))[1].stack()

    graph = cg.function(loop).graph(X)
    assert_same(on_stand_in(graph, [X]).results, on_reference(graph, [X]))
    assert launching_of(graph, [X]) == [f"one by one ({reason})"]


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, FREE])
@pytest.mark.parametrize("fn", [filled, recurrent, by_sides, two_ways])
def test_in_sessions(fn: Callable[[Any], Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, whichever way blocks come back, and however little memory there is."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    graph = graph_of(fn, 1, X)
    expected = on_stand_in(graph, [X])
    force(monkeypatch, way)
    results, manager = run_within(None, graph, [X])
    peak, fitted = manager.stats.peak_bytes["device"], 0
    for share in (9, 8, 7, 6, 5):
        with suppress(MemoryBudgetError):
            results, manager = run_within(peak * share // 10, graph, [X])
            fitted += 1
        assert_same_bits(results, expected.results)


# Mistakes.


def marks_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    put = tables._put

    def unmarked(reading: Reading, whole: Any, key: Any, value: Any, *rest: Any) -> None:
        if getattr(value, "value", None) is not np.True_:
            put(reading, whole, key, value, *rest)

    monkeypatch.setattr(tables, "_put", unmarked)


def rows_are_not_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.OPS, "stack_clear", lambda reading, step: (reading.value(step.operands[0]),))


def always_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launches, "updated", lambda self, view: view)


def rows_are_read_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "is_updated", lambda self, view: False)


def all_count_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tables.as_table
    monkeypatch.setattr(tables, "as_table", lambda reading, stack: TableValue(found(reading, stack).rows, None))


def marks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the loop's end all rows are there."""
    as_stack = table_rows.as_stack

    def full(context: Any, table: Any) -> Any:
        return as_stack(context, table_rows.Table(table.rows, np.ones(table.marks.shape, np.bool_)))

    monkeypatch.setattr(runner, "as_stack", full)


def unwritten_rows_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop may begin with an array that has no written row."""
    as_table = table_rows.as_table

    def wrong(context: Any, stack: Any, its: Any) -> Any:
        found = as_table(context, stack, its)
        is_blank = isinstance(stack, list) and all(row is None for row in stack)
        return table_rows.Table(context.xp.ones(its.shape, its.dtype), found.marks) if is_blank else found

    monkeypatch.setattr(table_rows, "as_table", wrong)


MISTAKES = [
    marks_are_not_set,
    unwritten_rows_hold_anything,
    rows_are_not_cleared,
    always_in_place,
    all_count_as_written,
    marks_are_forgotten,
]


@pytest.mark.parametrize("mistake", [nothing, *MISTAKES])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    tried = ((filled, 1), (backwards, 1), (again, 1), (kept, 0), (finished, 0))
    is_found = any(shows(monkeypatch, graph_of(fn, order, X), [X]) for fn, order in tried)
    assert is_found == (mistake is not nothing)
