"""Flow of a stack through loops, branches and calls: its versions, its events and its origin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ctrlgrad.errors import VerificationError
from ctrlgrad.ir import BOOL, INDEX, Branch, Builder, Graph, Loop, StackType, TensorType, Value, close, verify
from ctrlgrad.ir.control import emit_branch, emit_call, emit_loop
from ctrlgrad.ir.flow import OUTERMOST, StackFlow, begins, in_an_iteration, mirrored, passed_on, stays

NUMBER = TensorType(np.dtype(np.float64), ())
STACK = StackType(NUMBER)
Values = Sequence[Value]
# A function that builds a region from the stacks that it is given.
Body = Callable[[Builder, list[Value]], Values]


def region(outer: Builder, types: Values, body: Body, name: str = "region") -> Graph:
    inner = Builder(outer, name)
    inputs = [inner.input(v.type, v.hint) for v in types]
    return inner.finish(body(inner, inputs))


def loop(outer: Builder, inits: Values, body: Body) -> list[Value]:
    """A loop, whose end does not matter here, that carries stacks."""
    cond = region(outer, inits, lambda b, _: [b.constant(np.False_)], "cond")
    return list(emit_loop(outer, close([cond, region(outer, inits, body, "body")]), inits))


def branch(outer: Builder, *bodies: Callable[[Builder], Values]) -> list[Value]:
    regions = [region(outer, [], lambda b, _, body=body: body(b)) for body in bodies]  # type: ignore[misc]
    return list(emit_branch(outer, outer.constant(np.False_), close(regions)))


def push(b: Builder, s: Value) -> Value:
    return b.emit("stack_push", [s, b.constant(1.0)])


def pop(b: Builder, s: Value) -> Value:
    return b.emit_all("stack_pop", [s])[0]


def length(b: Builder, s: Value) -> Value:
    return b.emit("stack_length", [s])


def started(paired: bool = True) -> tuple[Builder, Value]:
    b = Builder()
    return b, b.emit("stack_new", (), {"element": NUMBER, "paired": paired}, hint="s")


def texts(graph: Graph, stack: Value, observers: bool = False) -> list[str]:
    flow = StackFlow(graph)
    return list(map(str, flow.events(graph, flow.versions(stack), observers=observers)))


def test_the_events_of_a_stack_through_a_loop_a_branch_and_a_call() -> None:
    b, s = started()
    (pushed,) = loop(b, [s], lambda inner, v: branch(inner, lambda c: [push(c, v[0])], lambda c: [v[0]]))
    function = region(b, [pushed], lambda inner, v: [pop(inner, push(inner, v[0]))])
    (after,) = emit_call(b, "checkpoint", close([function]), [pushed])
    graph = b.finish([length(b, after), after])
    assert texts(graph, s) == ["while(cond(push | -))", "call(push, pop)"]
    assert texts(graph, s, observers=True)[-1] == "measure"
    assert StackFlow(graph).origin(after) is s
    assert begins(graph.nodes[0]) and not begins(graph.nodes[1])


def test_nested_pushes_are_popped_in_reverse() -> None:
    b, s = started()
    (pushed,) = loop(b, [push(b, s)], lambda inner, v: [push(inner, push(inner, v[0]))])
    graph = b.finish([pushed])
    flow = StackFlow(graph)
    events = flow.events(graph, flow.versions(s))
    assert list(map(str, mirrored(events))) == ["while(pop, pop)", "pop"]


def test_a_stack_that_is_made_anew_in_one_branch_is_of_no_single_origin() -> None:
    b, s = started()
    new = {"element": NUMBER}
    (either,) = branch(b, lambda c: [push(c, s)], lambda c: [c.emit("stack_new", (), new)])
    flow = StackFlow(b.finish([either]))
    assert flow.origin(either) is None
    assert (OUTERMOST, s) in flow.earlier(either) and (OUTERMOST, either) in flow.versions(s)


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ([lambda b, s, t: [push(b, s), t], lambda b, s, t: [s, pop(b, t)]], [0, 1]),
        ([lambda b, s, t: [t, s], lambda b, s, t: [t, s]], [1, 0]),
        ([lambda b, s, t: [t, s], lambda b, s, t: [s, t]], [None, None]),
        ([lambda b, s, t: [b.emit("stack_sum", [s, t]), s], lambda b, s, t: [s, s]], [None, 0]),
    ],
    ids=["each in its place", "exchanged", "exchanged in one", "summed"],
)
def test_which_operand_a_result_of_a_branch_is(bodies: list[Callable[..., Values]], expected: list[int | None]) -> None:
    b = Builder()
    stacks = [b.input(STACK, hint) for hint in "st"]
    regions = []
    for body in bodies:
        regions.append(region(b, stacks, lambda inner, v, body=body: body(inner, *v)))  # type: ignore[misc]
    node = Branch(b.input(BOOL), tuple(stacks), tuple(regions), tuple(stacks), None)
    assert [passed_on(node, position) for position in (0, 1)] == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda b, v: [push(b, v[0]), v[1]], [True, True]),
        (lambda b, v: [b.emit("barrier", [push(b, v[0])]), v[1]], [True, True]),
        (lambda b, v: [v[1], v[0]], [False, False]),
        (lambda b, v: [v[0], v[0]], [True, False]),
        (lambda b, v: loop(b, v, lambda c, w: [pop(c, w[0]), w[1]]), [True, True]),
        (lambda b, v: loop(b, v, lambda c, w: [w[1], w[0]]), [False, False]),
    ],
    ids=["pushed", "passed on", "exchanged", "twice", "popped inside", "exchanged inside"],
)
def test_loops_that_carry_their_initial_stack(body: Body, expected: list[bool]) -> None:
    b = Builder()
    loop(b, [b.input(STACK, hint) for hint in "st"], body)
    (node,) = b.finish([]).nodes
    carrying = Loop.of(node)
    assert [stays(carrying, carry) for carry in carrying.carries] == expected


def test_loop_events_count_reads_and_repetitions() -> None:
    b = Builder()

    def body(inner: Builder, v: list[Value]) -> Values:
        length(inner, v[0])
        return loop(inner, [push(inner, v[0])], lambda c, w: [push(c, w[0])])

    loop(b, [b.input(STACK)], body)
    carrying = Loop.of(b.finish([]).nodes[0])
    events = in_an_iteration(carrying, carrying.carries[0])
    found = [(op.kind, is_repeated) for event in events for op, is_repeated in event.ops()]
    assert found == [("measure", False), ("push", False), ("push", True)]


def test_a_stack_that_changes_places_is_followed_round_the_loop() -> None:
    b, s = started()
    loop(b, [s, started_in(b)], lambda inner, v: [push(inner, v[1]), v[0]])
    assert texts(b.finish([]), s) == ["while(push)"]


def captured(b: Builder, s: Value) -> None:
    def body(inner: Builder, v: list[Value]) -> Values:
        push(inner, s)
        return [v[0]]

    loop(b, [b.constant(np.int64(0))], body)


def test_a_paired_stack_that_loops_and_branches_hand_on_is_right() -> None:
    b, s = started()
    (pushed,) = loop(b, [s], lambda inner, v: branch(inner, lambda c: [push(c, v[0])], lambda c: [v[0]]))
    (popped,) = loop(b, [pushed], lambda inner, v: branch(inner, lambda c: [pop(c, v[0])], lambda c: [v[0]]))
    verify(b.finish([length(b, popped)]))


def test_stacks_of_nodes_that_share_regions_are_told_apart() -> None:
    """A graph that is inlined several times shares the regions of its loops, branches and calls."""
    b, s = started()
    (pushed,) = loop(b, [s], lambda inner, v: branch(inner, lambda c: [push(c, v[0])], lambda c: [v[0]]))
    (popped,) = loop(b, [pushed], lambda inner, v: branch(inner, lambda c: [pop(c, v[0])], lambda c: [v[0]]))
    once = b.finish([length(b, popped)])
    outer = Builder()
    graph = outer.finish([outer.inline(once, [])[0] for _ in range(3)])
    verify(graph)
    starts = [node.result for node in graph.nodes if node.op.name == "stack_new"]
    ends = [node.operands[0] for node in graph.nodes if node.op.name == "stack_length"]
    for start, end in zip(starts, ends, strict=True):
        assert texts(graph, start) == ["while(cond(push | -))", "while(cond(pop | -))"]
        assert StackFlow(graph).origin(end) is start


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        (lambda b, s: (push(b, s), pop(b, s)), "it is consumed 2 times"),
        (lambda b, s: loop(b, [s, push(b, started_in(b))], lambda c, v: [v[1], v[0]]), "in its place"),
        (lambda b, s: branch(b, lambda c: [push(c, s)], lambda c: [started_in(c)]), "in its place"),
        (captured, "a loop changes it that does not carry it"),
        (lambda b, s: b.emit("stack_clear", [push(b, s), b.constant(np.int64(0))]), "stack_clear takes it"),
        (lambda b, s: b.emit("stack_sum", [s, s]), "stack_sum takes it"),
        (lambda b, s: push(b, pop(b, s)), "do not mirror its pushes"),
        (lambda b, s: loop(b, [push(b, s)], lambda c, v: [pop(c, v[0])]), "do not mirror its pushes"),
    ],
    ids=["twice", "exchanged", "one branch", "captured", "cleared", "summed", "pop first", "pop in a loop"],
)
def test_a_paired_stack_that_is_not_handed_on_is_found(use: Callable[[Builder, Value], object], problem: str) -> None:
    b, s = started()
    use(b, s)
    with pytest.raises(VerificationError, match=f"the paired stack.* 's' .*{problem}|the pops of .* 's' {problem}"):
        verify(b.finish([b.constant(INDEX.dtype.type(0))]))


def started_in(b: Builder) -> Value:
    return b.emit("stack_new", (), {"element": NUMBER}, hint="other")
