"""Partition of a graph by device: the devices of each loop, the messages, and the place of each value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.dataflow_runs import run

import ctrlgrad as cg
from ctrlgrad import dataflow
from ctrlgrad.dataflow import FlatGraph, Recorder, Settings
from ctrlgrad.dataflow.graph import Enter
from ctrlgrad.dataflow.partition import Partition
from ctrlgrad.dataflow.scopes import frames_of
from ctrlgrad.dataflow.settings import partitioned
from ctrlgrad.execution import run_on
from ctrlgrad.ir import StackType


def split(fn: Callable[..., Any], *arguments: Any, **changes: Any) -> Partition:
    return partitioned(cg.function(fn).graph(*arguments), Settings(**changes))


def ops(graph: FlatGraph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def sent_inside(partition: Partition, frame: str) -> list[tuple[str, str, str]]:
    """Messages in every iteration of a frame: sender, receiver, type."""
    return sorted(
        (e.sender, e.receiver, str(e.type)) for e in partition.edges if e.frame[-1:] == (frame,) and e.type is not None
    )


def worker(x: Any, n: Any) -> Any:
    """A loop that counts on cpu:0 and computes on cpu:1."""

    def body(carry: Any) -> Any:
        i, y = carry
        with cg.device("cpu:1"):
            y = np.sin(y) * x
        return i + 1, y

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]


def test_a_participant_gets_a_control_loop_and_the_predicate() -> None:
    found = split(worker, 0.5, 3)
    assert set(found.parts) == {"cpu:0", "cpu:1"}
    assert sent_inside(found, "while_1") == [("cpu:0", "cpu:1", "bool[]")]
    # The carry's five nodes, the capture's Enter, and Enter, Merge, Switch, NextIteration of the control loop.
    counts = ops(found.parts["cpu:1"].graph)
    assert [counts[op] for op in ("Enter", "Merge", "Switch", "NextIteration", "Exit")] == [3, 2, 2, 2, 1]
    assert counts["Recv"] == counts["LoopCond"] == 1
    owner = ops(found.parts["cpu:0"].graph)
    assert owner["Send"] == 1 and owner["Merge"] == 1


def test_a_recv_in_a_loop_is_started_by_the_control_loop() -> None:
    graph = split(worker, 0.5, 3).parts["cpu:1"].graph
    (recv,) = (node for node in graph.nodes if node.op.name == "Recv")
    (control,) = (node for node in graph.nodes if (entered := Enter.find(node)) and entered.control)
    (head,) = (node for node in graph.nodes if node.op.name == "Merge" and control.result in node.operands)
    assert recv.controls == (head.result,)


def test_a_device_without_a_part_in_a_loop_knows_nothing_of_it() -> None:
    def f(x: Any) -> Any:
        with cg.device("cpu:1"):
            y = np.sin(x)
        z = cg.fori_loop(0, 4, lambda i, z: z * 1.5, y)
        with cg.device("cpu:2"):
            return np.cos(z)

    found = split(f, 0.5)
    for name, part in found.parts.items():
        assert bool(frames_of(part.graph).parent) == (name == "cpu:0")
    assert [e.frame for e in found.edges] == [(), ()]


def test_control_loops_are_stacked() -> None:
    """Control loops nest: cpu:1 computes in the inner loop only, and has a control loop for both."""

    def f(x: Any) -> Any:
        def inner(j: Any, z: Any) -> Any:
            with cg.device("cpu:1"):
                return np.sin(z)

        return cg.fori_loop(0, 3, lambda i, y: cg.fori_loop(0, i, inner, y) + 1.0, x)

    found = split(f, 0.5)
    frames = frames_of(found.parts["cpu:1"].graph)
    outer, inner = frames.parent
    assert frames.parent == {outer: "", inner: outer}
    assert ("cpu:0", "cpu:1", "bool[]") in sent_inside(found, outer)
    assert ("cpu:0", "cpu:1", "bool[]") in sent_inside(found, inner)
    graph = cg.function(f).graph(0.5)
    outputs, outcome = run(graph, [np.float64(0.5)])
    assert_same(outputs, run_on("reference", graph, [np.float64(0.5)]))
    # Frames on each device: the root, the outer loop, and the inner loop in 4 outer iterations, the last one dead.
    assert [counts.frames_opened for counts in outcome.counts.values()] == [6, 6]


def test_a_loop_in_a_branch_is_entered_dead_on_all_devices() -> None:
    def f(x: Any, p: Any) -> Any:
        def inner(j: Any, z: Any) -> Any:
            with cg.device("cpu:1"):
                return np.sin(z)

        return cg.cond(p, lambda: cg.fori_loop(0, 3, inner, x), lambda: x)

    graph = cg.function(f).graph(0.5, True)
    for p in (True, False):
        outputs, outcome = run(graph, [np.float64(0.5), np.bool_(p)])
        assert_same(outputs, run_on("reference", graph, [np.float64(0.5), np.bool_(p)]))
        assert outcome.counts["cpu:1"].frames_opened == 2
        assert outcome.counts["cpu:1"].iterations == (1 + 4 if p else 1 + 1)


def test_a_constant_of_a_loop_is_sent_in_each_iteration() -> None:
    """A loop's constant is sent in each iteration: the inner trip count is known before the loop, and both devices'
    gradients begin with it."""

    def f(x: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            with cg.device("cpu:1"):
                y = cg.fori_loop(1, 3, lambda j, z: np.sin(z), y)
            return np.sin(y)

        return cg.fori_loop(0, 2, body, x)

    graph = cg.function(cg.grad(f)).graph(0.5)
    outputs, _ = run(graph, [np.float64(0.5)])
    assert_same(outputs, run_on("reference", graph, [np.float64(0.5)]))


def test_a_captured_array_is_sent_once() -> None:
    def f(x: Any, n: Any) -> Any:
        table = np.sin(x)

        def body(carry: Any) -> Any:
            i, y = carry
            with cg.device("cpu:1"):
                y = y + table[i]
            return i + 1, y

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.0))[1]

    found = split(f, np.arange(100.0), 3)
    assert [e.frame for e in found.edges if str(e.type) == "f64[100]"] == [()]


# Gradients.


def test_a_gradient_sits_with_its_op_and_a_stack_with_its_value() -> None:
    found = split(cg.grad(worker), 0.5, 3)
    # Only the predicate is sent, forward and backward.
    assert sent_inside(found, "while_1") == sent_inside(found, "while_2") == [("cpu:0", "cpu:1", "bool[]")]
    stacks = {
        name: sum(isinstance(v.type, StackType) for node in part.graph.nodes for v in node.results)
        for name, part in found.parts.items()
    }
    assert stacks["cpu:0"] == 0 < stacks["cpu:1"]


def two_layers(x: Any, w: Any) -> Any:
    """A layer per device; the first layer's result goes to the second in every step."""

    def body(carry: Any) -> Any:
        t, a, b = carry
        with cg.device("cpu:0"):
            a = np.tanh(x[t] @ w + a)
        with cg.device("cpu:1"):
            b = np.tanh(a @ w + b)
        return t + 1, a, b

    zero = np.zeros(3)
    return cg.while_loop(lambda carry: carry[0] < 6, body, (0, zero, zero))[2].sum()


