"""Arrays of rows in loops inside prepared lists: carried there, made anew in each iteration, read; and gradients."""

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
from ctrlgrad.engines.cuda.prepared import body, runner
from ctrlgrad.engines.cuda.prepared import ops as rows
from ctrlgrad.engines.cuda.prepared import ops as stack_forms
from ctrlgrad.engines.cuda.prepared import ops as tables
from ctrlgrad.engines.cuda.prepared.reading import Reading, TableValue
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, MemoryBudgetError

X = np.linspace(-0.5, 1.0, 3)
STEPS, INNER = 6, 4


def array(size: Any, rewritable: bool = False, shape: tuple[int, ...] = (3,)) -> Any:
    return cg.TensorArray(np.float64, size, shape, rewritable=rewritable)


def carried(x: Any) -> Any:
    """The outermost's array is written by the loop inside."""

    def outer(i: Any, c: Any) -> Any:
        inner = lambda j, c: (cnp.sin(c[0] * 1.2) + j * 0.1, c[1].write(i * INNER + j, c[0] * x))
        return cg.fori_loop(0, INNER, inner, c)

    y, rows = cg.fori_loop(0, STEPS, outer, (x, array(STEPS * INNER)))
    return y + cnp.sum(rows.stack() ** 2, axis=0)


def made_anew(x: Any) -> Any:
    """By each iteration; the last row is not written."""

    def outer(i: Any, y: Any) -> Any:
        inner = lambda j, c: (cnp.sin(c[0] * 1.2) + j * 0.1, c[1].write(j, c[0] * x))
        y, rows = cg.fori_loop(0, INNER, inner, (y, array(INNER + 1)))
        return y * 0.5 + cnp.sum((rows.stack() + 0.5) ** 2, axis=0) * 0.1

    return cg.fori_loop(0, STEPS, outer, x)


def numbers(x: Any) -> Any:
    """Rows of one number, of an array that begins on the host."""

    def outer(i: Any, y: Any) -> Any:
        inner = lambda j, c: (cnp.sin(c[0] * 1.2) + j * 0.1, c[1].write(j, cnp.sum(c[0] * x)))
        y, rows = cg.fori_loop(0, INNER, inner, (y, array(INNER, shape=())))
        return y * 0.5 + cnp.sum(rows.stack() ** 2) * 0.1

    return cg.fori_loop(0, STEPS, outer, x)


def captured(x: Any) -> Any:
    rows = array(INNER)
    for k in range(INNER):
        rows = rows.write(k, x * (k + 1))
    inner = lambda j, y: cnp.sin(y) + rows.read(j) * 0.3
    return cg.fori_loop(0, STEPS, lambda i, y: cg.fori_loop(0, INNER, inner, y), x)


def from_loop_to_loop(x: Any) -> Any:
    """Written by one loop and read by the next one, the other way round too."""

    def outer(i: Any, y: Any) -> Any:
        write = lambda j, c: (cnp.sin(c[0]) + 0.1, c[1].write(j, c[0]))
        _, rows = cg.fori_loop(0, INNER, write, (y, array(INNER + 1)))
        return cg.fori_loop(0, INNER, lambda j, y: cnp.sin(y * 0.9) + rows.read(INNER - j) * rows.read(j), y)

    return cg.fori_loop(0, STEPS, outer, x)


def recurrent(x: Any) -> Any:
    def outer(i: Any, y: Any) -> Any:
        rows = array(INNER + 2).write(0, y).write(1, y * 2.0)
        step = lambda j, rows: rows.write(j + 2, cnp.sin(rows.read(j)) + rows.read(j + 1) * 0.4)
        rows = cg.fori_loop(0, INNER, step, rows)
        return rows.read(INNER + 1) + cnp.sum(rows.stack(), axis=0) * 0.1

    return cg.fori_loop(0, STEPS, outer, x)


def again(x: Any) -> Any:
    """Slots that are written again, by an index that goes by no steps."""

    def outer(i: Any, c: Any) -> Any:
        def inner(j: Any, c: Any) -> Any:
            y, slots = c
            slots = slots.write((i + j) % 3, y * x)
            return cnp.sin(y) + slots.read((j * j) % 4), slots

        return cg.fori_loop(0, INNER, inner, c)

    y, slots = cg.fori_loop(0, STEPS, outer, (x, array(5, rewritable=True)))
    return y + cnp.sum(slots.stack() ** 3, axis=0)


def exchanged(x: Any) -> Any:
    """An array from before a write is carried beside the written one, and the other way round outside."""

    def outer(i: Any, c: Any) -> Any:
        inner = lambda j, c: (cnp.sin(c[0]) + c[2].read(j % 2), c[1].write(j % 3, c[0]), c[1])
        y, a, b = cg.fori_loop(0, INNER, inner, c)
        return y, b, a

    slots = array(4, rewritable=True).write(0, x)
    y, a, b = cg.fori_loop(0, STEPS, outer, (x, slots, slots))
    return y + cnp.sum(a.stack() * 2.0 + b.stack() ** 2, axis=0)


