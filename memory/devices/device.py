"""A device's interface to the memory manager: tiers of memory, streams, events and copies.

A device has tiers, the fastest first: its own memory, then memory that is larger and further away (pinned host memory,
a file on disk). Bytes move between neighbouring tiers, by copies that are put on a stream and run in its order, beside
the computation. An event marks a place in a stream; a stream or the host can wait for it.

The protocol says nothing of budgets: those are the manager's. A tier refuses bytes only when it really has none left.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.records import record


@record(eq=False, frozen=False)
class Piece:
    """Contiguous bytes of one tier. What `handle` is only the device knows."""

    tier: str
    nbytes: int
    handle: Any


class Event(Protocol):
    """A place in a stream."""

    def is_done(self) -> bool:
        """Return true if everything before it on its stream has run. Never blocks."""

    def wait(self) -> None:
        """Block the host until it is done. Raises the error of a copy before it that failed."""

    def join(self) -> None:
        """As `wait`, for the thread of another stream: an error is that stream's too, and the host has not seen it."""

    @property
    def time(self) -> float | None:
        """Time of its end in seconds on the device's clock; None before that, or where times are not measured."""


class Stream(Protocol):
    """Work that runs in the order in which it was put there."""

    @property
    def name(self) -> str:
        """ "compute", "out", "in" or "disk"."""

    def record(self) -> Event:
        """An event after all work so far."""

    def wait(self, event: Event) -> None:
        """Work put here from now on runs after the event. Does not block the host."""


class Tier(Protocol):
    """One kind of memory."""

    @property
    def name(self) -> str:
        """ "device", "host" or "disk"."""

    @property
    def granule(self) -> int:
        """Allocations take, and count as, a multiple of this number of bytes."""

    def allocate(self, nbytes: int) -> Piece:
        """Fresh bytes. Raises `TierRefusedError` when there are none."""

    def free(self, piece: Piece) -> None:
        """Give bytes back. No copy may be using them."""


class Device(Protocol):
    """Tiers and streams."""

    @property
    def name(self) -> str:
        """ "cpu", "cuda:0"."""

    @property
    def tiers(self) -> Sequence[Tier]:
        """The device's own memory first."""

    @property
    def copies_take_cores(self) -> bool:
        """True if the cores that compute make the copies too: then copying hides behind nothing, it competes."""

    @property
    def compute(self) -> Stream:
        """Stream on which the program runs."""

    @property
    def out(self) -> Stream:
        """Copies from the first tier to the second."""

    @property
    def into(self) -> Stream:
        """Copies from the second tier to the first."""

    @property
    def disk(self) -> Stream:
        """Copies between the second and the third tier, both ways, where there is a third."""

    def copy(self, source: Piece, target: Piece, nbytes: int, stream: Stream) -> None:
        """Put a copy of the first `nbytes` bytes between neighbouring tiers on a stream."""

    def array(self, piece: Piece, shape: Sequence[int], dtype: np.dtype) -> Any:
        """A view of a piece of the first tier as an array of the device's array library."""

    def now(self) -> float:
        """Seconds on the device's clock."""

    def close(self) -> None:
        """End the streams' threads and remove files. Calling it again does nothing."""


def raised(failure: BaseException) -> BaseException:
    """A copy of a failure, to be raised.

    The failure itself is kept by events and marks; a traceback on it would keep the caller's arrays alive with them.
    """
    try:
        return copy.copy(failure).with_traceback(None)
    except Exception:
        # Not every class of exceptions can be copied.
        return failure
