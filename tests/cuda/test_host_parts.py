"""Loops of numbers that the host has: machine code of the processor runs them, and what goes with them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn, StandInDevice
from instruments.stand_in_runs import calls_on_stand_in, launching_of, on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import control as host_parts
from ctrlgrad.engines.cuda import engine as cuda_engine
from ctrlgrad.engines.cuda.control import with_host_parts
from ctrlgrad.engines.cuda.engine import explain_on, places_of, run_with
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.engines.native.pieces import PART
from ctrlgrad.errors import IndexOutOfRangeError, MaximumIterationsError
from ctrlgrad.ir import Graph

X, VECTOR = np.float64(0.6), np.linspace(0.1, 1.0, 5)


def root(x: Any) -> Any:
    """Newton's method: how often it goes on depends on data."""
    return cg.while_loop(lambda y: abs(y * y - x) > 1e-12, lambda y: 0.5 * (y + x / y), x + 1.0)


def nested(x: Any) -> Any:
    """With a branch, and a loop inside whose trip count differs."""

    def outer(i: Any, y: Any) -> Any:
        inner = cg.fori_loop(0, i, lambda j, y: cnp.sin(y) + 0.1 * j, y)
        return cg.cond(inner > 0.5, lambda v: v * x, lambda v: v + x, inner)

    return cg.fori_loop(0, 6, outer, x)


def an_array(x: Any) -> Any:
    """Numbers of an array that is written and read by index."""
    rows = cg.TensorArray(np.float64, 6, ())
    written = cg.fori_loop(0, 6, lambda i, rows: rows.write(i, cnp.sin(x * i)), rows)
    return cg.fori_loop(0, 6, lambda i, y: y * 0.5 + written.read(5 - i), x)


def of_a_branch(x: Any) -> Any:
    return cg.cond(x > 0.5, root, lambda x: cg.fori_loop(0, 3, lambda i, y: y * x, x), x)


NUMBERS = [root, nested, an_array, of_a_branch]


def order_of(fn: Callable[[Any], Any], order: int) -> Callable[[Any], Any]:
    for _ in range(order):
        fn = cg.grad(fn)
    return fn


def parts_of(graph: Graph, arguments: list[Any]) -> Graph:
    graph = optimised_graph(graph, is_for_gpu=True)
    return with_host_parts(graph, places_of(StandIn(), graph, arguments))


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("fn", NUMBERS)
def test_loops_of_numbers_are_machine_code(fn: Callable[[Any], Any], order: int) -> None:
    graph = cg.function(order_of(fn, order)).graph(X)
    ran = on_stand_in(graph, [X])
    assert_same(ran.results, on_reference(graph, [X]))
    assert not ran.counts.launches
    loops = list(explain_on(StandIn(), optimised_graph(graph, is_for_gpu=True), [X]).all_loops())
    assert loops and {loop.engine for loop in loops} == {"native"}


@pytest.mark.parametrize("fn", NUMBERS)
def test_gradients_are_those_of_differences_and_of_jax(fn: Callable[[Any], Any]) -> None:
    cg.check_grads(fn, (X,), order=2)


@pytest.mark.parametrize("fn", NUMBERS)
def test_where_no_plan_fits_it_runs_step_by_step(fn: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_parts, "planned", lambda graph, values: None)
    graph = cg.function(cg.value_and_grad(fn)).graph(X)
    found = on_stand_in(graph, [X]).results
    for one, other in zip(found, on_reference(graph, [X]), strict=True):
        assert one == other
    assert {
        loop.engine for loop in explain_on(StandIn(), optimised_graph(graph, is_for_gpu=True), [X]).all_loops()
    } == {"cuda"}


def test_python_calls_do_not_grow_with_the_iterations() -> None:
    def powers(x: Any, n: Any) -> Any:
        return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, cnp.sin(c[1]) + x), (0, x))[1]

    graph, library = cg.function(cg.value_and_grad(powers)).graph(X, 3), StandIn()
    # The first run compiles, and longer ones ask for blocks.
    on_stand_in(graph, [X, np.int64(9000)], library=library)
    counts = [
        calls_on_stand_in(lambda n=n: on_stand_in(graph, [X, np.int64(n)], library=library)) for n in (10, 100, 1000)
    ]
    assert counts == [counts[0]] * 3


def scaled(order: int) -> Callable[..., Any]:
    """A number of the host scales an array on the card: the cotangent of the number is there."""
    loss = lambda x, v: cnp.sum(cnp.sin(root(x) * v))
    return (loss, cg.grad(loss, (0, 1)), cg.grad(lambda x, v: cg.grad(loss)(x, v) ** 2, (0, 1)))[order]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_rows_pushed_on_the_host_are_popped_on_the_card(order: int) -> None:
    graph = cg.function(scaled(order)).graph(X, VECTOR)
    ran = on_stand_in(graph, [X, VECTOR])
    assert_same(ran.results, on_reference(graph, [X, VECTOR]))
    report = explain_on(StandIn(), optimised_graph(graph, is_for_gpu=True), [X, VECTOR])
    assert [loop.engine for loop in report.all_loops()].count("native") >= 1


