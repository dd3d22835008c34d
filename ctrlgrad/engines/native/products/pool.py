"""Threads that share the work of one call, parked in native code.

    cg_parallel(routine, context, panels, work)  calls routine(context, panel, worker) for each panel, by all threads
    cg_pool_job(word)                          of the last job: routine, context, panels, mode, work, number of jobs
    cg_pool_threads()                          how many threads there are, the caller counted
    cg_pool_resize(threads)                    1 when done, 0 while a call is under way (then try again)
    cg_pool_forget()                           in a forked child, where the threads are gone
    cg_pool_scratch(worker)                    memory of a worker's own (not of worker 0, who brings his)

The caller writes the job and works on it; threads that are awake claim panels one by one from the ticket. A thread that
comes late finds nothing and costs nothing. The caller is worker 0; it returns when every panel is done. While a call is
under way another caller (of another thread, or a panel's own) does all its panels itself.

Threads that are awake take panels of any job. Sleeping ones are woken one for each `WORK_TO_SHARE` units of work, by
`threads.woken`: a job that is soon done wakes none, and a small one few of 64. Waking takes longer than a small
panel, so it goes as a tree: the caller and each woken thread wake `WAKES_EACH` threads before they take a panel.

A job has the caller's floating-point mode, so that all threads round alike and flush subnormal numbers or not.

The ticket is the job's number in the upper half and the next panel in the lower. A claim reads the ticket, then the
job, then raises the ticket by compare-and-exchange. The job is only rewritten while the ticket names no panel, under a
new number; so a claim that succeeds has read the job that it claims of, however long ago it read the ticket.

A thread without work looks at the ticket for `SPIN` nanoseconds and then sleeps on a condition until there is a job:
about as long as it takes to be woken again, since what a program does between two jobs is often shorter than that. The
caller, when all panels are claimed and some not done, looks for `CALLER_SPIN`. Nothing yields in a loop: on a machine
that is busy elsewhere such a loop keeps the processor from those for whom it waits. So does a thread that looks on the
processor on which the caller was: it sleeps at once.

All this is made of POSIX threads. Where there are none, the caller does everything.
"""

from __future__ import annotations

import os
import signal
import sys

from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.target import Target, float_mode
from ctrlgrad.threads import MOST_THREADS, WAKES_EACH, WORK_TO_SHARE

SPIN, CALLER_SPIN = 100_000, 30_000
SYMBOLS = ("cg_parallel", "cg_pool_job", "cg_pool_threads", "cg_pool_resize", "cg_pool_forget", "cg_pool_scratch")
DECLARATIONS = (
    "declare void @cg_parallel(ptr, ptr, i64, i64)",
    "declare i64 @cg_pool_threads()",
    "declare ptr @cg_pool_scratch(i64)",
)

_PARALLEL = parameters("routine* context* panels work")
# A lower half that no number of panels reaches: the job is being rewritten.
_CLOSED = 0xFFFFFFFF


NOWHERE = -2
"""A processor that there is not."""
# The C library tells at no cost on which processor a thread runs.
_KNOWS_PROCESSOR = sys.platform == "linux"
_CLOCK_MONOTONIC = 6 if sys.platform == "darwin" else 1
_LOOKS = 32
_WAITING = "declare i32 @clock_gettime(i32, ptr)\n" + ("declare i32 @sched_getcpu()\n" if _KNOWS_PROCESSOR else "")

_GLOBALS = f"""
@pool_ticket = internal global i64 {_CLOSED}, align 128
@pool_done = internal global i64 0, align 128
@pool_job = internal global [5 x i64] zeroinitializer, align 128
@pool_processor = internal global i64 {NOWHERE}
@pool_busy = internal global i64 0, align 128
@pool_stop = internal global i64 0
@pool_sleepers = internal global i64 0
@pool_to_wake = internal global i64 0, align 128
@pool_caller_sleeps = internal global i64 0
@pool_wanted = internal global i64 1
@pool_started = internal global i64 0
@pool_mutex = internal global [128 x i8] zeroinitializer, align 64
@pool_wake = internal global [128 x i8] zeroinitializer, align 64
@pool_finished = internal global [128 x i8] zeroinitializer, align 64
@pool_threads = internal global [{MOST_THREADS} x i64] zeroinitializer
@pool_scratch = internal global [{MOST_THREADS} x ptr] zeroinitializer
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
{_WAITING}declare ptr @malloc(i64)
"""


