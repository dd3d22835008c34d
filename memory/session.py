"""Sessions: a budget, the devices in use under it, and their managers.

A session is the context of a `with`; calls inside it find it by `current`. The innermost one rules. Threads that are
started inside it find it only where they run in a copy of its context; two threads may have two sessions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ctrlgrad.advice import explains_calls
from ctrlgrad.blocks import block, holding
from ctrlgrad.errors import MemoryBudgetError, UserInputError
from ctrlgrad.memory.devices.cpu import RAM, CpuDevice
from ctrlgrad.memory.devices.device import Device
from ctrlgrad.memory.devices.spill import check_folder
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.pool import POOL
from ctrlgrad.memory.profile.pictures import Profile
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.profile.summary import Summary
from ctrlgrad.memory.sizes import Budget, parse_size, show_exactly
from ctrlgrad.records import record
from ctrlgrad.source import here

Factory = Callable[[Budget], Device]


def _cpu(limits: Budget) -> CpuDevice:
    if limits.device is not None:
        # Memory that calls outside of the session left for reuse is not counted; what other sessions left is used.
        POOL.clear()
        RAM.restrict(limits.device)
    return CpuDevice(limits.disk)


_FACTORIES: dict[str, Factory] = {"cpu": _cpu}
_CURRENT: ContextVar[Session | None] = ContextVar("memory session", default=None)
_RECORDING: ContextVar[Recording | None] = ContextVar("memory recording", default=None)


def register_device(name: str, factory: Factory) -> None:
    """Say how to make a device by name; the factory gets the session's budget.

    >>> from ctrlgrad import memory
    >>> from ctrlgrad.memory.devices.cpu import CpuDevice
    >>> memory.register_device("swapping to /tmp", lambda limits: CpuDevice("/tmp"))
    >>> with memory.budget(device="64 KiB") as session:
    ...     session.manager("swapping to /tmp").device.name
    'cpu'
    """
    _FACTORIES[name] = factory


class Session:
    """A budget and one manager for each device that is used under it."""

    def __init__(self, budget: Budget, recording: Recording | None, devices: Mapping[str, Device] | None) -> None:
        self.budget = budget
        self.recording = recording
        self._given = dict(devices or {})
        self._managers: dict[str, Manager] = {}
        self._lock = threading.RLock()
        self._is_closed = False
        # How often the bytes of a chunk were halved, since calls were refused; and a count of chunks that could have
        # been shorter.
        self.halvings = self.long_chunks = 0

    def manager(self, device_name: str = "cpu") -> Manager:
        """The manager of a device, created when it is first asked for."""
        with self._lock:
            if self._is_closed:
                raise UserInputError(
                    "memory: the budget's `with` has ended",
                    source=here(),
                    expected="a call inside of the block",
                    got="a session that is closed",
                    hint="put the call into the block, or open another budget around it",
                )
            if device_name not in self._managers:
                device = self._given.get(device_name) or self._make(device_name)
                self._check_host(device)
                self._managers[device_name] = Manager(device, self.budget, self.recording)
            return self._managers[device_name]

    def _check_host(self, device: Device) -> None:
        if self.budget.host is not None and all(tier.name != "host" for tier in device.tiers):
            raise UserInputError(
                f"memory: device {device.name!r} has no host memory of its own to limit",
                source=here(),
                expected="a device and a disk budget: what does not fit goes to disk at once",
                got=f"host={self.budget.host}",
                hint="leave out host",
            )

    def _make(self, name: str) -> Device:
        factory = _FACTORIES.get(name)
        if factory is None:
            raise UserInputError(
                f"memory: no device is called {name!r}",
                source=here(),
                expected=f"one of {', '.join(sorted(_FACTORIES)) or 'none'}",
            )
        return factory(self.budget)

    def record(self, recording: Recording | None) -> Recording | None:
        """Write to another recording from now on, or to none; gives the one so far."""
        with self._lock:
            before, self.recording = self.recording, recording
            for manager in self._managers.values():
                with manager.lock:
                    manager.recorder.record(recording)
            return before

    @property
    def managers(self) -> Mapping[str, Manager]:
        """The managers so far, by device name."""
        with self._lock:
            return dict(self._managers)

    def close(self) -> None:
        """Close all managers and their devices. Calling it again does nothing."""
        # Without the lock, and all of them, whatever one raises.
        with ExitStack() as closings, self._lock:
            self._is_closed = True
            while self._managers:
                closings.callback(self._managers.popitem()[1].close)


@record
class Plan:
    """A device budget and a call: the least budget that works, and what the given one would do, if it works.

    `summary` is that of a call in `budget`, or in `least` where none was given; None where `budget` is too small.
    """

    least: int
    budget: int | None
    summary: Summary | None

    @property
    def works(self) -> bool:
        """True if the budget suffices."""
        return self.summary is not None

    def __str__(self) -> str:
        lines = [f"least budget: {show_exactly(self.least)}"]
        if self.budget is not None:
            lines.append(f"a budget of {show_exactly(self.budget)} {'works' if self.works else 'is too small'}")
        if self.summary is not None:
            lines.append(str(self.summary))
        return "\n".join(lines)


@explains_calls
def plan(
    fn: Callable[..., Any], *args: Any, budget: str | int | None = None, disk: str | None = None, **kwargs: Any
) -> Plan:
    """Effect of a device budget on a call, and the least budget that works.

    Rehearses the call, in budgets that rise until one works and are then narrowed down to the byte: `fn` runs a few
    dozen times, most of them to the first request that cannot be met, in at most a sixteenth more than the least budget
    or in `budget`. Its effects, such as callbacks, happen as often. One byte less than `least` does not work, nor does
    a tenth less. `budget` is a size as for `ctrlgrad.memory.budget`, `disk` the folder for spill files; the other
    arguments are those of `fn`.

    Raises `UserInputError` for what is no size, and where `fn` opens a budget of its own that is too small: then no
    budget around it helps. Raises whatever `fn` raises in a budget that it works in.

    >>> import numpy as np
    >>> import ctrlgrad as cg
    >>> slope = cg.function(cg.grad(lambda x: cg.fori_loop(0, 100, lambda i, x: x + 0.01 * np.sin(x), x).sum()))
    >>> found = plan(slope, np.linspace(0, 1, 1000), budget="128 KiB")
    >>> found.works, found.least < 128 * 1024
    (True, True)
    >>> with budget(device=found.least):
    ...     slope(np.linspace(0, 1, 1000)).shape
    (1000,)
    """
    given = parse_size(budget)

    def missing(limit: int) -> int:
        """Bytes that are known to be missing in a budget; 0 where it works."""
        try:
            with _within(device=limit, disk=disk):
                fn(*args, **kwargs)
        except MemoryBudgetError as error:
            if error.limit != limit:
                raise _own_budget(error) from error
            return max((error.needed or 0) - limit, 1)
        return 0

    low, least = 0, 1
    while more := missing(least):
        low, least = least, least + max(more, least // 16)
    while True:
        least = _first(missing, low, least)
        # In a smaller budget the chunks of rows that leave a call are shorter, which may do with less.
        if (smaller := least * 9 // 10) < 1 or missing(smaller):
            break
        low, least = 0, smaller
    summary = None
    if given is None or not missing(given):
        with profile() as recording, _within(device=least if given is None else given, disk=disk):
            fn(*args, **kwargs)
        summary = recording.summary()
    return Plan(least, given, summary)


def _own_budget(error: MemoryBudgetError) -> UserInputError:
    limit = "no limit" if error.limit is None else f"a budget of {show_exactly(error.limit)}"
    return UserInputError(
        "memory.plan: the function opens a budget of its own, which is too small",
        source=here(),
        expected="a function without a budget of its own, or with one that suffices",
        got=f"{limit}: {error.problem}",
        hint="leave the budget out of the function; plan then finds the least one",
    )


def _first(missing: Callable[[int], int], low: int, high: int) -> int:
    """The least budget that works between one that does not and one that does."""
    guess = high - 1
    while high - low > 1:
        if more := missing(guess):
            low = min(guess + more - 1, high - 1)
        else:
            high = guess
        guess = (low + high) // 2
    return high


def current() -> Session | None:
    """The innermost session of this context; None where there is none.

    >>> from ctrlgrad import memory
    >>> with memory.budget(device="1 MiB") as session:
    ...     memory.current() is session
    True
    """
    return _CURRENT.get()


@block("ctrlgrad.memory.budget")
def budget(
    device: str | int | None = None,
    host: str | int | None = None,
    disk: str | os.PathLike[str] | None = None,
    *,
    devices: Mapping[str, Device] | None = None,
) -> Iterator[Session]:
    """Loops inside keep their saved values within a budget: in device memory, in host memory, then on disk.

    `device` and `host` are sizes, ints in bytes or texts such as "64 MiB"; None is no limit. `host` is for devices with
    a memory of their own, such as a GPU; on the CPU it is refused when a loop runs. `disk` is the folder for
    spill files. `devices` gives devices by name instead of those of this machine. A budget inside another one rules
    alone while it lasts. All files are given back at the end, and memory, but for 512 MiB at most that the next budget
    uses; those of a pullback that outlives it, when it is collected.

    Raises `UserInputError` for what is no size and for a folder that is not there or cannot be written.

    >>> with budget(device="64 MiB") as session:
    ...     session.budget.device
    67108864
    """
    limits = Budget(parse_size(device), parse_size(host), None if disk is None else os.fspath(disk))
    if limits.disk is not None:
        check_folder(Path(limits.disk))
    session = Session(limits, _RECORDING.get(), devices)
    with closing(session), holding(_CURRENT, session):
        yield session


def no_budget() -> AbstractContextManager[None]:
    """Suspend all budgets: code inside is not counted, swapped or recorded."""
    return holding(_CURRENT, None)


@block("ctrlgrad.memory.profile")
def profile() -> Iterator[Profile]:
    """Record what the memory managers inside do: copies, stalls, bytes per tier.

    Budgets entered inside write to the recording, and so does the budget around it while it lasts. Without one around
    it, it opens one without limits.

    >>> with profile() as recording:
    ...     pass
    >>> recording.copied
    []
    """
    recording = Profile()
    around = _CURRENT.get()
    with holding(_RECORDING, recording):
        if around is None:
            with budget():
                yield recording
        else:
            before = around.record(recording)
            try:
                yield recording
            finally:
                around.record(before)


# `plan` has an argument of the function's name.
_within = budget
