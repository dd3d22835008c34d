"""Calls of a plan from compiled code that is not Python's, without Python's lock.

An `Entry` is a function of arrays of fixed types for who has their addresses: `cg_enter(entry, addresses, message)`, of
the arguments and then of the results, which it writes. It takes a frame that no call uses, puts the words of the frame
back to what they were when it was made ready, runs the plan, which computes its results in the caller's memory where it
can, and gives the frame back. Nothing of that asks for Python's lock. Python is called

- by the plan, as in any call (`frame.Request`): then the frame is made ready anew before it is given back;
- where there is no frame: at first, and where more threads call than ever did. That call runs in Python as any other,
  and makes a frame for the next;
- where the run failed: it runs again in Python, which has the error's words, or another plan.

What Python does here it does in a context of its own: budgets and options of the thread that calls are not its matter.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad import forks
from ctrlgrad.engines.native import frame, objects, target
from ctrlgrad.engines.native.memory import array_at
from ctrlgrad.engines.native.runtime import Frame, Program
from ctrlgrad.ir import TensorType
from ctrlgrad.memory.pool import POOL
from ctrlgrad.plan.model import Array

# Frames of one entry: as many calls of it may run at a time without Python.
MOST = 16
# Bytes of an error's text, the zero at its end included.
MESSAGE_BYTES = 4096

# The words of an entry: its frames, each the address of its words or 0, and who is called in their place.
_SLOW = MOST
# The words of a lent frame: the plan's own, what they are put back to, and their bytes; the plan's function; the moves
# of addresses and numbers into the frame and of results out of it; whether Python was asked for anything; who makes the
# frame ready anew.
_WORDS, _READY, _BYTES, _FUNCTION, _IN, _IN_COUNT, _OUT, _OUT_COUNT, _ASKED, _AFTER = range(10)
# A move is four words: which of the addresses, an offset in bytes, a place in the frame, and how many bytes. It copies
# them; where the offset is negative, the place is to hold the address itself.
_MOVE = 4
# How a run ended: well; with an error whose text is written; so that Python has to run it again.
_DONE, _ERROR, _FAILED = range(3)


def _word(name: str, base: str, position: int, kind: str = "i64") -> str:
    """Lines that read a word of a table."""
    return f"""  %{name}.p = getelementptr i64, ptr %{base}, i64 {position}
  %{name} = load {kind}, ptr %{name}.p"""


_TEXT = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define ptr @cg_take(ptr %entry) nounwind {{
start:
  br label %look
look:
  %k = phi i64 [ 0, %start ], [ %next, %further ]
  %ends = icmp eq i64 %k, {MOST}
  br i1 %ends, label %none, label %slot
slot:
  %place = getelementptr i64, ptr %entry, i64 %k
  %found = atomicrmw xchg ptr %place, i64 0 acquire
  %is_frame = icmp ne i64 %found, 0
  br i1 %is_frame, label %done, label %further
further:
  %next = add i64 %k, 1
  br label %look
done:
  %lent = inttoptr i64 %found to ptr
  ret ptr %lent
none:
  ret ptr null
}}

define void @cg_give(ptr %entry, ptr %lent) nounwind {{
start:
  %word = ptrtoint ptr %lent to i64
  br label %look
look:
  %k = phi i64 [ 0, %start ], [ %wrapped, %further ]
  %place = getelementptr i64, ptr %entry, i64 %k
  %pair = cmpxchg ptr %place, i64 0, i64 %word release monotonic
  %is_put = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %is_put, label %done, label %further
further:
  %next = add i64 %k, 1
  %is_last = icmp eq i64 %next, {MOST}
  %wrapped = select i1 %is_last, i64 0, i64 %next
  br label %look
done:
  ret void
}}

define internal void @move(ptr %moves, i64 %count, ptr %addresses, i1 %is_out) nounwind {{
start:
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %further ]
  %ends = icmp eq i64 %k, %count
  br i1 %ends, label %done, label %one
one:
  %row = mul i64 %k, {_MOVE}
  %move = getelementptr i64, ptr %moves, i64 %row
  %which = load i64, ptr %move
  %offset.p = getelementptr i64, ptr %move, i64 1
  %offset = load i64, ptr %offset.p
  %place.p = getelementptr i64, ptr %move, i64 2
  %place = load ptr, ptr %place.p
  %bytes.p = getelementptr i64, ptr %move, i64 3
  %bytes = load i64, ptr %bytes.p
  %address.p = getelementptr ptr, ptr %addresses, i64 %which
  %address = load ptr, ptr %address.p
  %is_array = icmp slt i64 %offset, 0
  br i1 %is_array, label %array, label %number
array:
  br i1 %is_out, label %array_out, label %array_in
array_in:
  store ptr %address, ptr %place
  br label %further
array_out:
  %lies = load ptr, ptr %place
  %is_there = icmp eq ptr %lies, %address
  br i1 %is_there, label %further, label %copy
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %address, ptr %lies, i64 %bytes, i1 false)
  br label %further
number:
  %part = getelementptr i8, ptr %address, i64 %offset
  %to = select i1 %is_out, ptr %part, ptr %place
  %from = select i1 %is_out, ptr %place, ptr %part
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  br label %further
further:
  %next = add i64 %k, 1
  br label %head
done:
  ret void
}}

define i64 @cg_enter(ptr %entry, ptr %addresses, ptr %message) nounwind {{
start:
  %lent = call ptr @cg_take(ptr %entry)
  %is_none = icmp eq ptr %lent, null
  br i1 %is_none, label %slow, label %run
run:
  %words = load ptr, ptr %lent
{_word("ready", "lent", _READY, "ptr")}
{_word("bytes", "lent", _BYTES)}
  call void @llvm.memcpy.p0.p0.i64(ptr %words, ptr %ready, i64 %bytes, i1 false)
{_word("in", "lent", _IN, "ptr")}
{_word("in_count", "lent", _IN_COUNT)}
  call void @move(ptr %in, i64 %in_count, ptr %addresses, i1 false)
{_word("function", "lent", _FUNCTION, "ptr")}
  call void %function(ptr %words)
{_word("status", "words", frame.STATUS)}
  %is_finished = icmp eq i64 %status, 0
  br i1 %is_finished, label %results, label %again
results:
{_word("out", "lent", _OUT, "ptr")}
{_word("out_count", "lent", _OUT_COUNT)}
  call void @move(ptr %out, i64 %out_count, ptr %addresses, i1 true)
{_word("asked", "lent", _ASKED)}
  %has_asked = icmp ne i64 %asked, 0
  br i1 %has_asked, label %again, label %done
done:
  call void @cg_give(ptr %entry, ptr %lent)
  ret i64 0
again:
{_word("after", "lent", _AFTER, "ptr")}
  %outcome = call i64 %after(ptr %message)
  call void @cg_give(ptr %entry, ptr %lent)
  %fails = icmp eq i64 %outcome, {_FAILED}
  br i1 %fails, label %slow, label %over
over:
  ret i64 %outcome
slow:
{_word("slow_call", "entry", _SLOW, "ptr")}
  %answer = call i64 %slow_call(ptr %addresses, ptr %message)
  ret i64 %answer
}}
"""
_SYMBOLS = ("cg_take", "cg_give", "cg_enter")


