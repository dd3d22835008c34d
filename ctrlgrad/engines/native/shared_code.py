"""Code that a plan uses at many places, as functions beside the plan's own: compile time grows with the emitted
text."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.records import record

# Bytes of a line of the processor's cache.
LINE = 64

# The address that a function gives where the answer to what it asked ends the run.
ENDED = "inttoptr (i64 -1 to ptr)"


@record
class SharedFunction:
    """A function `RESULT @NAME(ptr %frame, i64, ...)`, and those that it calls."""

    name: str
    result: str
    text: str
    calls: tuple[str, ...] = ()


def _word(w: Writer, index: int | str) -> str:
    return w.op(f"getelementptr i64, ptr %frame, i64 {index}")


def _ask() -> SharedFunction:
    """Call back; whether the answer ends the run."""
    w = Writer()
    callback = w.op(f"load ptr, ptr {_word(w, frame.CALLBACK)}")
    for index, value in ((frame.REQUEST, "%request"), (frame.A, "%a"), (frame.B, "%b")):
        w.line(f"store i64 {value}, ptr {_word(w, index)}")
    answer = w.op(f"call i64 {callback}(i64 0)")
    w.line(f"ret i1 {w.op(f'icmp ne i64 {answer}, 0')}")
    return SharedFunction(
        "ask", "i1", w.function("internal i1 @ask(ptr %frame, i64 %request, i64 %a, i64 %b) noinline")
    )


def _tell_failure() -> SharedFunction:
    """Return the function that records the reason why a run ends."""
    w = Writer()
    told = ((frame.STATUS, "%status"), (frame.SITE, "%site"), (frame.FOUND, "%found"), (frame.BOUND, "%bound"))
    for index, value in told:
        w.line(f"store i64 {value}, ptr {_word(w, index)}")
    w.line("ret void")
    given = "ptr %frame, i64 %status, i64 %site, i64 %found, i64 %bound"
    return SharedFunction("tell_failure", "void", w.function(f"internal void @tell_failure({given}) noinline"))


def _is_own(w: Writer, stack: str, has_marks: bool) -> str:
    """Emit the test that the stack alone owns the block that holds all its rows, with marks or without."""
    found = "true"
    for part, is_set in ((frame.WRITABLE, True), (frame.BELOW, False), (frame.MARKS, has_marks)):
        word = w.op(f"load i64, ptr {w.op(f'getelementptr i64, ptr {stack}, i64 {part}')}")
        compared = "ne" if is_set else "eq"
        found = w.op(f"and i1 {found}, {w.op(f'icmp {compared} i64 {word}, 0')}")
    managed = w.op(f"load i64, ptr {_word(w, frame.IS_MANAGED)}")
    return w.op(f"and i1 {found}, {w.op(f'icmp eq i64 {managed}, 0')}")


def _may_begin_again() -> SharedFunction:
    """Return the function that tests whether pushes may overwrite the rows of the stack."""
    w = Writer()
    w.line(f"ret i1 {_is_own(w, _word(w, '%stack'), has_marks=False)}")
    text = w.function("internal i1 @may_begin_again(ptr %frame, i64 %stack) noinline")
    return SharedFunction("may_begin_again", "i1", text)


def _begin_unwritten() -> SharedFunction:
    """Have a stack begin again with so many rows that were never written, in the block that it has: whether it could.

    What loops may keep in variables (where the block is, its rows in use) is told. Without rows it has no marks, as any
    empty stack; that its block has none in use then is left to the caller.
    """
    w = Writer()
    stack = _word(w, "%stack")
    idle = f"store i64 0, ptr {w.op(f'getelementptr i64, ptr {stack}, i64 {frame.IDLE}')}"
    with w.when(w.op("icmp eq i64 %size, 0")):
        w.line(idle)
        w.line(f"ret i1 {_is_own(w, stack, has_marks=False)}")
        w.label(w.new_label("never"))
    found = _is_own(w, stack, has_marks=True)
    found = w.op(f"and i1 {found}, {w.op('icmp eq i64 %count, %size')}")
    with w.when(w.op(f"xor i1 {found}, true")):
        w.line("ret i1 false")
        w.label(w.new_label("never"))
    marks = w.op(f"load ptr, ptr {w.op(f'getelementptr i64, ptr {stack}, i64 {frame.MARKS}')}")
    nbytes = w.op("mul i64 %size, %bytes")
    for address, count in ((w.op("inttoptr i64 %base to ptr"), nbytes), (marks, "%size")):
        w.line(f"call void @llvm.memset.p0.i64(ptr {address}, i8 0, i64 {count}, i1 false)")
    w.line(idle)
    w.line("ret i1 true")
    given = "ptr %frame, i64 %stack, i64 %base, i64 %count, i64 %size, i64 %bytes"
    return SharedFunction("begin_unwritten", "i1", w.function(f"internal i1 @begin_unwritten({given}) noinline"))


# Steps on stacks whose words lie in the frame. The numbers are where the stack's words start and its handle; then what
# the function is told besides; and, for rows of a rank, where the shape of its rows is told, and that shape.


class _StackFunction:
    """A function for a step on a stack while it is written."""

    def __init__(self, name: str, result: str, more: Sequence[str] = (), rank: int | None = None) -> None:
        self.name, self.result, self.rank = name if rank is None else f"{name}{rank}", result, rank or 0
        shape = [] if rank is None else ["shape", *(f"size{k}" for k in range(rank))]
        self.numbers = ["stack", "handle", *more, *shape]
        self.w = Writer()
        self.stack = _word(self.w, "%stack")

    def place(self, part: int) -> str:
        return self.w.op(f"getelementptr i64, ptr {self.stack}, i64 {part}")

    def load(self, part: int, kind: str = "i64") -> str:
        return self.w.op(f"load {kind}, ptr {self.place(part)}")

    def store(self, part: int, value: str) -> None:
        self.w.line(f"store i64 {value}, ptr {self.place(part)}")

    def sizes(self) -> list[tuple[str, str]]:
        """Address of each word that tells a size of a row's shape, with the size."""
        shape = _word(self.w, "%shape") if self.rank else ""
        return [
            (self.w.op(f"getelementptr i64, ptr {shape}, i64 {k}") if k else shape, f"%size{k}")
            for k in range(self.rank)
        ]

    def ask(self, request: Request, ended: str, more: str = "0") -> None:
        """Tell the shape of the rows and ask, with one number more; give `ended` where that ends the run."""
        for place, size in self.sizes():
            self.w.line(f"store i64 {size}, ptr {place}")
        ends = self.w.op(f"call i1 @ask(ptr %frame, i64 {int(request)}, i64 %handle, i64 {more})")
        with self.w.when(ends):
            self.w.line(f"ret {self.result} {ended}")
            self.w.label(self.w.new_label("never"))

    def row(self, index: str) -> str:
        nbytes = self.w.op(f"mul i64 {index}, %bytes")
        return self.w.op(f"getelementptr i8, ptr {self.load(frame.BASE, 'ptr')}, i64 {nbytes}")

    def finished(self, result: str, *calls: str) -> SharedFunction:
        self.w.line(f"ret {self.result} {result}")
        given = ", ".join(["ptr %frame", *(f"i64 %{name}" for name in self.numbers)])
        text = self.w.function(f"internal {self.result} @{self.name}({given}) noinline")
        return SharedFunction(self.name, self.result, text, ("ask", *calls))


