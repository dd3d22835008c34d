"""Reverse mode: a graph becomes a forward graph that keeps residuals and a backward graph that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ctrlgrad.gradients import rules  # noqa: F401  (fills the tables)
from ctrlgrad.gradients.activity import Activity
from ctrlgrad.gradients.adjoint import Adjoint, Pullback, Recursion, has_user_rules
from ctrlgrad.gradients.calls import Batch, expanded, reverse_call
from ctrlgrad.gradients.manner import current_manner
from ctrlgrad.gradients.strong_zeros import StrongZeros
from ctrlgrad.ir import INDEX, Branch, Builder, Closed, Counting, Graph, Loop, Node, StackType, TensorType, Value, uses
from ctrlgrad.ir.control import Capture, Carry, emit_branch
from ctrlgrad.ops.term import Term, ensure_sizes
from ctrlgrad.records import record
from ctrlgrad.stacks.regions import RegionScope, closed_form
from ctrlgrad.stacks.restoring import Restorable, Restoring
from ctrlgrad.stacks.saving import FunctionScope, Thread

# The reverse of a `cond`: a cond on the same selector, each branch reversed in its place.
#
# For `results = cond p captures(x)` whose results have cotangents d:
#
#     forward   results, stacks = cond p captures(x, stacks)
#                   each branch: as before, with a push of each value that its reverse needs; the stacks of the
#                   other branches pass through
#     backward  dx, stacks = cond p captures(what the branches need of the outside, d, dx, stacks)
#                   each branch: pops, the branch's nodes reversed
#
# A cotangent that some operand has already is passed in and added to inside the branch, so a branch that
# reads one row of a large operand costs a row and the other branch costs nothing.
#
# Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 5.


class _Side:
    """One of the branches and its mirror image."""

    def __init__(
        self, adjoint: Adjoint, branch: Branch, region: Graph, seeded: list[int], given: dict[int, Term]
    ) -> None:
        backward = Builder(name=region.name)
        backward.source = adjoint.scope.backward.source
        outer = dict(zip(region.inputs, branch.operands, strict=True))
        self.region = region
        # A value that the branch yields is a result outside, too: if the outer scope keeps that, it is not pushed in
        # here.
        yielded = [pair for pair in zip(region.outputs, branch.results, strict=True) if _is_one_array(*pair)]
        kept = {v: result for v, result in yielded if adjoint.scope.keeps(result)}
        self.scope = RegionScope(region, backward, outer=adjoint.scope, captures={**kept, **outer})
        moving = [v for v in region.inputs if outer[v] in adjoint.varied]
        self.inner = adjoint.inside(self.scope, adjoint.activity.varied_values(region, moving))
        self.seeds = [Value(branch.results[i].type, "d") for i in seeded]
        self.shares = {j: Value(region.inputs[j].type, f"d_{region.inputs[j].hint or 'x'}") for j in given}
        for j, share in self.shares.items():
            self.inner.cotangents[region.inputs[j]] = Term(backward, share)
        for i, seed in zip(seeded, self.seeds, strict=True):
            self.inner.add(region.outputs[i], Term(backward, seed))
        self.inner.run()

    def reaches(self, j: int) -> bool:
        """True if this branch adds to the cotangent of operand j."""
        cotangent = self.inner.cotangents.get(self.region.inputs[j])
        return cotangent is not None and cotangent.value is not self.shares.get(j)

    def cotangent(self, j: int) -> Value:
        value = self.region.inputs[j]
        return (self.inner.take(value) or self.inner.zeros_like(value)).value


def _is_one_array(yielded: Value, result: Value) -> bool:
    return isinstance(yielded.type, TensorType) and yielded.type == result.type


def reverse_cond(adjoint: Adjoint, node: Node) -> None:
    branch = Branch.of(node)
    seeded = [i for i, v in enumerate(branch.results) if v in adjoint.cotangents]
    seeds = [adjoint.cotangents.pop(branch.results[i]) for i in seeded]
    given: dict[int, Term] = {}
    seen: set[Value] = set()
    for j, operand in enumerate(branch.operands):
        if operand in adjoint.cotangents and operand not in seen:
            given[j] = adjoint.cotangents[operand]
        seen.add(operand)
    sides = [_Side(adjoint, branch, region, seeded, given) for region in branch.branches]
    reached = [j for j in range(len(branch.operands)) if any(s.reaches(j) for s in sides)]
    outputs = [[s.cotangent(j) for j in reached] for s in sides]
    for s in sides:
        s.scope.settle()
    threads = [t for s in sides for t in s.scope.threads]
    adjoint.scope.replace(node, _pushing(branch, sides, threads).node)
    if not reached:
        return
    given = {j: t for j, t in given.items() if j in reached}
    _emit_backward_branch(adjoint, branch, sides, threads, seeds, given, reached, outputs)


def _pushing(branch: Branch, sides: list[_Side], threads: list[Thread]) -> Branch:
    """The branch, each side of which pushes."""
    regions: tuple[Graph, ...] = ()
    for side in sides:
        own = set(side.scope.threads)
        stacks = [t.forward_in if t in own else Value(t.forward_in.type, t.forward_in.hint) for t in threads]
        after = [
            t.forward_out if t in own and t.forward_out is not None else s for t, s in zip(threads, stacks, strict=True)
        ]
        inputs = (*side.region.inputs, *stacks)
        nodes = side.scope.forward_nodes(side.region.inputs)
        regions += (Graph(inputs, nodes, (*side.region.outputs, *after), side.region.name),)
    pushed = []
    for thread in threads:
        assert thread.outer is not None
        thread.outer.forward_out = Value(thread.forward_in.type, thread.forward_in.hint)
        pushed.append(thread.outer.forward_out)
    operands = (*branch.operands, *(t.outer.forward_in for t in threads if t.outer))
    return replace(branch, operands=operands, branches=regions, results=(*branch.results, *pushed))


def _emit_backward_branch(
    adjoint: Adjoint,
    branch: Branch,
    sides: list[_Side],
    threads: list[Thread],
    seeds: list[Term],
    given: dict[int, Term],
    reached: list[int],
    outputs: list[list[Value]],
) -> None:
    """Emit the reversed cond and hand its results to the cotangents of the operands."""
    outer_scope, builder = adjoint.scope, adjoint.scope.backward
    types = {v: inner for s in sides for v, inner in s.scope.needs.items()}
    needs = list(types)
    regions = []
    for side, cotangents in zip(sides, outputs, strict=True):
        own = set(side.scope.threads)
        needed = [side.scope.needs.get(v) or Value(types[v].type, types[v].hint) for v in needs]
        stacks = [t.backward_in if t in own else Value(t.backward_in.type, t.backward_in.hint) for t in threads]
        after = [
            t.backward_out if t in own and t.backward_out is not None else s
            for t, s in zip(threads, stacks, strict=True)
        ]
        inputs = (*needed, *side.seeds, *(side.shares[j] for j in given), *stacks)
        regions.append(Graph(inputs, tuple(side.scope.backward.nodes), (*cotangents, *after), side.region.name))
    selector, *operands = [outer_scope.resolve(v) for v in (branch.selector, *needs)]
    operands += [t.value for t in (*seeds, *given.values())]
    operands += [t.outer.backward_in for t in threads if t.outer]
    hints = [f"d_{branch.operands[j].hint or 'x'}" for j in reached] + [t.backward_in.hint for t in threads]
    closed = Closed(tuple(operands), tuple(regions))
    results = emit_branch(builder, selector, closed, hints=hints)
    for thread, value in zip(threads, results[len(reached) :], strict=True):
        assert thread.outer is not None
        thread.outer.backward_out = value
    for j in given:
        adjoint.cotangents.pop(branch.operands[j])
    for j, value in zip(reached, results, strict=False):
        adjoint.add(branch.operands[j], Term(builder, value))


# The reverse of a `while`: the loop that counts and pushes, and the loop that runs it backwards.
#
# For `results = while captures(w) carry(x)` whose results have cotangents d:
#
#     forward   trips, results, stacks = while captures(w) carry(0, x, stacks)
#                   body: as before, with trips + 1 and a push of each saved value where it is defined
#     backward  _, d, dw, _ = while captures(what the body needs of the outside) carry(trips, d, dw, stacks)
#                   cond: trips > 0
#                   body: trips - 1, pops, the body's nodes reversed, dw + this iteration's share
#
# d are the cotangents of the active carry: those that depend on what is differentiated and reach a result that
# matters (`Activity.active_loop`). dw starts as the capture's cotangent so far, so shares are added eagerly and
# nothing of w's size is allocated per iteration. The iteration that is being reversed is `trips - 1` after the count
# down, which gives back without a stack what counts or alternates.
#
# Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 5.


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
    scope = _open_scope(adjoint, loop)
    if not active.carries:
        for v in loop.results:
            adjoint.take(v)
        if has_user_rules(loop.body):
            adjoint.inside(scope, active.varied).run()
            adjoint.scope.replace(node, loop.rebuilt(body=scope.forward_nodes(loop.body.inputs)).node)
        return
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
    found = _emit_backward_loop(adjoint, loop, scope, Count(trips, trips_left, scope.index), backwards)
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


def _emit_backward_loop(
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


REGION_RULES = {"call": reverse_call, "cond": reverse_cond, "while": reverse_while}


def reverse(
    graph: Graph,
    wrt: Sequence[int],
    seeded: Sequence[int],
    batch: Batch,
    *,
    linear: bool = False,
    selected: bool = True,
) -> Pullback:
    """Differentiate `graph` in reverse.

    Args:
        wrt: positions of the inputs whose cotangents are wanted; all of differentiable type.
        seeded: positions of the outputs whose cotangents will be given; the rest count as zero.
        batch: batches the derivative of one row, for calls of kind "rows".
        linear: the graph is linear in those inputs, a tangent map that is transposed. A function with a forward rule
            that is met on the way is linear too, and its own transpose: the rule, which may call it, is not asked.
        selected: cotangents that will be given may be zeros (see `strong_zeros`).
    """
    graph = expanded(graph)
    backward = Builder(name=f"{graph.name}_backward")
    scope = FunctionScope(graph, backward)
    activity = Activity()
    strong = None
    if current_manner().strong_zeros:
        strong = StrongZeros.of_cotangents(graph, wrt, seeded, selected, activity)
    recursion = Recursion(REGION_RULES, partial(reverse, batch=batch, linear=linear), batch, linear, strong)
    adjoint = Adjoint(scope, activity.varied_values(graph, [graph.inputs[i] for i in wrt]), activity, recursion)
    seeds = [Builder().input(graph.outputs[i].type, f"d_{graph.outputs[i].hint or 'out'}") for i in seeded]
    for i, seed in zip(seeded, seeds, strict=True):
        adjoint.add(graph.outputs[i], Term(backward, seed))
    adjoint.run()
    outputs = tuple(_cotangent(adjoint, graph.inputs[i]).value for i in wrt)

    residual_inputs = tuple(backward.inputs)
    behind = {scope.resolved[v]: v for v in scope.residuals}
    for thread in scope.threads:
        # A stack that nothing was pushed on has not moved.
        behind[thread.backward_in] = thread.forward_out or thread.forward_in
    residuals = tuple(behind[v] for v in residual_inputs)
    nodes = (*scope.new_stacks, *scope.forward_nodes(graph.inputs))
    forward = Graph(graph.inputs, nodes, (*graph.outputs, *residuals), f"{graph.name}_forward")
    return Pullback(
        forward,
        Graph((*residual_inputs, *seeds), tuple(backward.nodes), outputs, backward.name),
        len(residuals),
        tuple(seeded),
        tuple(wrt),
    )


def _cotangent(adjoint: Adjoint, value: Value) -> Term:
    """The cotangent of an input, of its sizes: those that follow from the ops alone are compared with them."""
    found = adjoint.cotangents.get(value)
    if found is None:
        return adjoint.zeros_like(value)
    if isinstance(value.type, StackType) or found.tensor.shape == value.tensor.shape:
        return found
    primal = adjoint.primal(value)
    return ensure_sizes(found, {axis: primal.dim(axis) for axis, d in enumerate(value.tensor.shape) if d is None})
