"""The nodes of a loop's carry hand a value on, in any order of arrival and with any further waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.dataflow_runs import run

from ctrlgrad.dataflow import FlatBuilder, FlatGraph, Recorder
from ctrlgrad.dataflow.frames import Execution, Iteration
from ctrlgrad.dataflow.plan import EnterStep
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import BOOL, INDEX, Value


def same_in_any_order(graph: FlatGraph, arguments: list[Any], expected: tuple[int, ...]) -> None:
    for window in (1, 2, 32):
        for clusters in ("none", "whole", "flowing"):
            for order in (None, 0, 1, 2, 3):
                found, _ = run(graph, arguments, parallel_iterations=window, clusters=clusters, order=order)
                assert tuple(map(int, found)) == expected, (window, clusters, order)


def one(b: FlatBuilder, alive: Value) -> Value:
    return b.constant(np.int64(1), controls=[alive])


def counting(waiting: str = "") -> FlatGraph:
    """A loop that counts `i` to `n` and sums it; the node named `waiting`, of the sum's carry, waits for one more
    value."""
    b = FlatBuilder("counting")
    start, n = b.input(INDEX, "start"), b.enter(b.input(INDEX, "n"), "loop", constant=True)
    i = b.merge(b.enter(start, "loop"))
    slow = b.op("negative", [b.op("negative", [i])])

    def more(name: str, *values: Value) -> dict[str, Any]:
        return {"controls": values} if name == waiting else {}

    total = b.merge(b.enter(b.constant(np.int64(0)), "loop"), **more("Merge", slow))
    goes_on = b.loop_cond(b.op("less", [i, n]))
    i_last, i_now = b.switch(goes_on, i)
    total_last, total_now = b.switch(goes_on, total, **more("Switch", slow))
    b.next_iteration(b.op("add", [i_now, one(b, i_now)]), into=i)
    added = b.op("add", [total_now, i_now])
    b.next_iteration(added, into=total, **more("NextIteration", b.op("negative", [added])))
    after = b.op("negative", [i_last]) if waiting == "false side" else slow
    controls = [after] if waiting in ("Exit", "false side") else []
    return b.finish([b.exit(i_last), b.exit(total_last, controls=controls)])


@pytest.mark.parametrize("waiting", ["", "Merge", "Switch", "NextIteration", "Exit", "false side"])
def test_a_node_of_a_carry_may_wait_for_more(waiting: str) -> None:
    graph = counting(waiting)
    same_in_any_order(graph, [np.int64(0), np.int64(6)], (6, 15))
    same_in_any_order(graph, [np.int64(4), np.int64(3)], (4, 0))
    recorder = Recorder()
    run(graph, [np.int64(0), np.int64(6)], recorder=recorder, clusters="none")
    fired = {firing.op for firing in recorder.firings} & {"Merge", "Switch", "NextIteration"}
    assert fired == ({waiting} & {"Merge", "Switch", "NextIteration"})


def test_controlled_nodes_fire_after_their_control() -> None:
    recorder = Recorder()
    run(counting("Switch"), [np.int64(0), np.int64(6)], recorder=recorder, clusters="none", order=3)
    firings = [f for f in recorder.firings if f.frame == "loop" and not f.is_dead]
    for tag in {f.tag for f in firings}:
        mine = [f.node.split(" ")[0] if f.op != "Cluster" else f.node for f in firings if f.tag == tag]
        negative = [k for k, name in enumerate(mine) if "negative" in name]
        assert mine.index("Switch") > negative[1]


def test_one_value_for_two_carries() -> None:
    """One value feeds two carries: Fibonacci's numbers twice. The sum goes on as `b` and as `c`, and `b` as `a`."""
    g = FlatBuilder()
    n = g.enter(g.input(INDEX, "n"), "loop", constant=True)
    i, a, b, c = (g.merge(g.enter(g.constant(np.int64(k)), "loop")) for k in (0, 0, 1, 1))
    goes_on = g.loop_cond(g.op("less", [i, n]))
    (i_last, i_now), (a_last, a_now), (b_last, b_now), (c_last, c_now) = (g.switch(goes_on, v) for v in (i, a, b, c))
    g.next_iteration(g.op("add", [i_now, one(g, i_now)]), into=i)
    g.next_iteration(b_now, into=a)
    following = g.op("add", [a_now, c_now])
    g.next_iteration(following, into=b)
    g.next_iteration(following, into=c)
    graph = g.finish([g.exit(v) for v in (i_last, a_last, b_last, c_last)])
    same_in_any_order(graph, [np.int64(10)], (10, 55, 89, 89))