def pool(target: Target, scratch_bytes: int, *, threads: bool = os.name == "posix") -> str:
    """The text of the pool; each of its threads has `scratch_bytes` of its own."""
    if not threads:
        return _alone()
    pause = "call void @llvm.x86.sse2.pause()" if target.triple.startswith(("x86", "i686")) else None
    if target.triple.startswith(("aarch64", "arm64")):
        pause = "call void @llvm.aarch64.hint(i32 1)"
    declared = f"declare void {pause.split('void ')[1].replace('i32 1', 'i32')}\n" if pause else ""
    return "\n".join(
        [
            _GLOBALS + declared,
            float_mode(target),
            _waiting(pause),
            _wake_some(),
            _work(),
            _worker(),
            _start(scratch_bytes),
            _parallel(),
            _job_word(),
            _threads(),
            _resize(),
            _forget(),
            _scratch(),
        ]
    )


def _alone() -> str:
    """The same routines without threads."""
    call = Function("cg_parallel", _PARALLEL)
    with call.loop(0, "%panels") as panel:
        call.line(f"call void %routine(ptr %context, i64 {panel}, i64 0)")
    call.leave()
    threads, resize = Function("cg_pool_threads", [], "i64"), Function("cg_pool_resize", parameters("threads"), "i64")
    threads.leave("i64 1")
    resize.leave("i64 1")
    forget = Function("cg_pool_forget", [])
    forget.leave()
    scratch = Function("cg_pool_scratch", parameters("worker"), "ptr")
    scratch.leave("ptr null")
    job = Function("cg_pool_job", parameters("word"), "i64")
    job.leave("i64 0")
    return "\n".join(f.text() for f in (call, threads, resize, forget, scratch, job))


# Atomic memory (`read`).


def _write(f: Function, place: str, value: Number) -> None:
    f.line(f"store atomic i64 {value}, ptr {place} seq_cst, align 8")


def _raise(f: Function, place: str, by: int) -> str:
    """Add, and the value before."""
    return f.op(f"atomicrmw add ptr {place}, i64 {by} seq_cst")


def _lock(f: Function) -> None:
    call(f, "pthread_mutex_lock", "ptr @pool_mutex")


def _unlock(f: Function) -> None:
    call(f, "pthread_mutex_unlock", "ptr @pool_mutex")


# Claiming and working.


def _job(number: int) -> str:
    return f"getelementptr ([5 x i64], ptr @pool_job, i64 0, i64 {number})"


def _wake_some() -> str:
    """Wake threads of those that the job still wants."""
    f = Function("pool_wake_some", [], prefix="internal")
    for _ in range(WAKES_EACH):
        with f.leaving_when(f.test("sle", _raise(f, "@pool_to_wake", -1), 0)):
            f.leave()
        call(f, "pthread_cond_signal", "ptr @pool_wake")
    f.leave()
    return f.text()