def ended_by_data(x: Any) -> Any:
    """An index goes by a counter of which only the card knows the end."""

    def outer(i: Any, y: Any) -> Any:
        goes_on = lambda c: (cnp.sum(c[0] ** 2) > 0.3) & (c[1] < INNER)
        inner = lambda c: (cnp.sin(c[0]) * 0.8, c[1] + 1, c[2].write(c[1], c[0]))
        y, _, rows = cg.while_loop(goes_on, inner, (y + 1.0, 0, array(INNER)))
        return y + cnp.sum(rows.stack(), axis=0)

    return cg.fori_loop(0, STEPS, outer, x)


def by_sides(x: Any) -> Any:
    def outer(i: Any, c: Any) -> Any:
        def inner(j: Any, c: Any) -> Any:
            write = lambda y, rows: (cnp.sin(y), rows.write(i * INNER + j, y))
            return cg.cond(c[0][0] > 0.2, write, lambda y, rows: (y * 0.9 + 0.2, rows), *c)

        return cg.fori_loop(0, INNER, inner, c)

    y, rows = cg.fori_loop(0, STEPS, outer, (x, array(STEPS * INNER)))
    return y + cnp.sum(rows.stack() ** 2, axis=0)


def three_deep(x: Any) -> Any:
    def middle(j: Any, c: Any) -> Any:
        inner = lambda k, c: (cnp.sin(c[0]) + c[1].read(k) * 0.2, c[1].write((j + k) % 4, c[0] * x))
        return cg.fori_loop(0, 3, inner, c)

    outer = lambda i, c: cg.fori_loop(0, 2, middle, c)
    y, rows = cg.fori_loop(0, STEPS, outer, (x, array(4, rewritable=True)))
    return y + cnp.sum(rows.stack() ** 2, axis=0)


def from_the_same_beginning(x: Any) -> Any:
    """An array of the outside, which the loop inside goes on with in each iteration as it was."""
    base = array(INNER, rewritable=True).write(1, x)

    def outer(i: Any, y: Any) -> Any:
        inner = lambda j, c: (cnp.sin(c[0]) + c[1].read(j) * 0.3, c[1].write(j, c[0]))
        y, rows = cg.fori_loop(0, INNER, inner, (y, base))
        return y + rows.read(i % INNER) * 0.1 + base.read(0)

    return cg.fori_loop(0, STEPS, outer, x)


def of_an_array(x: Any) -> Any:
    """Rows of an array, read by index."""

    def outer(i: Any, y: Any) -> Any:
        whole = cnp.sin(cnp.stack([y, y * 2.0, x, y * x]))
        rows = cg.TensorArray(np.float64, element_shape=(3,)).unstack(whole)
        y = cg.fori_loop(0, 4, lambda j, y: y * 0.7 + rows.read(3 - j) * rows.read((j * j) % 4), y)
        return cnp.sin(y + cnp.sum(whole * whole, axis=0))

    return cg.fori_loop(0, STEPS, outer, x)


def written_over(x: Any) -> Any:
    """Rows of an array, two of which are read before all are written: what is written over counts for nothing."""

    def outer(i: Any, c: Any) -> Any:
        y, total = c
        rows = array(INNER, rewritable=True).unstack(cnp.stack([y * (k + 1) for k in range(INNER)]))
        inner = lambda j, c: (cnp.sin(c[0]) + c[1].read(j % 2), c[1].write(j, c[0]))
        z, rows = cg.fori_loop(0, INNER, inner, (y, rows))
        w, others = cg.fori_loop(0, INNER, inner, (z, base))
        return y * 0.8 + w * 0.1, total + rows.read(3) * others.read(2)

    base = array(INNER, rewritable=True).write(1, x).write(2, x * 2.0)
    return sum(cg.fori_loop(0, STEPS, outer, (x, x * 0.0)))


FUNCTIONS = [
    carried,
    made_anew,
    numbers,
    captured,
    from_loop_to_loop,
    recurrent,
    again,
    exchanged,
    ended_by_data,
    by_sides,
    three_deep,
    from_the_same_beginning,
    of_an_array,
    written_over,
]


def is_listed(text: str) -> bool:
    return text.startswith(("from a list", "from the list")) and "one by one" not in text


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_and_gradients(fn: Callable[[Any], Any], order: int) -> None:
    """Step by step they have the same bits."""
    graph = graph_of(fn, order, X)
    ran = on_stand_in(graph, [X])
    assert_same(ran.results, on_reference(graph, [X]), 1e-9)
    assert_same_bits(ran.results, step_by_step(graph, [X]).results)
    # How long arrays are that a loop exchanges is not known to be the same.
    launching = launching_of(graph, [X])
    assert all(map(is_listed, launching)) == (fn is not exchanged or not order), launching


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients_are_those_of_differences_and_of_jax(fn: Callable[[Any], Any]) -> None:
    cg.check_grads(lambda x: cnp.sum(cnp.sin(fn(x))), (X,), order=1)


