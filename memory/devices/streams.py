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

from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.memory.devices.device import Event, raised
from ctrlgrad.records import record

Work = Callable[[], None]


class WorkerEvent:
    """A place in a worker's stream; see `ctrlgrad.memory.devices.device.Event`."""

    # Done; and done without errors.
    _is_reached = has_succeeded = False
    # The work before it, and up to which of it the host has seen all errors.
    index = since = 0
    _failure: _Failure | None = None
    # Time at which the worker passed it, in seconds on the stream's clock.
    time: float | None = None

    def __init__(self, stream: WorkerStream) -> None:
        self._stream = stream

    def is_done(self) -> bool:
        """True if the worker has passed it, with errors or without."""
        return self._is_reached

    def wait(self) -> None:
        """Block until the worker has come by; raise the first error on the way that the host had not seen."""
        if not self._is_reached:
            self.settle()
        if self._failure is not None:
            self._stream.forgive(self.index)
            raise raised(self._failure.error)

    def settle(self) -> None:
        """Block until the worker has come by, with errors or without."""
        if not self._is_reached:
            self._stream.check_process()
            with self._stream.changed:
                self._stream.changed.wait_for(self.is_done)

    def join(self) -> None:
        """As `wait`, from another stream: the error goes on to that stream, and the host has not seen it yet."""
        self.settle()
        if self._failure is not None:
            raise raised(self._failure.error)

    @property
    def failed(self) -> bool:
        """True if `wait` raises; False before it is done."""
        return self._failure is not None

    def reach(self) -> None:
        """The stream has come by. Its condition is held."""
        if self._stream.failures:
            self._failure = next((f for f in self._stream.failures if f.index > self.since), None)
        self.time = self._stream.clock()
        self._is_reached, self.has_succeeded = True, self._failure is None


@record
class _Failure:
    """An error, and the number of the work that raised it."""

    index: int
    error: BaseException


class Worker(threading.Thread):
    """The thread of a stream; finalizers that it happens to run must not wait for it."""


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
        self.name, self.clock = name, clock
        # Work and events that are queued, with the number of the last work at each.
        self._items: deque[tuple[int, Work | WorkerEvent]] = deque()
        # Errors that an event may still raise, the oldest first, and the number of the work up to which the host has
        # seen all.
        self.failures: list[_Failure] = []
        self._forgiven = self._issued = 0
        # The worker has taken an item and is not done with it.
        self._is_busy = self._is_closed = False
        self._worker: threading.Thread | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)

    def put(self, work: Work | WorkerEvent, is_short: bool = False) -> None:
        """Run a function after all work so far; what it raises is raised by the events after it.

        Where nothing is under way, an event is reached at once, and work that `is_short` runs in the caller's thread:
        to wake the worker would take longer.
        """
        if os.getpid() != self._process:
            self.check_process()
        with self._lock:
            if self._is_closed:
                raise ExecutionError(f"stream {self.name!r}: it is closed")
            self._issued += 1
            is_idle = not (self._items or self._is_busy)
            if isinstance(work, WorkerEvent):
                work.index, work.since = self._issued, self._forgiven
                if is_idle:
                    work.reach()
                    return
            elif is_idle and is_short:
                self._run(self._issued, work)
                return
            self._items.append((self._issued, work))
            if self._worker is None:
                self._worker = Worker(target=self._serve, name=f"ctrlgrad {self.name}", daemon=True)
                self._worker.start()
            self.changed.notify_all()

    def record(self) -> WorkerEvent:
        event = WorkerEvent(self)
        if os.getpid() == self._process:
            with self._lock:
                # A stream that is closed has done its work: a manager may be collected behind its device.
                if not (self._items or self._is_busy or self.failures):
                    event.reach()
                    return event
        self.put(event)
        return event

    def wait(self, event: Event) -> None:
        """Work put here from now on runs after the event; where the event has failed, so has this stream."""
        has_passed = event.__class__ is PassedEvent or (isinstance(event, WorkerEvent) and event.has_succeeded)
        if not has_passed:
            self.put(event.join, is_short=event.is_done())

    def close(self) -> None:
        """Run what is queued, then end the thread. In a forked child, which has no such thread, nothing happens."""
        if os.getpid() != self._process:
            return
        with self.changed:
            self._is_closed = True
            worker = self._worker
            self.changed.notify_all()
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def check_process(self) -> None:
        """A forked child has no worker; it must not wait for one."""
        if os.getpid() != self._process:
            raise ExecutionError(
                f"stream {self.name!r}: it belongs to process {self._process}, which this process was forked from",
                hint="make the device, or enter the memory budget, in the process that uses it",
            )

    def forgive(self, index: int) -> None:
        """The host has seen the errors up to a number."""
        with self.changed:
            self._forgiven = max(self._forgiven, index)
            self._drop_forgiven()

    def _drop_forgiven(self) -> None:
        """Drop the errors that the host has seen; events that are queued raise them still. `changed` is held."""
        if not (self._items or self._is_busy):
            self.failures = [f for f in self.failures if f.index > self._forgiven]

    def _serve(self) -> None:
        """The worker: run what is queued until the stream is closed."""
        index = 0
        try:
            while True:
                with self.changed:
                    while not self._items:
                        if self._is_closed:
                            return
                        self.changed.wait()
                    index, work = self._items.popleft()
                    self._is_busy = True
                self._run(index, work)
                # Else the last work's arrays live until the next work comes.
                del work
                with self.changed:
                    self._is_busy = False
                    if self.failures:
                        self._drop_forgiven()
        except BaseException as cause:
            self._die(index, cause)

    def _run(self, index: int, work: Work | WorkerEvent) -> None:
        try:
            if not isinstance(work, WorkerEvent):
                work()
                return
        except Exception as error:
            if isinstance(error, CtrlgradError):
                # Its text says everything; the traceback would keep the copy's arrays alive.
                error = error.with_traceback(None)
            with self.changed:
                self.failures.append(_Failure(index, error))
            return
        with self.changed:
            work.reach()
            self.changed.notify_all()

    def _die(self, index: int, cause: BaseException) -> None:
        """Fail everything that is queued, so that no caller waits for a worker that is gone."""
        error = ExecutionError(
            f"stream {self.name!r}: its worker thread died: {cause!r}",
            hint="run again: the stream starts a new worker",
        )
        error.__cause__ = cause
        with self.changed:
            self.failures.append(_Failure(index, error))
            for queued, work in self._items:
                if isinstance(work, WorkerEvent):
                    work.reach()
                else:
                    self.failures.append(_Failure(queued, error))
            self.changed.notify_all()
            self._items.clear()
            self._is_busy, self._worker = False, None


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
