"""Streams that are threads: work runs in the order in which it was put there, beside the host.

Each stream has one worker thread, started with the first work. An event is done when the worker reaches it. Work that
raises does not end the stream: the error is kept, and every event recorded after that work, and before the host has
seen the error, raises it from `wait`. So no copy is lost in silence, and a stream that has reported its failure is as
good as new. When the worker itself dies, all that was queued fails, and the next work starts another worker.

A stream that waits for a failed event has failed at that place: what depends on lost bytes says so.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import field

from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.memory.devices.device import Event, raised
from ctrlgrad.records import record

Work = Callable[[], None]


class WorkerEvent:
    """A place in a worker's stream; see `ctrlgrad.memory.devices.device.Event`."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        # Done; and done without errors.
        self._is_reached = self.has_succeeded = False
        self._index = queue.issued
        self._since = queue.forgiven
        self._failure: _Failure | None = None
        self._time: float | None = None

    def is_done(self) -> bool:
        """True if the worker has passed it, with errors or without."""
        return self._is_reached

    def wait(self) -> None:
        """Block until the worker has come by; raise the first error on the way that the host had not seen."""
        if not self._is_reached:
            self.settle()
        if self._failure is not None:
            self._queue.forgive(self._index)
            raise raised(self._failure.error)

    def settle(self) -> None:
        """Block until the worker has come by, with errors or without."""
        if not self._is_reached:
            self._queue.check_process()
            with self._queue.changed:
                self._queue.changed.wait_for(self.is_done)

    def join(self) -> None:
        """As `wait`, from another stream: the error goes on to that stream, and the host has not seen it yet."""
        self.settle()
        if self._failure is not None:
            raise raised(self._failure.error)

    @property
    def failed(self) -> bool:
        """True if `wait` raises; False before it is done."""
        return self._failure is not None

    @property
    def time(self) -> float | None:
        """Time at which the worker passed it, in seconds on the stream's clock."""
        return self._time

    def _reach(self, now: float) -> None:
        """The stream has come by. The queue's condition is held."""
        if self._queue.failures:
            self._failure = next((f for f in self._queue.failures if f.index > self._since), None)
        self._time = now
        self._is_reached, self.has_succeeded = True, self._failure is None


@record
class _Failure:
    """An error, and the number of the work that raised it."""

    index: int
    error: BaseException


@record
class _Item:
    """Work, or an event to be reached."""

    index: int
    work: Work | None = None
    event: WorkerEvent | None = None


@record(eq=False, frozen=False)
class _Queue:
    """State shared by a stream and its worker, which does not hold the stream: a forgotten stream can be ended."""

    name: str
    clock: Callable[[], float]
    items: deque[_Item] = field(default_factory=deque)
    # Errors that an event may still raise, the oldest first, and the number of the work up to which the host has seen
    # all.
    failures: list[_Failure] = field(default_factory=list)
    forgiven: int = 0
    issued: int = 0
    closed: bool = False
    # The worker has taken an item and is not done with it.
    is_busy: bool = False
    worker: threading.Thread | None = None
    process: int = field(default_factory=os.getpid)
    lock: threading.RLock = field(default_factory=threading.RLock)
    changed: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)

    def check_process(self) -> None:
        """A forked child has no worker; it must not wait for one."""
        if os.getpid() != self.process:
            raise ExecutionError(
                f"stream {self.name!r}: it belongs to process {self.process}, which this process was forked from",
                hint="make the device, or enter the memory budget, in the process that uses it",
            )

    def forgive(self, index: int) -> None:
        """The host has seen the errors up to a number."""
        with self.changed:
            self.forgiven = max(self.forgiven, index)
            self.drop_forgiven()

    def drop_forgiven(self) -> None:
        """Drop the errors that the host has seen; events that are queued raise them still. `changed` is held."""
        if not (self.items or self.is_busy):
            self.failures = [f for f in self.failures if f.index > self.forgiven]

    def append(self, work: Work | None, is_short: bool = False) -> WorkerEvent | None:
        """Queue work, or an event where there is none.

        Where nothing is under way, an event is reached at once, and short work runs in the caller's thread: to wake
        the worker would take longer.
        """
        if os.getpid() != self.process:
            self.check_process()
        with self.lock:
            if self.closed:
                raise ExecutionError(f"stream {self.name!r}: it is closed")
            self.issued += 1
            event = WorkerEvent(self) if work is None else None
            if not (self.items or self.is_busy) and (event is not None or is_short):
                if event is not None:
                    event._reach(self.clock())
                    return event
                assert work is not None
                try:
                    work()
                except Exception as error:
                    _fail(self, self.issued, error)
                return None
            self.items.append(_Item(self.issued, work, event))
            if self.worker is None:
                self.worker = threading.Thread(target=_serve, args=(self,), name=f"ctrlgrad {self.name}", daemon=True)
                self.worker.start()
            self.changed.notify_all()
            return event


