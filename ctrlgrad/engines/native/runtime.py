"""One call of a compiled plan: arguments into the frame, one native call, what it asks for meanwhile, results out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ctrlgrad.dtypes import REAL_NAMES
from ctrlgrad.engines.block_kernels import describe, turns_of_rows
from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.frame import Layout, Request, Status
from ctrlgrad.engines.native.frame_memory import FrameMemory
from ctrlgrad.engines.native.marshalling import Arguments, Results
from ctrlgrad.engines.native.memory import array_at
from ctrlgrad.engines.native.objects import Loaded
from ctrlgrad.engines.native.outside import Outside
from ctrlgrad.engines.native.outside_text import Turns
from ctrlgrad.engines.native.positions import Positions, noted
from ctrlgrad.engines.native.stacks import Again, FrameStack, Session
from ctrlgrad.engines.precision import flushes_subnormals
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.forks import once
from ctrlgrad.ir import Trait, attributes
from ctrlgrad.memory import Chunk
from ctrlgrad.memory.pool import POOL
from ctrlgrad.memory.session import current
from ctrlgrad.memory.turns import in_turns
from ctrlgrad.plan.chunks import LoopPlan, carried_stacks, loop_plan
from ctrlgrad.plan.model import Array, Plan, Register, Stack, Value
from ctrlgrad.runtime.stack import empty
from ctrlgrad.threads import STOP

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# Iterations that a chunk may run where no chunks are kept.
ENDLESS = 1 << 62


class Program:
    """A plan with its machine code, and frames for calls of it."""

    def __init__(self, plan: Plan, code: Loaded, compile: Callable[[Plan], Program]) -> None:
        self.plan, self.compile = plan, compile
        # The machine code stays in memory as long as a program holds it.
        self.code = code
        # By the loop's number, and whether it pushes.
        self._loops: dict[tuple[int, bool], tuple[Program, LoopPlan]] = {}
        self.layout = Layout(plan)
        self.has_effects = any(Trait.EFFECT in call.node.op.traits for call in self.layout.calls)
        self.calls_back = any(attributes.Hook.find(call.node) for call in self.layout.calls)
        is_once = self.has_effects or self.calls_back
        self.waits = not is_once and any(isinstance(argument, Stack) for argument in plan.arguments)
        self.function: Callable[[int], None] = _FUNCTION(code["plan"])
        self.constants = [np.ascontiguousarray(value) for _, value in plan.constants]
        # Readable labels of stacks' contents, by handle.
        self.labels: dict[int, str] = {}
        # Frames that no call uses, with little memory; a budget has them go.
        self.idle: list[Frame] = []
        POOL.add(self)

    @once
    def positions(self) -> Positions:
        """For callbacks and errors."""
        return Positions(self.plan)

    def __call__(self, arguments: Sequence[Any], silent_callbacks: int = 0) -> list[Any]:
        """The results for arrays, numbers and stacks; so many callbacks are not called, as they were before."""
        if current() is not None:
            # Its memory counts, and is given back at once.
            counted = Frame(self)
            counted.silent_callbacks = silent_callbacks
            return Session(counted).run(arguments)
        if not self.waits:
            return self._run(arguments, silent_callbacks)
        # Rows of a pullback that has outlived its budget: a call without room for them beside another begins anew.
        again = partial(self, arguments, silent_callbacks)
        return in_turns(turns_of_rows(arguments), partial(self._run, arguments, silent_callbacks), again)

    def _run(self, arguments: Sequence[Any], silent_callbacks: int) -> list[Any]:
        try:
            found = self.idle.pop()
        except IndexError:
            found = Frame(self)
        found.silent_callbacks = silent_callbacks
        results = found.run(arguments)
        found.memory.shrink()
        self.idle.append(found)
        return results

    def release(self) -> None:
        """Let go of what is kept for the next call; the memory pool calls it."""
        while self.idle:
            self.idle.pop().dispose()

    def loop_program(self, number: int, *, pushes: bool) -> tuple[Program, LoopPlan]:
        """A loop of the plan as a program of its own, to run its chunks again, or to come to the state after some."""
        if (number, pushes) not in self._loops:
            found = loop_plan(self.plan, self.layout.loops[number], pushes=pushes)
            self._loops[number, pushes] = (self.compile(found.plan), found)
        return self._loops[number, pushes]

    def run_again(
        self, arguments: Sequence[Any], chunks: Iterator[Chunk], ran: Sequence[Any], scratch: np.ndarray | None
    ) -> list[Any]:
        """Run its one loop for as many iterations as some chunks had, into their blocks; or into none, without chunks.

        The scratch memory is that of the call that waits for it.
        """
        try:
            found = self.idle.pop()
        except IndexError:
            found = Frame(self)
        if scratch is not None:
            found.memory.take_scratch(scratch)
        results = Again(found, chunks, ran).run(arguments)
        self.idle.append(found)
        return results


class Frame:
    """The words and the memory of one call at a time."""

    def __init__(self, program: Program) -> None:
        self.program, self.layout, self.plan = program, program.layout, program.plan
        self.words = np.zeros(self.layout.words, np.int64)
        self.address = self.words.ctypes.data
        answers = self.answers()
        next(answers)
        self.callback = _CALLBACK(answers.send)
        self.words[frame.CALLBACK] = ctypes.cast(self.callback, ctypes.c_void_p).value or 0
        for number, value in enumerate(program.constants):
            self.words[self.layout.constants + number] = value.ctypes.data
        self.memory = FrameMemory(self.words, self.layout)
        dtypes = {handle: stack.dtype for stack, handle in self.plan.handles.items()}
        # Shapes of rows as the plan knows them; ragged stacks have none.
        rows = {handle: self.plan.rows[stack] for stack, handle in self.plan.handles.items()}
        self.ranks = {handle: len(shape) for handle, shape in rows.items() if shape is not None}
        self.stacks = [
            FrameStack(
                h, self.words[self.layout.stack(h) : self.layout.stack(h) + frame.STACK_WORDS], dtypes[h], rows[h]
            )
            for h in range(self.layout.stack_count)
        ]
        self.outside = Outside(self)
        self.silent_callbacks = 0
        # The arguments of the call that runs, and the copies of them that it reads.
        self.held: tuple[Sequence[Any], list[np.ndarray]] | None = None
        self.session: Session | Again | None = None
        for index in self.layout.chunks.values():
            self.words[index] = ENDLESS
        self.error: BaseException | None = None
        self.moved: list[tuple[int, int]] = []
        self.turns = Turns(self.words[self.layout.ticks : self.layout.counters])
        # A view of the words for each dtype of a number.
        self.views = {np.dtype(d): self.words.view(d) for d in REAL_NAMES}
        self.integers = self.words.data
        self.arguments = Arguments(self.words, self.views, self.layout, self.stacks)
        self.results = Results(self.words, self.views, self.layout, self.memory, self.stacks)

    # A call.

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        self.held = arguments, self.arguments.put(arguments)
        results = self.results.begin()
        self.error = None
        if self.layout.calls:
            self.outside.start(self.silent_callbacks)
        self.integers[frame.STATUS] = 0
        self.integers[frame.FLUSHES] = flushes_subnormals()
        if self.layout.loops:
            self.turns.start(self.sizes())
        self.program.function(self.address)
        self.held = None
        try:
            if self.error is not None:
                if isinstance(self.error, KeyboardInterrupt):
                    self.say_where(self.error)
                raise self.error
            if self.integers[frame.STATUS]:
                from ctrlgrad.engines.native.failures import failure  # no part of a first call that fares well

                raise failure(self, Status(self.integers[frame.STATUS]))
            return self.results.finish(results)
        finally:
            self.error = None
            for stack in self.stacks:
                if self.session is None:
                    stack.rest()
                else:
                    stack.clear()
            self.memory.release_results()

    def sizes(self) -> list[int]:
        """The sizes of the arguments."""
        start = self.layout.sizes
        return self.integers[start : start + len(self.plan.sizes)].tolist()

    def rest(self) -> None:
        """Give all memory back; the frame may run again."""
        self.memory.clear()
        self.session = None

    def dispose(self) -> None:
        """Give all memory back now: the callback and the frame hold each other."""
        self.memory.clear()
        for stack in self.stacks:
            stack.clear()
        self.session = None
        del self.callback, self.outside

    def put(self, index: int, dtype: np.dtype, value: Any) -> None:
        self.views[dtype][index * (8 // dtype.itemsize)] = value

    def number(self, index: int, dtype: np.dtype) -> Any:
        return self.views[dtype][index * (8 // dtype.itemsize)]

    # Requests of compiled code.

    def answers(self) -> Generator[int, int, None]:
        """Does what compiled code asks for, one request after the other.

        Python raises what a signal asks for as soon as it has its turn. A function would have to be entered for that
        turn, and an exception on the way in would be lost; a generator comes back inside of its `try`.
        """
        answer = 0
        while True:
            try:
                while True:
                    try:
                        yield answer
                        answer = self.answer()
                    except GeneratorExit:
                        return
                    except BaseException as error:
                        self.error, answer = error, 1
            except BaseException as error:
                # One more signal, before the code had its answer.
                self.error, answer = error, 1

    def answer(self) -> int:
        """Do what is asked for; 0, or 1 where something was raised."""
        try:
            self.serve(*self.words[frame.REQUEST : frame.B + 1].tolist())
        except BaseException as error:
            self.error = error
            return 1
        return 0

    def say_where(self, error: KeyboardInterrupt) -> None:
        """Add the interrupted loop, if any, to the error."""
        if self.words[frame.REQUEST] == Request.POLL:
            loop = self.layout.loops[int(self.words[frame.A])]
            explained(error, loop.node)
            noted(error, self, (*self.program.positions.steps[loop], loop))

    def serve(self, request: int, a: int, b: int) -> None:
        if request == Request.GROW_WORKSPACE:
            self.memory.grow_workspace(a)
        elif request == Request.GROW_SCRATCH:
            self.memory.grow_scratch(a)
        elif request == Request.GROW_BUFFER:
            self.memory.grow(a, b)
        elif request == Request.POLL:
            stop = STOP.get()
            if stop is not None:
                stop()
            self.turns.next(a)
        elif request == Request.FULL:
            self.stacks[a].grow(self.row_shape(a), b)
        elif request == Request.EMPTY:
            self.stacks[a].back(b)
        elif request in (Request.GATHER, Request.OWN):
            self.stacks[a].gather()
        elif request == Request.MARK:
            self.stacks[a].mark()
        elif request == Request.NEW_ROWS:
            self.stacks[a].new_rows(b, self.row_shape(a))
        elif request == Request.JOIN:
            self.stacks[a].join()
        elif request == Request.COPY_ROWS:
            self.stacks[a].copy_rows(b)
        elif request == Request.NEW_STACK:
            self.stacks[a].new(b, self.row_shape(a))
        elif request == Request.COPY_STACK:
            self.stacks[a].clear()
            self.stacks[a].hold(self.stacks[b].settle().copy())
        elif request == Request.MOVE_STACKS:
            self.move(a, b)
        elif request == Request.COMPUTE:
            self.outside.compute(a, bool(b))
        elif request == Request.FETCH:
            self.outside.fetch(a)
        else:
            assert self.session is not None
            if request == Request.BEGIN_LOOP:
                self.session.begin(a)
            elif request == Request.NEXT_CHUNK:
                self.session.next(a)
            else:
                assert request == Request.END_LOOP
                self.session.end(a)

    def row_shape(self, handle: int) -> tuple[int, ...]:
        rank, start = self.ranks.get(handle, 0), self.layout.shapes.get(handle, 0)
        return tuple(self.integers[start : start + rank].tolist())

    def give_back(self) -> None:
        """Let go of what the plan does not need any more. The code waits for an answer meanwhile."""
        self.memory.give_back()
        for stack in self.stacks:
            if stack.words[frame.IDLE]:
                stack.clear()

    # Loops in chunks.

    def told(self, values: Sequence[Value], index: int) -> list[Any]:
        """The values that compiled code has written to the frame: numbers, arrays in its memory, stacks."""
        found: list[Any] = []
        for value in values:
            if isinstance(value, Register):
                found.append(self.number(index, value.dtype))
            elif isinstance(value, Array):
                address, *shape = self.words[index : index + 1 + len(value.shape)].tolist()
                found.append(array_at(address, tuple(shape), None, value.dtype))
            else:
                found.append(None)
            index += frame.value_words(value)
        return found

    def kept(self, value: Value, given: Any) -> Any:
        """A captured value that stays as it is for as long as a chunk may be run again."""
        if isinstance(value, Array) and self.plan.places[value].kind not in ("argument", "constant"):
            copy = empty(given.shape, given.dtype, "what a loop captures")
            copy[...] = given
            return copy
        if isinstance(value, Stack):
            return self.stacks[self.plan.handles[value]].settle().copy()
        return given

    def label(self, handle: int) -> str:
        """Readable label of a stack's contents."""
        labels = self.program.labels
        if handle not in labels:
            labels[handle] = self._label(handle)
        return labels[handle]

    def _label(self, handle: int) -> str:
        for chunked in self.layout.chunked.values():
            for number, stack in carried_stacks(chunked.loop):
                if self.plan.handles[stack] == handle:
                    label = describe(chunked.loop.node, number).label
                    return f"sizes of {label}" if stack.holds == "sizes" else label
        return "rows of a stack"

    def move(self, source: int, target: int) -> None:
        """Stacks change places, all of one block's end at once: the last one has a negative target."""
        is_last = target < 0
        self.moved.append((source, -1 - target if is_last else target))
        if is_last:
            found = {s: self.stacks[s].settle() for s, _ in self.moved}
            replaced = {t: self.stacks[t].settle() for _, t in self.moved if t not in found}
            for s, t in self.moved:
                self.stacks[t].hold(found[s])
            free = [s for s in found if s not in {t for _, t in self.moved}]
            for s, stack in zip(free, replaced.values(), strict=False):
                self.stacks[s].hold(stack)
            self.moved.clear()
