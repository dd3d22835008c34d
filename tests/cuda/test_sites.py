"""An index that the card finds out of range is told with its iterations, as the reference engine tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.graph_loops import without_graphs
from instruments.stand_in import StandIn, StandInArray, StandInDevice
from instruments.stand_in_runs import launching_of, on_reference, on_stand_in, step_by_step

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.engines.cuda import sites
from ctrlgrad.engines.cuda.indexing import Surroundings
from ctrlgrad.engines.cuda.prepared import reading, runner
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.prepared.model import Register
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError
from ctrlgrad.ir import Graph, Node

X = np.linspace(0.5, 1.5, 6)


def counted(x: Any, rows: Any) -> Any:
    return cg.fori_loop(0, rows.shape[0], lambda t, y: y * 0.5 + x[rows[t]], x[0])


def nested(x: Any, rows: Any) -> Any:
    """Each loop inside goes on as often as the host knows."""
    inner = lambda i: lambda j, y: y * 0.5 + x[rows[2 * i + j]]
    return cg.fori_loop(0, rows.shape[0] // 2, lambda i, y: cg.fori_loop(0, 2, inner(i), y), x[0])


def by_the_data(x: Any, rows: Any) -> Any:
    """A loop inside goes on as long as the data says."""

    def outer(i: Any, y: Any) -> Any:
        body = lambda c: (c[0] + 0.5, c[1] * 0.5 + x[rows[i] + cnp.astype(c[0] * 0.25, np.int64)])
        return cg.while_loop(lambda c: c[0] < 1.25, body, (x[0] * 0.0, y))[1]

    return cg.fori_loop(0, rows.shape[0], outer, x[0])


def until(x: Any, rows: Any) -> Any:
    """The end of the loop follows from data."""
    body = lambda c: (c[0] - 1.0, c[1] * 0.5 + x[rows[c[2]]], c[2] + 1)
    return cg.while_loop(lambda c: c[0] > 0.5, body, (x[0] * 2.0 * rows.shape[0], x[0], 0))[1]


def updated(x: Any, rows: Any) -> Any:
    return cnp.sum(cg.fori_loop(0, rows.shape[0], lambda t, y: y.at[rows[t]].add(y[0]), x))


def of_a_branch(x: Any, rows: Any) -> Any:
    side = lambda y, t: y * 0.5 + x[rows[t]]
    step = lambda t, y: cg.cond(rows[t] != 2, side, lambda y, t: y * 0.25, y, t)
    return cg.fori_loop(0, rows.shape[0], step, x[0])


def scanned(x: Any, rows: Any) -> Any:
    return cnp.sum(cg.scan(lambda y, row: (y * 0.5 + x[row], y), x[0], rows, reverse=True)[1])


@cg.custom_vjp
def picked(x: Any, row: Any) -> Any:
    """Only its gradient goes by the row."""
    return x[0] * 1.0


picked.defvjp(
    lambda x, row: (x[0] * 1.0, (x, row)),
    lambda kept, g: (cnp.zeros_like(kept[0]).at[kept[1]].add(g), None),
)


def backwards(x: Any, rows: Any) -> Any:
    def loss(x: Any) -> Any:
        return cg.fori_loop(0, rows.shape[0], lambda t, y: y * 0.5 + picked(x, rows[t]), x[0])

    return cg.grad(loss)(x)


PROGRAMS = [counted, nested, by_the_data, until, updated, of_a_branch, scanned, backwards]


def program(fn: Callable[..., Any], count: int, bad: int, order: int = 0) -> tuple[Graph, list[Any]]:
    """With one index out of range, and another one later."""
    rows = np.arange(count) % 5
    rows[bad] = 9
    rows[bad + 1 :: 3] = -8
    if order:
        fn = cg.value_and_grad(fn)
    return cg.function(fn).graph(X, rows), [X, rows]


def told(run: Callable[[], Any]) -> tuple[str, ...]:
    """The error of a run: the text, and in which iterations it was."""
    with pytest.raises(IndexOutOfRangeError) as found:
        run()
    assert found.value.source is not None
    # The card does not say which axis.
    return found.value.problem.replace("axis 0", "an axis"), *found.value.notes


def listed(graph: Graph, arguments: list[Any]) -> tuple[str, ...]:
    return told(lambda: on_stand_in(graph, arguments, "i"))


@pytest.mark.parametrize(("count", "bad"), [(8, 0), (8, 5), (90, 61)])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_the_iterations_are_told(fn: Callable[..., Any], count: int, bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a graph, by the list, and step by step."""
    graph, arguments = program(fn, count, bad)
    expected = told(lambda: on_reference(graph, arguments))
    assert len(expected) > 1
    if fn not in (scanned, backwards):
        assert f"iteration {bad // (1 + (fn is nested))} " in expected[-1]
    assert listed(graph, arguments) == expected
    without_graphs(monkeypatch)
    assert listed(graph, arguments) == expected
    assert told(lambda: step_by_step(graph, arguments)) == expected