def test_switch_takes_values_that_are_no_carries() -> None:
    """A Switch takes values that are no carries: a constant of the frame, which may come late, and the predicate
    itself."""
    b = FlatBuilder()
    n = b.enter(b.input(INDEX, "n"), "loop", constant=True)
    late = b.input(INDEX, "late")
    for _ in range(20):
        late = b.op("negative", [late])
    shift = b.enter(late, "loop", constant=True)
    i, total = (b.merge(b.enter(b.constant(np.int64(k)), "loop")) for k in (0, 0))
    goes_on = b.loop_cond(b.op("less", [i, n]))
    (i_last, i_now), (total_last, total_now) = b.switch(goes_on, i), b.switch(goes_on, total)
    (shift_last, shift_now), (_, holds) = b.switch(goes_on, shift), b.switch(goes_on, goes_on)
    b.next_iteration(b.op("add", [i_now, one(b, holds)]), into=i)
    b.next_iteration(b.op("add", [total_now, shift_now]), into=total)
    graph = b.finish([b.exit(i_last), b.exit(total_last), b.exit(shift_last)])
    same_in_any_order(graph, [np.int64(7), np.int64(3)], (7, 21, 3))
    same_in_any_order(graph, [np.int64(0), np.int64(3)], (0, 0, 3))


def test_a_carry_of_a_loop_that_is_not_entered_is_dead() -> None:
    b = FlatBuilder()
    p, x = b.input(BOOL, "p"), b.input(INDEX, "x")
    not_taken, taken = b.switch(p, x)
    i, kept = (b.merge(b.enter(taken, "loop")) for _ in range(2))
    goes_on = b.loop_cond(b.op("less", [i, b.constant(np.int64(5), controls=[i])]))
    (i_last, i_now), (kept_last, kept_now) = b.switch(goes_on, i), b.switch(goes_on, kept)
    b.next_iteration(b.op("add", [i_now, one(b, i_now)]), into=i)
    b.next_iteration(kept_now, into=kept)
    both = b.op("add", [b.exit(i_last), b.exit(kept_last)])
    graph = b.finish([b.merge(not_taken, both)])
    same_in_any_order(graph, [np.True_, np.int64(2)], (7,))
    same_in_any_order(graph, [np.True_, np.int64(8)], (16,))
    same_in_any_order(graph, [np.False_, np.int64(2)], (2,))


def test_a_late_carry_that_stays_as_it_is_passes_however_many_iterations_have_begun() -> None:
    b = FlatBuilder()
    n = b.enter(b.input(INDEX, "n"), "loop", constant=True)
    late = b.input(INDEX, "x")
    for _ in range(2500):
        late = b.op("negative", [late])
    i, x = b.merge(b.enter(b.constant(np.int64(0)), "loop")), b.merge(b.enter(late, "loop"))
    goes_on = b.loop_cond(b.op("less", [i, n]))
    (i_last, i_now), (x_last, x_now) = b.switch(goes_on, i), b.switch(goes_on, x)
    b.next_iteration(b.op("add", [i_now, one(b, i_now)]), into=i)
    b.next_iteration(x_now, into=x)
    graph = b.finish([b.exit(i_last), b.exit(x_last)])
    found, outcome = run(graph, [np.int64(700), np.int64(3)], parallel_iterations=10**6, clusters="none")
    assert tuple(map(int, found)) == (700, 3)
    assert outcome.counts["cpu:0"].most_in_flight > 600


# Errors of runs that cannot go on.


@pytest.mark.parametrize("lost", ["total", "start"])
def test_a_switch_says_what_it_waits_for(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fire: Callable[..., None] = EnterStep.fire

    def lossy(self: EnterStep, iteration: Iteration, execution: Execution) -> None:
        entered = "start" if self.node.operands[0].hint == "start" else "total"
        if not self.results[0].switches or entered != lost:
            fire(self, iteration, execution)

    monkeypatch.setattr(EnterStep, "fire", lossy)
    with pytest.raises(ExecutionError, match="cannot go on") as caught:
        run(counting(), [np.int64(0), np.int64(6)])
    lines = str(caught.value.got).splitlines()
    waits = f"on cpu:0 waits for operand 1{' (start)' if lost == 'start' else ''} at iteration 0 of loop"
    assert any(line.startswith("Switch") and line.endswith(waits) for line in lines), lines
    assert not any(line.startswith("Exit") for line in lines)