def around_the_card(x: Any, v: Any) -> Any:
    """The second part waits for the card, which waits for the first."""
    rows = cg.TensorArray(np.float64, 4, ())
    rows = cg.fori_loop(0, 4, lambda i, rows: rows.write(i, x * i), rows)
    place = cnp.argmax(v * rows.read(1)) % 4
    picked = cg.fori_loop(0, 3, lambda i, y: cnp.sin(y) + x, rows.read(place))
    return picked + cnp.sum(v)


def test_parts_are_in_order_where_one_waits_for_the_card_between() -> None:
    graph, arguments = cg.function(around_the_card).graph(X, VECTOR), [X, VECTOR]
    found = parts_of(graph, arguments)
    assert [node.op for node in found.nodes].count(PART) == 2
    defined = set(found.inputs)
    for node in found.nodes:
        assert defined.issuperset(node.operands)
        defined.update(node.results)
    ran = on_stand_in(graph, arguments)
    assert_same(ran.results, on_reference(graph, arguments))
    assert ran.counts.reads == 1  # of the place


def test_callbacks_keep_their_places() -> None:
    seen: list[float] = []

    def told(x: Any) -> Any:
        y = root(x)
        cg.debug.callback(lambda v, _: seen.append(float(v)), y)
        z = cg.fori_loop(0, 3, lambda i, z: z * y, x)
        cg.debug.callback(lambda v, _: seen.append(float(v)), z)
        return cg.fori_loop(0, 3, lambda i, c: c + z, y)

    graph = cg.function(told).graph(X)
    names = ["part" if node.op is PART else node.op.name for node in parts_of(graph, [X]).nodes]
    assert [name for name in names if name in ("part", "callback")] == ["part", "callback"] * 2 + ["part"]
    (found,) = on_stand_in(graph, [X]).results
    y = X**0.5
    np.testing.assert_allclose([*seen, found], [y, X * y**3, y + 3 * X * y**3])


def test_a_loop_with_a_callback_runs_step_by_step() -> None:
    seen: list[tuple[float, tuple[int, ...]]] = []

    def body(i: Any, y: Any) -> Any:
        cg.debug.callback(lambda v, iterations: seen.append((float(v), iterations)), y)
        return y * 2.0

    graph = cg.function(lambda x: cg.fori_loop(0, 3, body, x)).graph(X)
    assert not any(node.op is PART for node in parts_of(graph, [X]).nodes)
    on_stand_in(graph, [X])
    assert seen == [(X, (0,)), (2 * X, (1,)), (4 * X, (2,))]


def test_a_loop_on_numbers_of_the_card_is_no_part() -> None:
    graph = cg.function(root).graph(X)
    library = StandIn()
    assert with_host_parts(graph, places_of(library, graph, [library.upload(X)])) is graph
    assert not any(node.op is PART for node in parts_of(cg.function(cnp.sin).graph(X), [X]).nodes)


def test_errors_are_those_of_the_loop() -> None:
    def endless(x: Any) -> Any:
        return cg.while_loop(lambda y: y > 0, lambda y: y * 0.5, x, maximum_iterations=7)

    def outside(x: Any) -> Any:
        rows = cg.TensorArray(np.float64, 3, ())
        return cg.fori_loop(0, 5, lambda i, rows: rows.write(i, x), rows).stack()

    for fn, kind in ((endless, MaximumIterationsError), (outside, IndexOutOfRangeError)):
        graph = cg.function(fn).graph(X)
        with pytest.raises(kind) as expected:
            on_reference(graph, [X])
        with pytest.raises(kind) as found:
            on_stand_in(graph, [X])
        assert str(found.value) == str(expected.value)


def test_a_loop_that_must_end_is_run_though_nobody_needs_it() -> None:
    def unused(x: Any) -> Any:
        cg.while_loop(lambda y: y > 0, lambda y: y * 0.5, x, maximum_iterations=7)
        return x * 2.0

    with pytest.raises(MaximumIterationsError):
        on_stand_in(cg.function(unused).graph(X), [X])


def test_numbers_of_the_host_are_outside_of_a_cards_budget() -> None:
    def powers(x: Any) -> Any:
        return cg.fori_loop(0, 20_000, lambda i, y: cnp.sin(y) + x, x)

    graph, library, device = cg.function(cg.grad(powers)).graph(X), StandIn(), StandInDevice()
    with memory.budget(device="4 KiB", devices={library.name: device}) as session:
        found = run_with(Context(library), optimised_graph(graph, is_for_gpu=True), [X])
        assert list(session.managers) == [library.name]
    assert_same(found, on_reference(graph, [X]))


def test_ctrl_c_ends_a_loop_of_the_host() -> None:
    long = lambda x, n: cg.fori_loop(0, n, lambda i, y: y * 0.999 + 1e-3 * i, x)
    graph, library = cg.function(long).graph(X, 3), StandIn()
    before = on_stand_in(graph, [X, np.int64(10)], library=library).results
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            on_stand_in(graph, [X, np.int64(10**12)], library=library)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
    assert on_stand_in(graph, [X, np.int64(10)], library=library).results == before


def test_a_program_is_made_with_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them the loops run from lists or one by one, with the same results."""
    graph = cg.function(cg.value_and_grad(nested)).graph(X)
    monkeypatch.setattr(cuda_engine, "with_host_parts", lambda graph, places: graph)
    ran = on_stand_in(graph, [X])
    assert_same(ran.results, on_reference(graph, [X]))
    assert all("native" not in text for text in launching_of(graph, [X]))