def _begin(rank: int) -> SharedFunction:
    """An empty stack: the last one again, or another one; whether that ends the run."""
    f = _StackFunction("begin", "i1", (), rank)
    is_ready = f.w.op("call i1 @may_begin_again(ptr %frame, i64 %stack)")
    for place, size in f.sizes():
        is_same = f.w.op(f"icmp eq i64 {f.w.op(f'load i64, ptr {place}')}, {size}")
        is_ready = f.w.op(f"and i1 {is_ready}, {is_same}")
    with f.w.when(f.w.op(f"xor i1 {is_ready}, true")):
        f.ask(Request.NEW_STACK, "true")
    f.store(frame.COUNT, "0")
    f.store(frame.IDLE, "0")
    return f.finished("false", "may_begin_again")


def _room(rank: int) -> SharedFunction:
    """The address of the next rows of a stack, for which there is room then."""
    f = _StackFunction("room", "ptr", ("bytes", "rows"), rank)
    count = f.w.op(f"add i64 {f.load(frame.COUNT)}, %rows")
    with f.w.when(f.w.op(f"icmp sgt i64 {count}, {f.load(frame.CAPACITY)}")):
        f.ask(Request.FULL, ENDED, "%rows")
    return f.finished(f.row(f.load(frame.COUNT)))