@pytest.mark.parametrize("fn", [made_anew, numbers, recurrent, from_loop_to_loop, of_an_array])
def test_python_calls_do_not_grow_with_the_iterations(fn: Callable[[Any], Any]) -> None:
    def calls(steps: int, inner: int) -> int:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(f"{__name__}.STEPS", steps)
            patched.setattr(f"{__name__}.INNER", inner)
            graph, library = cg.function(fn).graph(X), StandIn()
        on_stand_in(graph, [X], library=library)
        return calls_on_stand_in(lambda: on_stand_in(graph, [X], library=library))

    # A few calls more or less: where memory grows, and where the host looks whether a graph has ended.
    few, many = calls(24, 10), calls(60, 12)
    assert abs(few - many) < 30


def test_a_row_that_is_written_twice() -> None:
    """The card notes the first one that is, wherever the array was made."""

    def anew(x: Any) -> Any:
        inner = lambda j, rows: rows.write(j // 2 + 1, x)
        outer = lambda i, y: y + cg.fori_loop(0, INNER, inner, array(INNER)).read(1)
        return cg.fori_loop(0, STEPS, outer, x)

    def outside(x: Any) -> Any:
        inner = lambda j, rows: rows.write(j + 1, x)
        return cg.fori_loop(0, 2, lambda i, rows: cg.fori_loop(0, INNER, inner, rows), array(INNER + 2)).stack()

    for fn in (anew, outside):
        graph = cg.function(fn).graph(X)
        with pytest.raises(ExecutionError, match="slot 1 is written twice"):
            on_stand_in(graph, [X])


def test_a_slot_that_there_is_not() -> None:
    def beyond(x: Any) -> Any:
        inner = lambda j, rows: rows.write(j * j, x)
        return cg.fori_loop(0, 2, lambda i, y: y + cg.fori_loop(0, INNER, inner, array(INNER)).read(1), x)

    graph = cg.function(beyond).graph(X)
    with pytest.raises(IndexOutOfRangeError) as found:
        on_stand_in(graph, [X])
    with pytest.raises(IndexOutOfRangeError) as expected:
        on_reference(graph, [X])
    assert (found.value.problem, found.value.hint) == (expected.value.problem, expected.value.hint)


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE, FREE])
@pytest.mark.parametrize("fn", [carried, made_anew, from_loop_to_loop, ended_by_data])
def test_in_sessions(fn: Callable[[Any], Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, whichever way blocks come back, and however little memory there is."""
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 3)
    graph = graph_of(fn, 1, X)
    expected = on_stand_in(graph, [X])
    force(monkeypatch, way)
    results, manager = run_within(None, graph, [X])
    peak = manager.stats.peak_bytes["device"]
    assert_same_bits(results, expected.results)
    for share in (9, 8, 7, 6, 5):
        with suppress(MemoryBudgetError):
            results, _ = run_within(peak * share // 10, graph, [X])
            assert_same_bits(results, expected.results)


# Mistakes.


def begins_as_it_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that is made anew has the marks of the iteration before."""

    def blank(reading: Reading, size: Any, shape: Any, dtype: np.dtype) -> TableValue:
        buffer = reading.launches.buffer
        return TableValue(buffer((size.constant, *shape), dtype), buffer((size.constant,), stack_forms.BOOL))

    monkeypatch.setattr(rows, "_blank", blank)


def marks_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner loop leaves the rows of an array."""
    monkeypatch.setattr(body, "marks_of", lambda table: stack_forms.WRITTEN)


def rows_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner loop leaves the marks of an array."""
    leave = body._leave

    def wrong(inside: Any, since: int, before: Any, *rest: Any) -> None:
        for x, slot in zip(before, inside.program.outputs, strict=True):
            after = inside.values[slot]
            if since and isinstance(x, TableValue) and isinstance(after, TableValue):
                inside.values[slot] = TableValue(x.rows, after.marks)
        leave(inside, since, before, *rest)

    monkeypatch.setattr(body, "_leave", wrong)


def goes_on_in_what_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop inside writes to the array that it begins with."""
    monkeypatch.setattr(body, "own_table", lambda reading, slot: stack_forms.as_table(reading, reading.values[slot]))


def the_first_of_two_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sum of arrays."""
    monkeypatch.setitem(tables.OPS, "stack_sum", lambda reading, step: (reading.value(step.operands[0]),))


MISTAKES = [
    begins_as_it_was_left,
    marks_stay_behind,
    rows_stay_behind,
    goes_on_in_what_is_captured,
    the_first_of_two_counts,
]


@pytest.mark.parametrize("mistake", [nothing, *MISTAKES])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    tried = ((made_anew, 1), (exchanged, 0), (from_the_same_beginning, 1), (from_loop_to_loop, 1), (written_over, 1))
    is_found = any(shows(monkeypatch, graph_of(fn, order, X), [X]) for fn, order in tried)
    assert is_found == (mistake is not nothing)
