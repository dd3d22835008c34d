"""An error of one rank, as the others raise it: its class by name and its text in JSON."""

from __future__ import annotations

import json

from ctrlgrad import errors
from ctrlgrad.errors import CtrlgradError, ExecutionError


def encode_error(error: BaseException) -> bytes:
    """The bytes of an error."""
    if isinstance(error, CtrlgradError):
        parts = {name: getattr(error, name) for name in ("problem", "expected", "got", "hint", "notes")}
        parts["source"] = None if error.source is None else str(error.source)
    else:
        parts = {"problem": f"{type(error).__name__}: {error}".rstrip(": ")}
    return json.dumps({"class": type(error).__name__, **parts}).encode()


def decode_error(data: bytes, rank: int) -> BaseException:
    """The error that a rank has had: of the same class if it is one of the library's, else an `ExecutionError`."""
    parts = json.loads(data)
    name = parts.pop("class")
    notes = [*parts.pop("notes", ()), f"on rank {rank}"]
    if name == KeyboardInterrupt.__name__:
        return KeyboardInterrupt(f"on rank {rank}")
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, CtrlgradError):
        kind = ExecutionError
    error = kind(**parts)
    error.notes += notes
    return error


__all__ = ["decode_error", "encode_error"]
