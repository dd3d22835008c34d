"""Execution of loops: control is on the host.

A loop whose predicate is on the host (a counter against a bound) reads nothing. Where the predicate is on the device,
the body is followed by it (`asked_graph`), and it is read before each iteration: by the card where iterations are a
graph, by the list where they are one, and else by the host. A read waits for what was put on the engine's stream so
far, never for the whole device. In a session loops run in chunks for the memory manager too (see `chunks`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ctrlgrad.engines.cuda.chunks import BodyReplay, chunks_of, roles_of, tables_of
from ctrlgrad.engines.cuda.compile import Control, compile_region
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.placement import DEVICE, Places, carried, outputs_of
from ctrlgrad.engines.cuda.prepared.runner import Body, Iterations, LoopState
from ctrlgrad.engines.cuda.program import Program, to_device
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.reference.control_kernels import note, too_many_iterations
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError
from ctrlgrad.ir import BOOL, Builder, Graph, Node, Value, attributes, control
from ctrlgrad.ir.control import Counting
from ctrlgrad.runtime.chunks import UNBOUNDED


def asked_graph(node: Node) -> Graph:
    """The body with the predicate: (captures, carry, predicate) to (carry, predicate)."""
    loop = control.Loop.of(node)
    builder = Builder(name=loop.body.name)
    builder.source = loop.source
    inputs = [builder.input(v.type, v.hint) for v in loop.body.inputs]
    shared, _ = loop.split(inputs)
    builder.input(BOOL, "goes_on")
    following = builder.inline(loop.body, inputs)
    (test,) = builder.inline(loop.cond, [*shared, *following])
    return builder.finish([*following, test])


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
        self.cond = compile_region(self.parts.cond, inputs, kernels)
        # The predicate of the next iteration is carried too where the host does not know it.
        self.is_asked = outputs_of(self.parts.cond, inputs)[0] is DEVICE
        besides = (DEVICE,) * self.is_asked
        body = asked_graph(node) if self.is_asked else self.parts.body
        wanted = (*self.places, *besides)
        self.tables = tables_of(self.parts)
        self.body = Body(compile_region(body, (*inputs, *besides), kernels, wanted), self.tables, self.is_asked)
        self._given, self._kernels = given, kernels
        # How it counts, where how often it goes on is known beforehand.
        self.counting = () if self.is_asked else Counting.each(self.parts, lambda value: None)
        self.roles = roles_of(node)
        # On the host a stack has no blocks, which a chunk could be run again for.
        self.can_replay = self.roles.can_replay and any(self.places[i] is DEVICE for i in self.roles.pushed)

    @functools.cached_property
    def iteration(self) -> Program:
        """The body alone, as it is in the list of another loop's body."""
        if not self.is_asked:
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
            self._iterate()
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

    def _iterate(self) -> None:
        loop, state = self.loop, self.state
        if loop.is_asked:
            state.carry.append(self.context.on_device(self._test()))
        with Iterations(loop.body, self.context, state) as iterations:
            while left := self._left():
                if loop.maximum is not None:
                    left = min(left, loop.maximum - state.trips)
                    if not left:
                        raise too_many_iterations(loop.node, loop.maximum, state.trips)
                ran = iterations.advance(min(left, self.chunks.before()))
                state.trips += ran
                self.chunks.after(ran)
                # An error from now on is of the next iteration.
                self.context.run.iterations[-1] = self._first + self._step * state.trips
        if loop.is_asked:
            del state.carry[-1:]

    def _left(self) -> int:
        """Number of iterations that may be put on the stream: those that are known to come, or no bound where each
        iteration computes the predicate. 0 where the loop has ended."""
        loop = self.loop
        if loop.counting:
            return max(0, min(map(self._distance, loop.counting)))
        if loop.is_asked:
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
