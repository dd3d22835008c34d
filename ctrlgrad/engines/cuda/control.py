"""How loops, branches, calls and callbacks run: control is on the host.

A loop whose predicate is on the host (a counter against a bound) reads nothing. One whose predicate is on the device
runs chunks of masked iterations where that is allowed (see `masking`), and else reads its predicate before each
iteration. A chunk that is a graph leaves out the iterations past the end, so it is as long as its blocks are. A read
waits for what was put on the engine's stream so far, never for the whole device. In a session loops run in chunks for
the memory manager too (see `chunks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.engines.chunk_driver import ChunkDriver
from ctrlgrad.engines.cuda.chunks import NoChunks, chunks_of
from ctrlgrad.engines.cuda.compile import Control, compile_region
from ctrlgrad.engines.cuda.context import Context, Speculation
from ctrlgrad.engines.cuda.masking import Masked, masked_body
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, Place, Places, carried, outputs_of, results_of
from ctrlgrad.engines.cuda.prepared.runner import LEAST_IN_GRAPH, Body, Iterations, LoopState
from ctrlgrad.engines.cuda.program import Program, to_device
from ctrlgrad.engines.cuda.replay import BodyReplay, Ran
from ctrlgrad.engines.cuda.roles import roles_of
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.reference import REFERENCE
from ctrlgrad.engines.reference.control_kernels import note, too_many_iterations
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError
from ctrlgrad.ir import Node, StackType, Value, attributes, control
from ctrlgrad.ir.counting import Counting

# Iterations of the first chunk of a masked loop, and of any. A chunk is at most as long as all before it together, so
# no more iterations run past the end than count, but for the first few.
FIRST_CHUNK, MOST_CHUNK = 4, 64

Chunks = ChunkDriver[Ran] | NoChunks


class Loop:
    """A `while` node whose operands live where they are said to."""

    def __init__(self, node: Node, given: Places) -> None:
        self.node = node
        self.parts = control.Loop.of(node)
        self.maximum: int | None = attributes.Loop.of(node).maximum_iterations
        shared, _ = self.parts.split(given)
        self.places = carried(self.parts, given)
        self.types = [v.type for v in self.parts.carried]
        inputs = (*shared, *self.places)
        cond, body = self.parts.cond, self.parts.body
        self.cond = compile_region(cond, inputs, CONTROL)
        self.reason = ""
        self.masked: Masked | None = None
        wanted: tuple[Place, ...] = self.places
        if outputs_of(cond, inputs)[0] is HOST:
            self.mode = "counted"
        else:
            found = masked_body(node, shared, self.places)
            if isinstance(found, str):
                self.mode, self.reason = "read", found
            else:
                self.mode, self.masked = "masked", found
                body, inputs, wanted = found.graph, (*inputs, DEVICE, DEVICE), (*wanted, DEVICE, DEVICE)
        self.body = Body(compile_region(body, inputs, CONTROL, wanted))
        # How it counts, where how often it goes on is known beforehand.
        self.counting = Counting.each(self.parts, lambda value: None) if self.mode == "counted" else ()
        self.roles = roles_of(node)
        # On the host a stack has no blocks, which a chunk could be run again for.
        self.can_replay = self.roles.can_replay and any(self.places[i] is DEVICE for i in self.roles.pushed)
        self.hosted = [i for i, p in enumerate(self.places) if p is HOST and not isinstance(self.types[i], StackType)]

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        shared, carry = self.parts.split(operands)
        state = LoopState(list(shared), list(carry))
        # Nobody but the state holds what is carried: it is overwritten, and its blocks are freed.
        operands.clear()
        del shared, carry
        for i, its in enumerate(self.places):
            if its is DEVICE:
                state.carry[i] = to_device(context, state.carry[i], self.types[i])
        self._make_room(state)
        run = context.run
        chunks = chunks_of(self.node, context, self.roles, self._replay(state, context), state)
        # A reversed loop starts from the number of iterations and counts down.
        backwards = attributes.Loop.of(self.node).counts_down
        first = context.number(state.carry[0]) if backwards else 0
        number: Callable[[int], int] = (lambda trips: first - 1 - trips) if backwards else (lambda trips: trips)
        run.iterations.append(number(0))
        try:
            if self.masked is not None:
                self._run_masked(self.masked, state, context, chunks, number)
            else:
                with Iterations(self.body, context, state) as iterations:
                    self._run(iterations, state, context, chunks, number)
            chunks.finish()
        except BaseException as error:
            is_own = isinstance(error, MaximumIterationsError) and error.source is self.node.source
            if isinstance(error, CtrlgradError) and not is_own and not context.is_late:
                note(error, self.node, run.iterations[-1], run)
            chunks.abandon()
            raise
        finally:
            run.iterations.pop()
        run.counters.looped(self.node, state.trips)
        return state.carry if len(state.carry) != 1 else state.carry[0]

    def _replay(self, state: LoopState, context: Context) -> BodyReplay | None:
        if context.memory is None or not self.can_replay:
            return None
        return BodyReplay(self.body, list(state.shared), self.roles, self.places, context, self.masked is not None)

    def _make_room(self, state: LoopState) -> None:
        """A loop over the iterations of one chunk fills one block of each new stack."""
        chunk = attributes.Loop.of(self.node).chunk
        if chunk is not None:
            for value in state.carry:
                if isinstance(value, DeviceStack) and not len(value):
                    value.capacity = chunk

    def _run(
        self,
        iterations: Iterations,
        state: LoopState,
        context: Context,
        chunks: Chunks,
        number: Callable[[int], int],
    ) -> None:
        while left := self._left(state, context):
            if self.maximum is not None:
                if state.trips == self.maximum:
                    raise too_many_iterations(self.node, self.maximum, state.trips)
                left = min(left, self.maximum - state.trips)
            ran = iterations.advance(min(left, chunks.before()))
            state.trips += ran
            chunks.after(ran)
            context.run.iterations[-1] = number(state.trips)

    def _left(self, state: LoopState, context: Context) -> int:
        """How many iterations there are to come, as far as that is known: one if the loop goes on, else none."""
        if self.counting:
            return max(0, min(self._distance(counting, state) for counting in self.counting))
        test = self.cond(state.shared + state.carry, context)[0]
        return int(bool(test) if self.mode == "counted" else bool(context.predicate(test)[0]))

    def _distance(self, counting: Counting, state: LoopState) -> int:
        bound = counting.bound
        if isinstance(bound, Value):
            bound = state.shared[next(n for n, c in enumerate(self.parts.captures) if c.outer is bound)]
        count = state.carry[self.parts.carries.index(counting.carry)]
        distance = int(bound) - int(count)
        return (distance if counting.step > 0 else -distance) + counting.beyond

    # Masked.

    def _run_masked(
        self, masked: Masked, state: LoopState, context: Context, chunks: Chunks, number: Callable[[int], int]
    ) -> None:
        # The two that say which iterations count are carried too.
        alive = context.on_device(self.cond(state.shared + state.carry, context)[0])
        state.carry += [alive, context.on_device(np.int64(0))]
        del alive
        with Iterations(self.body, context, state, len(state.carry) - 2) as iterations:
            self._run_chunks(masked, iterations, state, context, chunks, number)
        del state.carry[-2:]

    def _run_chunks(
        self,
        masked: Masked,
        iterations: Iterations,
        state: LoopState,
        context: Context,
        chunks: Chunks,
        number: Callable[[int], int],
    ) -> None:
        most = FIRST_CHUNK
        while True:
            longest = chunks.before()
            if self.maximum is not None:
                longest = min(longest, self.maximum - state.trips)
            size = min(most, longest)
            lengths = {i: len(state.carry[i]) for i in masked.pushes}
            # The numbers on the host between runs of iterations, by how many there were before.
            history = {0: self._on_host(state)}
            speculation = context.speculation = Speculation()
            try:
                ahead = 0
                while ahead < size:
                    speculation.iteration = state.trips + ahead
                    context.run.iterations[-1] = number(speculation.iteration)
                    ahead += iterations.advance(size - ahead, longest - ahead if most >= LEAST_IN_GRAPH else 0)
                    history[ahead] = self._on_host(state)
            finally:
                context.speculation = None
            goes_on, trips = context.predicate(*state.carry[-2:])
            counted = int(trips) - state.trips
            if speculation.failure is not None and speculation.failed_at < int(trips):
                context.run.iterations[-1] = number(speculation.failed_at)
                raise speculation.failure
            state.trips = int(trips)
            if not goes_on:
                self._cut(masked, state, lengths, history, iterations.steps(), counted)
                iterations.uncount(ahead - counted)
            chunks.after(ahead)
            if not goes_on:
                return
            if state.trips == self.maximum:
                raise too_many_iterations(self.node, self.maximum, state.trips)
            most = min(2 * most, MOST_CHUNK)

    def _on_host(self, state: LoopState) -> list[Any]:
        return [state.carry[i] for i in self.hosted]

    def _cut(
        self,
        masked: Masked,
        state: LoopState,
        lengths: dict[int, int],
        history: dict[int, list[Any]],
        steps: dict[int, int],
        counted: int,
    ) -> None:
        """Undo what iterations past the end, after those that count, did to carries on the host and to stacks."""
        start = max(n for n in history if n <= counted)
        for i, value in zip(self.hosted, history[start], strict=True):
            step = steps.get(i, 0)
            state.carry[i] = np.int64(value + (counted - start) * step) if step else value
        for i, count in masked.pushes.items():
            stack, length = state.carry[i], lengths[i] + counted * count
            if isinstance(stack, DeviceStack):
                stack.drop(len(stack) - length)
            elif len(stack) > length:
                state.carry[i] = type(stack)(stack[:length])


class Branches:
    """A `cond` node: a selector on the device is read."""

    def __init__(self, node: Node, given: Places) -> None:
        wanted = results_of(node, given)
        self.programs = [compile_region(region, given[1:], CONTROL, wanted) for region in node.regions]

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        selector = operands.pop(0)
        if context.library.is_array(selector):
            (selector,) = context.predicate(selector)
        chosen = min(max(int(selector), 0), len(self.programs) - 1)
        return _results(self.programs[chosen], context, operands)


class Call:
    """A `call` node: its first region."""

    def __init__(self, node: Node, given: Places) -> None:
        self.programs = [compile_region(node.regions[0], given, CONTROL)]

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        return _results(self.programs[0], context, operands)


def _results(program: Program, context: Context, operands: list[Any]) -> Any:
    arguments = list(operands)
    operands.clear()
    results = program(arguments, context)
    return results if len(results) != 1 else results[0]


def _callback(node: Node, given: Places) -> Callable[[Context, list[Any]], Any]:
    fn = attributes.Hook.of(node).fn

    def kernel(context: Context, operands: list[Any]) -> Any:
        fn(context.on_host(*operands), tuple(context.run.iterations))
        return ()

    return kernel


def _pure_callback(node: Node, given: Places) -> Callable[[Context, list[Any]], Any]:
    compute = REFERENCE.pure["pure_callback"](node)
    return lambda context, operands: compute(*context.on_host(*operands))


CONTROL: dict[str, Control] = {
    "while": Loop,
    "cond": Branches,
    "call": Call,
    "callback": _callback,
    "pure_callback": _pure_callback,
}

__all__ = ["CONTROL", "FIRST_CHUNK", "MOST_CHUNK", "Branches", "Call", "Loop"]
