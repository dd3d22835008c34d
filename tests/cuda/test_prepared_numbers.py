"""Numbers of the host in prepared lists: those that a loop carries otherwise than by steps, and indices from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same, assert_same_bits
from instruments.stand_in import StandIn
from instruments.stand_in_runs import calls_on_stand_in, graph_of, launching_of, on_reference, on_stand_in, step_by_step
from op_cases import cases_of
from op_cases.looped import assert_loop_agrees

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import placement
from ctrlgrad.engines.cuda import placement as numbers
from ctrlgrad.errors import IndexOutOfRangeError
from ctrlgrad.ir import Loop, TensorType, is_loop

X = np.linspace(-0.5, 1.0, 6).reshape(2, 3)
STEPS = 24


def decaying(x: Any) -> Any:
    """A learning rate that decays."""

    def step(i: Any, c: Any) -> Any:
        x, rate = c
        return x - rate * cnp.sin(x), rate * 0.97

    return cg.fori_loop(0, STEPS, step, (x, 0.3))[0]


def timed(x: Any) -> Any:
    """Until a time that goes by steps has come."""
    step = lambda c: (c[0] + 0.05 * cnp.cos(c[1] * c[0]), c[1] + 0.05)
    return cg.while_loop(lambda c: c[1] < 1.2, step, (x, 0.0))[0]


def halved(x: Any) -> Any:
    """An integer that goes by no whole steps, and says how long the loop goes on: a power by squares."""

    def step(c: Any) -> Any:
        n, square, found = c
        found = cg.cond(n % 2 == 1, lambda s, f: f * s, lambda s, f: f, square, found)
        return n // 2, cnp.sin(square * square), found

    return cg.while_loop(lambda c: c[0] > 0, step, (np.int64(1_000_003), x, x * 0.0 + 1.0))[2]


def chosen(x: Any) -> Any:
    """A number that branches change."""

    def step(i: Any, c: Any) -> Any:
        x, rate = c
        rate = cg.cond(i % 5 == 4, lambda r: r * 0.5, lambda r: r, rate)
        return x - rate * cnp.sin(x), rate

    return cg.fori_loop(0, STEPS, step, (x, 0.3))[0]


def narrow(x: Any) -> Any:
    """A counter of another dtype, a flag, and a number that only the end of the loop is for."""

    def step(c: Any) -> Any:
        x, k, flag, left = c
        x = cnp.where(flag, cnp.sin(x) + cnp.asarray(k).astype("float64") * 0.01, x * 0.9)
        return x, k + np.int32(1), ~flag, left * 0.9

    return cg.while_loop(lambda c: c[3] > 0.1, step, (x, np.int32(0), np.True_, 1.0))[0]


CARRIED = [decaying, timed, halved, chosen, narrow]


def by_remainder(x: Any) -> Any:
    rows = cnp.concatenate([x, x * 2.0, x - 1.0], axis=0)
    return cg.fori_loop(0, STEPS, lambda i, y: cnp.sin(y + rows[i % 6] * rows[(i * i) % 4 + 1]), x[0])


def by_quotient(x: Any) -> Any:
    """Rows that are read and written, from the end too."""

    def step(i: Any, rows: Any) -> Any:
        rows = cnp.at(rows)[i // 5].add(cnp.sin(rows[i % 3]))
        return cnp.at(rows)[i // 5, -1 - (i // 9)].set(rows[1, i % 2])

    return cg.fori_loop(0, STEPS, step, cnp.concatenate([x, x * 2.0, x - 1.0], axis=0))


def by_squares(x: Any) -> Any:
    """Downwards, faster and faster."""
    rows = cnp.broadcast_to(x[:, None] * cnp.arange(30.0)[:, None], (2, 30, 3))
    return cg.fori_loop(0, 6, lambda i, y: cnp.sin(y) + rows[:, 29 - 1 - i * i], x)


def while_by_quotient(x: Any) -> Any:
    """Past the end there is no row."""

    def step(c: Any) -> Any:
        i, x = c
        return i + 1, x - cnp.concatenate([x * 0.0 + 1.0, x * 0.0 + 0.5], axis=0)[i // 2]

    return cg.while_loop(lambda c: c[1][0, 0] > 0.3, step, (0, x * 0.0 + 5.0 + x[0, 0]))[1]


INDEXED = [by_remainder, by_quotient, by_squares, while_by_quotient]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("fn", CARRIED + INDEXED)
def test_values_and_gradients(fn: Callable[[Any], Any], order: int) -> None:
    """Step by step they have the same bits."""
    graph = graph_of(fn, order, X)
    ran = on_stand_in(graph, [X])
    assert_same(ran.results, on_reference(graph, [X]), 1e-9)
    assert_same_bits(ran.results, step_by_step(graph, [X]).results)
    assert all(text.startswith("from a list") for text in launching_of(graph, [X])), launching_of(graph, [X])


@pytest.mark.parametrize("fn", [decaying, by_remainder])
def test_python_calls_do_not_grow_with_the_iterations(fn: Callable[[Any], Any]) -> None:
    def calls(steps: int) -> int:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(f"{__name__}.STEPS", steps)
            graph, library = cg.function(fn).graph(X), StandIn()
        on_stand_in(graph, [X], library=library)
        return calls_on_stand_in(lambda: on_stand_in(graph, [X], library=library))

    assert calls(40) == calls(80) == calls(200)


def test_integers_that_go_round() -> None:
    """Words have 64 bits: multiples of the counter, a state of random numbers, one of a loop that follows data."""

    def multiple(x: Any) -> Any:
        return cg.fori_loop(0, 24, lambda i, y: y * 0.5 + ((i + 3) * 2**62) * 1e-20, x)

    def state(x: Any) -> Any:
        step = lambda i, c: (c[0] * 0.5 + c[1] * 1e-20, c[1] - 7046029254386353131)
        y, last = cg.fori_loop(0, 24, step, (x, 2**62))
        return y, last

    def until(x: Any) -> Any:
        step = lambda c: (c[0] - 1.0, c[1] * 0.5 + c[2] * 1e-20, c[2] + 2**61)
        return cg.while_loop(lambda c: c[0][0] > -20.0, step, (x, x, 2**62))[1:]

    def far(x: Any) -> Any:
        """The summand of an iteration has more than 64 bits too."""
        return cg.fori_loop(0, 24, lambda i, y: y * 0.5 + ((i + 1) * 2**62 * 3) * 1e-20, x)

    for fn in (multiple, state, until, far):
        graph = cg.function(fn).graph(np.ones(3))
        assert_same(on_stand_in(graph, [np.ones(3)]).results, on_reference(graph, [np.ones(3)]), 1e-12)


def test_an_array_of_rank_0_is_turned_along_no_axes() -> None:
    """The array keeps its memory, while NumPy's result would be a new number."""
    cases = [case for case in cases_of("flip") if isinstance(t := case.types[0], TensorType) and not t.rank]
    assert_loop_agrees(lambda graph, arguments: on_stand_in(graph, arguments).results, cases, "operands apart")


