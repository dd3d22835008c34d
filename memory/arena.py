"""Bytes of the tiers inside their limits: counted, allocated, and given back when nothing uses them any more.

A slot that is given back stays counted until no copy uses it any more: the host has seen the mark after every copy that
reads or writes it. Bytes of the device itself that only computation uses go back at once: what is allocated next is
first used by computation issued later, and a copy that lands in fresh device memory waits for `vacated`, the last
computation that used any bytes given back so far.

Every wait of the manager goes through `Order`, so that the log is complete: a checker can tell from its actions alone
which access is ordered before which.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

from ctrlgrad.errors import ExecutionError, MemoryBudgetError, TierRefusedError
from ctrlgrad.memory.devices.device import Device, Event, Piece, Stream, raised
from ctrlgrad.memory.profile.records import Await, Give, Logging, Signal, Take
from ctrlgrad.memory.sizes import rounded_up, show_exactly, show_size
from ctrlgrad.records import record
from ctrlgrad.source import here

# Kinds of bytes: of blocks that may leave the device, and of those that may not; of the states that chunks may be run
# again from, and of the state of one that is being run again; and what lives for a while beside them. Callers may count
# kinds of their own.
BLOCKS, STAYING, STATES, RUNNING, TEMPORARY = "blocks", "staying blocks", "entry states", "running state", "temporary"


@record(eq=False, frozen=False)
class Account:
    """One tier: its limit (None: no limit), bytes in use by kind, and their peaks."""

    tier: str
    limit: int | None
    used: int = 0
    peak: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    peaks: Counter[str] = field(default_factory=Counter)
    # Told of every change.
    watch: Callable[[Account], None] | None = None

    def fits(self, nbytes: int) -> bool:
        return self.limit is None or self.used + nbytes <= self.limit

    def add(self, nbytes: int, kind: str) -> None:
        """Count bytes. The caller has checked that they fit."""
        assert self.limit is None or self.used + nbytes <= self.limit, (
            f"{self.tier}: {self.used} + {nbytes} bytes pass the limit {self.limit}"
        )
        self.used += nbytes
        if self.used > self.peak:
            self.peak = self.used
        self.kinds[kind] += nbytes
        if self.kinds[kind] > self.peaks[kind]:
            self.peaks[kind] = self.kinds[kind]
        if self.watch is not None:
            self.watch(self)

    def subtract(self, nbytes: int, kind: str) -> None:
        self.used -= nbytes
        self.kinds[kind] -= nbytes
        if self.watch is not None:
            self.watch(self)

    def below_peaks(self, *without: str) -> int:
        """Bytes by which the kinds lie below their peaks, and which they may need again; some kinds left out."""
        total = sum(self.peaks.values()) - self.used
        for kind in without:
            total += self.kinds.get(kind, 0) - self.peaks.get(kind, 0)
        return total

    def show(self) -> str:
        """One line: used bytes by kind, and the limit."""
        kinds = ", ".join(f"{kind}: {show_size(n)}" for kind, n in sorted(self.kinds.items()) if n)
        limit = "no limit" if self.limit is None else f"limit {show_size(self.limit)}"
        return f"{self.tier}: {show_size(self.used)} used{f' ({kinds})' if kinds else ''}, {limit}"


def budget_error(
    accounts: Sequence[Account], level: int, nbytes: int, what: str, hint: str, refusals: Iterable[str]
) -> MemoryBudgetError:
    """The error of a request that cannot be met after all that could free bytes has been tried.

    `refusals` say which tiers had fewer bytes than their budgets.
    """
    account = accounts[level]
    if account.limit is None:
        expected = f"{nbytes} free bytes in tier {account.tier!r}"
    else:
        expected = (
            f"a {account.tier} budget of {account.used + nbytes} bytes or more, a lower bound: this request with what "
            "must stay; a later request may need more"
        )
    error = MemoryBudgetError(
        f"memory: {what} needs {show_exactly(nbytes)} of tier {account.tier!r}, and no more can be freed",
        source=here(),
        expected=expected,
        got="\n".join([*(a.show() for a in accounts), *refusals]),
        hint=f"{hint}; ctrlgrad.memory.plan(f, ...) finds the exact least budget of a call",
    )
    error.limit = account.limit
    error.needed = None if level or account.limit is None else account.used + nbytes
    return error


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


# Chunks of computation that may be issued before the first of them is done.
WINDOW = 2


class Throttle:
    """Keeps the host near a device's computation. The manager's lock is held."""

    def __init__(self, device: Device, order: Order) -> None:
        self._device, self._order = device, order
        # Marks after the last chunks that were issued: the host stays near the computation, and sees what is done.
        self._issued: deque[Mark] = deque()
        # Fetches that computation was put behind before the host knew whether they would succeed.
        self._unconfirmed: list[Mark] = []

    def issued(self, mark: Mark) -> None:
        """A chunk's computation was issued: wait until all but the last `WINDOW` are done."""
        self._issued.append(mark)
        while len(self._issued) > WINDOW:
            first = self._issued.popleft()
            self._order.wait(first)
            if first.failure is not None:
                self.settle()
                raise raised(first.failure)

    def rely_on(self, fetched: Mark) -> None:
        """Computation was put behind a fetch that is not done."""
        self._unconfirmed.append(fetched)

    def confirm(self) -> None:
        """Raise the error of a copy that computation was put behind."""
        waiting, self._unconfirmed = self._unconfirmed, []
        for place, mark in enumerate(waiting):
            if not self._order.is_done(mark):
                self._unconfirmed.append(mark)
            elif mark.failure is not None:
                self._unconfirmed += waiting[place + 1 :]
                raise raised(mark.failure)

    def synchronize(self) -> None:
        """Wait for the copies that computation was put behind; raise the first error among them."""
        for mark in self._unconfirmed:
            self._order.wait(mark)
        self.confirm()

    def settle(self) -> None:
        """After a failure: let all streams come to rest, so that the next call finds none of its traces."""
        device = self._device
        self._order.settle((device.compute, device.out, device.into, device.disk))
        self._issued.clear()
        self._unconfirmed.clear()


