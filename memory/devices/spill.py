"""The disk tier: one preallocated file, written and read in pieces, with a checksum for each.

The file is never mapped, so the process does not grow with it; bytes go straight from and to the caller's buffers. It
is created with the first bytes, for this process and user only, and removed by `close`, when its owner is collected,
and at exit. What a process leaves behind that was killed, the next one that spills into the folder removes: the owner
of a file holds a lock on it, which the system drops when the process ends, however it ends. A forked child closes its
copy of the file, so it neither writes to it, nor removes it, nor keeps the lock.

Checksums are zlib's CRC-32 of sums: the CRC alone takes as long as the copy (1 to 6 GB/s, by the build of zlib), the
sums of many columns run at the speed of memory. A sum alone would miss swapped words.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ctrlgrad.errors import BlockLostError, ExecutionError, TierRefusedError, UserInputError
from ctrlgrad.memory.devices.device import Piece
from ctrlgrad.memory.pool import FreeList, Range
from ctrlgrad.records import record
from ctrlgrad.source import here

PREFIX = "ctrlgrad-spill-"
# Bytes that are written or read at once, and that have one checksum. After each call the thread waits for Python's
# global lock, for milliseconds where the host runs Python code; so usually a block is one piece.
PIECE_BYTES = 8 << 20
# Bytes by which the file grows, where the disk has them.
STEP_BYTES = 64 << 20
# With the process's number, a name that no other process ever had.
STARTED = time.time_ns()
# Columns of 8-byte words that a checksum sums up. A prime: pages or sectors that are swapped or stale lie in other
# columns, unless they are this many apart. Two flips of the highest bit in one column are not seen.
COLUMNS = 1021
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CHECK_DISK = "check the disk, or give another folder as disk=..."
# Errors against which no larger disk helps.
LIMITS = {
    errno.EDQUOT: "free some of this user's space there, or give a folder on another disk as disk=...",
    errno.EFBIG: "raise the limit on a file's size (ulimit -f, or the filesystem's own)",
}

_numbers = itertools.count()


@record(eq=False, frozen=False)
class Extent:
    """Bytes in the file: where, how many of them were written, and the checksum of each piece."""

    place: Range
    written: int = 0
    checksums: tuple[int, ...] = ()


class _File:
    """The file, once it exists. Apart from `SpillFile`, so that it can be removed when that one is collected."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process = os.getpid()
        self.path: Path | None = None
        self.descriptor: int | None = None
        self.closed = False

    def make(self) -> None:
        """Create and lock it under a name of its own."""
        while True:
            path = self.directory / f"{PREFIX}{self.process}-{STARTED}-{next(_numbers)}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if _lock(descriptor) and _is_at(descriptor, path):
                break
            # Another process took it for a leftover in the moment before it was locked.
            os.close(descriptor)
        self.path, self.descriptor = path, descriptor
        _open_files.add(self)

    def close(self) -> None:
        """Remove and close it, once; in a forked child nothing."""
        path, descriptor = self.path, self.descriptor
        self.path, self.descriptor, self.closed = None, None, True
        if path is not None and descriptor is not None and os.getpid() == self.process:
            path.unlink(missing_ok=True)
            os.close(descriptor)


_open_files: weakref.WeakSet[_File] = weakref.WeakSet()


def _close_in_child() -> None:
    for file in list(_open_files):
        if file.descriptor is not None:
            os.close(file.descriptor)
        file.path, file.descriptor, file.closed = None, None, True


os.register_at_fork(after_in_child=_close_in_child)