def test_numbers_that_the_host_needs_stay_there() -> None:
    """A loop without work on the card has no number there, nor one by which the host says where or how large something
    is, or how long a loop inside goes on. A counter is a number of the host's."""

    def carried_on_the_card(fn: Callable[[Any], Any]) -> list[int]:
        graph = optimised_graph(cg.function(fn).graph(X), is_for_gpu=True)
        node = next(node for node in graph.nodes if is_loop(node))
        places = placement.place(graph, [placement.DEVICE])
        found = placement.carried(Loop.of(node), [places[v] for v in node.operands])
        # Its carries are in the order of the program's, behind the counter.
        return [n for n, its in enumerate(found) if its is placement.DEVICE]

    def loop(step: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        return lambda x: cg.fori_loop(0, 9, lambda i, c: (step(c[0], c[1]), c[1] * 3 % 7), (x, np.int64(1)))

    assert carried_on_the_card(loop(lambda x, n: cnp.sin(x) * n)) == [1, 2]
    assert carried_on_the_card(loop(lambda x, n: cnp.sin(x) + x[n % 2])) == [1]
    assert carried_on_the_card(loop(lambda x, n: cnp.sin(x) + cnp.sum(cnp.zeros(n)))) == [1]
    inner = lambda x, n: cg.fori_loop(0, n, lambda k, x: cnp.sin(x), x)
    assert carried_on_the_card(loop(inner)) == [1]
    until = lambda x, n: cg.while_loop(lambda c: c[1] < 5, lambda c: (cnp.sin(c[0]), c[1] * n + 1), (x, 0))[0]
    assert carried_on_the_card(loop(until)) == [1]
    side = lambda x, n: cg.cond(x[0, 0] > 0.0, lambda x: x + x[n % 2], lambda x: x, x)
    assert carried_on_the_card(loop(side)) == [1]

    def alone(x: Any) -> Any:
        return cg.while_loop(lambda c: c[1] < 1.0, lambda c: (c[0] + 1, c[1] * 1.1), (0, 0.1))[1] * x

    assert carried_on_the_card(alone) == []


@pytest.mark.parametrize("index", [lambda i: i // 2 + 5, lambda i: -7 - i % 3], ids=["above", "below"])
def test_an_index_that_leaves_the_array(index: Callable[[Any], Any]) -> None:
    """The card notes it."""
    fn = lambda x: cg.fori_loop(0, 30, lambda i, y: y + x[index(i), 0], x[0])
    graph = cg.function(fn).graph(np.ones((6, 3)))
    with pytest.raises(IndexOutOfRangeError, match="out of bounds for an axis with size 6"):
        on_stand_in(graph, [np.ones((6, 3))])


# Mistakes.


def all_numbers_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_needed_inside", lambda *_: set())


def inner_ends_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = numbers._needed_inside
    monkeypatch.setattr(numbers, "_needed_inside", lambda loop, results, asked: needed(loop, results, ()))


def carries_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = numbers._needed
    monkeypatch.setattr(numbers, "_needed_inside", lambda loop, results, asked: needed(loop.body, ()))


@pytest.mark.parametrize("mistake", [all_numbers_move, inner_ends_are_forgotten, carries_are_not_followed])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        test_numbers_that_the_host_needs_stay_there()
