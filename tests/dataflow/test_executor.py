"""The executor: values in flight, memory that is left, and the order of effects."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.dataflow_runs import at_random, run

import ctrlgrad as cg
from ctrlgrad import dataflow
from ctrlgrad.dataflow import Recorder, Settings
from ctrlgrad.dataflow.engine import Executor, OldestFirst
from ctrlgrad.dataflow.frames import Execution, Iteration, Tag
from ctrlgrad.dataflow.messages import Exchange, Mailbox, Message
from ctrlgrad.dataflow.partition import partition
from ctrlgrad.dataflow.plan import ClusterStep
from ctrlgrad.dataflow.settings import Prepared, placed, prepare
from ctrlgrad.errors import CtrlgradError, ExecutionError, MaximumIterationsError, NonFiniteError
from ctrlgrad.execution import run_on


def graph_of(fn: Any, *arguments: Any) -> Any:
    return cg.function(fn).graph(*arguments)


def slow(x: Any) -> Any:
    for _ in range(8):
        x = np.sin(x)
    return x


def two_chains(n: Any) -> Any:
    """Two carries that do not wait for each other, and a counter that both read and that runs ahead of them."""

    def body(carry: Any) -> Any:
        i, x, y = carry
        return i + 1, slow(x) + i, slow(y) - i

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.5, 0.5))[1:]


# The window.


@pytest.mark.parametrize("window", [1, 2, 5, 32])
def test_the_window_bounds_what_is_in_flight(window: int) -> None:
    graph = graph_of(two_chains, 3)
    found, outcome = run(graph, [np.int64(90)], clusters="none", parallel_iterations=window)
    assert outcome.counts["cpu:0"].most_in_flight == window
    assert outcome.counts["cpu:0"].iterations == 1 + 91
    assert_same(found, run_on("reference", graph, [np.int64(90)]))


@pytest.mark.parametrize("window", [1, 2, 8])
def test_the_window_holds_for_all_devices_together(window: int) -> None:
    """The window holds for all devices together: a device that owns the loop and waits for no message stays within
    the window of the other devices."""
    recorder = Recorder()

    def f(n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, x = carry
            with cg.device("cpu:1"):
                x = np.sin(x) + 1.0
            return i + 1, x

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.5))[1]

    graph = graph_of(f, 3)
    run(graph, [np.int64(50)], parallel_iterations=window, recorder=recorder, delay=lambda draw: 1e-4)
    done, newest = -1, 0
    for firing in sorted(recorder.firings, key=lambda firing: firing.ended):
        if firing.device == "cpu:0" and firing.op == "LoopCond":
            newest = firing.tag[-1]
            assert newest <= done + 1 + window
        if firing.device == "cpu:1" and firing.op == "Cluster" and len(firing.tag) == 2:
            done = firing.tag[-1]
    assert newest == 50


def test_the_user_says_the_window_in_the_program() -> None:
    def f(n: Any) -> Any:
        def body(carry: Any) -> Any:
            return carry[0] + 1, slow(carry[1])

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.5), parallel_iterations=3)[1]

    _, outcome = run(graph_of(f, 3), [np.int64(40)], clusters="none")
    assert outcome.counts["cpu:0"].most_in_flight == 3
    _, outcome = run(graph_of(cg.grad(lambda x: x * f(40)), 1.0), [np.float64(2.0)], clusters="none")
    assert outcome.counts["cpu:0"].most_in_flight == 3


def test_few_nodes_fire_per_iteration() -> None:
    """Three nodes fire per iteration, condition, LoopCond and body; nodes that hand a carry on do not, for any
    number of carries."""
    for count in (1, 4):
        body = lambda xs: tuple(x + 1.0 for x in xs)
        graph = graph_of(lambda n: cg.while_loop(lambda xs: xs[0] < n, body, (0.0,) * count), 3.0)  # noqa: B023
        firings = [run(graph, [np.float64(n)])[1].counts["cpu:0"].firings for n in (10, 110)]
        assert firings[1] - firings[0] == 100 * 3


# Effects, options, errors.


def noted(graph_fn: Any, arguments: Sequence[Any], engine: str, **changes: Any) -> list[Any]:
    seen: list[Any] = []
    graph = graph_of(lambda *xs: graph_fn(seen, *xs), *arguments)
    if engine == "dataflow":
        run(graph, arguments, **changes)
    else:
        run_on(engine, graph, arguments)
    return seen


def talkative(seen: list[Any], x: Any, n: Any) -> Any:
    def body(carry: Any) -> Any:
        i, y = carry
        cg.debug.callback(lambda now, at: seen.append(("body", float(now), at)), y)
        y = cg.cond(
            y > 2.0,
            lambda: (cg.debug.callback(lambda now, at: seen.append(("big", float(now), at)), y), y * 0.5)[1],
            lambda: y + 1.0,
        )
        y = cg.fori_loop(
            0,
            2,
            lambda j, z: (cg.debug.callback(lambda now, at: seen.append(("inner", int(now), at)), j), z * 1.1)[1],
            y,
        )
        return i + 1, y

    cg.debug.callback(lambda now, at: seen.append(("start", float(now), at)), x)
    last = cg.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]
    cg.debug.callback(lambda now, at: seen.append(("end", float(now), at)), last)
    return last


@pytest.mark.parametrize("devices", [1, 3])
def test_callbacks_come_in_the_order_in_which_they_stand(devices: int) -> None:
    arguments = [np.float64(1.0), np.int64(6)]
    expected = noted(talkative, arguments, "reference")
    assert len(expected) > 20
    for seed in range(3):
        place = at_random(devices, seed)
        assert noted(talkative, arguments, "dataflow", order=seed, place=place) == expected


def message(graph: Any, arguments: Sequence[Any], engine: str, check_nans: bool = False) -> str:
    with pytest.raises(CtrlgradError) as caught:
        run_on(engine, graph, arguments, check_nans)
    return f"{type(caught.value).__name__}: {caught.value}"


def out_of_range(x: Any, n: Any) -> Any:
    def body(carry: Any) -> Any:
        i, y = carry
        return i + 1, cg.fori_loop(0, 3, lambda j, z: z + x[i + j], y)

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.0))[1]


def endless(x: Any) -> Any:
    return cg.while_loop(lambda y: y < 10.0, lambda y: y + x, 0.0, maximum_iterations=3)


def endless_inside(x: Any) -> Any:
    return cg.fori_loop(0, 2, lambda i, y: y + endless(x), 0.0)


FAILING = (
    (out_of_range, (np.arange(4.0), np.int64(3)), False),
    (endless, (np.float64(1.0),), False),
    (endless_inside, (np.float64(1.0),), False),
    (cg.grad(lambda x: cg.fori_loop(0, 3, lambda i, y: np.log(y), x)), (np.float64(1.0),), True),
    (cg.grad(lambda x: cg.fori_loop(0, 4, lambda i, y: np.sqrt(y) * i, x)), (np.float64(0.3),), True),
)


@pytest.mark.parametrize(("fn", "arguments", "check_nans"), FAILING)
def test_errors_read_as_those_of_the_reference_engine(fn: Any, arguments: Any, check_nans: bool) -> None:
    graph = graph_of(fn, *arguments)
    expected = message(graph, arguments, "reference", check_nans)
    assert message(graph, arguments, "dataflow", check_nans) == expected
    with dataflow.settings(place=at_random(2, 1)):
        assert message(graph, arguments, "dataflow", check_nans) == expected


def test_the_kinds_of_errors() -> None:
    kinds = (IndexError, MaximumIterationsError, MaximumIterationsError, NonFiniteError, NonFiniteError)
    for (fn, arguments, check_nans), kind in zip(FAILING, kinds, strict=True):
        with pytest.raises(kind):
            run_on("dataflow", graph_of(fn, *arguments), arguments, check_nans)


# Stops of a run.


def across(x: Any, n: Any) -> Any:
    def body(carry: Any) -> Any:
        i, y = carry
        with cg.device("cpu:1"):
            y = np.sin(y)
        return i + 1, y

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]


def test_a_lost_message_is_reported_with_node_operand_and_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(across, 0.5, 3)
    send = Mailbox.send

    def lossy(self: Mailbox, edge: int, tag: Tag, dead: Any, value: Any) -> None:
        if tag == (0, 7) and self.exchange.edges[edge].type is not None:
            return
        send(self, edge, tag, dead, value)

    monkeypatch.setattr(Mailbox, "send", lossy)
    with pytest.raises(ExecutionError, match="cannot go on") as caught:
        run_on("dataflow", graph, [np.float64(0.5), np.int64(20)])
    assert "Recv of predicate" in str(caught.value.got)
    assert "on cpu:1 waits for a message on edge 0 at iteration 7 of while_1" in str(caught.value.got)
    monkeypatch.setattr(Mailbox, "send", send)
    assert run_on("dataflow", graph, [np.float64(0.5), np.int64(0)])[0] == 0.5


def test_a_lost_result_on_the_only_device_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(lambda x, n: cg.while_loop(lambda i: i < n, lambda i: i + x, 0.0), 0.5, 3.0)
    fire = ClusterStep.fire

    def lossy(self: ClusterStep, iteration: Iteration, execution: Execution) -> None:
        if iteration.number == 4 and "add" in self.name:
            return
        fire(self, iteration, execution)

    monkeypatch.setattr(ClusterStep, "fire", lossy)
    with pytest.raises(ExecutionError, match="cannot go on") as caught:
        run_on("dataflow", graph, [np.float64(0.5), np.float64(9.0)])
    assert "NextIteration" in str(caught.value.got) and "at iteration 4 of while_1" in str(caught.value.got)


def test_ctrl_c_stops_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(across, 0.5, 3)
    interrupted = []

    def interrupt_at(self: Executor, received: Message) -> None:
        if received.tag == (0, 40) and not interrupted:
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        accept(self, received)

    accept = Executor.accept
    monkeypatch.setattr(Executor, "accept", interrupt_at)
    before = threading.enumerate()
    # A process that a shell started in the background ignores SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_on("dataflow", graph, [np.float64(0.5), np.int64(1 << 20)])
    finally:
        signal.signal(signal.SIGINT, handler)
    assert interrupted
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(5.0)
            assert not thread.is_alive()
    monkeypatch.undo()
    assert run_on("dataflow", graph, [np.float64(0.5), np.int64(0)])[0] == 0.5


def test_leftovers_of_a_run_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "left_behind", lambda self: {"frames": 1, "early messages": 0})
    with pytest.raises(ExecutionError, match="left something behind") as caught:
        run_on("dataflow", graph_of(two_chains, 3), [np.int64(3)])
    assert caught.value.got == "{'frames': 1}"


def test_an_exchange_is_stuck_only_when_nothing_is_on_its_way() -> None:
    split = partition(placed(graph_of(across, 0.5, 3), Settings()))
    exchange = Exchange(["cpu:0", "cpu:1"], split.edges, None)
    edge = next(e.number for e in split.edges if e.receiver == "cpu:1")
    exchange.boxes["cpu:0"].send(edge, (0, 0), None, 1.0)
    exchange.boxes["cpu:0"].done()
    assert [m.value for m in exchange.boxes["cpu:1"].receive()] == [1.0]
    assert not exchange.is_stuck


def test_plans_are_made_once() -> None:
    graph = graph_of(two_chains, 3)
    first = prepare(graph, Settings())
    assert isinstance(first, Prepared)
    assert prepare(graph, Settings()) is first
    assert prepare(graph, Settings(parallel_iterations=1)) is not first
    with cg.memory.budget():
        assert prepare(graph, Settings()) is not first
    assert prepare(graph, Settings()) is first


def test_oldest_nodes_fire_first_and_dead_ones_before() -> None:
    def at(*tag: int) -> Any:
        return SimpleNamespace(tag=tag)

    ready = OldestFirst()
    for entry in ((at(0, 3), "late"), (at(0, 1, 5), "inside an old one"), (at(0, 1), "old"), (at(0, 3), "later")):
        ready.append(entry)
    ready.appendleft((at(0, 9), "dead"))
    assert [ready.popleft()[1] for _ in range(len(ready))] == ["dead", "old", "inside an old one", "late", "later"]


def test_arrived_messages_are_received_without_waiting() -> None:
    split = partition(placed(graph_of(across, 0.5, 3), Settings()))
    exchange = Exchange(["cpu:0", "cpu:1"], split.edges, None)
    edge = next(e.number for e in split.edges if e.receiver == "cpu:1")
    assert exchange.boxes["cpu:1"].receive_now() == []
    exchange.boxes["cpu:0"].send(edge, (0, 0), None, 1.0)
    assert [m.value for m in exchange.boxes["cpu:1"].receive_now()] == [1.0]
    assert exchange.in_flight == 0
