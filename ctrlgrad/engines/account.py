"""Memory that a run takes beside the blocks of its chunks: from the pool, or counted where there is a session."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from traceback import walk_tb
from typing import TypeVar

import numpy as np

from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.memory.arena.pool import POOL, aligned
from ctrlgrad.memory.session import current
from ctrlgrad.stacks.storage import UNLIMITED, Resident, Storage, Supply

# The device of the engines that run on this computer's processor.
CPU = "cpu"

T = TypeVar("T")
# Callback that makes room for a running call where a budget is used up; returns true if it did something.
MAKE_ROOM: ContextVar[Callable[[], bool] | None] = ContextVar("makes room", default=None)


# Callbacks that give back counted memory which the running calls do not need any more.
GIVE_BACK: ContextVar[tuple[Callable[[], None], ...]] = ContextVar("gives idle memory back", default=())


@contextmanager
def giving_back(give_back: Callable[[], None]) -> Iterator[None]:
    """Around a call that can give memory back while it waits for more."""
    token = GIVE_BACK.set((*GIVE_BACK.get(), give_back))
    try:
        yield
    finally:
        GIVE_BACK.reset(token)


def with_room(take: Callable[[], T], nbytes: int) -> T:
    """Take so many bytes of a budget. Idle memory goes before anything else leaves; where they are refused even so,
    once more after the call has made room."""
    session = current()
    if session is not None and not session.manager(CPU).fits(nbytes):
        for give_back in GIVE_BACK.get():
            give_back()
    try:
        return take()
    except MemoryBudgetError:
        make_room = MAKE_ROOM.get()
        if make_room is None or not make_room():
            raise
    return take()


def empty(shape: Sequence[int], dtype: np.dtype, label: str) -> np.ndarray:
    """An uninitialised array, aligned. In a session its bytes count as long as it, or a view of it, lives."""
    if current() is None:
        return POOL.empty(shape, dtype)
    return _counted(lambda: aligned(shape, dtype), math.prod(shape) * dtype.itemsize, label)


def copied(array: np.ndarray, label: str) -> np.ndarray:
    """A copy that is no view of other memory. In a session its bytes count as long as it, or a view of it, lives."""
    if current() is None:
        return array.copy()
    return _counted(array.copy, array.nbytes, label)


def _counted(take: Callable[[], np.ndarray], nbytes: int, label: str) -> np.ndarray:
    """An array whose bytes a session counts, a view of a whole one or one itself."""
    session = current()
    assert session is not None
    manager = session.manager(CPU)
    held = with_room(lambda: manager.reserve(nbytes, label), nbytes)
    array = take()
    weakref.finalize(array if array.base is None else array.base, held.release)
    return array


class Counted(Resident):
    """An array whose bytes are counted."""

    __slots__ = ()

    def shrink(self, rows: int) -> None:
        """Nothing: a smaller copy would need room for both."""


class CountedSupply:
    """Memory that counts and stays where it is."""

    def array(self, shape: Sequence[int], dtype: np.dtype, label: str) -> Storage:
        return Counted(empty(shape, dtype, label))


_COUNTED = CountedSupply()


def supply() -> Supply:
    """Current source of arrays: counted in a session, else without a limit."""
    return UNLIMITED if current() is None else _COUNTED


def forget_values(error: BaseException) -> None:
    """Clear the frames of an error's traceback: an error that is kept must not keep values in counted memory."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        # An error may be its own cause.
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        waiting += [found.__cause__, found.__context__]
        for frame, _ in walk_tb(found.__traceback__):
            if frame.f_globals.get("__name__", "").startswith("ctrlgrad."):
                # The frames that are still running stay as they are.
                with suppress(RuntimeError):
                    frame.clear()