def _work() -> str:
    """Claim panels until there are none; the ticket that named none."""
    f = Function("pool_work", parameters("worker"), "i64", "internal")
    again, claim, run, none, last = (f.new_label(n) for n in ("again", "claim", "run", "none", "last"))
    f.branch(again)
    f.label(again)
    ticket = read(f, "@pool_ticket")
    routine, context, panels, mode = (read(f, _job(k)) for k in range(4))
    panel = f.op(f"and i64 {ticket}, {_CLOSED}")
    f.branch_if(f.test("slt", panel, panels), claim, none)
    f.label(claim)
    pair = f.op(f"cmpxchg ptr @pool_ticket, i64 {ticket}, i64 {f.add(ticket, 1)} seq_cst seq_cst")
    f.branch_if(f.op(f"extractvalue {{ i64, i1 }} {pair}, 1"), run, again)
    f.label(run)
    function, pointer = (f.op(f"inttoptr i64 {value} to ptr") for value in (routine, context))
    f.line(f"call void @set_float_mode(i64 {mode})")
    f.line(f"call void {function}(ptr {pointer}, i64 {panel}, i64 %worker)")
    done = f.add(_raise(f, "@pool_done", 1), 1)
    f.branch_if(f.test("eq", done, panels), last, again)
    f.label(last)
    with f.when(f.test("ne", read(f, "@pool_caller_sleeps"), 0)):
        _lock(f)
        call(f, "pthread_cond_signal", "ptr @pool_finished")
        _unlock(f)
    f.branch(again)
    f.label(none)
    f.leave(f"i64 {ticket}")
    return f.text()


def _worker() -> str:
    """Main loop of a pool thread, until it is told to stop: work, spin for a while, sleep."""
    f = Function("pool_worker", parameters("number*"), "ptr", "internal")
    worker = f.op("ptrtoint ptr %number to i64")
    again, sleep, wait, woken = (f.new_label(n) for n in ("again", "sleep", "wait", "woken"))
    f.branch(again)
    f.label(again)
    with f.leaving_when(f.test("ne", read(f, "@pool_stop"), 0)):
        f.leave("ptr null")
    seen = f.op(f"call i64 @pool_work(i64 {worker})")
    caller = read(f, "@pool_processor")
    changed = f.op(f"call i64 @pool_look(ptr @pool_ticket, i64 {seen}, i64 {SPIN}, i64 {caller})")
    f.branch_if(f.test("ne", changed, 0), again, sleep)
    f.label(sleep)
    _lock(f)
    _raise(f, "@pool_sleepers", 1)
    check = f.new_label("check")
    f.branch(check)
    f.label(check)
    same = f.test("eq", read(f, "@pool_ticket"), seen)
    stays = f.both(same, f.test("eq", read(f, "@pool_stop"), 0))
    f.branch_if(stays, wait, woken)
    f.label(wait)
    call(f, "pthread_cond_wait", "ptr @pool_wake", "ptr @pool_mutex")
    f.branch(check)
    f.label(woken)
    _raise(f, "@pool_sleepers", -1)
    _unlock(f)
    f.line("call void @pool_wake_some()")
    f.branch(again)
    return f.text()


def _start(scratch_bytes: int) -> str:
    """Make the threads that are wanted and not there; where the system refuses, those that are there must do."""
    f = Function("pool_start", [], prefix="internal")
    every, before = f.alloca("[16 x i64]"), f.alloca("[16 x i64]")
    # Signals are for the threads that Python knows.
    for k in range(16):
        f.store("i64", -1, f.at(every, k, "i64"), 8)
    call(f, "pthread_sigmask", f"i32 {_SET_MASK}", f"ptr {every}", f"ptr {before}")
    again, make, end = (f.new_label(n) for n in ("again", "make", "end"))
    f.branch(again)
    f.label(again)
    number = f.add(read(f, "@pool_started"), 1)
    f.branch_if(f.test("slt", number, read(f, "@pool_wanted")), make, end)
    f.label(make)
    scratch = f.at("@pool_scratch", number, "ptr")
    with f.when(f.op(f"icmp eq ptr {f.load('ptr', scratch, 8)}, null")):
        f.store("ptr", f.op(f"call ptr @malloc(i64 {scratch_bytes})"), scratch, 8)
    memory = f.op(f"icmp eq ptr {f.load('ptr', scratch, 8)}, null")
    refused = f.variable("i64", 1)
    with f.when(f.op(f"xor i1 {memory}, true")):
        thread = f.at("@pool_threads", number, "i64")
        argument = f.op(f"inttoptr i64 {number} to ptr")
        status = call(f, "pthread_create", f"ptr {thread}", "ptr null", "ptr @pool_worker", f"ptr {argument}")
        f.set(refused, f.op(f"sext i32 {status} to i64"))
    ok, no = f.new_label("ok"), f.new_label("no")
    f.branch_if(f.test("eq", f.get(refused), 0), ok, no)
    f.label(ok)
    _write(f, "@pool_started", number)
    f.branch(again)
    f.label(no)
    _write(f, "@pool_wanted", number)
    f.branch(end)
    f.label(end)
    call(f, "pthread_sigmask", f"i32 {_SET_MASK}", f"ptr {before}", "ptr null")
    f.leave()
    return f.text()


