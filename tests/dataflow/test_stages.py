"""Loops of several devices in stages: messages once a chunk, the values of the reference engine, and the choice."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same, assert_same_bits
from instruments.dataflow_runs import by_line, run
from instruments.tables import programs_at_orders
from programs import PROGRAMS, Program

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import dataflow
from ctrlgrad.dataflow import stages
from ctrlgrad.dataflow.settings import is_one_plan, prepare
from ctrlgrad.errors import CtrlgradError, IndexOutOfRangeError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph, attributes

LENGTH = 8


@pytest.fixture(autouse=True)
def _pipelines_are_divided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every pipeline, however small, into chunks as long as may be in flight."""
    monkeypatch.setattr(stages, "WORTH", np.inf)
    monkeypatch.setattr(stages, "CHUNK", 1e15)
    with dataflow.settings(loops=None, parallel_iterations=LENGTH * stages.IN_FLIGHT):
        yield


@pytest.fixture
def by_cost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The choice that users have, on two cores."""
    monkeypatch.undo()
    monkeypatch.setattr(stages, "default_threads", lambda: 2)
    with dataflow.settings(loops=None, parallel_iterations=None):
        yield


def layers(n: Any, x: Any, w: Any) -> Any:
    """Two layers of a recurrent network, each on a device, over the rows of x."""

    def body(carry: Any) -> Any:
        i, low, high, total = carry
        with cg.device("cpu:0"):
            low = cnp.tanh(low @ w + cnp.asarray(x)[i])
        with cg.device("cpu:1"):
            high = cnp.tanh(high @ w + low)
            total = total + cnp.sum(high * high)
        return i + 1, low, high, total

    return cg.while_loop(lambda c: c[0] < n, body, (0, x[0], x[0], 0.0))[3]


RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(100, 3, 4)), 0.5 * RNG.normal(size=(4, 4))


def is_divided(graph: Graph, **changes: Any) -> bool:
    with dataflow.settings(**changes) as now:
        return prepare(graph, now).staged is not None


def reason(graph: Graph, caplog: pytest.LogCaptureFixture, **changes: Any) -> str:
    """Why no loop of a graph is divided; it runs as one plan of the native engine."""
    with caplog.at_level(logging.INFO, "ctrlgrad"), dataflow.settings(**changes) as now:
        assert is_one_plan(graph, now)
    return caplog.text


@pytest.mark.parametrize("trips", [7, 8, 9, 31, 32, 33, 100])
def test_two_layers_and_their_gradients_are_a_pipeline(trips: int) -> None:
    graph = cg.function(cg.value_and_grad(lambda x, w: layers(trips, x, w), argnums=(0, 1))).graph(X, W)
    found, outcome = run(graph, [X, W])
    assert_same(found, run_on("reference", graph, [X, W]), 1e-12)
    chunks = -(-trips // LENGTH)
    sent = sum(c.sent for c in outcome.counts.values())
    assert chunks < sent <= 9 * chunks + 12, "a message for each value a chunk; stacks stay on their device"
    assert max(c.iterations for c in outcome.counts.values()) <= 2 * (chunks + 1) + 1
    assert max(c.most_in_flight for c in outcome.counts.values()) <= stages.IN_FLIGHT


def test_gradients_of_a_pipeline_agree_with_finite_differences_and_jax() -> None:
    @cg.options(engine="dataflow")
    def check() -> None:
        cg.check_grads(lambda x, w: layers(16, x, w), (X[:16], W), order=1)

    check()


@pytest.mark.parametrize("trips", [0, 1, 15, 16, 17, 40])
def test_the_number_of_iterations_may_be_an_argument(trips: int) -> None:
    gradient = cg.value_and_grad(layers, argnums=(1, 2))
    graph = cg.function(gradient).graph(np.int64(3), X, W)
    assert is_divided(graph)
    arguments = [np.int64(trips), X, W]
    assert_same(run(graph, arguments)[0], run_on("reference", graph, arguments), 1e-12)


def test_values_have_the_same_bits_for_every_window() -> None:
    graph = cg.function(cg.value_and_grad(lambda x, w: layers(100, x, w), argnums=(0, 1))).graph(X, W)
    first, *others = (run(graph, [X, W], parallel_iterations=window)[0] for window in (16, 32, 50, 100))
    for found in others:
        assert_same_bits(found, first)


def test_second_derivatives() -> None:
    derivative = cg.grad(lambda w: cnp.sum(cg.grad(lambda w: layers(16, X, w))(w) ** 2))
    graph = cg.function(derivative).graph(W)
    assert is_divided(graph)
    assert_same(run(graph, [W])[0], run_on("reference", graph, [W]), 1e-10)


@programs_at_orders(0, 1, share=(1, 3))
def test_corpus(program: Program, order: int) -> None:
    graph, number = program.graph(order), PROGRAMS.index(program)
    place = by_line(2 + number % 2, number)
    found, _ = run(graph, program.leaves, place=place, parallel_iterations=(4, 8, 32)[number % 3])
    assert_same(found, program.expected(order), 1e-9)


def test_programs_of_the_corpus_are_divided() -> None:
    """The test above looks at pipelines too."""
    graphs = [program.graph(1) for program in PROGRAMS[:60]]
    found = [is_divided(graph, place=by_line(2, n), parallel_iterations=4) for n, graph in enumerate(graphs)]
    assert sum(found) >= 3


@pytest.mark.parametrize("seed", range(8))
def test_chains_over_devices_at_random(seed: int) -> None:
    """Cells that take values of this or of the last iteration of cells before them, on one to four devices."""
    draw = random.Random(seed)
    cells = draw.randrange(2, 7)
    homes = [f"cpu:{draw.randrange(4)}" for _ in range(cells)]
    takes = [[(draw.randrange(number), draw.random() < 0.5) for _ in range(number and 2)] for number in range(cells)]

    def chain(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, before = carry
            now: list[Any] = []
            for number, own in enumerate(before):
                with cg.device(homes[number]):
                    taken = [before[k] if is_late else now[k] for k, is_late in takes[number]]
                    now.append(cnp.sin(own + sum(taken, 0.1 * x[i])))
            return i + 1, tuple(now)

        return sum(cg.while_loop(lambda c: c[0] < 20, body, (0, (x[0],) * cells))[1])

    x = np.random.default_rng(seed).normal(size=20)
    graph = cg.function(cg.value_and_grad(chain)).graph(x)
    assert is_divided(graph) == (len(set(homes)) > 1)
    assert_same(run_on("dataflow", graph, [x]), run_on("reference", graph, [x]), 1e-10)


def test_checkpoints_and_inner_loops_are_in_stages() -> None:
    """The lower cell is computed again in the backward pass; the upper one has a loop of its own."""

    def deep(x: Any, w: Any) -> Any:
        def body(carry: Any) -> Any:
            i, low, high = carry
            with cg.device("cpu:0"):
                low = cg.checkpoint(lambda low, row: cnp.tanh(cnp.tanh(low @ w) + row))(low, x[i])
            with cg.device("cpu:1"):
                high = cg.fori_loop(0, 3, lambda k, high: cnp.sin(high + low), high)
            return i + 1, low, high

        return cnp.sum(cg.while_loop(lambda c: c[0] < 20, body, (0, x[0], x[0]))[2])

    graph = cg.function(cg.value_and_grad(deep, argnums=(0, 1))).graph(X, W)
    assert is_divided(graph)
    assert_same(run(graph, [X, W])[0], run_on("reference", graph, [X, W]), 1e-12)


# Loops that are one plan.


def test_a_loop_whose_end_is_computed_is_one_plan(caplog: pytest.LogCaptureFixture) -> None:
    def until(x: Any) -> Any:
        def body(carry: Any) -> Any:
            a, b = carry
            with cg.device("cpu:0"):
                a = 0.9 * a
            with cg.device("cpu:1"):
                b = b + a
            return a, b

        return cg.while_loop(lambda c: c[0] > 0.1, body, (x, 0.0))[1]

    graph = cg.function(until).graph(1.0)
    assert "test_stages.py" in reason(graph, caplog)
    assert "the number of iterations is not known before it runs" in caplog.text
    assert_same(run_on("dataflow", graph, [1.0]), run_on("reference", graph, [1.0]), 1e-12)
    gradient = cg.function(cg.grad(until)).graph(1.0)
    assert_same(run_on("dataflow", gradient, [1.0]), run_on("reference", gradient, [1.0]), 1e-12)


def test_devices_that_wait_for_each_other_are_one_plan(caplog: pytest.LogCaptureFixture) -> None:
    def ring(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, a, b = carry
            with cg.device("cpu:0"):
                a = cnp.sin(b)
            with cg.device("cpu:1"):
                b = cnp.cos(a)
            return i + 1, a, b

        return cg.while_loop(lambda c: c[0] < 20, body, (0, x, x))[2]

    graph = cg.function(ring).graph(0.5)
    assert "cpu:0 and cpu:1 need values of each other's last iteration (cos, sin)" in reason(graph, caplog)
    assert_same(run_on("dataflow", graph, [0.5]), run_on("reference", graph, [0.5]), 1e-12)


def test_a_loop_with_a_branch_over_devices_is_one_plan(caplog: pytest.LogCaptureFixture) -> None:
    def either(x: Any) -> Any:
        def there(a: Any) -> Any:
            with cg.device("cpu:1"):
                return cnp.sin(a)

        def body(carry: Any) -> Any:
            i, a = carry
            with cg.device("cpu:0"):
                a = cg.cond(a > 0.5, there, lambda a: cnp.cos(a) + a, a)
            return i + 1, a

        return cg.while_loop(lambda c: c[0] < 20, body, (0, x))[1]

    graph = cg.function(either).graph(0.7)
    assert "a cond in it lies on cpu:0 and cpu:1" in reason(graph, caplog)
    assert_same(run_on("dataflow", graph, [0.7]), run_on("reference", graph, [0.7]), 1e-12)


def test_a_loop_that_is_no_pipeline_is_one_plan_beside_one_that_is() -> None:
    def both(x: Any, w: Any) -> Any:
        def ring(carry: Any) -> Any:
            a, b = carry
            with cg.device("cpu:0"):
                a = 0.7 * b
            with cg.device("cpu:1"):
                b = cnp.sin(a)
            return a, b

        start = layers(20, x, w)
        return cg.while_loop(lambda c: c[0] > 0.1, ring, (start, start))[1]

    graph = cg.function(cg.value_and_grad(both, argnums=(0, 1))).graph(X, W)
    found, outcome = run(graph, [X, W])
    assert_same(found, run_on("reference", graph, [X, W]), 1e-12)
    assert is_divided(graph)
    assert max(c.iterations for c in outcome.counts.values()) <= 2 * (-(-20 // LENGTH) + 1) + 1


def test_callbacks_are_called_in_their_iterations(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[int, ...]] = []

    def told(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, a, b = carry
            with cg.device("cpu:0"):
                a = 0.9 * a
                cg.debug.callback(lambda value, iterations: seen.append(round(float(value), 9)), a)
            with cg.device("cpu:1"):
                b = b + a
            return i + 1, a, b

        return cg.while_loop(lambda c: c[0] < 20, body, (0, x, 0.0))[2]

    graph = cg.function(told).graph(1.0)
    assert "a callback is called in every iteration" in reason(graph, caplog)
    for call in (lambda: run(graph, [1.0]), lambda: run_on("dataflow", graph, [1.0])):
        call()
        assert seen == [round(0.9**k, 9) for k in range(1, 21)]
        seen.clear()


@pytest.mark.parametrize(
    "changes",
    [{"loops": "lowered"}, {"clusters": "flowing"}, {"order": 1}, {"place": lambda node: "sim:0"}],
    ids=["loops", "clusters", "order", "sim"],
)
def test_settings_that_ask_for_the_executor_have_it(changes: dict[str, Any]) -> None:
    graph = cg.function(lambda x, w: layers(100, x, w)).graph(X, W)
    assert is_divided(graph)
    assert not is_divided(graph, **changes)


# The length of a chunk.


def lengths(graph: Graph, **changes: Any) -> list[int]:
    """The length of the chunks of each divided loop."""
    with dataflow.settings(**changes) as now:
        staged = prepare(graph, now).staged
    found = [attributes.Loop.find(node) for node in staged.nodes] if staged is not None else []
    return [loop.chunks_of for loop in found if loop is not None and loop.chunks_of is not None]


def of_size(batch: int, units: int, trips: int | None = None) -> Graph:
    """Two layers and their gradients; without `trips`, their number is an argument."""
    gradient = cg.value_and_grad(layers if trips is None else lambda _, x, w: layers(trips, x, w), argnums=(1, 2))
    return cg.function(gradient).graph(
        np.int64(1), np.broadcast_to(0.0, (trips or 100, batch, units)), np.zeros((units, units))
    )


@pytest.mark.usefixtures("by_cost")
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16, 64])
def test_a_loop_is_divided_where_that_is_faster(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "default_threads", lambda: threads)
    assert not is_divided(of_size(2, 4, 1000)), "so little work that messages would cost more"
    assert not is_divided(of_size(2, 4)), "nor if their number is unknown"
    assert is_divided(of_size(16, 160, 1000)) == (threads > 1), "products too small to be shared by threads"
    assert not is_divided(of_size(16, 160, 20)), "there are too few iterations"
    assert not is_divided(of_size(64, 512, 1000)), "products that all threads share"


@pytest.mark.usefixtures("by_cost")
def test_the_length_follows_from_the_work_of_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "WORTH", np.inf)
    forward = [lengths(of_size(64, units, 100))[0] for units in (128, 256, 512)]
    assert forward == sorted(forward, reverse=True)
    assert 1 < forward[-1] < forward[0] < 100


@pytest.mark.usefixtures("by_cost")
@pytest.mark.parametrize("cost", [1e3, 1e5, 1e6])
@pytest.mark.parametrize("trips", [1, 2, 40, 100])
def test_the_length_is_the_same_for_a_number_of_iterations_that_is_an_argument(
    trips: int, cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "WORTH", np.inf)
    monkeypatch.setattr(stages, "CHUNK", cost)
    graphs = [
        cg.function(layers).graph(np.int64(1), X, W),
        cg.function(lambda _, x, w: layers(trips, x, w)).graph(1, X, W),
    ]
    sent = [sum(c.sent for c in run(graph, [np.int64(trips), X, W])[1].counts.values()) for graph in graphs]
    assert sent[0] == sent[1]


@pytest.mark.usefixtures("by_cost")
def test_bytes_in_flight_bound_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "WORTH", np.inf)
    free = lengths(of_size(64, 256, 100))
    monkeypatch.setattr(stages, "BYTES_IN_FLIGHT", stages.IN_FLIGHT * 64 * 256 * 8 * 2)
    assert free[0] > 2
    assert lengths(of_size(64, 256, 100))[0] == 2, "one array of 64 x 256 goes from the lower layer to the upper one"


@pytest.mark.usefixtures("by_cost")
@pytest.mark.parametrize(("window", "length"), [(1, 1), (15, 2), (16, 4), (17, 4), (31, 4), (32, 8)])
def test_iterations_in_flight_bound_the_length(window: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "WORTH", np.inf)
    graph = of_size(3, 4, 100)
    assert lengths(graph, parallel_iterations=window) == [length, length]
    counts = run(graph, [np.int64(100), X, W], parallel_iterations=window)[1].counts.values()
    assert max(c.most_in_flight for c in counts) <= max(1, window // length)


@pytest.mark.usefixtures("by_cost")
def test_chunks_too_short_to_pay_are_not_divided() -> None:
    graph = of_size(16, 160, 1000)
    assert is_divided(graph)
    assert not is_divided(graph, parallel_iterations=stages.IN_FLIGHT)


# Errors.


@pytest.mark.parametrize("device", [0, 1])
def test_an_error_is_the_one_of_the_loop_as_written(device: int) -> None:
    """An index out of range in iteration 37, whose chunk began earlier."""

    def read(x: Any, at: Any) -> Any:
        def body(carry: Any) -> Any:
            i, a, b = carry
            with cg.device("cpu:0"):
                a = cnp.sin(a) + (x[at[i]] if device == 0 else 0.0)
            with cg.device("cpu:1"):
                b = b + a + (x[at[i]] if device == 1 else 0.0)
            return i + 1, a, b

        return cg.while_loop(lambda c: c[0] < 50, body, (0, x[0], 0.0))[2]

    x, at = np.linspace(0.0, 1.0, 5), np.arange(50) % 5
    graph = cg.function(read).graph(x, at)
    assert is_divided(graph)
    at[37] = 9
    errors: list[CtrlgradError] = []
    for engine in ("dataflow", "reference"):
        with pytest.raises(IndexOutOfRangeError) as caught:
            run_on(engine, graph, [x, at])
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert errors[0].notes == errors[1].notes
    assert "in iteration 37" in errors[0].notes[0]
    at[37] = 0
    assert_same(run_on("dataflow", graph, [x, at]), run_on("reference", graph, [x, at]))


@pytest.mark.parametrize("is_interrupted", [True, False], ids=["Ctrl-C", "another device fails"])
def test_a_plan_on_a_thread_ends_when_the_run_does(is_interrupted: bool) -> None:
    """A loop without end on one device; the other one is told of Ctrl-C, or fails."""

    def both(x: Any, w: Any, at: Any) -> Any:
        start = layers(20, x, w)
        with cg.device("cpu:1"):
            read = cg.while_loop(lambda c: c[0] < 20, lambda c: (c[0] + 1, c[1] + x[at, 0, 0]), (0, start))[1]
        with cg.device("cpu:0"):
            return cg.while_loop(lambda c: c > -1.0, cnp.abs, start) + read

    graph = cg.function(both).graph(X, W, 1)
    assert is_divided(graph)
    before = threading.enumerate()
    if is_interrupted:
        timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                run(graph, [X, W, np.int64(1)])
        finally:
            timer.cancel()
            signal.signal(signal.SIGINT, handler)
    else:
        with pytest.raises(IndexOutOfRangeError):
            run(graph, [X, W, np.int64(len(X))])
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(5.0)
            assert not thread.is_alive()
