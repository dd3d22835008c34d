"""The reverse of a `while`: the loop that counts and pushes, and the loop that runs it backwards.

For `results = while captures(w) carry(x)` whose results have cotangents d:

    forward   trips, results, stacks = while captures(w) carry(0, x, stacks)
                  body: as before, with trips + 1 and a push of each saved value where it is defined
    backward  _, d, dw, _ = while captures(what the body needs of the outside) carry(trips, d, dw, stacks)
                  cond: trips > 0
                  body: trips - 1, pops, the body's nodes reversed, dw + this iteration's share

d are the cotangents of the active carry: those that depend on what is differentiated and reach a result that
matters (`Activity.active_loop`). dw starts as the capture's cotangent so far, so shares are added eagerly and
nothing of w's size is allocated per iteration. The iteration that is being reversed is `trips - 1` after the count
down, which gives back without a stack what counts or alternates.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ctrlgrad.gradients.adjoint import Adjoint
from ctrlgrad.ir import INDEX, Builder, Counting, Loop, Node, Value, uses
from ctrlgrad.ir.control import Capture, Carry
from ctrlgrad.ops.term import Term
from ctrlgrad.records import record
from ctrlgrad.stacks.closed_forms import closed_form
from ctrlgrad.stacks.regions import RegionScope
from ctrlgrad.stacks.restoring import Restorable, Restoring
from ctrlgrad.stacks.saving import Thread

ZERO, ONE = np.int64(0), np.int64(1)


@record
class BackwardCarry:
    """One value that the reversed loop carries beside the count and the stacks."""

    start: Value  # in the scope around the loop
    inside: Value  # at the start of an iteration
    following: Value  # what the iteration makes of it


def reverse_while(adjoint: Adjoint, node: Node) -> None:
    loop = Loop.of(node)
    active = adjoint.activity.active_loop(loop, adjoint.varied, adjoint.cotangents)
    if not active.carries:
        for v in loop.results:
            adjoint.take(v)
        return
    scope = _open_scope(adjoint, loop)
    backward = scope.backward
    trips_left = Value(INDEX, "trips")
    scope.opening.source = backward.source
    scope.index = scope.opening.emit("subtract", [trips_left, scope.opening.constant(ONE)], hint="iteration")

    primals = [*(c.in_body for c in active.carries), *(c.in_body for c in active.captures)]
    inner = adjoint.inside(scope, active.varied)
    inside = [Value(v.type, f"d_{v.hint}" if v.hint else "d") for v in primals]
    count = len(active.carries)
    for capture, share in zip(active.captures, inside[count:], strict=True):
        inner.cotangents[capture.in_body] = Term(backward, share)
    for carry, seed in zip(active.carries, inside[:count], strict=True):
        inner.add(carry.next, Term(backward, seed))
    inner.run()
    following = [(inner.take(v) or inner.zeros_like(v)).value for v in primals]
    shifts = scope.settle()

    trips = _emit_forward(adjoint, node, loop, scope)
    # The cotangents of the results, then of the captures so far: both end with this loop and continue after it.
    ends = [*(c.result for c in active.carries), *(c.outer for c in active.captures)]
    starts = [(adjoint.take(v) or adjoint.zeros_like(v)).value for v in ends]
    for v in loop.results:
        adjoint.take(v)
    backwards = [BackwardCarry(*three) for three in zip(starts, inside, following, strict=True)]
    backwards += [BackwardCarry(adjoint.scope.resolve(loop.results[s.position]), s.wanted, s.before) for s in shifts]
    found = _emit_backward(adjoint, loop, scope, Count(trips, trips_left, scope.index), backwards)
    operands = [*(c.init for c in active.carries), *(c.outer for c in active.captures)]
    for operand, cotangent in zip(operands, found, strict=False):
        adjoint.add(operand, Term(adjoint.scope.backward, cotangent))


@record
class Count:
    """The count of the reversed loop: iterations in all, those left, and those left after this one."""

    trips: Value
    left: Value
    following: Value


def _open_scope(adjoint: Adjoint, loop: Loop) -> RegionScope:
    backward = Builder(name="body")
    backward.source = adjoint.scope.backward.source
    outer = {c.in_body: c.outer for c in loop.captures}
    scope = RegionScope(loop.body, backward, outer=adjoint.scope, captures=outer)
    for c in loop.carries:
        scope.carry[c.in_body] = (c.init, c.next)
        form = closed_form(c, loop.captures, scope.producers, adjoint.scope.producers)
        if form is not None:
            scope.closed_forms[c.in_body] = form
    count = uses(loop.body)
    restorings = [Restoring.of(c, scope.producers, count) for c in loop.carries]
    scope.restorable = Restorable.of([r for r in restorings if r is not None], loop.body.nodes)
    return scope


def _emit_forward(adjoint: Adjoint, node: Node, loop: Loop, scope: RegionScope) -> Value:
    """Replace the loop by one that counts and pushes; returns the trip count.

    A reversed loop starts from its count, and where a bound says how often a loop runs, that is computed in front of
    it; nor does a loop that counts its iterations already get a second counter.
    """
    counting, position = Counting.of(loop, adjoint.scope.number), scope.trip_count(loop.carried)
    body, counter = list(scope.forward_nodes(loop.body.inputs)), []
    if loop.counts_down:
        trips = loop.carries[0].init
    elif counting is not None:
        trips = adjoint.scope.emit_before(node, lambda builder: counting.trips(builder, adjoint.scope.number))
    elif position is not None:
        trips = loop.results[position]
    else:
        inside, maker = Value(INDEX, "trips"), Builder()
        counted = maker.emit("add", [inside, maker.constant(ONE)], hint="trips")
        body += maker.nodes
        counter = [Carry.new(adjoint.scope.emit_before(node, lambda zero: zero.constant(ZERO)), inside, counted)]
        trips = counter[0].result
    stacks = []
    for thread in scope.threads:
        outer = _outer(thread)
        assert thread.forward_out is not None
        stacks.append(Carry.new(outer.forward_in, thread.forward_in, thread.forward_out))
        outer.forward_out = stacks[-1].result
    pushing = loop.rebuilt(carries=[*counter, *loop.carries, *stacks], body=body)
    adjoint.scope.replace(node, pushing.node)
    return trips


def _outer(thread: Thread) -> Thread:
    assert thread.outer is not None
    return thread.outer


def _emit_backward(
    adjoint: Adjoint, loop: Loop, scope: RegionScope, count: Count, carry: Sequence[BackwardCarry]
) -> tuple[Value, ...]:
    """Emit the reversed loop; returns the last value of each carry."""
    outer, builder, threads = adjoint.scope, adjoint.scope.backward, scope.threads
    captures = [Capture.new(outer.resolve(v), inside) for v, inside in scope.needs.items()]
    trips = Carry.new(outer.resolve(count.trips), count.left, count.following)
    carries = [trips, *(Carry.new(c.start, c.inside, c.following) for c in carry)]
    for thread in threads:
        assert thread.backward_out is not None
        carries.append(Carry.new(_outer(thread).backward_in, thread.backward_in, thread.backward_out))
    test = Builder()
    predicate = test.emit("greater", [trips.in_cond, test.constant(ZERO)])
    attrs = replace(loop.attrs, maximum_iterations=None, counts_down=True)
    reversed_loop = Loop.new(captures, carries, (test.nodes, predicate), scope.backward.nodes, attrs, builder.source)
    results = builder.keep(reversed_loop.node)
    for thread, value in zip(threads, results[len(results) - len(threads) :], strict=True):
        _outer(thread).backward_out = value
    return results[1 : 1 + len(carry)]