@functools.cache
def routines() -> objects.Loaded:
    """The addresses of `cg_take`, `cg_give` and `cg_enter`."""
    make = lambda: objects.ObjectCode(_SYMBOLS, target.compiled(_TEXT))
    return objects.library(objects.key_of([_TEXT], []), make).kept()


_SLOW_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
_AFTER_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_TAKE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_GIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

Run = Callable[[list[np.ndarray]], Sequence[np.ndarray]]


class Entry:
    """A function of arrays of fixed types and sizes, for compiled code.

    Args:
        run: the function in Python, which has the last word: what it raises is the caller's error.
        program: what runs it without Python, for such arguments; None where it cannot.
    """

    def __init__(
        self,
        arguments: Sequence[TensorType],
        results: Sequence[TensorType],
        run: Run,
        program: Callable[[list[np.ndarray]], Program | None],
    ) -> None:
        self.arguments, self.results, self.run, self._program = arguments, results, run, program
        self._words = np.zeros(MOST + 1, np.int64)
        self.address = self._words.ctypes.data
        self._slow = _SLOW_CALL(self._call)
        self._words[_SLOW] = _address_of(self._slow)
        code = routines()
        self._take, self._give = _TAKE(code["cg_take"]), _GIVE(code["cg_give"])
        self._lock = forks.lock()
        self._frames: dict[int, LentFrame] = {}
        POOL.add(self)

    @property
    def frames(self) -> int:
        """Number of calls that may run at a time without the GIL."""
        return len(self._frames)

    def release(self) -> None:
        """Let go of the frames that no call uses; the memory pool calls it."""
        while found := self._take(self.address):
            self._frames.pop(found).dispose()

    def _call(self, addresses: int, message: int) -> int:
        """The function in Python."""
        try:
            contextvars.Context().run(self._compute, addresses)
        except BaseException as error:
            write(message, error)
            return _ERROR
        return _DONE

    def _compute(self, addresses: int) -> None:
        types = (*self.arguments, *self.results)
        places = array_at(addresses, (len(types),), None, np.dtype(np.uintp)).tolist()
        found = [array_at(place, _shape(t), None, t.dtype) for place, t in zip(places, types, strict=True)]
        # Copies: what runs may keep what it is given, and this memory is the caller's.
        arguments = [np.array(x) for x in found[: len(self.arguments)]]
        for place, result in zip(found[len(self.arguments) :], self.run(arguments), strict=True):
            place[...] = result
        self._lend(arguments)

    def _lend(self, arguments: list[np.ndarray]) -> None:
        """One frame more for the calls that come, and none of another program."""
        program = self._program(arguments)
        with self._lock:
            if any(lent.program is not program for lent in list(self._frames.values())):
                self.release()
            if program is None or program.layout.calls or len(self._frames) >= MOST:
                return  # calls that Python computes would ask for its lock all the time
            lent = LentFrame(program, arguments, self.results)
            self._frames[lent.record_address] = lent
        self._give(self.address, lent.record_address)


