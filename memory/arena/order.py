"""Marks: places in streams that the host or other streams wait for, logged as actions.

Every wait of the manager goes through here, so that the log is complete: a checker can tell from them alone which
access is ordered before which.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ctrlgrad.memory.devices.device import Event, Stream
from ctrlgrad.memory.profile.actions import Await, Logging, Signal
from ctrlgrad.records import record


@record(eq=False, frozen=False)
class Mark:
    """A place in a stream; `seen` once the host knows that it is done, `failure` if the work before it failed."""

    number: int
    stream: str
    event: Event
    seen: bool = False
    failure: BaseException | None = None


class Order:
    """Sets marks and waits for them."""

    def __init__(self, logging: Logging) -> None:
        self._logging = logging
        self._numbers = itertools.count(1)

    def mark(self, stream: Stream) -> Mark:
        """A place after all work so far on a stream."""
        found = Mark(next(self._numbers), stream.name, stream.record())
        self._logging.log(Signal, found.number, found.stream)
        return found

    def follow(self, stream: Stream, mark: Mark) -> None:
        """Work put on the stream from now on runs after the mark."""
        if mark.stream == stream.name:
            return
        # Logged first: where the stream is the host itself, the wait may raise.
        self._logging.log(Await, stream.name, mark.number)
        stream.wait(mark.event)

    def is_done(self, mark: Mark) -> bool:
        """Return true if the host can see that it is done. Never blocks."""
        if not mark.seen and mark.event.is_done():
            self.wait(mark)
        return mark.seen

    def wait(self, mark: Mark) -> None:
        """Block the host until it is done. An error of the work before it goes to `mark.failure`."""
        if mark.seen:
            return
        try:
            mark.event.wait()
        except Exception as failure:
            self.fail(mark, failure)
        mark.seen = True
        self._logging.log(Await, "host", mark.number)

    def fail(self, mark: Mark, failure: BaseException) -> None:
        """The work before a mark has failed."""
        # Nothing that is kept holds frames: neither those of this error, nor of another that was being handled.
        mark.failure = failure.with_traceback(None)
        mark.failure.__context__ = None

    def settle(self, streams: Iterable[Stream]) -> None:
        """Block the host until the streams have run all their work; errors go to the marks that they belong to."""
        for stream in streams:
            self.wait(self.mark(stream))


__all__ = ["Mark", "Order"]