def _lock(descriptor: int) -> bool:
    """Lock the file until it is closed; return false if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return true if the open file still lies at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def checksum(data: memoryview) -> int:
    """CRC-32 of the sums of the columns, modulo 2^64, and of the bytes behind the last whole row of words.

    >>> data = bytearray(range(200)) * 200
    >>> before = checksum(memoryview(data))
    >>> data[8:16], data[16:24] = data[16:24], data[8:16]
    >>> before == checksum(memoryview(data))
    False
    """
    rows = data.nbytes // (8 * COLUMNS)
    if not rows:
        return zlib.crc32(data)
    words = np.frombuffer(data, np.uint64, rows * COLUMNS).reshape(rows, COLUMNS)
    return zlib.crc32(data[words.nbytes :], zlib.crc32(np.add.reduce(words)))


def check_folder(directory: Path) -> None:
    """Raise `UserInputError` where no spill file can be made in a folder."""
    try:
        found = os.stat(directory)
    except OSError as cause:
        raise _unusable(directory, cause.strerror) from cause
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(directory, "it is no folder")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise _unusable(directory, "this user cannot write there")


def _unusable(directory: Path, got: str | None) -> UserInputError:
    return UserInputError(
        f"memory: the folder for spill files cannot be used: {directory}",
        source=here(),
        expected="a folder that exists and can be written",
        got=got,
        hint="make it, or give another one as disk=...",
    )


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove this user's spill files whose owners have died; answer which."""
    removed = []
    # Not by a pattern: the folder may hold very many other files.
    with os.scandir(directory) as entries:
        paths = sorted(Path(entry.path) for entry in entries if entry.name.startswith(PREFIX))
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            # Another user's, or just removed by its owner.
            continue
        try:
            found = os.fstat(descriptor)
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if ours and _lock(descriptor) and _is_at(descriptor, path):
                path.unlink()
                removed.append(path)
        finally:
            os.close(descriptor)
    return removed