def _serve(queue: _Queue) -> None:
    """The worker: run what is queued until the stream is closed."""
    index = 0
    try:
        while True:
            with queue.changed:
                while not queue.items:
                    if queue.closed:
                        return
                    queue.changed.wait()
                item = queue.items.popleft()
                queue.is_busy = True
            index = item.index
            _run(queue, item)
            # Else the last work's arrays live until the next work comes.
            del item
            with queue.changed:
                queue.is_busy = False
                if queue.failures:
                    queue.drop_forgiven()
    except BaseException as cause:
        _die(queue, index, cause)


def _run(queue: _Queue, item: _Item) -> None:
    if item.event is not None:
        with queue.changed:
            item.event._reach(queue.clock())
            queue.changed.notify_all()
    if item.work is not None:
        try:
            item.work()
        except Exception as error:
            _fail(queue, item.index, error)


def _fail(queue: _Queue, index: int, error: BaseException) -> None:
    if isinstance(error, CtrlgradError):
        # Its text says everything; the traceback would keep the copy's arrays alive.
        error = error.with_traceback(None)
    with queue.changed:
        queue.failures.append(_Failure(index, error))


def _die(queue: _Queue, index: int, cause: BaseException) -> None:
    """Fail everything that is queued, so that no caller waits for a worker that is gone."""
    error = ExecutionError(
        f"stream {queue.name!r}: its worker thread died: {cause!r}",
        hint="run again: the stream starts a new worker",
    )
    error.__cause__ = cause
    with queue.changed:
        queue.failures.append(_Failure(index, error))
        for item in queue.items:
            if item.event is None:
                queue.failures.append(_Failure(item.index, error))
            else:
                item.event._reach(queue.clock())
        queue.changed.notify_all()
        queue.items.clear()
        queue.is_busy, queue.worker = False, None


class WorkerStream:
    """Work in the order in which it was put here, run by a thread; see `ctrlgrad.memory.devices.device.Stream`.

    >>> stream, seen = WorkerStream("out"), []
    >>> stream.put(lambda: seen.append(1))
    >>> stream.record().wait()
    >>> seen
    [1]
    >>> stream.close()
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.name, self._queue = name, _Queue(name, clock)

    def put(self, work: Work, is_short: bool = False) -> None:
        """Run a function after all work so far; at once where that `is_short` and nothing is under way. What it raises
        is raised by the events after it."""
        self._queue.append(work, is_short)

    def record(self) -> WorkerEvent:
        event = self._queue.append(None)
        assert event is not None
        return event

    def wait(self, event: Event) -> None:
        """Work put here from now on runs after the event; where the event has failed, so has this stream."""
        has_passed = event.__class__ is PassedEvent or (isinstance(event, WorkerEvent) and event.has_succeeded)
        if not has_passed:
            self.put(event.join, is_short=event.is_done())

    def close(self) -> None:
        """Run what is queued, then end the thread. In a forked child, which has no such thread, nothing happens."""
        queue = self._queue
        if os.getpid() != queue.process:
            return
        with queue.changed:
            queue.closed = True
            worker = queue.worker
            queue.changed.notify_all()
        if worker is not None and worker is not threading.current_thread():
            worker.join()


class HostStream:
    """The stream of a device that computes in the caller's thread: its work has run when the call returns."""

    def __init__(self, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.name = name
        self._clock = clock

    def record(self) -> PassedEvent:
        return PassedEvent(self._clock())

    def wait(self, event: Event) -> None:
        """The host is the stream: it blocks, and raises what the event raises."""
        event.wait()


@record(frozen=False)
class PassedEvent:
    """An event that was done when it was recorded."""

    time: float

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing to wait for."""

    def join(self) -> None:
        """Nothing to wait for."""


__all__ = ["HostStream", "PassedEvent", "Work", "WorkerEvent", "WorkerStream"]