def _last() -> SharedFunction:
    """The address of the last rows of a stack, which are taken off."""
    f = _StackFunction("last", "ptr", ("bytes", "rows"))
    with f.w.when(f.w.op(f"icmp slt i64 {f.load(frame.COUNT)}, %rows")):
        f.ask(Request.EMPTY, ENDED, "%rows")
    count = f.w.op(f"sub i64 {f.load(frame.COUNT)}, %rows")
    f.store(frame.COUNT, count)
    return f.finished(f.row(count))


def _fetch() -> SharedFunction:
    """Begin to bring a row near, of `least` to `most` bytes: the lines of the cache that follow an address by steps."""
    w = Writer()
    start, head, after = (w.new_label(name) for name in ("start", "head", "after"))
    is_long, is_short = w.op("icmp uge i64 %bytes, %least"), w.op("icmp ule i64 %bytes, %most")
    w.branch_if(w.op(f"and i1 {is_long}, {is_short}"), start, after)
    w.label(start)
    w.branch(head)
    w.label(head)
    place, left = w.phi("i64"), w.phi("i64")
    line, rest = w.op(f"add i64 {place.name}, %step"), w.op(f"sub i64 {left.name}, {LINE}")
    for phi, first, following in ((place, "%address", line), (left, "%bytes", rest)):
        phi.add(first, start)
        phi.add(following, head)
    w.line(f"call void @llvm.prefetch.p0(ptr {w.op(f'inttoptr i64 {line} to ptr')}, i32 0, i32 3, i32 1)")
    w.branch_if(w.op(f"icmp sgt i64 {rest}, 0"), head, after)
    w.label(after)
    w.line("ret void")
    given = "ptr %frame, i64 %address, i64 %step, i64 %bytes, i64 %least, i64 %most"
    text = w.function(f"internal void @fetch({given}) noinline")
    return SharedFunction("fetch", "void", text)


def _joined() -> SharedFunction:
    """The address of all rows of a stack, which lie in one block then."""
    f = _StackFunction("joined", "ptr")
    with f.w.when(f.w.op(f"icmp ne i64 {f.load(frame.BELOW)}, 0")):
        f.ask(Request.JOIN, ENDED)
    return f.finished(f.load(frame.BASE, "ptr"))


def _scratch() -> SharedFunction:
    """The address of so much scratch memory."""
    w = Writer()
    with w.when(w.op(f"icmp ult i64 {w.op(f'load i64, ptr {_word(w, frame.SCRATCH_BYTES)}')}, %bytes")):
        ends = w.op(f"call i1 @ask(ptr %frame, i64 {int(Request.GROW_SCRATCH)}, i64 %bytes, i64 0)")
        with w.when(ends):
            w.line(f"ret ptr {ENDED}")
            w.label(w.new_label("never"))
    w.line(f"ret ptr {w.op(f'load ptr, ptr {_word(w, frame.SCRATCH)}')}")
    text = w.function("internal ptr @scratch(ptr %frame, i64 %bytes) noinline")
    return SharedFunction("scratch", "ptr", text, ("ask",))


_MAKERS = {
    "ask": _ask,
    "begin_unwritten": _begin_unwritten,
    "may_begin_again": _may_begin_again,
    "tell_failure": _tell_failure,
    "last": _last,
    "fetch": _fetch,
    "joined": _joined,
    "scratch": _scratch,
}
_MAKERS_BY_RANK = {"begin": _begin, "room": _room}


@functools.cache
def function(name: str, rank: int | None = None) -> SharedFunction:
    """A function by its name, for stacks whose rows have a rank where it is told their shape."""
    return _MAKERS[name]() if rank is None else _MAKERS_BY_RANK[name](rank)