@record(eq=False, frozen=False)
class Slot:
    """Bytes of one tier. They hold what they are meant to hold after the mark `written`; None: nothing yet."""

    number: int
    level: int
    piece: Piece
    nbytes: int
    kind: str
    written: Mark | None = None
    # Marks after copies that read it or write it.
    users: list[Mark] = field(default_factory=list)
    # A mark after the last computation that uses it.
    last_use: Mark | None = None


class Arena:
    """Takes bytes from the tiers and gives them back."""

    def __init__(self, device: Device, accounts: list[Account], logging: Logging) -> None:
        self.device, self.accounts, self.order = device, accounts, Order(logging)
        self._logging = logging
        self._tiers = list(device.tiers)
        self._granules = [tier.granule for tier in self._tiers]
        self._numbers = itertools.count(1)
        # By level: why the tier itself had no bytes when it was last asked.
        self.refusals: dict[int, TierRefusedError] = {}
        self.retired: list[list[Slot]] = [[] for _ in self._tiers]
        # All bytes of the device that were given back are unused after this mark of the compute stream.
        self.vacated: Mark | None = None

    def counted(self, level: int, nbytes: int) -> int:
        """Number of bytes that an allocation of a size takes and counts."""
        granule = self._granules[level]
        return nbytes if granule == 1 or not nbytes else rounded_up(nbytes, granule)

    def take(self, level: int, nbytes: int, kind: str) -> Slot:
        """Bytes of a tier, as they are `counted`, for which its budget has room. Raises `TierRefusedError` where the
        tier has none."""
        try:
            piece = self._tiers[level].allocate(nbytes or 1)
        except TierRefusedError as refused:
            self.refusals[level] = refused
            raise
        if self.refusals:
            self.refusals.pop(level, None)
        self.accounts[level].add(nbytes, kind)
        slot = Slot(next(self._numbers), level, piece, nbytes, kind)
        self._logging.log(Take, slot.number, level, nbytes, kind)
        return slot

    def retire(self, slot: Slot) -> None:
        """Give a slot back as soon as nothing uses it."""
        if not slot.users or not self.pending(slot):
            self._give(slot)
        else:
            self.retired[slot.level].append(slot)

    def sweep(self, level: int) -> bool:
        """Give back the retired slots that nothing uses any more. Answers whether there were any."""
        if not self.retired[level]:
            return False
        idle = [slot for slot in self.retired[level] if not self.pending(slot)]
        if idle:
            self.retired[level] = [slot for slot in self.retired[level] if slot not in idle]
            for slot in idle:
                self._give(slot)
        return bool(idle)

    def pending(self, slot: Slot) -> list[Mark]:
        """Marks of copies that may still use a slot. Failed copies use nothing."""
        users = slot.users
        for mark in list(users):
            if mark.seen or self.order.is_done(mark):
                users.remove(mark)
        return users

    def vacate(self, mark: Mark) -> None:
        """Bytes of the device are given back that computation up to a mark uses."""
        if self.vacated is None or mark.number > self.vacated.number:
            self.vacated = mark

    def _give(self, slot: Slot) -> None:
        if slot.level == 0 and slot.last_use is not None:
            self.vacate(slot.last_use)
        self.accounts[slot.level].subtract(slot.nbytes, slot.kind)
        self._logging.log(Give, slot.number)
        self._tiers[slot.level].free(slot.piece)


class Reservation:
    """Counted bytes of the device that lie in another allocator's memory: until `release`, or as long as it lives."""

    def __init__(self, nbytes: int, kind: str, forget: Callable[[Reservation], None]) -> None:
        self.nbytes, self.kind = nbytes, kind
        self._forget = forget
        self._is_released = False

    def release(self) -> None:
        """The bytes are not used any more. Calling it again does nothing; a finalizer may call it."""
        if not self._is_released:
            self._is_released = True
            self._forget(self)

    __del__ = release


class Allocation:
    """Counted bytes of the device that never leave it: temporaries, states, results."""

    def __init__(
        self, slot: Slot, array: Any, label: str, release: Callable[[Slot], None], forget: Callable[[Slot], None]
    ) -> None:
        self.label, self.nbytes = label, slot.nbytes
        self._array, self._release, self._forget = array, release, forget
        self._slot: Slot | None = slot

    def __del__(self) -> None:
        if self._slot is not None:
            self._forget(self._slot)

    @property
    def array(self) -> Any:
        """The device's array. Using it after `release` is an error of the caller."""
        if self._slot is None:
            raise ExecutionError(f"allocation {self.label!r}: it was released")
        return self._array

    def release(self) -> None:
        """All work that uses the array has been issued. Calling it again does nothing."""
        slot, self._slot, self._array = self._slot, None, None
        if slot is not None:
            self._release(slot)
