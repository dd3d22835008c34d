"""Flat graphs made by hand from the primitives: correct ones run, and faulty ones are refused before they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.dataflow_runs import run

from ctrlgrad import dataflow
from ctrlgrad.dataflow import FlatBuilder, FlatGraph, run_flat
from ctrlgrad.errors import ExecutionError, UserInputError, VerificationError
from ctrlgrad.ir import BOOL, INDEX, TensorType, Value

F64 = TensorType(np.dtype(np.float64))


def counting(limit: int = 5) -> FlatGraph:
    """A loop that counts `i` to `limit` and sums it."""
    b = FlatBuilder("counting")
    n = b.enter(b.constant(np.int64(limit)), "loop", constant=True)
    i = b.merge(b.enter(b.input(INDEX, "start"), "loop"))
    total = b.merge(b.enter(b.constant(np.int64(0)), "loop"))
    goes_on = b.loop_cond(b.op("less", [i, n]))
    (i_last, i_now), (total_last, total_now) = b.switch(goes_on, i), b.switch(goes_on, total)
    b.next_iteration(b.op("add", [i_now, b.constant(np.int64(1), controls=[i_now])]), into=i)
    b.next_iteration(b.op("add", [total_now, i_now]), into=total)
    return b.finish([b.exit(i_last), b.exit(total_last)])


@pytest.mark.parametrize("window", [1, 2, 32])
@pytest.mark.parametrize(("start", "expected"), [(0, (5, 10)), (4, (5, 4)), (7, (7, 0))])
def test_a_loop(start: int, expected: tuple[int, int], window: int) -> None:
    found, _ = run(counting(), [np.int64(start)], parallel_iterations=window)
    assert tuple(map(int, found)) == expected


def test_a_carry_that_grows() -> None:
    """A carry may grow: one element enters, and the carry's type allows another size in later iterations."""
    b = FlatBuilder("doubled")
    x = b.input(TensorType(np.dtype(np.float64), (1,)), "x")
    size = TensorType(np.dtype(np.float64), (None,))
    y = b.merge(b.enter(x, "loop", type=size))
    i = b.merge(b.enter(b.constant(np.int64(0)), "loop"))
    goes_on = b.loop_cond(b.op("less", [i, b.constant(np.int64(3), controls=[i])]))
    (y_last, y_now), (i_last, i_now) = b.switch(goes_on, y), b.switch(goes_on, i)
    b.next_iteration(b.op("concat", [y_now, y_now], {"axis": 0}), into=y)
    b.next_iteration(b.op("add", [i_now, b.constant(np.int64(1), controls=[i_now])]), into=i)
    found = run_flat(b.finish([b.exit(y_last), b.exit(i_last)]), [np.array([2.0])])
    np.testing.assert_array_equal(found[0], np.full(8, 2.0))


def sides(taken: str) -> FlatGraph:
    """x * x on one side of p and -x on the other, merged or used alone."""
    b = FlatBuilder("sides")
    p, x = b.input(BOOL, "p"), b.input(F64, "x")
    false, true = b.switch(p, x)
    squared, negated = b.op("multiply", [true, true]), b.op("negative", [false])
    outputs = {"both": b.merge(negated, squared), "true": squared}
    return b.finish([outputs[taken]])


def test_a_branch() -> None:
    graph = sides("both")
    assert [run_flat(graph, [np.bool_(p), np.float64(3.0)])[0] for p in (True, False)] == [9.0, -3.0]


def test_a_dead_output_names_the_predicate() -> None:
    graph = sides("true")
    assert run_flat(graph, [np.True_, np.float64(3.0)])[0] == 9.0
    with pytest.raises(ExecutionError, match="output 0 is dead: the predicate p was false") as caught:
        run_flat(graph, [np.False_, np.float64(3.0)])
    assert caught.value.source.file == __file__ and "sides" in caught.value.source.function


