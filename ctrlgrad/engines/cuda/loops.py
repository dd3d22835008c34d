"""Execution of loops: control is on the host.

A loop whose predicate is on the host (a counter against a bound) reads nothing. One whose predicate is on the device
runs chunks of masked iterations where that is allowed (see below). A chunk that is a graph leaves out the
iterations past the end, so it is as long as its blocks are. Where masks are not allowed, the predicate is read before
each iteration: by the card where iterations are a graph, by the list where they are one, and else by the host. A read
waits for what was put on the engine's stream so far, never for the whole device. In a session loops run in chunks for
the memory manager too (see `chunks`).

A masked body may run past the loop's end, and leaves the carry as it was then. With a bool `alive` on the device:

    new = body(carry)
    carry' = where(alive, new, carry)
    trips' = trips + alive
    alive' = alive and cond(carry')

and the host reads `alive` and `trips` once per chunk. The carry after the loop is that of the last iteration that
counts. Rows that later ones pushed are dropped; carries on the host come from a history of the chunk.

It is allowed where running an iteration too many changes nothing but those, cannot fail and does not wait:

- neither cond nor body has a loop, a branch or a callback inside;
- every op is total, or reads by an index of the host that goes by whole steps (a failure past the end is forgotten:
  the host knows of it);
- no op goes through the host, and none needs on the host (a size, a bound, an index) what is on the device;
- stacks that are carried are only pushed on;
- no carried array is updated in place: it would be copied in each iteration;
- the sizes of what is carried are known.

Elsewhere the body is followed by the predicate (`asked_graph`), and no iteration runs past the end: who puts them on
the stream asks behind each one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ctrlgrad.engines.cuda.chunks import BodyReplay, chunks_of, roles_of, tables_of
from ctrlgrad.engines.cuda.compile import Control, compile_region
from ctrlgrad.engines.cuda.context import Context, Speculation
from ctrlgrad.engines.cuda.kernel import is_fusible
from ctrlgrad.engines.cuda.kernels import DEVICE as KERNELS
from ctrlgrad.engines.cuda.placement import (
    DEVICE,
    HOST,
    Place,
    Places,
    carried,
    is_integer,
    outputs_of,
    place,
    stepping,
)
from ctrlgrad.engines.cuda.prepared.model import Affine, Ending, wrapped
from ctrlgrad.engines.cuda.prepared.runner import LEAST_IN_GRAPH, Body, Iterations, LoopState
from ctrlgrad.engines.cuda.program import Program, to_device
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.reference.control_kernels import note, too_many_iterations
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError
from ctrlgrad.ir import BOOL, INDEX, Builder, Graph, Node, StackType, TensorType, Trait, Use, Value, attributes, control
from ctrlgrad.ir import Loop as LoopView
from ctrlgrad.ir.control import Counting
from ctrlgrad.ir.flow import StackFlow
from ctrlgrad.ops.arrays import is_total
from ctrlgrad.runtime.chunks import UNBOUNDED


@dataclass(frozen=True)
class Masked:
    """The body of a masked loop: (captures, carry, alive, trips) to (carry, alive, trips)."""

    graph: Graph
    # Rows that one iteration pushes on each stack that is carried, by the carry's position.
    pushes: Mapping[int, int]


def masked_body(node: Node, shared: Sequence[Place], carry: Sequence[Place]) -> Masked | str:
    """The masked body of a loop whose operands live where they are said to, or why there is none."""
    cond, body = node.regions
    for region in (cond, body):
        places = place(region, (*shared, *carry))
        carried = set(region.inputs[len(shared) :])
        integers = {v: Affine(0, ((slot, 1),)) for slot, v in enumerate(region.inputs) if is_integer(v)}
        steady = stepping(region, {v: its for v, its in integers.items() if places[v] is HOST})
        for inner in region.nodes:
            reason = _obstacle(inner, places, carried, steady)
            if reason is not None:
                return reason
    pushes: dict[int, int] = {}
    flow = StackFlow(body)
    for position, value in enumerate(body.inputs[len(shared) :]):
        if isinstance(value.type, StackType):
            if flow.origin(body.outputs[position]) is not value:
                return "stacks change places"
            # All that is done to a stack that is carried is to push on it.
            pushes[position] = len(flow.earlier(body.outputs[position])) - 1
        elif carry[position] is DEVICE and not value.tensor.is_static:
            return "the size of what it carries is not known"
    return Masked(_masked_graph(node, carry), pushes)


def _obstacle(
    node: Node, places: Mapping[Value, Place], carried: set[Value], steady: Mapping[Value, Affine]
) -> str | None:
    """Why a node must not run past the end, or cannot run without waiting."""
    name = node.op.name
    if node.regions:
        return f"{name} inside"
    if Trait.EFFECT in node.op.traits:
        return f"{name} has an effect"
    if name == "constant" or node.op.has_use(Use.PUSH):
        return None
    stacks = [v for v in node.operands if isinstance(v.type, StackType)]
    if any(v in carried for v in stacks):
        return f"{name} of a stack that it carries"
    if stacks or any(isinstance(v.type, StackType) for v in node.results):
        return f"{name} inside"
    if all(places[v] is HOST for v in node.results):
        return None if is_total(node) else f"{name} may fail"
    if not is_fusible(node) and name not in KERNELS:
        return f"{name} goes through the host"
    if node.op.updates and node.operands[0] in carried:
        return "a carried array is updated in place"
    if any(places[v] is DEVICE for v in node.used_as(Use.INDEX)):
        return "an index is on the device"
    if any(v not in steady for v in node.used_as(Use.INDEX)):
        return "an index of the host does not go by whole steps"
    if any(places[v] is DEVICE for v in node.used_as(Use.SIZE)):
        return f"a size of {name} is on the device"
    if node.op.has_use(Use.READ):
        return None
    return None if is_total(node) and name != "nonzero" else f"{name} may fail"


def asked_graph(node: Node) -> Graph:
    """The body with the predicate: (captures, carry, predicate) to (carry, predicate)."""
    loop = LoopView.of(node)
    builder, inputs = _begun(loop)
    shared, _ = loop.split(inputs)
    builder.input(BOOL, "goes_on")
    following = builder.inline(loop.body, inputs)
    (test,) = builder.inline(loop.cond, [*shared, *following])
    return builder.finish([*following, test])


def _begun(loop: LoopView) -> tuple[Builder, list[Value]]:
    """The inputs of a loop's body in a graph that begins."""
    builder = Builder(name=loop.body.name)
    builder.source = loop.source
    return builder, [builder.input(v.type, v.hint) for v in loop.body.inputs]