LAYERS = (np.linspace(-1, 1, 18).reshape(6, 3), np.linspace(0.3, 0.9, 9).reshape(3, 3))


def test_a_model_split_over_two_devices() -> None:
    graph = cg.function(cg.grad(two_layers, argnums=(0, 1))).graph(*LAYERS)
    expected = run_on("reference", graph, LAYERS)
    for window in (1, 2, 32):
        found, outcome = run(graph, LAYERS, parallel_iterations=window)
        assert_same(found, expected)
        assert set(outcome.counts) == {"cpu:0", "cpu:1"}
    forward = split(two_layers, *LAYERS)
    assert sent_inside(forward, "while_1") == [("cpu:0", "cpu:1", "bool[]"), ("cpu:0", "cpu:1", "f64[3]")]


def test_devices_overlap_within_the_window_and_not_without() -> None:
    """With a window of more than 1 the first layer runs ahead of the second; with 1 both are in the same iteration."""
    graph = cg.function(two_layers).graph(*LAYERS)
    ahead = {}
    for window in (1, 32):
        recorder = Recorder()
        run(graph, LAYERS, parallel_iterations=window, recorder=recorder, delay=lambda draw: 2e-3)
        began: dict[tuple[str, int], float] = {}
        for firing in recorder.firings:
            if firing.op == "Cluster" and firing.frame and not firing.is_dead:
                began.setdefault((firing.device, firing.tag[-1]), firing.began)
        ahead[window] = sum(began["cpu:0", t + 1] < began["cpu:1", t] for t in range(5))
    assert ahead[1] == 0 < ahead[32]


# Simulated devices, names.


def test_a_simulated_device_is_only_slow() -> None:
    def f(x: Any) -> Any:
        with cg.device("sim:0"):
            y = np.sin(x)
        return y * 2.0

    graph = cg.function(f).graph(0.5)
    recorder = Recorder()
    found, _ = run(graph, [np.float64(0.5)], latency=0.02, recorder=recorder)
    assert found[0] == np.sin(0.5) * 2.0
    (sent,) = (p.time for p in recorder.passages if not p.is_arrival)
    (arrived,) = (p.time for p in recorder.passages if p.is_arrival)
    assert arrived - sent >= 0.019


def test_the_innermost_device_counts() -> None:
    def f(x: Any) -> Any:
        with cg.device("cpu:1"):
            y = np.sin(x)
            with cg.device("cpu:2"):
                y = np.cos(y)
            with cg.device(None):
                y = np.exp(y)
            return y + 1.0

    assert set(split(f, 0.5).parts) == {"cpu:0", "cpu:1", "cpu:2"}


def test_other_engines_ignore_devices() -> None:
    expected = float(cg.function(worker, engine="dataflow")(0.5, 7))
    assert float(cg.function(worker, engine="reference")(0.5, 7)) == expected
    assert "cpu:1" not in str(cg.function(worker).graph(0.5, 7))


@pytest.mark.parametrize("changes", [{"clusters": "some"}, {"loops": "no"}, {"parallel_iterations": 0}, {"windows": 3}])
def test_settings_that_do_not_exist(changes: dict[str, Any]) -> None:
    with pytest.raises(cg.CtrlgradError), dataflow.settings(**changes):
        pass
