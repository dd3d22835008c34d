"""Source of a node: the line of the user's code that it comes from.

`here()` walks up the Python stack past the library's own folders and returns the first frame that is the user's. It
costs about a microsecond, so every node can carry a source.

A source also has the device on which the user wants the node (`placed_on`): all nodes derived from a node, its gradient
above all, carry the node's source, and so are placed on the same device.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import opcode
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import FrameType

from ctrlgrad.records import record

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(_PACKAGE)
# `gradients`, `stacks` and `memory` lie beside `ctrlgrad` in a checkout and inside it once installed.
_OWN = tuple(
    os.path.join(folder, "")
    for folder in (_PACKAGE, *(os.path.join(_ROOT, name) for name in ("gradients", "stacks", "memory")))
)
_PATHS = sysconfig.get_paths()
# Folders of the standard library and of packages: pip's, Debian's, and those of `pip install --user`.
_INSTALLED = tuple(
    os.path.join(folder, "")
    for folder in (
        *(_PATHS[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(*site.getsitepackages(), site.getusersitepackages()),
    )
)
# The model of `ctrlgrad train` is written as a user writes his.
_AS_USER = tuple(os.path.join(_PACKAGE, "train", name) for name in ("model.py", "decoder.py"))
# Libraries that call back into this one with what the user handed to them.
_LIBRARIES = ("numpy", "scipy")
_PUBLIC = ("fft", "linalg", "special", "stats", "signal", "optimize", "integrate", "interpolate")
_MACHINERY = (
    *(
        os.sep + name + os.sep
        for name in (
            "optree",
            "typer",
            "click",
            *_LIBRARIES,
            os.path.join("jax", "_src"),
            os.path.join("site-packages", "torch"),
        )
    ),
    *("<frozen ", "functools.py", "contextlib.py", os.sep + "threading.py", os.path.join("bin", "ctrlgrad")),
)


@record
class Source:
    """A line of the user's code."""

    file: str
    line: int
    function: str
    # Number of differentiations: 0 for the user's own code, 1 for its gradient.
    order: int = 0
    # Device that the user chose for this code.
    device: str | None = None
    # Ops that this node is a derivative of, one per differentiation.
    of: tuple[str, ...] = ()

    def __str__(self) -> str:
        file = os.path.relpath(self.file) if self.file.startswith(os.getcwd() + os.sep) else self.file
        of = (
            ("", " (its gradient)", " (its second derivative)")[self.order]
            if self.order < 3
            else f" (order {self.order})"
        )
        return f"{file}:{self.line} in {self.function}{of}"

    def derivative_of(self, op: str) -> Source:
        """Return this place for the derivative of an op."""
        return replace(self, order=self.order + 1, of=(*self.of, op))

    @property
    def recomputed(self) -> Source:
        """Return this place for a value that a derivative recomputes."""
        return replace(self, order=self.order + 1)

    @property
    def short(self) -> str:
        """File name and line only: the same text on every machine."""
        return f"{os.path.basename(self.file)}:{self.line}"


def is_own(file: str) -> bool:
    """Return true if a file of code is the library's."""
    return file.startswith(_OWN) and not file.startswith(_AS_USER)


def is_users(file: str) -> bool:
    """Return true if code is the user's: not the library's, the standard library's or an installed package's."""
    return not (is_own(file) or file.startswith((*_INSTALLED, "<frozen ")))


_DEVICE: ContextVar[str | None] = ContextVar("the device that nodes are put on", default=None)


def device_here() -> str | None:
    """The device that nodes are put on here; None where none is named."""
    return _DEVICE.get()


@contextmanager
def placed_on(device: str | None) -> Iterator[None]:
    """Give every source that is noted in a block of code a device."""
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)


# Line of a program from another library while it is translated (`ctrlgrad.interop`).
_READ: ContextVar[Source | None] = ContextVar("the line that is being read", default=None)


# Line of the call whose work runs in a thread of the library, where no frame is the user's.
_CALLER: ContextVar[Source | None] = ContextVar("the line of the call", default=None)


def note_caller() -> None:
    """Remember the user's line in this context, for a thread that runs in it."""
    _CALLER.set(here())


@contextmanager
def read_from(source: Source | None) -> Iterator[None]:
    """Give nodes recorded in a block of code a line of another program; None changes nothing."""
    token = _READ.set(source or _READ.get())
    try:
        yield
    finally:
        _READ.reset(token)


