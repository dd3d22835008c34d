"""Messages between devices: what a message is, how an executor sends and receives them, and their bytes between ranks.

A message belongs to an edge of the partition and to a tag: the number of the iteration of each frame around, the root's
0 first. One message per edge and tag is sent and received, dead or alive; messages may overtake each other.

What goes from one rank to another is a header that the receiver checks, and the value as it lies in memory:

    prefix      what the message is, which run and graph it belongs to, its edge and frame, the value's dtype
    numbers     the iteration of each frame around; the value's shape (of a dead value, what its deadness comes from)
    payload     the array; of a stack, its arrays one after the other, each with a small header of its own

Each part begins at a multiple of 64 bytes. Nothing is pickled. The receiver knows from the partition what an edge
carries, and in which frame: a message that says anything else is an error, never a wrong number.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ctrlgrad import errors
from ctrlgrad.dataflow.frames import Dead, Tag
from ctrlgrad.dataflow.partition import Edge
from ctrlgrad.dtypes import dtype_code
from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.ir import StackType, TensorType
from ctrlgrad.records import record


@record
class Message:
    """What arrives: a value, or that it is dead. A report carries neither."""

    edge: int
    tag: Tag
    dead: Dead | None
    value: Any


class StuckError(Exception):
    """All devices wait and no message is on its way."""


class Transport(Protocol):
    """One device's end of all edges that it sends or receives on."""

    def send(self, edge: int, tag: Tag, dead: Dead | None, value: Any) -> None:
        """Send; returns at once. The receiver only reads the value, unless it has the last reference to it."""

    def receive(self) -> list[Message]:
        """Wait for messages; one at least.

        Raises:
            StuckError: no message can come any more.
            StoppedError: the run has been stopped.
        """

    def receive_now(self) -> list[Message]:
        """What has come, without waiting."""

    def done(self) -> None:
        """This device waits for nothing more."""


class StoppedError(Exception):
    """Another device has failed, or the user has interrupted: this one gives up."""


def stuck_error(waiting: Sequence[str]) -> ExecutionError:
    """The error of a run that cannot go on; `waiting` says which node waits for what, a line each."""
    shown = [*waiting[:12], *([f"and {len(waiting) - 12} more"] if len(waiting) > 12 else [])]
    return ExecutionError(
        "the dataflow graph cannot go on: nodes wait for values that will not come",
        expected="a value or its deadness for every operand",
        got="\n".join(shown),
        hint="look where the first of them gets its operand from",
    )


# Between ranks.

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
    """What a message says of itself."""

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
    """A number that stands for the path of a frame in a header."""
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
            parts += [_element_header(array), _padded(array.tobytes())]
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
        return _decode_stack(header.form, payload)
    array = payload.view(np.dtype(header.dtype)).reshape(header.shape)
    return array if header.form == _ARRAY else array[()]


def check(header: Header, payload: np.ndarray, edge: Edge | None, sender: int) -> None:
    """Whether a message is one that its edge can carry; `sender` is the rank that it came from, the edge is None where
    there is none of that number to this rank.

    Raises:
        ExecutionError: it is not.
    """
    expected, got = _said_of_edge(edge), _said_of_message(header, sender)
    if edge is None:
        raise _mismatch(header, "an edge that ends on this rank", f"edge {header.edge}, {got}")
    fits = (
        header.frame == frame_number(edge.frame)
        and len(header.tag) == len(edge.frame) + 1
        and all(number >= 0 for number in header.tag)
        and (header.kind == REPORT) == (edge.type is None)
    )
    if fits and header.kind == VALUE:
        fits = _fits(header, payload, edge.type)
    if not fits or header.kind not in (VALUE, DEAD, REPORT):
        raise _mismatch(header, expected, got)


def _fits(header: Header, payload: np.ndarray, type: TensorType | StackType | None) -> bool:
    if isinstance(type, StackType):
        return header.form >= 0 and all(
            type.element.accepts(TensorType(a.dtype, a.shape)) for a in _decode_stack(header.form, payload)
        )
    if type is None or header.form >= 0 or min(header.shape, default=0) < 0:
        return False
    size = type.dtype.itemsize * int(np.prod(header.shape, dtype=np.int64))
    return (
        header.dtype == dtype_code(type.dtype)
        and type.accepts(TensorType(type.dtype, header.shape))
        and payload.nbytes == size
    )


def _decode_stack(count: int, payload: np.ndarray) -> list[np.ndarray]:
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


def _element_header(array: np.ndarray) -> bytes:
    fixed = _ELEMENT.pack(dtype_code(array.dtype).encode(), array.ndim)
    return _padded(fixed + struct.pack(f"<{array.ndim}q", *array.shape))


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned(len(data)), b"\0")


def _said_of_edge(edge: Edge | None) -> str:
    if edge is None:
        return "no edge"
    carried = "a report" if edge.type is None else str(edge.type)
    return f"{carried} on edge {edge.number} from {edge.sender} to {edge.receiver}, in frame {_path(edge.frame)}"


def _said_of_message(header: Header, sender: int) -> str:
    said = f"a {KINDS[header.kind]} from rank {sender}"
    if header.kind == VALUE:
        of = f"a stack of {header.form}" if header.form >= 0 else f"{header.dtype}{list(header.shape)}"
        said += f": {of}"
    return f"{said}, at iteration {', '.join(map(str, header.tag[1:])) or 'none'}, frame number {header.frame:#x}"


def _path(frame: Sequence[str]) -> str:
    return "/".join(frame) or "the root"


def _mismatch(header: Header, expected: str, got: str) -> ExecutionError:
    return ExecutionError(
        "a message from another rank does not match its edge",
        expected=expected,
        got=got,
        hint="start the same program with the same versions of ctrlgrad and NumPy on every rank",
    )


def _broken(got: str) -> ExecutionError:
    return ExecutionError(
        "a message from another rank cannot be read",
        expected=f"a message of format {_MAGIC.decode()} {_VERSION}",
        got=got,
        hint="start the same version of ctrlgrad on every rank",
    )


# An error of one rank, as the others raise it: its class by name and its text in JSON.


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


__all__ = [
    "AGREED",
    "DEAD",
    "DONE",
    "FAILED",
    "IDENTITY",
    "IDLE",
    "KINDS",
    "NO_EDGE",
    "OUTPUT",
    "REPORT",
    "VALUE",
    "Header",
    "Message",
    "StoppedError",
    "StuckError",
    "Transport",
    "check",
    "decode",
    "decode_error",
    "decode_value",
    "encode",
    "encode_error",
    "encode_value",
    "frame_number",
    "stuck_error",
]
