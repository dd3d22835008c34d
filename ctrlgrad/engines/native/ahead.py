"""Compile objects ahead of their use, in other threads: LLVM runs without the GIL.

`prepare` announces that an object will be asked for, and `made` returns it. If another thread has compiled the object,
`made` returns that one. If another thread is still compiling it, the caller's thread compiles other pending objects
meanwhile. If no thread has begun, the caller's thread compiles it. So no object is compiled twice, and no thread idles
while work is pending. Compiling must need no lock that a caller of `made` may hold.

Work that no caller waits for, such as writing the disk cache, is passed to `put_off`: a thread does it some time later,
when the first result is there, or the interpreter at its end.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

Make = Callable[[], Any]

MOST_THREADS = 3
"""Number of compiling threads besides the callers: a first call needs a few dozen objects at most."""

LATER = 0.2
"""Delay in seconds before work that was put off begins: a short program's first call is over then."""


class _Job:
    """An object that is wanted."""

    __slots__ = ("done", "error", "is_begun", "make", "result")

    def __init__(self, make: Make) -> None:
        self.make = make
        self.is_begun = False
        self.done = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Make the object; after an interrupt it counts as not prepared."""
        try:
            self.result = self.make()
        except Exception as error:
            self.error = error
        finally:
            self.done.set()


_lock = threading.Lock()
_jobs: dict[str, _Job] = {}
_threads = 0
_put_off: deque[Callable[[], None]] = deque()
# Held by who does what was put off.
_catching_up = threading.Lock()
# True while a thread waits for its time to come.
_is_waiting = False


def prepare(key: str, make: Make) -> None:
    """Have an object made by another thread, if the process has a processor for one."""
    global _threads
    with _lock:
        if key in _jobs or not _most_threads():
            return
        _jobs[key] = _Job(make)
        if _threads == _most_threads():
            return
        _threads += 1
    try:
        # Not a daemon: at its end the interpreter waits for what has been begun, since LLVM cannot be stopped.
        threading.Thread(target=_work, name="ctrlgrad compiling").start()
    except RuntimeError:  # no more threads: the caller of `made` compiles it
        with _lock:
            _threads -= 1


def made(key: str, make: Make) -> Any:
    """The object of a key, prepared or made now. Raises what making it raises."""
    with _lock:
        job = _jobs.get(key)
    if job is None:
        return make()
    while not job.done.is_set():
        with _lock:
            mine = _begun(job)
        if mine is None:
            job.done.wait()
        else:
            mine.run()
    with _lock:
        if _jobs.get(key) is job:
            del _jobs[key]
    if job.error is not None:
        raise job.error
    # None where an interrupt ended it.
    return make() if job.result is None else job.result


def put_off(work: Callable[[], None]) -> None:
    """Have something done later."""
    global _is_waiting
    with _lock:
        _put_off.append(work)
        if _is_waiting:
            return
        _is_waiting = True
    try:
        threading.Thread(target=_catch_up_later, name="ctrlgrad keeping", daemon=True).start()
    except RuntimeError:  # no more threads: the next one does it, or the interpreter's end
        _is_waiting = False


def catch_up() -> None:
    """Do what was put off; what is in another thread's hands is done when this returns."""
    with _catching_up:
        while True:
            try:
                work = _put_off.popleft()
            except IndexError:
                return
            work()


# Threads of programs are over when these functions are called, and daemons are not yet stopped.
atexit.register(catch_up)


def _catch_up_later() -> None:
    global _is_waiting
    time.sleep(LATER)
    _is_waiting = False
    catch_up()


def _begun(*first: _Job) -> _Job | None:
    """A job for this thread, which has the lock: the first one if it waits, else the last that does, if any."""
    for job in (*first, *reversed(_jobs.values())):
        if not job.is_begun:
            job.is_begun = True
            return job
    return None


def _work() -> None:
    global _threads
    while True:
        with _lock:
            # At the interpreter's end no caller waits for a job that has not begun.
            job = _begun() if threading.main_thread().is_alive() else None
            if job is None:
                _threads -= 1
                return
        job.run()


@functools.cache
def _most_threads() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available - 1, MOST_THREADS)


def _begin_anew() -> None:
    """In a forked child: the parent's threads are not there."""
    global _lock, _threads, _catching_up, _is_waiting
    _lock, _threads = threading.Lock(), 0
    _catching_up, _is_waiting = threading.Lock(), False
    _jobs.clear()
    _put_off.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
