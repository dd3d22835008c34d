"""What a plan's code does at many places: functions beside the plan's own, since LLVM's time goes with the text."""

from __future__ import annotations

from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.records import record


@record
class SharedFunction:
    """A function `RESULT @NAME(ptr %frame, i64, ...)`."""

    result: str
    text: str


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
    return SharedFunction("i1", w.function("internal i1 @ask(ptr %frame, i64 %request, i64 %a, i64 %b) noinline"))


def _tell_failure() -> SharedFunction:
    """Why a run ends."""
    w = Writer()
    told = ((frame.STATUS, "%status"), (frame.SITE, "%site"), (frame.FOUND, "%found"), (frame.BOUND, "%bound"))
    for index, value in told:
        w.line(f"store i64 {value}, ptr {_word(w, index)}")
    w.line("ret void")
    given = "ptr %frame, i64 %status, i64 %site, i64 %found, i64 %bound"
    return SharedFunction("void", w.function(f"internal void @tell_failure({given}) noinline"))


def _may_begin_again() -> SharedFunction:
    """Whether all rows of the stack, if it has any, lie in a block that is its own: pushes may overwrite them."""
    w = Writer()
    stack = _word(w, "%stack")
    writable = w.op(f"load i64, ptr {w.op(f'getelementptr i64, ptr {stack}, i64 {frame.WRITABLE}')}")
    found = w.op(f"icmp ne i64 {writable}, 0")
    others = [w.op(f"getelementptr i64, ptr {stack}, i64 {part}") for part in (frame.BELOW, frame.MARKS)]
    for address in (*others, _word(w, frame.IS_MANAGED)):
        is_zero = w.op(f"icmp eq i64 {w.op(f'load i64, ptr {address}')}, 0")
        found = w.op(f"and i1 {found}, {is_zero}")
    w.line(f"ret i1 {found}")
    return SharedFunction("i1", w.function("internal i1 @may_begin_again(ptr %frame, i64 %stack) noinline"))


FUNCTIONS = {"ask": _ask(), "may_begin_again": _may_begin_again(), "tell_failure": _tell_failure()}