def _masked_graph(node: Node, places: Sequence[Place]) -> Graph:
    loop = LoopView.of(node)
    builder, inputs = _begun(loop)
    shared, carry = loop.split(inputs)
    alive = builder.input(BOOL, "alive")
    trips = builder.input(INDEX, "trips")
    following = []
    for old, new, its in zip(carry, builder.inline(loop.body, inputs), places, strict=True):
        is_kept = new is old or its is HOST or not isinstance(new.type, TensorType)
        following.append(new if is_kept else builder.emit("where", [alive, new, old]))
    (test,) = builder.inline(loop.cond, [*shared, *following])
    one = builder.emit("cast", [alive], {"dtype": np.dtype(np.int64)})
    after = builder.emit("logical_and", [alive, test])
    return builder.finish([*following, after, builder.emit("add", [trips, one])])


# Iterations of the first chunk of a masked loop, and of any. A chunk is at most as long as all before it together, so
# no more iterations run past the end than count, but for the first few.
FIRST_CHUNK, MOST_CHUNK = 4, 64


class Loop:
    """A `while` node whose operands live where they are said to; `kernels` are those of nodes with regions."""

    def __init__(self, node: Node, given: Places, kernels: Mapping[str, Control]) -> None:
        self.node = node
        self.parts = control.Loop.of(node)
        self.maximum: int | None = attributes.Loop.of(node).maximum_iterations
        shared, _ = self.parts.split(given)
        self.places = carried(self.parts, given)
        self.types = [v.type for v in self.parts.carried]
        inputs = (*shared, *self.places)
        cond, body = self.parts.cond, self.parts.body
        self.cond = compile_region(cond, inputs, kernels)
        self.mode: Literal["counted", "read", "masked"]
        self.reason = ""
        self.masked: Masked | None = None
        # Values carried besides: the predicate of the next iteration, and in a masked loop the number of iterations
        # that counted.
        besides: tuple[Place, ...] = ()
        self.ending: Ending | None = None
        if outputs_of(cond, inputs)[0] is HOST:
            self.mode = "counted"
        else:
            found = masked_body(node, shared, self.places)
            if isinstance(found, str):
                self.mode, self.reason = "read", found
                body, besides = asked_graph(node), (DEVICE,)
            else:
                self.mode, self.masked = "masked", found
                body, besides = found.graph, (DEVICE, DEVICE)
            self.ending = Ending(len(self.places), self.masked is not None)
        wanted = (*self.places, *besides)
        self.tables = tables_of(self.parts)
        self.body = Body(compile_region(body, (*inputs, *besides), kernels, wanted), self.tables, self.ending)
        self._given, self._kernels = given, kernels
        # How it counts, where how often it goes on is known beforehand.
        self.counting = Counting.each(self.parts, lambda value: None) if self.mode == "counted" else ()
        self.roles = roles_of(node)
        # On the host a stack has no blocks, which a chunk could be run again for.
        self.can_replay = self.roles.can_replay and any(self.places[i] is DEVICE for i in self.roles.pushed)
        self.hosted = [i for i, p in enumerate(self.places) if p is HOST and not isinstance(self.types[i], StackType)]

    @functools.cached_property
    def iteration(self) -> Program:
        """The body alone, as it is in the list of another loop's body."""
        if self.ending is None:
            return self.body.program
        inputs = (*self.parts.split(self._given)[0], *self.places)
        return compile_region(self.parts.body, inputs, self._kernels, self.places)

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        state = self._begun(context, operands)
        LoopExecution(self, context, state).run()
        return state.carry if len(state.carry) != 1 else state.carry[0]

    def _begun(self, context: Context, operands: list[Any]) -> LoopState:
        """The state before the first iteration. Takes the operands off their list."""
        shared, carry = self.parts.split(operands)
        state = LoopState(list(shared), list(carry))
        # Only the state holds the carry: it is overwritten in place, and its blocks are freed.
        operands.clear()
        del shared, carry
        for i, its in enumerate(self.places):
            if its is DEVICE:
                state.carry[i] = to_device(context, state.carry[i], self.types[i])
        chunk = attributes.Loop.of(self.node).chunk
        if chunk is not None:
            # A loop over the iterations of one chunk fills one block of each new stack.
            for value in state.carry:
                if isinstance(value, DeviceStack) and not len(value):
                    value.capacity = chunk
        return state


