"""Objects on disk and in memory, so that a new process need not compile again.

An object is one relocatable file as the system's compilers write it, with the names of the functions that it gives. It
may call functions of the C library that the process has loaded, and functions whose addresses it is linked with.

An entry on disk is a file `<key>.obj`: a line of JSON (format, key, symbols, size, checksum of it all), and the object.
The key is the SHA-256 of all that the object depends on: what its maker names, the text of the modules that make it,
llvmlite's version and the processor. An entry is written under another name and then renamed, so several processes may
read and write at once. An entry that is truncated, damaged or another user's is removed and made anew.

The directory is `$CTRLGRAD_CACHE_DIR`, or `$XDG_CACHE_HOME/ctrlgrad`, or `~/.cache/ctrlgrad`. Since an entry is code
that will run, the directory must be the user's own: it is made with mode 0700. A directory that belongs to another
user, or that other users may write to, is not used. That is logged once as a warning (logger "ctrlgrad", which Python
shows on the terminal unless told otherwise); a warning of `warnings` could end a program that has everything it needs
to go on. Where there is no home directory, or one that cannot be written, the log says so at level INFO. All goes on
without entries then.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import json
import logging
import os
import re
import secrets
import stat
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ctrlgrad import forks
from ctrlgrad.engines.native import ahead, llvm, target
from ctrlgrad.errors import UserInputError
from ctrlgrad.files import open_file, read_file
from ctrlgrad.records import record

MOST_BYTES = 512 << 20
"""What the entries may take together; beyond it, those not used for longest are removed."""
_UNLOOKED_BYTES = MOST_BYTES // 64
"""What a process may write before it looks again whether there is room: to list thousands of entries takes long."""

_FORMAT = "ctrlgrad object, 1"
_LONGEST_HEADER = 16384
# A temporary file this old (in seconds) was left behind by a process that died.
_ABANDONED = 3600.0
_OURS = re.compile(r"[0-9a-f]{64}\.obj|[0-9a-f]{64}\.[0-9a-f]{16}\.tmp")
_LOG = logging.getLogger("ctrlgrad")
_SAID: set[str] = set()
# Bytes that this process has written to a directory since it last made room there.
_WRITTEN: dict[Path, int] = {}


class CannotLoad(Exception):
    """An object is broken, or uses functions that it was not given."""


@record
class ObjectCode:
    """An object file and the names of the functions that it gives."""

    symbols: tuple[str, ...]
    code: bytes


class Loaded(Mapping[str, int]):
    """Addresses of an object's functions by name; the code stays loaded as long as this object is referenced."""

    __hash__ = object.__hash__

    def __init__(self, addresses: dict[str, int], tracker: int) -> None:
        self._addresses = addresses
        # Finaliser: queues the code for unloading once this object is collected; not while the interpreter ends, since
        # a thread may still be in the code then.
        self._dropped = weakref.finalize(self, _UNUSED.append, tracker)
        self._dropped.atexit = False

    def __getitem__(self, name: str) -> int:
        return self._addresses[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def kept(self) -> Loaded:
        """The same; the code stays in memory as long as the process."""
        self._dropped.detach()
        return self


def library(key: str | None, make: Callable[[], ObjectCode], uses: Mapping[str, int] | None = None) -> Loaded:
    """The functions of an object: the one of this key from disk, or made now and kept there.

    `uses` are the addresses of the functions that the object calls, besides those of the C library; they must stay as
    long as the object. A key of None (see `key_of`) is not kept on disk.
    """
    disk = None if key is None else open_cache()
    if key is not None and disk is not None:
        found = disk.read(key)
        if found is not None:
            try:
                return loaded(found, uses)
            except CannotLoad:
                _LOG.info("the object %s does not load: compiling it again", disk.file(key))
                disk.remove(key)
    compiled = make() if key is None else ahead.made(key, make)
    addresses = loaded(compiled, uses)
    if key is not None and disk is not None:
        ahead.put_off(functools.partial(disk.write, key, compiled))
    return addresses


def prepare(key: str | None, make: Callable[[], ObjectCode]) -> None:
    """Have an object that will be asked for compiled meanwhile, where it is not on disk."""
    disk = None if key is None else open_cache()
    if key is not None and not (disk is not None and disk.file(key).exists()):
        ahead.prepare(key, make)


# Keys.


def key_of(inputs: Iterable[str], modules: Iterable[str]) -> str | None:
    """The key of the object that some strings define, and that the modules at these paths (`__file__`) make of them.

    None where the modules' own text cannot be read.
    """
    texts = [_digest(path) for path in (__file__, target.__file__, *modules)]
    if None in texts:
        return None
    return hashlib.sha256(json.dumps([_FORMAT, list(inputs), texts, target.facts()]).encode()).hexdigest()


@functools.cache
def _digest(path: str) -> str | None:
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except OSError:
        return None


# Memory.

_LINK = forks.lock()
MOST_UNUSED = 4096
"""Number of unreferenced objects that stay in memory: each takes a few of the process's limited memory mappings."""
# LLVM's handles of them.
_UNUSED: deque[int] = deque()
_NUMBERS = itertools.count()


def loaded(given: ObjectCode, uses: Mapping[str, int] | None = None) -> Loaded:
    """An object's functions, linked with `uses` and the C library. Raises `CannotLoad`."""
    _unload(MOST_UNUSED)
    parts = [llvm.LinkElement(llvm.OBJECT, given.code, len(given.code)), llvm.LinkElement(llvm.PROCESS, b"", 0)]
    elements = (llvm.LinkElement * len(parts))(*parts)
    imports = _table(uses or {})
    exports = _table(dict.fromkeys(given.symbols, 0))
    calls, problem = llvm.functions(), ctypes.c_char_p()
    with _LINK, forks.undivided():
        name = f"ctrlgrad.objects.{next(_NUMBERS)}".encode()
        tables = (elements, len(elements), imports, len(imports), exports, len(exports))
        tracker = calls.LLJIT_Link(_linker(), name, *tables, ctypes.byref(problem))
    if not tracker:
        raise CannotLoad(llvm.text_of(problem))
    return Loaded({symbol.name.decode(): symbol.address for symbol in exports}, tracker)


def _table(addresses: Mapping[str, int]) -> Any:
    found = [llvm.SymbolAddress(name.encode(), at) for name, at in addresses.items()]
    return (llvm.SymbolAddress * len(found))(*found)


def _unload(most: int) -> None:
    """Unload unreferenced code, oldest first, until at most `most` objects of it are left."""
    with _LINK, forks.undivided():
        while len(_UNUSED) > most:
            problem = ctypes.c_char_p()
            if llvm.functions().LLJIT_Dylib_Tracker_Dispose(_UNUSED.popleft(), ctypes.byref(problem)):
                raise RuntimeError(llvm.text_of(problem))


@functools.cache
def _linker() -> int:
    problem = ctypes.c_char_p()
    if target.host().triple.startswith("x86") and not target.host().has("f16c"):
        # Such a processor has no instruction that converts half floats: LLVM calls the C compiler's library.
        with contextlib.suppress(OSError):
            ctypes.CDLL("libgcc_s.so.1", ctypes.RTLD_GLOBAL)
    # JITLink lays an object out in one piece of memory: parts of it that lie far apart would not reach each other.
    linker = llvm.functions().CreateLLJITCompiler(None, True, True, ctypes.byref(problem))
    if not linker:
        raise RuntimeError(llvm.text_of(problem))
    return int(linker)


# The directory.


def directory() -> Path | None:
    """Directory of entries; None where there is no home directory."""
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
        _say_once(logging.INFO, "compiled code is not kept on disk: there is no home directory")
        return None
    try:
        for folder in () if path.exists() else (*reversed(path.parents), path):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        problem = unsafe(path)
    except OSError as error:
        _say_once(logging.INFO, f"compiled code is not kept on disk: {error}")
        return None
    if problem is not None:
        _say_once(logging.WARNING, str(problem))
        return None
    return DiskCache(path)


def unsafe(path: Path) -> UserInputError | None:
    """Error if code from this directory must not be run, else None. Windows checks only that it is a directory."""
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
        f"compiled code is not kept on disk: {path} is not safe",
        source=None,
        expected="a directory that belongs to you and that only you may write to, since what lies there is run",
        got=got,
        hint=f"chmod 700 {path}, or name another directory in CTRLGRAD_CACHE_DIR",
    )