_SET_MASK = int(signal.SIG_SETMASK) if hasattr(signal, "SIG_SETMASK") else 2


def _parallel() -> str:
    f = Function("cg_parallel", _PARALLEL)
    alone, shared = f.new_label("alone"), f.new_label("shared")
    several = f.both(f.test("sgt", "%panels", 1), f.test("sgt", read(f, "@pool_wanted"), 1))
    trying = f.new_label("trying")
    f.branch_if(several, trying, alone)
    f.label(trying)
    pair = f.op("cmpxchg ptr @pool_busy, i64 0, i64 1 seq_cst seq_cst")
    f.branch_if(f.op(f"extractvalue {{ i64, i1 }} {pair}, 1"), shared, alone)

    f.label(alone)
    with f.loop(0, "%panels") as panel:
        f.line(f"call void %routine(ptr %context, i64 {panel}, i64 0)")
    f.leave()

    f.label(shared)
    with f.when(f.test("slt", f.add(read(f, "@pool_started"), 1), read(f, "@pool_wanted"))):
        f.line("call void @pool_start()")
    number = f.op(f"and i64 {read(f, '@pool_ticket')}, {~_CLOSED}")
    _write(f, "@pool_ticket", f.op(f"add i64 {number}, {(1 << 32) + _CLOSED}"))
    routine, context = (f.op(f"ptrtoint ptr {value} to i64") for value in ("%routine", "%context"))
    mode = f.op("call i64 @float_mode()")
    for k, value in enumerate((routine, context, "%panels", mode, "%work")):
        _write(f, _job(k), value)
    _write(f, "@pool_done", 0)
    _write(f, "@pool_processor", f.op("call i64 @pool_here()"))
    _write(f, "@pool_ticket", f.op(f"add i64 {number}, {2 << 32}"))
    # `ctrlgrad.threads.woken` of the work and the panels, of those that sleep.
    worth = f.smaller(f.sub(f.div("%work", WORK_TO_SHARE), 1), f.sub("%panels", 1))
    woken = f.smaller(worth, read(f, "@pool_sleepers"))
    with f.when(f.test("sgt", woken, 0)):
        # A thread between its last look at the ticket and its sleep holds the lock; taking the lock waits for it.
        _lock(f)
        _unlock(f)
        _write(f, "@pool_to_wake", woken)
        f.line("call void @pool_wake_some()")
    f.op("call i64 @pool_work(i64 0)")
    _wait_until_done(f)
    _write(f, "@pool_busy", 0)
    f.leave()
    return f.text()


