"""Where a loop in machine code gives others a turn: Python now and then, and a memory manager between chunks."""

from __future__ import annotations

from collections.abc import Iterator

from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.outside_text import OutsideText
from ctrlgrad.plan.model import Loop, Stack


class TurnsText(OutsideText):
    """Adds the turns of loops to the text."""

    def is_managed(self) -> str:
        return self.w.op(f"icmp ne i64 {self.load_word(frame.IS_MANAGED)}, 0")

    def begin_chunks(self, step: Loop) -> str | None:
        """Tell a memory manager that a loop begins; the variable of the iterations that a chunk has left."""
        if step.number not in self.layout.chunks:
            return None
        with self.w.when(self.is_managed()):
            index = self.layout.captures[step.number]
            for value in self.layout.chunked[step.number].captured:
                index = self.tell_value(value, index)
            for stack in self.pushed_stacks(step):
                self.row_shape(stack)
            self.ask(Request.BEGIN_LOOP, str(step.number))
        left = self.w.alloca("i64")
        self.w.line(f"store i64 {self.load_word(self.layout.chunks[step.number])}, ptr {left}")
        return left

    def end_of_chunk(self, step: Loop, left: str) -> None:
        """Where a chunk has no iterations left, show what the loop carries and ask for another one; or run on in the
        same blocks, as often as that is allowed."""
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
            at = index + 1
            for carry in step.carries:
                at = self.tell_value(carry.inside, at)
            self.ask(Request.NEXT_CHUNK, str(step.number))
            w.line(f"store i64 {w.op(f'sub i64 {self.load_word(index)}, 1')}, ptr {left}")

    def end_chunks(self, step: Loop) -> None:
        """Tell a memory manager that a loop is over."""
        with self.w.when(self.is_managed()):
            self.tell_position()
            self.ask(Request.END_LOOP, str(step.number))

    def pushed_stacks(self, step: Loop) -> Iterator[Stack]:
        """The stacks that each iteration of a loop pushes on."""
        pushed = self.layout.chunked[step.number].pushed
        for carry in step.carries:
            if isinstance(carry.inside, Stack) and self.plan.handles[carry.inside] in pushed:
                yield carry.inside

    def poll(self, step: Loop, ticks: str) -> None:
        """Now and then Python has its turn: whenever the iterations that a variable counts down are over."""
        w = self.w
        left = w.op(f"sub i64 {w.op(f'load i64, ptr {ticks}')}, 1")
        w.line(f"store i64 {left}, ptr {ticks}")
        with self.w.when(w.op(f"icmp sle i64 {left}, 0")):
            self.tell_position()
            self.ask(Request.POLL, str(step.number))
            w.line(f"store i64 {self.load_word(self.layout.ticks + step.number)}, ptr {ticks}")
