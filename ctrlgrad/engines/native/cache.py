"""Compiled loops on disk, so that a new process need not compile (nor import the compiler) again.

An entry is a file `<key>.obj`: a line of JSON (format, key, symbol, size, checksum of it all), then the object. The key
is the SHA-256 of all that the code depends on: the loop's source, this package's sources, the versions of the compiler
and of Python, the compiler's settings and the processor. An entry is written under another name and then renamed, so
several processes may read and write at once. What is truncated, damaged or somebody else's is removed and made anew.

The directory is `$CTRLGRAD_CACHE_DIR`, or `$XDG_CACHE_HOME/ctrlgrad`, or `~/.cache/ctrlgrad`. Since an entry is code
that will run, the directory must be the user's own: it is made with mode 0700, and one that belongs to another user, or
that others may write to, is not used. That is logged once as a warning (logger "ctrlgrad", which Python shows on the
terminal unless told otherwise); a warning of `warnings` could end a program that has everything it needs to go on.
Where there is no home directory, or one that cannot be written, the log says so at level INFO. All goes on without
entries then.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from llvmlite import binding

from ctrlgrad.engines.native.object_code import ObjectCode
from ctrlgrad.errors import UserInputError

MOST_BYTES = 512 << 20
"""What the entries may take together; beyond it, those not used for longest are removed."""

INGREDIENTS = (
    "compiler",
    "elementary",
    "elementary_circular",
    "elementary_constants",
    "elementary_exact",
    "elementary_exponential",
    "elementary_table",
    "intrinsics",
    "layout",
    "machine",
    "object_code",
    "pipeline",
    "program",
    "scalars",
)
"""The modules beside this one that make a source into code; those that make the source show in the source."""

_FORMAT = "ctrlgrad compiled loop, 1"
_LONGEST_HEADER = 4096
# A temporary file this old (in seconds) was left behind by a process that died.
_ABANDONED = 3600.0
_OURS = re.compile(r"[0-9a-f]{64}\.obj|[0-9a-f]{64}\.[0-9a-f]{16}\.tmp")
_LOG = logging.getLogger("ctrlgrad")
_SAID: set[str] = set()


def _say_once(level: int, text: str) -> None:
    if text not in _SAID:
        _SAID.add(text)
        _LOG.log(level, "%s", text)


# Keys.


def key_of(source: str) -> str | None:
    """The key of a source's code, here and now; None where this package's own sources cannot be read."""
    known = surroundings()
    return None if known is None else hashlib.sha256(json.dumps([_FORMAT, source, known]).encode()).hexdigest()


def surroundings() -> dict[str, str] | None:
    """What the code of a source depends on besides the source."""
    fixed = _fixed_surroundings()
    if fixed is None:
        return None
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    return {**fixed, "settings": "\n".join(settings)}


@functools.cache
def _fixed_surroundings() -> dict[str, str] | None:
    texts = hashlib.sha256()
    try:
        for name in INGREDIENTS:
            text = Path(__file__).with_name(f"{name}.py").read_bytes()
            texts.update(f"{name} {len(text)}\n".encode() + text)
    except OSError:
        return None
    return {
        "ctrlgrad": texts.hexdigest(),
        "numba": metadata.version("numba"),
        "llvmlite": metadata.version("llvmlite"),
        "python": f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}",
        "triple": binding.get_process_triple(),
        "processor": binding.get_host_cpu_name(),
        "features": binding.get_host_cpu_features().flatten(),
    }


# The directory.


def directory() -> Path | None:
    """Where entries belong; None where there is no home directory."""
    if given := os.environ.get("CTRLGRAD_CACHE_DIR"):
        return Path(given).absolute()
    # The XDG base directory specification has relative paths ignored.
    if os.path.isabs(given := os.environ.get("XDG_CACHE_HOME", "")):
        return Path(given) / "ctrlgrad"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "ctrlgrad" if os.path.isabs(home) and os.path.isdir(home) else None


def open_cache() -> DiskCache | None:
    """The entries on disk; None where there is no directory for them that is safe to use."""
    path = directory()
    if path is None:
        _say_once(logging.INFO, "compiled loops are not kept on disk: there is no home directory")
        return None
    try:
        for folder in (*reversed(path.parents), path):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        problem = unsafe(path)
    except OSError as error:
        _say_once(logging.INFO, f"compiled loops are not kept on disk: {error}")
        return None
    if problem is not None:
        _say_once(logging.WARNING, str(problem))
        return None
    return DiskCache(path)


def unsafe(path: Path) -> UserInputError | None:
    """Why code from this directory must not be run; None where it may. On Windows only that it is a directory."""
    found = path.stat()
    got = None
    if not stat.S_ISDIR(found.st_mode):
        got = "something else than a directory"
    elif os.name == "posix" and found.st_uid != os.geteuid():
        got = f"a directory of the user with number {found.st_uid}"
    elif os.name == "posix" and found.st_mode & 0o022:
        got = f"a directory of mode {stat.S_IMODE(found.st_mode):04o}"
    if got is None:
        return None
    return UserInputError(
        f"compiled loops are not kept on disk: {path} is not safe",
        expected="a directory that belongs to you and that only you may write to, since what lies there is run",
        got=got,
        hint=f"chmod 700 {path}, or name another directory in CTRLGRAD_CACHE_DIR",
    )


# By source.


def find(source: str) -> ObjectCode | None:
    """The code of a source, where it is on disk."""
    key, disk = key_of(source), open_cache()
    return None if key is None or disk is None else disk.read(key)


def keep(source: str, code: ObjectCode) -> None:
    """Put the code of a source on disk, where there is a place for it."""
    key, disk = key_of(source), open_cache()
    if key is not None and disk is not None:
        disk.write(key, code)


def forget(source: str) -> None:
    """Remove the code of a source from disk."""
    key, disk = key_of(source), open_cache()
    if key is not None and disk is not None:
        disk.remove(key)


# Entries.


@dataclass(frozen=True)
class DiskCache:
    """The entries in a directory that is safe to use."""

    path: Path

    def file(self, key: str) -> Path:
        return self.path / f"{key}.obj"

    def read(self, key: str) -> ObjectCode | None:
        """The entry of a key; None where there is none that is whole. One that is not is removed."""
        path = self.file(key)
        try:
            data = _own_bytes(path)
        except OSError:
            return None
        entry = None if data is None else _parsed(key, data)
        if entry is None:
            _LOG.info("the compiled loop %s is damaged: compiling it again", path)
            self.remove(key)
        else:
            _touch(path)
        return entry

    def write(self, key: str, entry: ObjectCode) -> None:
        """Keep an entry, or say why it cannot be kept; then make room."""
        temporary = self.path / f"{key}.{secrets.token_hex(8)}.tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            with open(descriptor, "wb") as file:
                file.write(_header(key, entry) + entry.code)
            os.replace(temporary, self.file(key))
            self.make_room()
        except OSError as error:
            _remove(temporary)
            _say_once(logging.INFO, f"compiled loops are not kept on disk: {error.strerror}: {self.path}")

    def remove(self, key: str) -> None:
        _remove(self.file(key))

    def make_room(self, most: int = MOST_BYTES) -> None:
        """Remove what was not used for longest until the rest takes at most so many bytes, and what was abandoned."""
        total, now = 0, time.time()
        for used, size, path in sorted(self._files(), reverse=True):
            total += size
            if total > most or (path.suffix == ".tmp" and now - used > _ABANDONED):
                _remove(path)
                total -= size

    def _files(self) -> list[tuple[float, int, Path]]:
        """When each file of ours was last used, its bytes, its path."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    found.append((status.st_mtime, status.st_size, Path(entry.path)))
        return found


def _header(key: str, entry: ObjectCode) -> bytes:
    fields = {
        "format": _FORMAT,
        "key": key,
        "symbol": entry.symbol,
        "size": len(entry.code),
        "sha256": hashlib.sha256(f"{key}\n{entry.symbol}\n".encode() + entry.code).hexdigest(),
    }
    return json.dumps(fields).encode() + b"\n"


def _parsed(key: str, data: bytes) -> ObjectCode | None:
    """The entry that a file's bytes are; None where they are not the entry of this key, whole."""
    end = data.find(b"\n", 0, _LONGEST_HEADER)
    if end < 0:
        return None
    try:
        fields = json.loads(data[:end])
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("symbol"), str):
        return None
    entry = ObjectCode(fields["symbol"], data[end + 1 :])
    return entry if _header(key, entry) == data[: end + 1] else None


def _own_bytes(path: Path) -> bytes | None:
    """The bytes of a plain file that belongs to the user and that only the user may write to; None for another."""
    # Without O_NONBLOCK the opening of a FIFO would wait for somebody to write into it.
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # read-only: then nothing is removed for its age either
        os.utime(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another process was faster, or it cannot be removed
        os.unlink(path)