def _wait_until_done(f: Function) -> None:
    look, still, sleep, check, wait, woken, done = (
        f.new_label(n) for n in ("look", "still", "sleep", "check", "wait", "woken", "done")
    )
    f.branch(look)
    f.label(look)
    so_far = read(f, "@pool_done")
    f.branch_if(f.test("eq", so_far, "%panels"), done, still)
    f.label(still)
    changed = f.op(f"call i64 @pool_look(ptr @pool_done, i64 {so_far}, i64 {CALLER_SPIN}, i64 {NOWHERE})")
    f.branch_if(f.test("ne", changed, 0), look, sleep)
    f.label(sleep)
    _lock(f)
    _write(f, "@pool_caller_sleeps", 1)
    f.branch(check)
    f.label(check)
    f.branch_if(f.test("ne", read(f, "@pool_done"), "%panels"), wait, woken)
    f.label(wait)
    call(f, "pthread_cond_wait", "ptr @pool_finished", "ptr @pool_mutex")
    f.branch(check)
    f.label(woken)
    _write(f, "@pool_caller_sleeps", 0)
    _unlock(f)
    f.branch(done)
    f.label(done)


# Size.


def _job_word() -> str:
    """A word of the last job, of which no call may be under way; behind its words, the number of jobs."""
    f = Function("cg_pool_job", parameters("word"), "i64")
    with f.leaving_when(f.test("eq", "%word", 5)):
        ticket = read(f, "@pool_ticket")
        f.leave(f"i64 {f.op(f'ashr i64 {ticket}, 33')}")
    f.leave(f"i64 {read(f, f.at('@pool_job', '%word', 'i64'))}")
    return f.text()


def _threads() -> str:
    f = Function("cg_pool_threads", [], "i64")
    f.leave(f"i64 {read(f, '@pool_wanted')}")
    return f.text()


def _resize() -> str:
    """All threads end, and as many as are wanted now start with the next call."""
    f = Function("cg_pool_resize", parameters("threads"), "i64")
    pair = f.op("cmpxchg ptr @pool_busy, i64 0, i64 1 seq_cst seq_cst")
    with f.leaving_when(f.op(f"xor i1 {f.op(f'extractvalue {{ i64, i1 }} {pair}, 1')}, true")):
        f.leave("i64 0")
    started = read(f, "@pool_started")
    with f.when(f.test("sgt", started, 0)):
        _write(f, "@pool_stop", 1)
        _lock(f)
        call(f, "pthread_cond_broadcast", "ptr @pool_wake")
        _unlock(f)
        with f.loop(1, f.add(started, 1)) as number:
            thread = f.load("i64", f.at("@pool_threads", number, "i64"), 8)
            call(f, "pthread_join", f"i64 {thread}", "ptr null")
        _write(f, "@pool_stop", 0)
        _write(f, "@pool_started", 0)
    _write(f, "@pool_wanted", f.larger(f.smaller("%threads", MOST_THREADS), 1))
    _write(f, "@pool_busy", 0)
    f.leave("i64 1")
    return f.text()


def _forget() -> str:
    """As if no thread had been made: another thread of the parent may have held the lock, or been in a call."""
    f = Function("cg_pool_forget", [])
    for place in ("@pool_started", "@pool_sleepers", "@pool_caller_sleeps", "@pool_stop", "@pool_busy"):
        _write(f, place, 0)
    _write(f, "@pool_ticket", _CLOSED)
    for name, kind in (("mutex", "mutex"), ("wake", "cond"), ("finished", "cond")):
        call(f, f"pthread_{kind}_init", f"ptr @pool_{name}", "ptr null")
    f.leave()
    return f.text()


def _scratch() -> str:
    f = Function("cg_pool_scratch", parameters("worker"), "ptr")
    f.leave(f"ptr {f.load('ptr', f.at('@pool_scratch', '%worker', 'ptr'), 8)}")
    return f.text()


# Waiting of threads: they spin on a word for a while, unless they occupy the processor that the caller was on.
# Everything between threads is sequentially consistent, since each of two sides must see the other's store when it
# misses its own wake-up (Dekker).


def read(f: Function, place: str) -> str:
    """A number that other threads change."""
    return f.op(f"load atomic i64, ptr {place} seq_cst, align 8")


def call(f: Function, name: str, *arguments: str) -> str:
    """A call of the C library."""
    return f.op(f"call i32 @{name}({', '.join(arguments)})")


def _waiting(pause: str | None) -> str:
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