class LentFrame(Frame):
    """A frame whose calls begin and end without Python."""

    def __init__(self, program: Program, arguments: Sequence[np.ndarray], results: Sequence[TensorType]) -> None:
        super().__init__(program)
        # An empty context: requests of a run without Python belong to no session.
        self.context = contextvars.Context()
        self.arguments.put(arguments)
        self._sizes = self.sizes()
        self._after = _AFTER_CALL(self.after)
        self._ready = np.empty_like(self.words)
        given, taken = self._moves(len(arguments), results)
        self._tables = [np.array(rows or [[0] * _MOVE], np.int64) for rows in (given, taken)]
        self._bytes = {self.layout.buffer(self.memory.buffer_of[k]): t for k, t in self._arrays(results)}
        self.record = np.zeros(_AFTER + 1, np.int64)
        self.record_address: int = self.record.ctypes.data
        places = [self.address, self._ready.ctypes.data, self.words.nbytes, program.code["plan"]]
        tables = [
            part for x, rows in zip(self._tables, (given, taken), strict=True) for part in (x.ctypes.data, len(rows))
        ]
        self.record[:] = [*places, *tables, 0, _address_of(self._after)]
        self.after(0)

    def _arrays(self, results: Sequence[TensorType]) -> list[tuple[int, TensorType]]:
        """The results that lie in buffers, by their number."""
        return [(k, results[k]) for k, found in enumerate(self.plan.results) if isinstance(found, Array)]

    def _moves(self, count: int, results: Sequence[TensorType]) -> tuple[list[list[int]], list[list[int]]]:
        """Into the frame before a run, and out of it after one. The results' addresses follow `count` arguments'."""
        word: Callable[[int], int] = lambda index: self.address + 8 * index
        given: list[list[int]] = []
        for k, (argument, index) in enumerate(zip(self.plan.arguments, self.layout.arguments, strict=True)):
            parts = [[k, -1, word(index), 0]] if isinstance(argument, Array) else _numbers(k, argument, word(index))
            given += parts
        taken: list[list[int]] = []
        for k, (result, index) in enumerate(zip(self.plan.results, self.layout.results, strict=True)):
            if isinstance(result, Array):
                place = word(self.layout.buffer(self.memory.buffer_of[k]) + frame.ADDRESS)
                given.append([count + k, -1, place, 0])
                taken.append([count + k, -1, place, _nbytes(results[k])])
            else:
                taken += _numbers(count + k, result, word(index))
        return given, taken

    def serve(self, request: int, a: int, b: int) -> None:
        self.record[_ASKED] = 1
        self.context.run(super().serve, request, a, b)

    def after(self, message: int) -> int:
        """Say how a run ended that asked Python for something or failed, and make the frame ready for the next."""
        error, self.error = self.error, None
        outcome = _FAILED if error is not None or self.words[frame.STATUS] else _DONE
        if error is not None and not isinstance(error, Exception):
            # The user's wish: it is no reason to run again.
            write(message, error)
            outcome = _ERROR
        self.context.run(self._settle)
        return outcome

    def _settle(self) -> None:
        for stack in self.stacks:
            stack.rest()
        self.memory.release_results()
        self.memory.shrink()
        self.words[frame.STATUS] = 0
        self.turns.start(self._sizes)
        for index, t in self._bytes.items():
            self.words[index + frame.BYTES] = _nbytes(t)
        self._ready[:] = self.words
        self.record[_ASKED] = 0

    def dispose(self) -> None:
        super().dispose()
        del self._after


def _numbers(which: int, registers: Any, place: int) -> list[list[int]]:
    """The moves of a number's parts, one word each in the frame."""
    return [[which, k * r.dtype.itemsize, place + 8 * k, r.dtype.itemsize] for k, r in enumerate(registers)]


def _shape(t: TensorType) -> tuple[int, ...]:
    return tuple(d or 0 for d in t.shape)


def _nbytes(t: TensorType) -> int:
    return math.prod(_shape(t)) * t.dtype.itemsize


def _address_of(callback: Any) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


def write(message: int, error: BaseException) -> None:
    """Write an error's text to `MESSAGE_BYTES` of memory; of a long one the beginning."""
    text = f"{type(error).__name__}: {error}".encode()[: MESSAGE_BYTES - 1].decode(errors="ignore").encode()
    ctypes.memmove(message, text + b"\0", len(text) + 1)
