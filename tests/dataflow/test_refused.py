"""Graphs made by hand that break a rule are refused before they run, with the node and its line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ctrlgrad.dataflow import FlatBuilder, FlatGraph, run_flat
from ctrlgrad.errors import VerificationError
from ctrlgrad.ir import BOOL, INDEX, Graph, TensorType, Value

F64 = TensorType(np.dtype(np.float64))
Build = Callable[[FlatBuilder], Any]


@dataclass(frozen=True)
class Loop:
    """The values of a loop that counts to a limit."""

    i: Value
    goes_on: Value
    last: Value
    now: Value
    following: Value


def begin(b: FlatBuilder, start: Value, frame: str = "loop") -> Loop:
    """Begin a loop, without its NextIteration."""
    i = b.merge(b.enter(start, frame))
    goes_on = b.loop_cond(b.op("less", [i, b.constant(np.int64(5), controls=[i])]))
    last, now = b.switch(goes_on, i)
    return Loop(i, goes_on, last, now, b.op("add", [now, b.constant(np.int64(1), controls=[now])]))


def count(b: FlatBuilder, start: Value, frame: str = "loop") -> Loop:
    made = begin(b, start, frame)
    b.next_iteration(made.following, into=made.i)
    return made


# Loops.


def without_a_loop_cond(b: FlatBuilder) -> Any:
    i = b.merge(b.enter(b.input(INDEX, "i"), "loop"))
    last, now = b.switch(b.op("less", [i, i]), i)
    b.next_iteration(now, into=i)
    return b.exit(last)


def that_goes_on_after_its_end(b: FlatBuilder) -> Any:
    made = begin(b, b.input(INDEX, "i"))
    b.next_iteration(made.last, into=made.i)
    return b.exit(made.last)


def that_nothing_ends(b: FlatBuilder) -> Any:
    made = begin(b, b.input(INDEX, "i"))
    b.next_iteration(made.i, into=made.i)
    return b.exit(made.last)


def that_begins_with_a_constant_enter(b: FlatBuilder) -> Any:
    i = b.merge(b.enter(b.input(INDEX, "i"), "loop", constant=True))
    last, now = b.switch(b.loop_cond(b.op("less", [i, i])), i)
    b.next_iteration(now, into=i)
    return b.exit(last)


def that_begins_inside(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    j = b.merge(made.following)
    b.next_iteration(made.now, into=j)
    return b.exit(made.last)


def with_a_number_for_a_predicate(b: FlatBuilder) -> Any:
    i = b.merge(b.enter(b.input(INDEX, "i"), "loop"))
    last, now = b.switch(b.loop_cond(i), i)
    b.next_iteration(now, into=i)
    return b.exit(last)


def with_an_exit_of_the_true_side(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    return b.exit(made.now)


def with_an_exit_of_an_op(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    b.exit(made.last)
    return b.exit(b.op("negative", [made.last]))


def with_an_exit_of_an_exit(b: FlatBuilder) -> Any:
    return b.exit(b.exit(count(b, b.input(INDEX, "i")).last))


def with_two_windows(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    b.op("add", [made.now, b.enter(b.inputs[0], "loop", constant=True, parallel_iterations=4)])
    return b.exit(made.last)


def with_an_empty_window(b: FlatBuilder) -> Any:
    b.enter(b.input(INDEX, "i"), "loop", parallel_iterations=0)


def with_two_takers_of_its_next_iteration(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    b.op("negative", [b.nodes[-1].result])
    return b.exit(made.last)


def of_another_loops_name(b: FlatBuilder) -> Any:
    first = b.exit(count(b, b.input(INDEX, "i")).last)
    return b.exit(count(b, first).last)


# Frames.


def with_an_inner_value_outside(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    return b.op("add", [b.exit(made.last), made.now])


def with_an_outer_predicate_inside(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    b.switch(b.input(BOOL, "p"), made.now)
    return b.exit(made.last)


def with_an_outer_constant_inside(b: FlatBuilder) -> Any:
    one = b.constant(np.int64(1))
    made = begin(b, b.input(INDEX, "i"))
    b.next_iteration(b.op("add", [made.now, one]), into=made.i)
    return b.exit(made.last)


def with_the_next_iteration_of_another_loop(b: FlatBuilder) -> Any:
    x = b.input(INDEX, "x")
    one, other = begin(b, x, "one"), begin(b, x, "other")
    b.next_iteration(other.following, into=one.i)
    b.next_iteration(one.following, into=other.i)
    return b.exit(one.last)


def that_enters_itself(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    b.enter(made.i, "loop", constant=True)
    return b.exit(made.last)


def that_waits_for_its_own_exit(b: FlatBuilder) -> Any:
    made = count(b, b.input(INDEX, "i"))
    left = b.exit(made.last)
    b.op("add", [made.now, b.enter(b.op("negative", [left]), "loop", constant=True)])
    return left


def without_a_name(b: FlatBuilder) -> Any:
    b.enter(b.input(INDEX, "i"), "")


def with_an_output_inside(b: FlatBuilder) -> Any:
    return count(b, b.input(INDEX, "i")).now


# Nodes.


def enter_without_attributes(b: FlatBuilder) -> Any:
    return b.add("Enter", (b.input(F64, "x"),), (Value(F64),)).result


def merge_of_two_types(b: FlatBuilder) -> Any:
    x = b.input(F64, "x")
    false, true = b.switch(b.input(BOOL, "p"), x)
    return b.merge(false, b.op("less", [true, true]))


def carry_of_two_types(b: FlatBuilder) -> Any:
    made = begin(b, b.input(INDEX, "i"))
    b.next_iteration(b.op("less", [made.now, made.now]), into=made.i)
    return b.exit(made.last)


def switch_with_one_side(b: FlatBuilder) -> Any:
    return b.switch(b.input(BOOL, "p"), b.input(F64, "x"), 1)[0]


def op_with_too_few_operands(b: FlatBuilder) -> Any:
    return b.add("add", (b.input(F64, "x"),), (Value(F64),)).result


def op_with_too_many_results(b: FlatBuilder) -> Any:
    return b.add("sin", (b.input(F64, "x"),), (Value(F64), Value(F64))).results[0]


def effect_without_a_token(b: FlatBuilder) -> Any:
    b.add("callback", (b.input(F64, "x"),), (), {"fn": print, "label": "x"})


def send_without_an_edge(b: FlatBuilder) -> Any:
    b.add("Send", (b.input(F64, "x"),), ())


def enter_of_a_numbered_frame(b: FlatBuilder) -> Any:
    return b.enter(b.input(F64, "x"), 3)  # type: ignore[arg-type]


def recv_with_an_operand(b: FlatBuilder) -> Any:
    return b.add("Recv", (b.input(F64, "x"),), (Value(F64),), {"edge": 0, "sender": "cpu:1"}).result


def cluster_without_a_region(b: FlatBuilder) -> Any:
    return b.add("Cluster", (b.input(F64, "x"),), (Value(F64),), {"effect": False}).result


def cluster_of_another_type(b: FlatBuilder) -> Any:
    y = Value(INDEX)
    inside = Graph((y,), (), (y,))
    return b.add("Cluster", (b.input(F64, "x"),), (Value(F64),), {"effect": False}, regions=[inside]).result


def cycle_of_a_merge(b: FlatBuilder) -> Any:
    back, head = Value(F64), Value(F64, "head")
    b.add("Merge", (b.input(F64, "x"), back), (head,))
    b.add("negative", (head,), (back,))
    return head


def value_of_another_builder(b: FlatBuilder) -> Any:
    other = FlatBuilder()
    return b.op("add", [b.input(F64, "x"), other.op("sin", [other.input(F64, "y")])])


REFUSED: dict[Build, str] = {
    without_a_loop_cond: r"Enter of i into loop \(.*\): the frame has no LoopCond",
    that_goes_on_after_its_end: r"NextIteration of i \(.*\): it would go on when the loop has ended",
    that_nothing_ends: r"NextIteration of i \(.*\): it would go on when the loop has ended",
    that_begins_with_a_constant_enter: r"Merge of i \(.*\): what it begins with",
    that_begins_inside: r"Merge \(.*\): what it begins with",
    with_a_number_for_a_predicate: r"LoopCond of i \(.*\): the type of operand 0",
    with_an_exit_of_the_true_side: r"Exit of i \(.*\): what it takes out",
    with_an_exit_of_an_op: r"Exit \(.*\): what it takes out",
    with_an_exit_of_an_exit: r"Exit of i \(.*\): there is no frame to leave",
    with_two_windows: r"Enter of i into loop \(.*\): a frame with two windows",
    with_an_empty_window: r"Enter of i into loop \(.*\): the attribute 'parallel_iterations'",
    with_two_takers_of_its_next_iteration: r"NextIteration of i \(.*\): what takes it into the next iteration",
    of_another_loops_name: r"LoopCond \(.*\): a LoopCond too many",
    with_an_inner_value_outside: r"add \(.*\): its operands are of two frames",
    with_an_outer_predicate_inside: r"Switch of i \(.*\): its operands are of two frames",
    with_an_outer_constant_inside: r"add \(.*\): its operands are of two frames",
    with_the_next_iteration_of_another_loop: r"Merge of x \(.*\): its operands are of two frames",
    that_enters_itself: r"Enter of i into loop \(.*\): the frame is entered from two frames",
    that_waits_for_its_own_exit: r"Enter into loop \(.*\): it waits for what leaves its frame",
    without_a_name: r"Enter of i \(.*\): the attribute 'frame'",
    with_an_output_inside: r"output 0 is not in the root frame",
    enter_without_attributes: r"Enter: .*missing .*'frame'",
    enter_of_a_numbered_frame: r"Enter of x into 3 \(.*\): the attribute 'frame'",
    merge_of_two_types: r"Merge: operands of different types",
    carry_of_two_types: r"NextIteration of i \(.*\): the type of an operand",
    switch_with_one_side: r"Switch of x \(.*\): the predicate",
    op_with_too_few_operands: r"add \(.*\): wrong number of operands",
    op_with_too_many_results: r"sin \(.*\): wrong number of results",
    effect_without_a_token: r"callback \(.*\): an effect without its token",
    send_without_an_edge: r"Send: .*missing .*'edge'",
    recv_with_an_operand: r"Recv \(.*\): wrong number of operands",
    cluster_without_a_region: r"Cluster \(.*\): wrong number of regions",
    cluster_of_another_type: r"Cluster \(.*\): the type of operand 0",
    cycle_of_a_merge: r"Merge of head \(.*\): an operand is not defined before it is used",
    value_of_another_builder: r"add \(.*\): an operand is defined nowhere",
}


def finished(build: Build) -> FlatGraph:
    b = FlatBuilder()
    output = build(b)
    return b.finish([] if output is None else [output])


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_refused_with_the_node_and_the_line(build: Build) -> None:
    with pytest.raises(VerificationError, match=REFUSED[build]) as caught:
        finished(build)
    error = caught.value
    assert error.expected and error.got
    assert error.source is not None and error.source.file == __file__
    # The line of the mistake, or of a helper that makes a part of every loop.
    assert error.source.function in (build.__name__, "begin", "count")


def test_a_good_loop_is_not_refused() -> None:
    graph = finished(lambda b: b.exit(count(b, b.input(INDEX, "i")).last))
    assert run_flat(graph, [np.int64(2)])[0] == 5


def test_a_late_enter_that_waits_for_nothing_inside_is_none_of_a_cycle() -> None:
    b = FlatBuilder()
    made = count(b, b.input(INDEX, "i"))
    left = b.exit(made.last)
    b.op("add", [made.now, b.enter(b.inputs[0], "loop", constant=True)])
    assert run_flat(b.finish([left]), [np.int64(2)])[0] == 5


def test_messages_by_hand_are_refused_where_the_graph_is_split() -> None:
    b = FlatBuilder()
    x, there = b.input(F64, "x"), Value(F64, "there")
    b.add("Send", (x,), (), {"edge": 0, "receiver": "cpu:1"}, device="cpu:0")
    b.add("Recv", (), (there,), {"edge": 0, "sender": "cpu:0"}, device="cpu:1")
    graph = b.finish([b.op("sin", [there], device="cpu:1")])
    with pytest.raises(VerificationError, match=r"(Send|Recv) .*\(.*\): there are no messages before") as caught:
        run_flat(graph, [np.float64(1.0)])
    assert caught.value.source.file == __file__