def test_a_dead_output_names_the_iteration() -> None:
    """A dead output's error names the iteration: the loop is entered only where p holds, and its Exit is an output."""
    b = FlatBuilder()
    p, x = b.input(BOOL, "p"), b.input(F64, "x")
    _, true = b.switch(p, x)
    y = b.merge(b.enter(true, "loop"))
    limit = b.constant(10.0, controls=[y])
    last, now = b.switch(b.loop_cond(b.op("less", [y, limit])), y)
    b.next_iteration(b.op("add", [now, now]), into=y)
    graph = b.finish([b.exit(last)])
    assert run_flat(graph, [np.True_, np.float64(3.0)])[0] == 12.0
    with pytest.raises(ExecutionError, match="the predicate p was false"):
        run_flat(graph, [np.False_, np.float64(3.0)])


def test_an_integer_predicate_is_clamped() -> None:
    b = FlatBuilder()
    k, x = b.input(INDEX, "k"), b.input(F64, "x")
    parts = [b.op(op, [side]) for op, side in zip(("sin", "cos", "exp"), b.switch(k, x, 3), strict=True)]
    graph = b.finish([b.merge(*parts)])
    found = [run_flat(graph, [np.int64(i), np.float64(0.5)])[0] for i in (-4, 0, 1, 2, 9)]
    np.testing.assert_array_equal(found, [np.sin(0.5), np.sin(0.5), np.cos(0.5), np.exp(0.5), np.exp(0.5)])


def test_two_sides_that_are_alive_are_no_merge() -> None:
    b = FlatBuilder()
    x = b.input(F64, "x")
    graph = b.finish([b.merge(b.op("sin", [x]), b.op("cos", [x]))])
    with pytest.raises(ExecutionError, match="two of its operands are alive"):
        run_flat(graph, [np.float64(0.5)])


def test_devices_by_hand() -> None:
    b = FlatBuilder()
    x = b.input(F64, "x")
    y = b.op("sin", [x], device="cpu:1")
    graph = b.finish([b.op("cos", [y], device="cpu:3")])
    found, outcome = run(graph, [np.float64(0.5)])
    assert found[0] == np.cos(np.sin(0.5))
    assert set(outcome.counts) == {"cpu:1", "cpu:3"}


# Refused graphs.


def unfinished() -> FlatGraph:
    b = FlatBuilder()
    i = b.merge(b.enter(b.input(INDEX, "i"), "loop"))
    b.loop_cond(b.op("less", [i, i]))
    return b.finish([])


def without_an_exit() -> FlatGraph:
    b = FlatBuilder()
    i = b.merge(b.enter(b.input(INDEX, "i"), "loop"))
    _, now = b.switch(b.loop_cond(b.op("less", [i, i])), i)
    b.next_iteration(now, into=i)
    return b.finish([])


def without_a_merge() -> FlatGraph:
    b = FlatBuilder()
    first = b.enter(b.input(INDEX, "i"), "loop")
    b.loop_cond(b.op("less", [first, first]))
    return b.finish([])


def without_a_condition() -> FlatGraph:
    b = FlatBuilder()
    b.op("negative", [b.enter(b.input(INDEX, "i"), "loop")])
    return b.finish([])


def with_two_frames_mixed() -> FlatGraph:
    b = FlatBuilder()
    x = b.input(INDEX, "x")
    inside = b.enter(x, "loop")
    b.op("add", [inside, x])
    return b.finish([])


def with_an_exit_of_something_else() -> FlatGraph:
    b = FlatBuilder()
    i = b.merge(b.enter(b.input(INDEX, "i"), "loop"))
    _, now = b.switch(b.loop_cond(b.op("less", [i, i])), i)
    b.next_iteration(now, into=i)
    return b.finish([b.exit(now)])


def with_an_output_inside() -> FlatGraph:
    b = FlatBuilder()
    return b.finish([b.enter(b.input(INDEX, "i"), "loop")])


def with_an_exit_outside() -> FlatGraph:
    b = FlatBuilder()
    return b.finish([b.exit(b.input(INDEX, "i"))])