@pytest.mark.parametrize("fn", [counted, nested, by_the_data, until, updated, of_a_branch])
def test_in_gradients_too(fn: Callable[..., Any]) -> None:
    graph, arguments = program(fn, 90, 61, order=1)
    assert listed(graph, arguments) == told(lambda: on_reference(graph, arguments))


@pytest.mark.parametrize("fn", [counted, until, updated])
def test_under_a_budget(fn: Callable[..., Any]) -> None:
    """Chunks run again, and what they note then is not the first."""
    graph, arguments = program(fn, 600, 451, order=1)
    expected = told(lambda: on_reference(graph, arguments))
    library = StandIn()
    with memory.budget(device=1 << 14, host=0, devices={library.name: StandInDevice()}):
        assert told(lambda: on_stand_in(graph, arguments, "i", library=library)) == expected


def test_a_run_of_many_moments_looks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notes of a loop do not grow with its iterations, and an error is seen before the end."""
    monkeypatch.setattr(sites, "MOMENTS", 16)
    graph, arguments = program(counted, 90, 61)
    expected = told(lambda: on_reference(graph, arguments))
    assert told(lambda: step_by_step(graph, arguments)) == expected
    rows = arguments[1] % 5
    ran = step_by_step(graph, [X, rows])
    np.testing.assert_allclose(ran.results, on_reference(graph, [X, rows]))
    # `x[rows[t]]` is one of two reads: the other one is by the host's number.
    assert ran.counts.reads == (90 - 1) // 16


def test_slots_that_are_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(x: Any, rows: Any) -> Any:
        def outer(i: Any, total: Any) -> Any:
            written = cg.TensorArray(np.float64, 6, ())
            inner = lambda j, a: a.write(rows[i + j], x[j])
            return total + cnp.sum(cg.fori_loop(0, 4, inner, written.write(5, x[0])).stack())

        return cg.fori_loop(0, 30, outer, x[0])

    graph, arguments = cg.function(twice).graph(X, np.zeros(34, np.int64)), [X, np.arange(34) % 5]
    arguments[1][23] = 5

    def error(run: Callable[[], Any]) -> tuple[str, ...]:
        with pytest.raises(ExecutionError, match="slot 5 is written twice") as found:
            run()
        return tuple(found.value.notes)

    expected = error(lambda: on_reference(graph, arguments))
    assert [note.partition(" of")[0] for note in expected] == ["in iteration 3", "in iteration 20"]
    assert error(lambda: on_stand_in(graph, arguments, "i")) == expected
    without_graphs(monkeypatch)
    assert error(lambda: on_stand_in(graph, arguments, "i")) == expected


def test_loops_that_lie_too_deep_run_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_NOTED", 2)
    graph, arguments = program(nested, 90, 61)
    assert listed(graph, arguments) == told(lambda: on_reference(graph, arguments))
    arguments[1] %= 5
    reason = "loops inside lie too deep for an error to name them"
    assert any(reason in text for text in launching_of(graph, [X, StandInArray(arguments[1])]))


# Mistakes.


def a_moment_is_the_last_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites.Sites, "_at", lambda self, number: list(self._moments)[-1])


def iterations_before_the_run_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Binding._value
    at_first = lambda self, word, *given: 1 if word == Register("began") else value(self, word, *given)
    monkeypatch.setattr(Binding, "_value", at_first)


def a_list_notes_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    around = reading.Launches.around

    def mistaken(self: reading.Launches, node: Node) -> Surroundings:
        found = around(self, node)
        return replace(found, noted=found.noted[:1] * len(found.noted))

    monkeypatch.setattr(reading.Launches, "around", mistaken)


MISTAKES = [a_moment_is_the_last_run, iterations_before_the_run_are_forgotten, a_list_notes_the_run_alone]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_show(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    graph, arguments = program(counted, 90, 61, order=1)
    monkeypatch.setattr(runner, "LONGEST_RUN", 30)
    assert listed(graph, arguments) != told(lambda: on_reference(graph, arguments))
