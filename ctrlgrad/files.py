"""Files that are read by name: opened without waiting, and only where they are regular files.

Opening a FIFO waits until another process writes to it, and a device may never end. A name in a cache folder, in the
folder of a run or on a command line may be such a file, by mistake or by intent.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_file(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading; without `follow` a symbolic link is refused.

    Raises `OSError`: `FileNotFoundError` where there is none, `IsADirectoryError` for a folder, and one that says
    "not a regular file" for a FIFO, a socket or a device.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file, open_file(file.name) as same:
    ...     same.read()
    b''
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file; raises as `open_file`."""
    with open_file(path) as file:
        return file.read()