def with_a_constant_alone() -> FlatGraph:
    b = FlatBuilder()
    n = b.enter(b.input(INDEX, "n"), "loop", constant=True)
    i = b.merge(b.enter(b.inputs[0], "loop"))
    last, now = b.switch(b.loop_cond(b.op("less", [i, n])), i)
    b.next_iteration(b.op("add", [now, n]), into=i)
    b.op("negative", [n])
    return b.finish([b.exit(last)])


def with_an_unknown_op() -> FlatGraph:
    b = FlatBuilder()
    return b.finish([b.op("frobnicate", [b.input(INDEX, "n")])])


def with_a_wrong_type() -> FlatGraph:
    b = FlatBuilder()
    x = b.input(F64, "x")
    return b.finish([b.merge(*b.switch(x, x))])


def with_a_cycle() -> FlatGraph:
    b = FlatBuilder()
    later = Value(F64)
    b.add("negative", (later,), (later,))
    return b.finish([later])


def with_a_value_from_nowhere() -> FlatGraph:
    b = FlatBuilder()
    return b.finish([b.op("negative", [Value(F64)])])


def with_two_parents() -> FlatGraph:
    b = FlatBuilder()
    x = b.input(INDEX, "x")
    b.enter(b.enter(x, "inner"), "outer")
    b.enter(x, "outer")
    return b.finish([])


REFUSED: dict[Any, str] = {
    unfinished: "the Merge 'i' has no NextIteration",
    without_an_exit: r"Enter of i into loop \(test_hand_built.py:\d+\): an Enter without its Exit",
    without_a_merge: "Enter of i into loop .*: it does not open a loop",
    without_a_condition: "Enter of i into loop .*: the frame has no LoopCond",
    with_two_frames_mixed: "add .*: its operands are of two frames",
    with_an_exit_of_something_else: "Exit of i .*: what it takes out",
    with_an_output_inside: "output 0 is not in the root frame",
    with_an_exit_outside: "Exit of i .*: there is no frame to leave",
    with_a_constant_alone: "negative .*: nothing of the iteration says when it runs",
    with_an_unknown_op: "there is no op 'frobnicate'",
    with_a_wrong_type: "Switch of x .*: the predicate",
    with_a_cycle: "negative .*: an operand is not defined before it is used",
    with_a_value_from_nowhere: "negative .*: an operand is defined nowhere",
    with_two_parents: "Enter of x into outer .*: the frame is entered from two frames",
}


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_refused_before_running(build: Any) -> None:
    with pytest.raises(VerificationError, match=REFUSED[build]):
        build()


def test_the_error_of_mixed_frames_names_the_nodes() -> None:
    with pytest.raises(VerificationError) as caught:
        with_two_frames_mixed()
    assert "Enter of x into loop (test_hand_built.py:" in str(caught.value.got)
    assert "x: the root frame" in str(caught.value.got)


@pytest.mark.parametrize("name", ["cuda:0", "/rank:1/cpu:0"])
def test_a_device_that_is_not_here(name: str) -> None:
    b = FlatBuilder()
    graph = b.finish([b.op("sin", [b.input(F64, "x")], device=name)])
    with pytest.raises(UserInputError, match=f"the device {name} does not exist here") as caught:
        run_flat(graph, [np.float64(0.5)])
    assert caught.value.source.file == __file__


@pytest.mark.parametrize("name", ["tpu:0", "cpu", "cpu:-1", "cpu:4096", "/rank:x/cpu:0", 3])
def test_a_name_that_is_no_devices(name: Any) -> None:
    with pytest.raises(UserInputError, match="there is no device") as caught, dataflow.device(name):
        pass
    assert caught.value.source.file == __file__


def test_a_graph_that_was_not_built_is_checked_too() -> None:
    good = counting()
    bad = FlatGraph(good.inputs, good.nodes[:-1], good.outputs[:1])
    with pytest.raises(VerificationError, match="an Enter without its Exit"):
        run_flat(bad, [np.int64(0)])