@dataclass(frozen=True)
class _Before:
    """State to which a chunk of masked iterations may have to be cut back.

    `lengths` are those of the stacks before the chunk. `numbers` are those on the host between runs of iterations, by
    how many of the chunk's iterations there were before.
    """

    lengths: Mapping[int, int]
    numbers: dict[int, list[Any]] = field(default_factory=dict)


class LoopExecution:
    """A loop that runs: its state, the chunks of its iterations, and how these are numbered in errors."""

    def __init__(self, loop: Loop, context: Context, state: LoopState) -> None:
        self.loop, self.context, self.state = loop, context, state
        self.chunks = chunks_of(loop.node, context, loop.roles, self._replay(), state)
        # A reversed loop starts from the number of iterations and counts down.
        self._step = -1 if attributes.Loop.of(loop.node).counts_down else 1
        self._first = context.number(state.carry[0]) - 1 if self._step < 0 else 0

    def run(self) -> None:
        """All iterations: what the loop leaves is in the state then."""
        loop, run = self.loop, self.context.run
        run.iterations.append(self._first)
        self.context.loops.append(loop.node)
        try:
            if loop.masked is None:
                self._run_asked()
            else:
                self._run_masked(loop.masked)
            self.chunks.finish()
        except BaseException as error:
            is_own = isinstance(error, MaximumIterationsError) and error.source is loop.node.source
            if isinstance(error, CtrlgradError) and not is_own and not self.context.is_late:
                note(error, loop.node, run.iterations[-1], run)
            self.chunks.abandon()
            raise
        finally:
            run.iterations.pop()
            self.context.loops.pop()

    def _replay(self) -> BodyReplay | None:
        loop, context = self.loop, self.context
        if context.memory is None or not loop.can_replay:
            return None
        return BodyReplay(loop.body, list(self.state.shared), loop.roles, loop.places, context)

    def _is_at(self, trips: int) -> None:
        """An error from now on is of the iteration that so many came before."""
        self.context.run.iterations[-1] = self._first + self._step * trips

    def _up_to_maximum(self, iterations: int) -> int:
        """At most so many, and no more than the loop may have."""
        maximum = self.loop.maximum
        return iterations if maximum is None else min(iterations, maximum - self.state.trips)

    def _check_maximum(self) -> None:
        """The loop goes on: it may."""
        maximum, trips = self.loop.maximum, self.state.trips
        if maximum is not None and trips == maximum:
            raise too_many_iterations(self.loop.node, maximum, trips)

    # Before each iteration, or as many as are known to come or that ask by themselves, the host knows that the loop
    # goes on.

    def _run_asked(self) -> None:
        state = self.state
        if self.loop.ending is not None:
            state.carry.append(self.context.on_device(self._test()))
        with Iterations(self.loop.body, self.context, state) as iterations:
            while left := self._left():
                self._check_maximum()
                ran = iterations.advance(min(self._up_to_maximum(left), self.chunks.before()))
                state.trips += ran
                self.chunks.after(ran)
                self._is_at(state.trips)
        if self.loop.ending is not None:
            del state.carry[-1:]

    def _left(self) -> int:
        """Number of iterations that may be put on the stream: those that are known to come, or no bound where each
        iteration computes the predicate. 0 where the loop has ended."""
        loop = self.loop
        if loop.counting:
            return max(0, min(map(self._distance, loop.counting)))
        if loop.ending is not None:
            return UNBOUNDED * bool(self.context.predicate(self.state.carry[-1])[0])
        return int(bool(self._test()))

    def _test(self) -> Any:
        """The predicate."""
        return self.loop.cond(self.state.shared + self.state.carry, self.context)[0]

    def _distance(self, counting: Counting) -> int:
        """Number of iterations until a counter reaches its bound."""
        bound, parts = counting.bound, self.loop.parts
        if isinstance(bound, Value):
            bound = self.state.shared[next(n for n, c in enumerate(parts.captures) if c.outer is bound)]
        count = self.state.carry[parts.carries.index(counting.carry)]
        distance = int(bound) - int(count)
        return (distance if counting.step > 0 else -distance) + counting.beyond

    # Masked: behind each chunk the host reads whether the loop goes on, and how many iterations counted.

    def _run_masked(self, masked: Masked) -> None:
        state, context = self.state, self.context
        # The two that say which iterations count are carried too.
        alive = context.on_device(self._test())
        state.carry += [alive, context.on_device(np.int64(0))]
        del alive
        with Iterations(self.loop.body, context, state) as iterations:
            size = FIRST_CHUNK
            while self._run_chunk(masked, iterations, size):
                self._check_maximum()
                size = min(2 * size, MOST_CHUNK)
        del state.carry[-2:]

    def _run_chunk(self, masked: Masked, iterations: Iterations, size: int) -> bool:
        """Run about as many iterations; whether the loop goes on."""
        state = self.state
        before = _Before({i: len(state.carry[i]) for i in masked.pushes})
        speculation = self.context.speculation = Speculation()
        try:
            ran = self._speculate(iterations, size, before.numbers, speculation)
        finally:
            self.context.speculation = None
        goes_on, trips = self.context.predicate(*state.carry[-2:])
        if speculation.failure is not None and speculation.failed_at < int(trips):
            self._is_at(speculation.failed_at)
            raise speculation.failure
        counted, state.trips = int(trips) - state.trips, int(trips)
        if not goes_on:
            self._cut(masked, iterations.steps(), before, counted)
        self.chunks.after(ran)
        return bool(goes_on)

    def _speculate(
        self, iterations: Iterations, size: int, numbers: dict[int, list[Any]], speculation: Speculation
    ) -> int:
        """Run a chunk's iterations, of which some may be past the loop's end; how many."""
        longest = self._up_to_maximum(self.chunks.before())
        # A graph leaves out those past the end, so it may be longer.
        beyond, size, ran = size >= LEAST_IN_GRAPH, min(size, longest), 0
        numbers[ran] = self._on_host()
        while ran < size:
            speculation.iteration = self.state.trips + ran
            self._is_at(speculation.iteration)
            ran += iterations.advance(size - ran, longest - ran if beyond else 0)
            numbers[ran] = self._on_host()
        return ran

    def _on_host(self) -> list[Any]:
        return [self.state.carry[i] for i in self.loop.hosted]

    def _cut(self, masked: Masked, steps: Mapping[int, int], before: _Before, counted: int) -> None:
        """Undo what iterations past the end, after those that count, did to carries on the host and to stacks."""
        carry = self.state.carry
        start = max(n for n in before.numbers if n <= counted)
        for i, value in zip(self.loop.hosted, before.numbers[start], strict=True):
            step = steps.get(i, 0)
            carry[i] = np.int64(wrapped(int(value) + (counted - start) * step)) if step else value
        for i, count in masked.pushes.items():
            stack, length = carry[i], before.lengths[i] + counted * count
            if isinstance(stack, DeviceStack):
                stack.drop(len(stack) - length)
            elif len(stack) > length:
                carry[i] = type(stack)(stack[:length])
