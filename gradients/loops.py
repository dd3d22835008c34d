"""The reverse of a `while`: the loop that counts and pushes, and the loop that runs it backwards.

For `results = while captures(w) carry(x)` whose results have cotangents d:

    forward   trips, results, stacks = while captures(w) carry(0, x, stacks)
                  body: as before, with trips + 1 and a push of each saved value where it is made
    backward  _, d, dw, _ = while captures(what the body needs of the outside) carry(trips, d, dw, stacks)
                  cond: trips > 0
                  body: trips - 1, pops, the body's nodes reversed, dw + this iteration's share

d are the cotangents of the active carry: those that depend on what is differentiated and reach a result that
matters (`Activity.active_loop`). dw starts as the capture's cotangent so far, so shares are added eagerly and
nothing of w's size is made per iteration. The iteration that is being reversed is `trips - 1` after the count
down, which gives integer induction variables back without a stack.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctrlgrad.gradients.adjoint import Adjoint
from ctrlgrad.ir import INDEX, OPS, Builder, Graph, Node, StackType, Value
from ctrlgrad.ops.term import Term
from ctrlgrad.stacks.saving import Induction, RegionScope, Thread

ZERO, ONE = np.int64(0), np.int64(1)


@dataclass(frozen=True)
class BackwardCarry:
    """One value that the reversed loop carries beside the count and the stacks."""

    start: Value  # in the scope around the loop
    inside: Value  # at the start of an iteration
    following: Value  # what the iteration makes of it


def reverse_while(adjoint: Adjoint, node: Node) -> None:
    given = {i for i, v in enumerate(node.results) if v in adjoint.cotangents}
    varied = {j for j, v in enumerate(node.operands) if v in adjoint.varied}
    active = adjoint.activity.active_loop(node, varied, given)
    if not active.carry:
        for v in node.results:
            adjoint.take(v)
        return
    scope = _open_scope(adjoint, node)
    backward = scope.backward
    trips_left = Value(INDEX, "trips")
    scope.index = backward.emit("subtract", [trips_left, backward.constant(ONE)], hint="iteration")
    scope.opening = len(backward.nodes)

    body, captures = node.regions[1], node.attrs["captures"]
    carried = [body.inputs[captures + i] for i in active.carry]
    shared = [body.inputs[j] for j in active.captures]
    inner = adjoint.inside(scope, active.varied)
    inside = [Value(v.type, f"d_{v.hint}" if v.hint else "d") for v in (*carried, *shared)]
    for v, share in zip(shared, inside[len(carried) :], strict=True):
        inner.cotangents[v] = Term(backward, share)
    for i, seed in zip(active.carry, inside[: len(carried)], strict=True):
        inner.add(body.outputs[i], Term(backward, seed))
    inner.run()
    following = [(inner.take(v) or inner.zeros_like(v)).value for v in (*carried, *shared)]
    shifts = scope.settle()

    trips = _emit_forward(adjoint, node, scope)
    # The cotangents of the results, then of the captures so far: both end with this loop and continue after it.
    ends = [*(node.results[i] for i in active.carry), *(node.operands[j] for j in active.captures)]
    starts = [(adjoint.take(v) or adjoint.zeros_like(v)).value for v in ends]
    for v in node.results:
        adjoint.take(v)
    carry = [BackwardCarry(*three) for three in zip(starts, inside, following, strict=True)]
    carry += [BackwardCarry(adjoint.scope.resolve(node.results[s.position]), s.wanted, s.popped) for s in shifts]
    found = _emit_backward(adjoint, node, scope, Count(trips, trips_left, scope.index), carry)
    operands = [*(node.operands[captures + i] for i in active.carry), *(node.operands[j] for j in active.captures)]
    for operand, cotangent in zip(operands, found, strict=False):
        adjoint.add(operand, Term(adjoint.scope.backward, cotangent))


@dataclass(frozen=True)
class Count:
    """The count of the reversed loop: iterations in all, those left, and those left after this one."""

    trips: Value
    left: Value
    following: Value


def _open_scope(adjoint: Adjoint, node: Node) -> RegionScope:
    body, captures = node.regions[1], node.attrs["captures"]
    backward = Builder(name="body")
    backward.source = node.source and node.source.derivative_of(node.op.name)
    outer = dict(zip(body.inputs[:captures], node.operands[:captures], strict=True))
    scope = RegionScope(body, backward, outer=adjoint.scope, captures=outer)
    for position, (value, output) in enumerate(zip(body.inputs[captures:], body.outputs, strict=True)):
        scope.carry[value] = (node.operands[captures + position], output)
        step = _step(scope, value, output)
        if step is not None:
            down = scope.made_by[output].op.name == "subtract"
            scope.inductions[value] = Induction(node.operands[captures + position], step, down)
    return scope


def _step(scope: RegionScope, value: Value, output: Value) -> Value | None:
    """What is added to an integer carry, or subtracted from it, if that is all that happens to it in an iteration."""
    node = scope.made_by.get(output)
    if node is None or isinstance(value.type, StackType) or value.type.rank != 0 or value.tensor.dtype.kind not in "iu":
        return None
    if node.op.name == "add" and value in node.operands:
        step = node.operands[1] if node.operands[0] is value else node.operands[0]
    elif node.op.name == "subtract" and node.operands[0] is value:
        step = node.operands[1]
    else:
        return None
    return step if step in scope.captures or scope.is_constant(step) else None


def _emit_forward(adjoint: Adjoint, node: Node, scope: RegionScope) -> Value:
    """Replace the loop by one that counts and pushes; returns the trip count.

    A loop that counts its iterations already gets no second counter, and a reversed loop starts from its count.
    """
    cond, body = node.regions
    captures = node.attrs["captures"]
    carry = body.inputs[captures:]
    counting = scope.trip_count(carry)
    if node.attrs.get("counts_down"):
        trips: Value = node.operands[captures]
    elif counting is not None:
        trips = node.results[counting]
    else:
        trips = Value(INDEX, "trips")
    new: list[Value] = []
    nodes, counted, start = list(scope.forward_nodes(body.inputs)), [], []
    if trips not in node.results and trips not in node.operands:
        counter = Value(INDEX, "trips")
        maker = Builder()
        counted = [maker.emit("add", [counter, maker.constant(ONE)], hint="trips")]
        nodes += maker.nodes
        new = [counter]
        start = [adjoint.scope.constant_before(node, ZERO)]
    threads = scope.threads
    inputs = (*body.inputs[:captures], *new, *carry, *(t.forward_in for t in threads))
    new_body = Graph(inputs, tuple(nodes), (*counted, *body.outputs, *_forward_out(threads)), body.name)
    first = [Value(v.type, v.hint) for v in new]
    last = [Value(t.forward_in.type, t.forward_in.hint) for t in threads]
    new_cond = Graph(
        (*cond.inputs[:captures], *first, *cond.inputs[captures:], *last), cond.nodes, cond.outputs, cond.name
    )

    outer = [_outer(t) for t in threads]
    after = [Value(t.forward_in.type, t.forward_in.hint) for t in threads]
    operands = (*node.operands[:captures], *start, *node.operands[captures:], *(t.forward_in for t in outer))
    for thread, value in zip(outer, after, strict=True):
        thread.forward_out = value
    results = (*([trips] if new else []), *node.results, *after)
    adjoint.scope.replace(node, Node(OPS["while"], operands, results, node.attrs, (new_cond, new_body), node.source))
    return trips


def _outer(thread: Thread) -> Thread:
    assert thread.outer is not None
    return thread.outer


def _forward_out(threads: Sequence[Thread]) -> list[Value]:
    return [t.forward_out for t in threads if t.forward_out is not None]


def _emit_backward(
    adjoint: Adjoint, node: Node, scope: RegionScope, count: Count, carry: Sequence[BackwardCarry]
) -> tuple[Value, ...]:
    """Emit the reversed loop; returns the last value of each carry."""
    outer, builder, threads = adjoint.scope, adjoint.scope.backward, scope.threads
    inputs = (*scope.needs.values(), count.left, *(c.inside for c in carry), *(t.backward_in for t in threads))
    popped = [t.backward_out for t in threads if t.backward_out is not None]
    following = (count.following, *(c.following for c in carry), *popped)
    body = Graph(inputs, tuple(scope.backward.nodes), following, "body")
    test = Builder(name="cond")
    test_inputs = [test.input(v.type, v.hint) for v in inputs]
    cond = test.finish([test.emit("greater", [test_inputs[len(scope.needs)], test.constant(ZERO)])])

    operands = [outer.resolve(v) for v in scope.needs]
    operands += [outer.resolve(count.trips), *(c.start for c in carry), *(_outer(t).backward_in for t in threads)]
    attrs = {**node.attrs, "captures": len(scope.needs), "maximum_iterations": None, "counts_down": True}
    hints = [v.hint for v in inputs[len(scope.needs) :]]
    results = builder.emit_all("while", operands, attrs, regions=(cond, body), source=builder.source, hints=hints)
    for thread, value in zip(threads, results[len(results) - len(threads) :], strict=True):
        _outer(thread).backward_out = value
    return results[1 : 1 + len(carry)]