def is_users_frame(frame: FrameType) -> bool:
    """Return true if a frame runs the user's code, not this library's or a library's that calls back into it."""
    file = frame.f_code.co_filename
    # A method that `dataclasses` writes for a class of the library has no file.
    is_written = file == "<string>" and str(frame.f_globals.get("__name__")).startswith("ctrlgrad.")
    return not is_written and not _lies_between(file)


@functools.lru_cache(4096)
def _lies_between(file: str) -> bool:
    """Return true if a file of code belongs to this library or to one that calls back into it."""
    return is_own(file) or any(part in file for part in _MACHINERY)


def user_frame() -> FrameType | None:
    """The innermost frame outside the library, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_frame(frame):
        frame = frame.f_back
    return frame


def called_function(package: str) -> str | None:
    """Name of the function that the user's line has called; None if it is not the package's."""
    user, called = user_frame(), None
    frame: FrameType | None = sys._getframe(1)
    while frame is not user and frame is not None:
        # Not the function that explains a wrong call.
        called, frame = called if frame.f_globals.get("__name__") == "ctrlgrad.advice" else frame, frame.f_back
    is_its = called is not None and str(called.f_globals.get("__name__")).startswith(package)
    return called.f_code.co_name if called is not None and is_its else None


def in_converted_code() -> bool:
    """Answer whether a function that autograph has converted is running: its code sees the runtime as `ag__`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and "ag__" not in frame.f_code.co_freevars:
        frame = frame.f_back
    return frame is not None


def library_function() -> tuple[str, str] | None:
    """Module and name of the Python function of NumPy or SciPy that the user has called, or None."""
    user, called = user_frame(), None
    frame: FrameType | None = sys._getframe(1)
    while frame is not user and frame is not None:
        parts = frame.f_code.co_filename.split(os.sep)
        found = next((name for name in _LIBRARIES if name in parts and not is_own(frame.f_code.co_filename)), None)
        if found is not None and not frame.f_code.co_name.startswith(("_", "<")):
            folders = [f for f in parts[len(parts) - parts[::-1].index(found) : -1] if f in _PUBLIC]
            module = ".".join([found, *folders[:1]])
            called = (module, frame.f_code.co_name)
        frame = frame.f_back
    return called


def user_operation() -> str:
    """Name of the bytecode operation at the user's line: "STORE_SUBSCR" for an assignment to an element."""
    frame = user_frame()
    return "" if frame is None else opcode.opname[frame.f_code.co_code[frame.f_lasti]]


def operation_text() -> str:
    """Text of the expression at the user's line; empty if its file cannot be read."""
    frame = user_frame()
    if frame is None:
        return ""
    line, last, start, end = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if line is None or start is None:
        return ""
    text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).encode()
    return text[start : end if last == line else None].decode(errors="replace")


def raised_at(error: BaseException) -> Source | None:
    """The innermost line of the user's code that an exception came through."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not _lies_between(code.co_filename):
            found = Source(code.co_filename, traceback.tb_lineno, code.co_qualname)
        traceback = traceback.tb_next
    return found


def here() -> Source | None:
    """The line of the innermost frame outside the library, or the line that is being read."""
    read = _READ.get()
    if read is not None:
        return replace(read, device=_DEVICE.get())
    frame = user_frame()
    if frame is None:
        return _CALLER.get()
    return Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname, device=_DEVICE.get())


# Instructions at which a frame stands when a statement raises, or when its generator's `throw` does.
_RAISING = frozenset(["RAISE_VARARGS", "YIELD_VALUE", "RESUME", "RETURN_GENERATOR", "SEND", "YIELD_FROM"])


def is_raised(error: BaseException) -> bool:
    """Return true if a statement outside the library, `raise` or `assert`, raised an exception, or a generator's
    `throw`; false for a mistake, which an operation of Python's or a function in C has found."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or is_own(traceback.tb_frame.f_code.co_filename):
        return False
    code, at = traceback.tb_frame.f_code.co_code, traceback.tb_lasti
    # A generator that has not begun stands at its first instruction, since Python 3.13 at its second.
    if at == 2 and opcode.opname[code[0]] == "RETURN_GENERATOR":
        return True
    return not 0 <= at < len(code) or opcode.opname[code[at]] in _RAISING