def _say_once(level: int, text: str) -> None:
    if text not in _SAID:
        _SAID.add(text)
        _LOG.log(level, "%s", text)


# Entries.


@record
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
        except FileNotFoundError:
            return None
        except OSError:
            data = None
        entry = None if data is None else _parsed(key, data)
        if entry is None:
            _LOG.info("the object %s is damaged: compiling it again", path)
            self.remove(key)
        else:
            with contextlib.suppress(OSError):  # read-only: then nothing is removed for its age either
                os.utime(path)
        return entry

    def write(self, key: str, entry: ObjectCode) -> None:
        """Keep an entry, or say why it cannot be kept; then make room, at the first one and now and then."""
        temporary = self.path / f"{key}.{secrets.token_hex(8)}.tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            with open(descriptor, "wb") as file:
                file.write(_header(key, entry) + entry.code)
            os.replace(temporary, self.file(key))
            written = _WRITTEN.get(self.path, _UNLOOKED_BYTES) + len(entry.code)
            if written > _UNLOOKED_BYTES:
                self.make_room()
                written = 0
            _WRITTEN[self.path] = written
        except OSError as error:
            _remove(temporary)
            _say_once(logging.INFO, f"compiled code is not kept on disk: {error.strerror}: {self.path}")

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
        """Time of last use, bytes and path of each entry."""
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
        "symbols": entry.symbols,
        "size": len(entry.code),
        "sha256": hashlib.sha256(json.dumps([key, entry.symbols]).encode() + entry.code).hexdigest(),
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
    symbols = fields.get("symbols") if isinstance(fields, dict) else None
    if not isinstance(symbols, list) or not all(isinstance(name, str) for name in symbols):
        return None
    entry = ObjectCode(tuple(symbols), data[end + 1 :])
    return entry if _header(key, entry) == data[: end + 1] else None


def _own_bytes(path: Path) -> bytes | None:
    """The bytes of a file that belongs to the user and that only the user may write to; None for another."""
    with open_file(path, follow=False) as file:
        status = os.fstat(file.fileno())
        if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            return None
        return file.read()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another process was faster, or it cannot be removed
        os.unlink(path)
