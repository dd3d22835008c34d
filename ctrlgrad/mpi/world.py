"""The ranks, and what they exchange: bytes and arrays, in buffers. Nothing is ever pickled.

This is the one module that imports mpi4py. A `World` starts MPI; at the end of the process mpi4py ends it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import mpi4py
import numpy as np

from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.records import record

# Options for the import of MPI: a program that only imports this module does not start MPI.
mpi4py.rc.initialize = False
mpi4py.rc.finalize = True
from mpi4py import MPI  # noqa: E402

# Smallest message, in bytes, whose parts are sent from their own memory instead of being joined first.
JOINED = 1 << 16


@record
class Arrived:
    """A message as it came: `data` is uint8 `[bytes]`."""

    rank: int
    tag: int
    data: np.ndarray


class World:
    """All ranks that were started together.

    `post` and `poll` are for one rank and another, in any thread; so is `have_ended`. Every other method is called by
    all ranks, in the same order.
    """

    def __init__(self) -> None:
        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UserInputError(
                "MPI was started without support for threads",
                expected="MPI_THREAD_MULTIPLE",
                got=f"level {MPI.Query_thread()}",
                hint="leave mpi4py.rc as it is, and use an MPI library that was built with threads",
            )
        # Communicators of its own: what the user's program sends does not mix with this, nor messages with sums.
        self.communicator = MPI.COMM_WORLD.Dup()
        self._messages = MPI.COMM_WORLD.Dup()
        self.rank: int = self.communicator.Get_rank()
        self.size: int = self.communicator.Get_size()
        # Least bound that the standard promises, where the library does not say.
        self.largest_tag: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767
        # Messages that are still being sent, with the buffers that must not change until then.
        self._sending: list[tuple[MPI.Request, Any]] = []
        self._lock = threading.Lock()

    def is_one_host(self) -> bool:
        """Return true if all ranks share one machine's memory."""
        near = self.communicator.Split_type(MPI.COMM_TYPE_SHARED)
        size: int = near.Get_size()
        near.Free()
        # Of hosts with unequal numbers of ranks, one may see itself alone: all must agree.
        least = np.array(size, np.int64)
        self.communicator.Allreduce(MPI.IN_PLACE, least, MPI.MIN)
        return int(least) == self.size

    def broadcast(self, data: bytes | None) -> bytes:
        """Bytes of rank 0, on all ranks; the argument of all other ranks is not read."""
        length = np.array(len(data) if self.rank == 0 and data is not None else 0, np.int64)
        self.communicator.Bcast(length)
        buffer = bytearray(data or b"") if self.rank == 0 else bytearray(int(length))
        self.communicator.Bcast(buffer)
        return bytes(buffer)

    def broadcast_into(self, array: np.ndarray) -> None:
        """Overwrite an array with that of rank 0; it is contiguous, and of one dtype and shape on all ranks."""
        self.communicator.Bcast(array)

    def start_sum(self, array: np.ndarray) -> MPI.Request:
        """Begin to overwrite a contiguous array with its sum over all ranks; do not touch it until `finish`."""
        return self.communicator.Iallreduce(MPI.IN_PLACE, array, MPI.SUM)

    def finish(self, requests: Sequence[MPI.Request]) -> None:
        """Wait for what was begun."""
        MPI.Request.Waitall(list(requests))

    def have_ended(self, requests: Sequence[MPI.Request]) -> bool:
        """Return true if all requests have ended, without waiting; the call also lets unfinished ones progress."""
        ended: bool = MPI.Request.Testall(list(requests))
        return ended

    def check_same(self, what: str, data: bytes) -> None:
        """Compare bytes that should be the same on all ranks.

        Raises:
            ExecutionError: this rank's are not those of rank 0.
        """
        own = hashlib.sha256(data).digest()
        first = self.broadcast(own)
        if own != first:
            raise ExecutionError(
                f"the ranks do not have the same {what}",
                expected=f"what rank 0 has (SHA-256 {first.hex()[:12]})",
                got=f"something else on rank {self.rank} ({own.hex()[:12]})",
                hint="start the same program with the same files and the same versions on every machine",
            )

    # Messages.

    def post(self, rank: int, tag: int, parts: Sequence[Any]) -> None:
        """Send the bytes of contiguous buffers as one message. Returns at once; the buffers are not to be changed.

        Two messages from one rank to another arrive in the order in which they were posted.
        """
        if len(parts) > 1 and sum(memoryview(part).nbytes for part in parts) < JOINED:
            parts = [b"".join(parts)]
        if len(parts) == 1:
            request = self._messages.Isend([parts[0], MPI.BYTE], rank, tag)
        else:
            views = [MPI.buffer.frombuffer(part, readonly=True) for part in parts]
            # MPI gathers the parts from their addresses.
            addresses = [MPI.Get_address(view) for view in views]
            gathered = MPI.BYTE.Create_hindexed([view.nbytes for view in views], addresses).Commit()
            request = self._messages.Isend([MPI.BOTTOM, 1, gathered], rank, tag)
            gathered.Free()
        self.progress()
        if not request.Test():
            with self._lock:
                self._sending.append((request, parts))

    def poll(self) -> Arrived | None:
        """The next message, if one has arrived. Only one thread at a time may call it, so that the order is kept."""
        status = MPI.Status()
        message = self._messages.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        if message is None:
            self.progress()
            return None
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        message.Recv([data, MPI.BYTE])
        return Arrived(status.Get_source(), status.Get_tag(), data)

    @property
    def is_sending(self) -> bool:
        """True if a message has not left yet. A large one leaves only while this rank calls `poll` or `progress`."""
        self.progress()
        return bool(self._sending)

    def progress(self) -> None:
        """Let go of what has been sent."""
        if self._sending:
            with self._lock:
                self._sending = [entry for entry in self._sending if not entry[0].Test()]
