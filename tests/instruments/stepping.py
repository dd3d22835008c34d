"""A device whose queued work runs only when a scheduler says so, and a search through all schedules.

Each stream is a list of operations. Nothing runs by itself: when the host waits for an event, the scheduler picks, one
by one, which stream runs its next operation until the event is done; when the host asks whether an event is done, the
scheduler chooses between the answer as it is and the one after the event's stream has got there. Freed bytes are
handed out again, so two users of the same bytes at one time show as wrong values.

In the order "any" the scheduler picks every operation. That is too much for all but the smallest programs. In the
orders "lazy" (only what is awaited runs) and "eager" (every stream moves whenever one does) it chooses the answers to
the host's questions alone, on which everything depends that the host decides; that bytes are never used by two at a
time in any other order is what `ctrlgrad.memory.profile.checker` proves from the actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from ctrlgrad.errors import TierRefusedError
from ctrlgrad.memory.devices.device import Event, Piece, Stream


@dataclass
class Scheduler:
    """Answers questions with `n` choices: first those of the prefix, then 0, or at random; keeps what was asked."""

    prefix: Sequence[int] = ()
    random: Random | None = None
    taken: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)

    def choose(self, n: int) -> int:
        if n == 1:
            return 0
        place = len(self.taken)
        if place < len(self.prefix):
            choice = self.prefix[place]
        else:
            choice = 0 if self.random is None else self.random.randrange(n)
        self.taken.append(choice)
        self.choices.append(n)
        return choice

    def following(self) -> list[int] | None:
        """The prefix of the next schedule in depth-first order; None after the last."""
        for place in reversed(range(len(self.taken))):
            if self.taken[place] + 1 < self.choices[place]:
                return [*self.taken[:place], self.taken[place] + 1]
        return None


def all_schedules(limit: int) -> Iterator[Scheduler]:
    """Every schedule of a deterministic program, which takes its choices from the scheduler that it is given."""
    prefix: list[int] | None = []
    for _ in range(limit):
        scheduler = Scheduler(prefix or ())
        yield scheduler
        prefix = scheduler.following()
        if prefix is None:
            return
    raise AssertionError(f"more than {limit} schedules")


@dataclass(eq=False)
class StepEvent:
    """A place in a stream: done when so many of its operations have run."""

    stream: StepStream
    number: int
    time: float | None = None

    @property
    def has_passed(self) -> bool:
        return self.stream.ran >= self.number

    def is_done(self) -> bool:
        if not self.has_passed and self.stream.device.scheduler.choose(2):
            self.wait()
        return self.has_passed

    def wait(self) -> None:
        while not self.has_passed:
            self.stream.device.step(self)

    def join(self) -> None:
        self.wait()


@dataclass(eq=False)
class StepStream:
    device: StepDevice
    name: str
    queue: deque[Callable[[], None] | StepEvent] = field(default_factory=deque)
    ran: int = 0

    @property
    def can_run(self) -> bool:
        return bool(self.queue) and not (isinstance(self.queue[0], StepEvent) and not self.queue[0].has_passed)

    def put(self, work: Callable[[], None] | StepEvent) -> None:
        self.queue.append(work)

    def run_next(self) -> None:
        work = self.queue.popleft()
        if not isinstance(work, StepEvent):
            work()
        self.ran += 1

    def record(self) -> StepEvent:
        return StepEvent(self, self.ran + len(self.queue))

    def wait(self, event: Event) -> None:
        assert isinstance(event, StepEvent)
        self.put(event)


@dataclass(eq=False)
class StepTier:
    name: str
    capacity: int
    used: int = 0
    granule: int = 1
    free_bytes: dict[int, list[np.ndarray]] = field(default_factory=dict)

    def allocate(self, nbytes: int) -> Piece:
        if self.used + nbytes > self.capacity:
            raise TierRefusedError(f"tier {self.name!r} is full")
        self.used += nbytes
        again = self.free_bytes.get(nbytes)
        return Piece(self.name, nbytes, again.pop() if again else np.full(nbytes, 0xFF, np.uint8))

    def free(self, piece: Piece) -> None:
        self.used -= piece.nbytes
        self.free_bytes.setdefault(piece.nbytes, []).append(piece.handle)


class StepDevice:
    """Tiers without limits of their own, and streams that the scheduler moves."""

    name = "stepping"
    copies_take_cores = False

    def __init__(self, scheduler: Scheduler, tiers: int = 2, order: str = "any") -> None:
        self.scheduler = scheduler
        self.order = order
        self.tiers = [StepTier(name, 1 << 20) for name in ("device", "host", "disk")[:tiers]]
        self.compute, self.out, self.into, self.disk = (StepStream(self, n) for n in ("compute", "out", "in", "disk"))

    @property
    def streams(self) -> list[StepStream]:
        return [self.compute, self.out, self.into, self.disk]

    def step(self, awaited: StepEvent | None = None) -> None:
        """Run one operation on the way to an event."""
        able = [stream for stream in self.streams if stream.can_run]
        assert able, "deadlock: the host waits and no stream can run"
        if self.order == "any":
            able[self.scheduler.choose(len(able))].run_next()
        elif self.order == "eager" or awaited is None:
            for stream in able:
                stream.run_next()
        else:
            self._needed(awaited).run_next()

    def _needed(self, awaited: StepEvent) -> StepStream:
        """The stream that must move next for an event to be done."""
        stream = awaited.stream
        head = stream.queue[0]
        return self._needed(head) if isinstance(head, StepEvent) and not head.has_passed else stream

    def run(self, seconds: float, work: Callable[[], None]) -> None:
        self.compute.put(work)

    def copy(self, source: Piece, target: Piece, nbytes: int, stream: Stream) -> None:
        assert isinstance(stream, StepStream)

        def work() -> None:
            target.handle[:nbytes] = source.handle[:nbytes]

        stream.put(work)

    def array(self, piece: Piece, shape: Sequence[int], dtype: np.dtype) -> Any:
        nbytes = int(np.prod(shape)) * dtype.itemsize
        return piece.handle[:nbytes].view(dtype).reshape(shape)

    def now(self) -> float:
        return 0.0

    def close(self) -> None:
        while any(stream.can_run for stream in self.streams):
            self.step()
        assert not any(stream.queue for stream in self.streams), "work is left that can never run"


__all__ = ["Scheduler", "StepDevice", "all_schedules"]
