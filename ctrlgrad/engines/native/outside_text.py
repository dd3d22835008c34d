"""Text of calls that compiled code makes to the reference kernels, and turns given to Python meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.plan.effects import names_of
from ctrlgrad.plan.model import Array, Loop, Outside, Register, Stack, View
from ctrlgrad.plan.sizes import row_major

# Turns for Python while compiled code runs: each loop asks for one after so many iterations, set by its clock.


# Iterations of a loop before its first turn, and how long it then waits for the next, in seconds.
FIRST, BETWEEN = 1024, 0.05


class Turns:
    """The words of a frame that say how many iterations each loop has left until its turn."""

    def __init__(self, words: np.ndarray) -> None:
        # Python's memory views are copied quickly.
        self.words = words.data
        self.iterations = np.full(len(words), FIRST).data
        self.since = [0.0] * len(words)
        self.sizes: list[int] = []

    def start(self, sizes: list[int]) -> None:
        """A run begins: each loop has the iterations between its last two turns, if all sizes are those of then."""
        if sizes != self.sizes:
            self.sizes, self.iterations[:] = sizes, np.full(len(self.since), FIRST).data
        self.words[:] = self.iterations
        self.since = [time.monotonic()] * len(self.since)

    def next(self, loop: int) -> None:
        """A loop has its turn: as many iterations as take the time between two turns, but no sudden jump."""
        now = time.monotonic()
        seconds = max(now - self.since[loop], 1e-6)
        found = min(max(self.iterations[loop] * min(BETWEEN / seconds, 16.0), 1), 1 << 40)
        self.iterations[loop] = self.words[loop] = int(found)
        self.since[loop] = now


class OutsideText(StackText):
    """Writes outside calls."""

    def outside(self, step: Outside) -> None:
        index = self.layout.outside[step]
        number = str(self.layout.calls.index(step))
        self.tell_position()
        for operand in step.operands:
            index = self.tell(operand, index)
        known = all(
            not step.sizes or not names_of(r.shape) & {s.name for s, _, _ in step.sizes}
            for r in step.results
            if isinstance(r, Array)
        )
        if known:
            self.tell_results(step, index)
        self.ask(Request.COMPUTE, number, self.told_rows(step))
        for register, number_of_result, axis in step.sizes:
            at = index + sum(frame.operand_words(r) for r in step.results[:number_of_result]) + 1 + axis
            self.registers[register.name] = self.load_word(at)
        if not known:
            self.tell_results(step, index)
        if any(isinstance(r, Array) for r in step.results):
            self.ask(Request.FETCH, number)
        at = index
        for result in step.results:
            if isinstance(result, tuple):
                for k, register in enumerate(result):
                    self.registers[register.name] = self.load_number(at + k, register.dtype)
            at += frame.operand_words(result)

    def told_rows(self, step: Outside) -> str:
        """Tell the shape of the rows of a stack among the results, if it is known yet; whether it is."""
        for result in step.results:
            if isinstance(result, Stack) and self.is_shape_known(result):
                self.row_shape(result)
                return "1"
        return "0"

    def tell_results(self, step: Outside, index: int) -> None:
        for result in step.results:
            if isinstance(result, Array):
                self.store_word(index, self.define(result), "ptr")
                for k, (size, stride) in enumerate(zip(result.shape, row_major(result.shape), strict=True)):
                    self.store_word(index + 1 + k, self.size(size))
                    self.store_word(index + 1 + len(result.shape) + k, self.size(stride))
            index += frame.operand_words(result)

    def tell(self, item: Sequence[Register] | View | Stack, index: int) -> int:
        """Write an operand of an outside call; where the next one starts."""
        if isinstance(item, View):
            self.store_word(index, self.view_address(item), "ptr")
            for k, (size, stride) in enumerate(zip(item.shape, item.strides, strict=True)):
                self.store_word(index + 1 + k, self.size(size))
                self.store_word(index + 1 + len(item.shape) + k, self.size(stride))
        elif isinstance(item, tuple):
            for k, register in enumerate(item):
                self.store_number(index + k, register)
        return index + frame.operand_words(item)


# Places where a loop in machine code yields: to Python now and then, and to a memory manager between chunks.


class TurnsText(OutsideText):
    """Adds the turns of loops to the text."""

    def is_managed(self) -> str:
        return self.w.op(f"icmp ne i64 {self.load_word(frame.IS_MANAGED)}, 0")

    def begin_chunks(self, step: Loop) -> str | None:
        """Tell a memory manager that a loop begins; the variable of the iterations that a chunk has left."""
        if step.number not in self.layout.chunks:
            return None
        with self.w.when(self.is_managed()):
            chunked, handles = self.layout.chunked[step.number], self.plan.handles
            self.tell_values(chunked.captured, self.layout.captures[step.number])
            stacks = (carry.inside for carry in step.carries if isinstance(carry.inside, Stack))
            self.each_apart((stack for stack in stacks if handles[stack] in chunked.pushed), self.row_shape)
            self.ask(Request.BEGIN_LOOP, str(step.number))
        left = self.w.alloca("i64")
        self.w.line(f"store i64 {self.load_word(self.layout.chunks[step.number])}, ptr {left}")
        return left

    def end_of_chunk(self, step: Loop, left: str) -> None:
        """End a chunk whose iterations are used up: report the loop's carries and request the next chunk.

        While passing is allowed, the loop continues in the same blocks instead.
        """
        w, index = self.w, self.layout.chunks[step.number]
        after = w.op(f"sub i64 {w.op(f'load i64, ptr {left}')}, 1")
        w.line(f"store i64 {after}, ptr {left}")
        if step.number in self.layout.passing:
            word = self.layout.passing[step.number]
            passing = self.load_word(word)
            is_over = w.op(f"icmp slt i64 {after}, 0")
            with self.w.when(w.op(f"and i1 {is_over}, {w.op(f'icmp sgt i64 {passing}, 0')}")):
                self.store_word(word, w.op(f"sub i64 {passing}, 1"))
                for handle in self.layout.chunked[step.number].pushed:
                    self.store_word(self.layout.stack(handle) + frame.COUNT, "0")
                w.line(f"store i64 {w.op(f'sub i64 {self.load_word(index)}, 1')}, ptr {left}")
            after = w.op(f"load i64, ptr {left}")
        with self.w.when(w.op(f"icmp slt i64 {after}, 0")):
            self.tell_position()
            self.tell_values([carry.inside for carry in step.carries], index + 1)
            self.ask(Request.NEXT_CHUNK, str(step.number))
            w.line(f"store i64 {w.op(f'sub i64 {self.load_word(index)}, 1')}, ptr {left}")

    def end_chunks(self, step: Loop) -> None:
        """Tell a memory manager that a loop is over."""
        with self.w.when(self.is_managed()):
            self.tell_position()
            self.ask(Request.END_LOOP, str(step.number))

    def poll(self, step: Loop, ticks: str) -> None:
        """Now and then Python has its turn: whenever the iterations that a variable counts down are over."""
        w = self.w
        left = w.op(f"sub i64 {w.op(f'load i64, ptr {ticks}')}, 1")
        w.line(f"store i64 {left}, ptr {ticks}")
        with self.w.when(w.op(f"icmp sle i64 {left}, 0")):
            self.tell_position()
            self.ask(Request.POLL, str(step.number))
            w.line(f"store i64 {self.load_word(self.layout.ticks + step.number)}, ptr {ticks}")