class SpillFile:
    """Ranges of a file in `directory` (default: the system's folder for temporary files).

    Safe to use from several threads on different extents. Raises `UserInputError` where the folder cannot be used.

    >>> file = SpillFile()
    >>> extent = file.allocate(5)
    >>> file.write(extent, memoryview(b"bytes"))
    >>> back = bytearray(5)
    >>> file.read(extent, memoryview(back)); bytes(back)
    b'bytes'
    >>> file.close()
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        step_bytes: int = STEP_BYTES,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.directory = Path(tempfile.gettempdir() if directory is None else directory)
        check_folder(self.directory)
        self.removed = remove_leftovers(self.directory)
        self._step = step_bytes
        self._piece = piece_bytes
        self._lock = threading.Lock()
        self._free = FreeList()
        self._size = 0
        self._file = _File(self.directory)
        # Made before the finalizer of a device that uses the file, so at exit it runs after that one.
        weakref.finalize(self, self._file.close)

    @property
    def path(self) -> Path | None:
        """Path of the file; None before the first bytes and after `close`."""
        return self._file.path

    @property
    def size(self) -> int:
        """Bytes that the file takes on the disk."""
        return self._size

    def allocate(self, nbytes: int) -> Extent:
        """A place for so many bytes. Raises `TierRefusedError` when the disk is full."""
        with self._lock:
            if self._file.path is None and not self._file.closed:
                self._make()
            self._descriptor()
            place = self._free.take(nbytes)
            if place is None:
                self._grow(self._free.rounded(nbytes))
                place = self._free.take(nbytes)
                assert place is not None
            return Extent(place)

    def free(self, extent: Extent) -> None:
        """The place can be used again."""
        with self._lock:
            self._free.add(extent.place)

    def write(self, extent: Extent, data: memoryview) -> None:
        """Write bytes to the start of an extent, and remember their checksums."""
        data = data.cast("B")
        checksums = []
        for start in range(0, data.nbytes, self._piece):
            part = data[start : start + self._piece]
            checksums.append(checksum(part))
            self._write(part, extent.place.offset + start)
        extent.written, extent.checksums = data.nbytes, tuple(checksums)

    def read(self, extent: Extent, data: memoryview) -> None:
        """Read the first bytes of an extent. Raises `BlockLostError` where they are not those that were written."""
        data = data.cast("B")
        if data.nbytes > extent.written:
            raise BlockLostError(
                f"spill file {self.path}: read past what was written at offset {extent.place.offset}",
                expected=f"at most {extent.written} bytes",
                got=f"{data.nbytes} bytes",
            )
        for number, start in enumerate(range(0, data.nbytes, self._piece)):
            part = data[start : start + self._piece]
            whole = min(self._piece, extent.written - start)
            # A checksum covers its whole piece: where less is wanted, the rest is read too, and dropped.
            target = part if part.nbytes == whole else memoryview(bytearray(whole))
            offset = extent.place.offset + start
            self._read(target, offset)
            found = checksum(target)
            if found != extent.checksums[number]:
                raise BlockLostError(
                    f"spill file {self.path}: {whole} bytes at offset {offset} have changed",
                    expected=f"checksum {extent.checksums[number]:08x}",
                    got=f"checksum {found:08x}",
                    hint=CHECK_DISK,
                )
            if target is not part:
                part[:] = target[: part.nbytes]

    def work(self, source: Piece, target: Piece, data: memoryview) -> Callable[[], None]:
        """Function that copies between memory and the file, where one of the pieces lies."""
        if target.tier == SpillTier.name:
            extent = target.handle
            return lambda: self.write(extent, data)
        extent = source.handle
        return lambda: self.read(extent, data)

    def close(self) -> None:
        """Remove the file, when no thread uses it any more. Calling it again does nothing."""
        with self._lock:
            self._file.close()

    def _make(self) -> None:
        try:
            self._file.make()
        except OSError as cause:
            if cause.errno in FULL:
                raise self._refusal(0, cause) from cause
            raise _unusable(self.directory, cause.strerror) from cause

    def _descriptor(self) -> int:
        if self._file.descriptor is None:
            raise ExecutionError(
                f"the spill file in {self.directory} is closed, or belongs to the parent process",
                hint="enter the memory budget in the process that uses it",
            )
        return self._file.descriptor

    def _grow(self, wanted: int) -> None:
        """Reserve bytes at the end: a whole step, or where that does not fit, what is missing."""
        descriptor = self._descriptor()
        last = self._free.ranges[-1] if self._free.ranges else Range(self._size, 0)
        missing = wanted - (last.nbytes if last.end == self._size else 0)
        for nbytes in sorted({max(missing, self._step), missing}, reverse=True):
            try:
                os.posix_fallocate(descriptor, self._size, nbytes)
            except OSError as cause:
                if cause.errno not in FULL:
                    raise ExecutionError(
                        f"spill file {self.path}: it cannot grow: {cause.strerror}", hint=CHECK_DISK
                    ) from cause
                # A part may have been reserved.
                os.ftruncate(descriptor, self._size)
                refused = cause
            else:
                self._free.add(Range(self._size, nbytes))
                self._size += nbytes
                return
        raise self._refusal(missing, refused) from refused

    def _refusal(self, wanted: int, cause: OSError) -> TierRefusedError:
        disk = os.statvfs(self.directory)
        return TierRefusedError(
            f"the {'file has its largest size' if cause.errno == errno.EFBIG else 'disk is full'}: "
            f"spill file {self.path or self.directory}: {cause.strerror}",
            expected=f"{wanted} bytes more than the {self._size} that the file has",
            got=f"{disk.f_bavail * disk.f_frsize} free bytes on the disk",
            hint=LIMITS.get(cause.errno or 0, "free some space, or give a folder on a larger disk as disk=..."),
        )

    def _write(self, part: memoryview, offset: int) -> None:
        while part.nbytes:
            try:
                done = os.pwrite(self._descriptor(), part, offset)
            except OSError as cause:
                if cause.errno in FULL:
                    raise self._refusal(part.nbytes, cause) from cause
                raise ExecutionError(
                    f"spill file {self.path}: {part.nbytes} bytes cannot be written at offset {offset}: "
                    f"{cause.strerror}",
                    hint=CHECK_DISK,
                ) from cause
            part, offset = part[done:], offset + done

    def _read(self, part: memoryview, offset: int) -> None:
        while part.nbytes:
            try:
                done = os.preadv(self._descriptor(), [part], offset)
            except OSError as cause:
                raise BlockLostError(
                    f"spill file {self.path}: {part.nbytes} bytes cannot be read at offset {offset}: {cause.strerror}",
                    hint=CHECK_DISK,
                ) from cause
            if done == 0:
                raise BlockLostError(
                    f"spill file {self.path}: it ends at offset {offset}",
                    expected=f"{part.nbytes} bytes more",
                    got="end of file",
                    hint=CHECK_DISK,
                )
            part, offset = part[done:], offset + done


class SpillTier:
    """A spill file as a tier; a piece's handle is its `Extent`."""

    name = "disk"
    granule = 1

    def __init__(self, file: SpillFile) -> None:
        self.file = file

    def allocate(self, nbytes: int) -> Piece:
        return Piece(self.name, nbytes, self.file.allocate(nbytes))

    def free(self, piece: Piece) -> None:
        extent, piece.handle = piece.handle, None
        if extent is not None:
            self.file.free(extent)
