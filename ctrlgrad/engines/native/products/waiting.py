"""Waiting of pool threads: they spin on a word for a while, unless they occupy the processor that the caller was on.

Everything between threads is sequentially consistent, since each of two sides must see the other's store when it misses
its own wake-up (Dekker).
"""

from __future__ import annotations

import sys

from ctrlgrad.engines.native.products.function import Function, parameters

NOWHERE = -2
"""A processor that there is not."""
# The C library tells at no cost on which processor a thread runs.
_KNOWS_PROCESSOR = sys.platform == "linux"
_CLOCK_MONOTONIC = 6 if sys.platform == "darwin" else 1
_LOOKS = 32

DECLARATIONS = "declare i32 @clock_gettime(i32, ptr)\n" + ("declare i32 @sched_getcpu()\n" if _KNOWS_PROCESSOR else "")


def read(f: Function, place: str) -> str:
    """A number that other threads change."""
    return f.op(f"load atomic i64, ptr {place} seq_cst, align 8")


def call(f: Function, name: str, *arguments: str) -> str:
    """A call of the C library."""
    return f.op(f"call i32 @{name}({', '.join(arguments)})")


def waiting(pause: str | None) -> str:
    """The text of what follows."""
    return "\n".join([_now(), _processor(), _wait_for_change(pause)])


def _now() -> str:
    f = Function("pool_now", [], "i64", "internal")
    time = f.alloca("[2 x i64]")
    call(f, "clock_gettime", f"i32 {_CLOCK_MONOTONIC}", f"ptr {time}")
    seconds, rest = f.load("i64", time, 8), f.load("i64", f.at(time, 1, "i64"), 8)
    f.leave(f"i64 {f.add(f.mul(seconds, 1_000_000_000), rest)}")
    return f.text()


def _processor() -> str:
    """Processor that the thread runs on; `NOWHERE` where the system does not tell."""
    f = Function("pool_here", [], "i64", "internal")
    found = f.op(f"sext i32 {call(f, 'sched_getcpu')} to i64") if _KNOWS_PROCESSOR else NOWHERE
    f.leave(f"i64 {found}")
    return f.text()


def _wait_for_change(pause: str | None) -> str:
    """Look at a place until it differs from a value (1), for so long, and not on the processor `other` (0)."""
    f = Function("pool_look", parameters("place* value nanoseconds other"), "i64", "internal")
    end = f.add(f.op("call i64 @pool_now()"), "%nanoseconds")
    again, out = f.new_label("again"), f.new_label("out")
    f.branch(again)
    f.label(again)
    with f.loop(0, _LOOKS):
        with f.leaving_when(f.test("ne", read(f, "%place"), "%value")):
            f.leave("i64 1")
        if pause:
            f.line(pause)
    elsewhere = f.test("ne", f.op("call i64 @pool_here()"), "%other")
    f.branch_if(f.both(elsewhere, f.test("slt", f.op("call i64 @pool_now()"), end)), again, out)
    f.label(out)
    f.leave("i64 0")
    return f.text()
