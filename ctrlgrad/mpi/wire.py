"""Messages between ranks as bytes.

What goes from one rank to another is a header that the receiver checks, and the value as it lies in memory:

    prefix      what the message is, which run and graph it belongs to, its edge and frame, the value's dtype
    numbers     the iteration of each frame around; the value's shape (of a dead value, what its deadness comes from)
    payload     the array; of a stack, its arrays one after the other, each with a small header of its own

Each part begins at a multiple of 64 bytes. Nothing is pickled.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad import errors
from ctrlgrad.dtypes import dtype_code
from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.records import record

# The kinds of messages. A report and a death carry no value; those from the output on belong to no edge.
VALUE, DEAD, REPORT, OUTPUT, DONE, AGREED, FAILED, IDLE = range(8)
KINDS = ("value", "death", "report", "output", "end", "agreement", "failure", "report of an idle rank")
NO_EDGE = 0xFFFFFFFF
IDENTITY = 8

_MAGIC = b"cgdf"
_VERSION = 2
_ALIGN = 64
_MOST_DIMS = 64
# Magic, version, kind, how many tag numbers, how many of shape; identity; run; edge; frame; dtype; form; payload bytes.
_PREFIX = struct.Struct("<4sBBBB8sQII8siQ")
# A value's form: an array, a NumPy scalar, or a stack of so many arrays (0 or more).
_ARRAY, _SCALAR = -1, -2
_ELEMENT = struct.Struct("<8sQ")


@record
class Header:
    """Header of a message, which the receiver checks."""

    kind: int
    identity: bytes
    run: int
    edge: int = NO_EDGE
    frame: int = 0
    tag: tuple[int, ...] = ()
    dtype: str = ""
    shape: tuple[int, ...] = ()
    form: int = _ARRAY


def frame_number(frame: Sequence[str]) -> int:
    """A number for the path of a frame, for a header."""
    return zlib.crc32("/".join(frame).encode())


def encode(header: Header, payload: Sequence[Any] = ()) -> list[Any]:
    """The buffers of a message, in order."""
    size = sum(memoryview(part).nbytes for part in payload)
    dtype = header.dtype.encode()
    if len(dtype) > 8:
        raise ExecutionError("an array of this dtype cannot be sent to another rank", got=header.dtype)
    prefix = _PREFIX.pack(
        _MAGIC,
        _VERSION,
        header.kind,
        len(header.tag),
        len(header.shape),
        header.identity,
        header.run,
        header.edge,
        header.frame,
        dtype,
        header.form,
        size,
    )
    numbers = struct.pack(f"<{len(header.tag) + len(header.shape)}q", *header.tag, *header.shape)
    return [_padded(_padded(prefix) + numbers), *payload]


def encode_value(header: Header, value: Any) -> list[Any]:
    """The buffers of a message with a value: an array, a NumPy scalar, or a stack's list of arrays."""
    if isinstance(value, list):
        parts: list[Any] = []
        for element in value:
            array = np.asarray(element, order="C")
            fixed = _ELEMENT.pack(dtype_code(array.dtype).encode(), array.ndim)
            parts += [_padded(fixed + struct.pack(f"<{array.ndim}q", *array.shape)), _padded(array.tobytes())]
        return encode(replace(header, form=len(value)), parts)
    array = np.asarray(value, order="C")
    form = _ARRAY if isinstance(value, np.ndarray) else _SCALAR
    # The buffer keeps the array itself alive while it is sent, so no kernel takes it for its own and overwrites it.
    header = replace(header, dtype=dtype_code(array.dtype), shape=array.shape, form=form)
    return encode(header, [array.reshape(-1).view(np.uint8).data] if array.nbytes else [])


def decode(data: np.ndarray) -> tuple[Header, np.ndarray]:
    """A message's header and payload; `data` is uint8 `[bytes]`.

    Raises:
        ExecutionError: it is no message of this library and version, or not a whole one.
    """
    raw = data.data
    start = _aligned(_PREFIX.size)
    if len(raw) < start:
        raise _broken(f"{len(raw)} bytes")
    magic, version, kind, tags, dims, identity, run, edge, frame, dtype, form, size = _PREFIX.unpack_from(raw)
    if (magic, version) != (_MAGIC, _VERSION) or kind >= len(KINDS) or dims > _MOST_DIMS:
        raise _broken(f"a header that begins with {bytes(raw[:8])!r}")
    end = _aligned(start + 8 * (tags + dims))
    if len(raw) != end + size:
        raise _broken(f"{len(raw)} bytes instead of {end + size}")
    numbers = struct.unpack_from(f"<{tags + dims}q", raw, start)
    name = dtype.rstrip(b"\0").decode("ascii", "replace")
    return Header(kind, identity, run, edge, frame, numbers[:tags], name, numbers[tags:], form), data[end:]


def decode_value(header: Header, payload: np.ndarray) -> Any:
    """The value of a message; an array is a view of the payload."""
    if header.form >= 0:
        return decode_stack(header.form, payload)
    array = payload.view(np.dtype(header.dtype)).reshape(header.shape)
    return array if header.form == _ARRAY else array[()]


def decode_stack(count: int, payload: np.ndarray) -> list[np.ndarray]:
    found = []
    raw = payload.data
    at = 0
    try:
        for _ in range(count):
            dtype, dims = _ELEMENT.unpack_from(raw, at)
            shape = struct.unpack_from(f"<{min(dims, _MOST_DIMS)}q", raw, at + _ELEMENT.size)
            at += _aligned(_ELEMENT.size + 8 * dims)
            size = np.dtype(dtype.rstrip(b"\0").decode()).itemsize * int(np.prod(shape, dtype=np.int64))
            array = payload[at : at + size].view(np.dtype(dtype.rstrip(b"\0").decode())).reshape(shape)
            found.append(array)
            at += _aligned(size)
    except (struct.error, ValueError, TypeError) as error:
        raise _broken(f"a stack whose bytes do not fit its headers ({error})") from None
    return found


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned(len(data)), b"\0")


def _broken(got: str) -> ExecutionError:
    return ExecutionError(
        "a message from another rank cannot be read",
        expected=f"a message of format {_MAGIC.decode()} {_VERSION}",
        got=got,
        hint="start the same version of ctrlgrad on every rank",
    )


# An error of one rank, as all ranks raise it: its class by name and its text in JSON.


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
