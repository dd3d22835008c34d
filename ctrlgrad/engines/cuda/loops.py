"""Execution of loops: control is on the host.

A loop whose predicate is on the host (a counter against a bound) reads nothing. One whose predicate is on the device
runs chunks of masked iterations where that is allowed (see `masking`). A chunk that is a graph leaves out the
iterations past the end, so it is as long as its blocks are. Where masks are not allowed, the predicate is read before
each iteration: by the card where iterations are a graph, by the list where they are one, and else by the host. A read
waits for what was put on the engine's stream so far, never for the whole device. In a session loops run in chunks for
the memory manager too (see `chunks`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ctrlgrad.engines.cuda.chunks import chunks_of
from ctrlgrad.engines.cuda.compile import Control, compile_region
from ctrlgrad.engines.cuda.context import Context, Speculation
from ctrlgrad.engines.cuda.masking import Masked, asked_graph, masked_body
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, Place, Places, carried, outputs_of
from ctrlgrad.engines.cuda.prepared.forms import Body
from ctrlgrad.engines.cuda.prepared.model import Ending
from ctrlgrad.engines.cuda.prepared.operands import wrapped
from ctrlgrad.engines.cuda.prepared.runner import LEAST_IN_GRAPH, Iterations
from ctrlgrad.engines.cuda.prepared.state import LoopState
from ctrlgrad.engines.cuda.program import Program, to_device
from ctrlgrad.engines.cuda.replay import BodyReplay
from ctrlgrad.engines.cuda.roles import roles_of, tables_of
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.reference.control_kernels import note, too_many_iterations
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError
from ctrlgrad.ir import Node, StackType, Value, attributes, control
from ctrlgrad.ir.counting import Counting
from ctrlgrad.runtime.chunks import UNBOUNDED

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
        self.body = Body(compile_region(body, (*inputs, *besides), kernels, wanted), tables_of(self.parts), self.ending)
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
        loop, state, run = self.loop, self.state, self.context.run
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
        run.counters.looped(loop.node, state.trips)

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
            iterations.uncount(ran - counted)
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
