"""Serialise plans and optimised graphs: numbered rows, each of a declared kind.

The bytes are a line of JSON and, after it, blocks of raw bytes. The line holds the format's name, the kinds by name,
and the rows. A row is the number of its kind and then its parts, which are the numbers of earlier rows; the last row is
the whole. So what stands at several places is one row, and comes back as one object. Of the first two kinds are the
leaves: `[0, x]` is None, a bool, a number or a string, and `[1, n]` the next n raw bytes.

The other kinds are tuples, dictionaries, slices, dtypes, numbers and arrays of NumPy's, and the records and
enumerations of the modules in `HOMES`; the parts of a record are its fields. A `Vocabulary` adds what its user alone
knows, such as the nodes of a graph that reader and writer both have. Reading makes objects of these kinds and runs
nothing else, whatever the bytes say.
"""

from __future__ import annotations

import enum
import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import ModuleType
from typing import Any

import numpy as np

from ctrlgrad.ir import attributes, types
from ctrlgrad.plan import expression, model, places, sizes, values
from ctrlgrad.records import record

HOMES = (attributes, types, expression, model, places, sizes, values)
"""The modules whose records can be kept."""

_FORMAT = "ctrlgrad records, 1"
_ATOM, _BYTES = range(2)
_ATOMS = frozenset((type(None), bool, int, float, str))

Told = tuple[str, Sequence[Any]]
"""The kind of an object and its parts."""


class CannotWrite(Exception):
    """An object of no kind that is known."""


class CannotRead(Exception):
    """Bytes that are not in this format."""


@record
class Vocabulary:
    """Kinds: what the objects of a class tell of themselves, and what is made of a kind's parts."""

    tell: Mapping[type, Callable[[Any], Told]]
    make: Mapping[str, Callable[..., Any]]

    def __or__(self, other: Vocabulary) -> Vocabulary:
        return Vocabulary({**self.tell, **other.tell}, {**self.make, **other.make})


def written(item: Any, vocabulary: Vocabulary) -> bytes:
    """The bytes that tell of an object. Raises `CannotWrite` where something in it has no kind."""
    writer = _Writer(vocabulary)
    try:
        writer.place(item)
    except RecursionError:
        raise CannotWrite("regions in regions, too deep") from None
    head = json.dumps({"format": _FORMAT, "kinds": list(writer.kinds), "rows": writer.rows}, separators=(",", ":"))
    return b"".join((head.encode(), b"\n", *writer.blocks))


def read(data: bytes, vocabulary: Vocabulary) -> Any:
    """The object that `written` told of. Raises `CannotRead` for other bytes."""
    try:
        return _read(data, vocabulary)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CannotRead(str(error)) from error


def _read(data: bytes, vocabulary: Vocabulary) -> Any:
    end = data.index(b"\n") + 1
    head = json.loads(data[:end])
    if head["format"] != _FORMAT:
        raise ValueError(f"the format {head['format']!r}, expected {_FORMAT!r}")
    make = {**_records().make, **vocabulary.make}
    makers = [None, None, *(make[name] for name in head["kinds"][2:])]
    found: list[Any] = []
    for kind, *parts in head["rows"]:
        maker = makers[kind]
        if maker is not None:
            found.append(maker(*[found[k] for k in parts]))
        elif kind == _ATOM:
            found.append(parts[0])
        else:
            found.append(data[end : end + parts[0]])
            end += parts[0]
    if end != len(data):
        raise ValueError(f"{len(data)} bytes, expected {end}")
    return found[-1]


class _Writer:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.kinds = {"atom": _ATOM, "bytes": _BYTES}
        self.rows: list[list[Any]] = []
        self.blocks: list[bytes] = []
        self._tell = _Tells({**_records().tell, **vocabulary.tell})
        # Of each object its row, by its id; it is held, so that no other one gets that id.
        self._places: dict[int, int] = {}
        self._held: list[Any] = []
        # Rows of immutable objects that are equal by value and may be merged into one. Mutable objects, and objects
        # that equal only themselves, are not merged.
        self._merged: dict[tuple[Any, ...], int] = {}

    def place(self, item: Any) -> int:
        """The row of an object."""
        places = self._places
        place = places.get(id(item))
        if place is not None:
            return place
        cls = item.__class__
        key: tuple[Any, ...] | None = None
        row: list[Any]
        if cls in _ATOMS:
            key, row = (cls, repr(item) if cls is float else item), [_ATOM, item]  # 0.0 equals -0.0
        elif cls is bytes:
            self.blocks.append(item)
            row = [_BYTES, len(item)]
        else:
            kind, parts = self._tell[cls](item)
            row = [self.kinds.setdefault(kind, len(self.kinds))]
            for part in parts:
                known = places.get(id(part))
                row.append(self.place(part) if known is None else known)
            if cls.__hash__ is not None and cls.__hash__ is not object.__hash__:
                key = tuple(row)
        place = None if key is None else self._merged.get(key)
        if place is None:
            place = len(self.rows)
            self.rows.append(row)
            if key is not None:
                self._merged[key] = place
        places[id(item)] = place
        self._held.append(item)
        return place


class _Tells(dict[type, Callable[[Any], Told]]):
    """By class. NumPy has one for each dtype; another class that is not there is not known, whatever it inherits."""

    def __missing__(self, cls: type) -> Callable[[Any], Told]:
        for family in (np.dtype, np.generic):
            if issubclass(cls, family):
                self[cls] = self[family]
                return self[cls]
        raise CannotWrite(f"an object of {cls.__module__}.{cls.__qualname__}")


# Kinds that all have.


@functools.cache
def _records() -> Vocabulary:
    return functools.reduce(operator.or_, map(kinds_of, HOMES), _PLAIN)


def kinds_of(home: ModuleType) -> Vocabulary:
    """The records and enumerations that a module defines."""
    found = Vocabulary({}, {})
    for cls in vars(home).values():
        if isinstance(cls, type) and cls.__module__ == home.__name__:
            if is_dataclass(cls):
                found |= of_record(cls)
            elif issubclass(cls, enum.Enum):
                found |= _of_enumeration(cls)
    return found


def of_record(cls: type) -> Vocabulary:
    """A class of records as a kind, its fields as the parts."""
    name, names = _name(cls), [f.name for f in fields(cls)]
    get: Any = attrgetter(*names) if names else lambda one: ()
    tell = (lambda one: (name, (get(one),))) if len(names) == 1 else lambda one: (name, get(one))
    by_name = any(f.kw_only for f in fields(cls))
    make = (lambda *parts: cls(**dict(zip(names, parts, strict=True)))) if by_name else cls
    return Vocabulary({cls: tell}, {name: make})


def _told_dtype(dtype: np.dtype) -> Told:
    if dtype.hasobject or dtype.names is not None or not dtype.isnative:
        raise CannotWrite(f"an array of {dtype}")
    return "dtype", (dtype.name,)


def _of_enumeration(cls: type[enum.Enum]) -> Vocabulary:
    name = _name(cls)
    return Vocabulary({cls: lambda one: (name, (one.name,))}, {name: cls.__getitem__})


def _name(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def tell_array(array: np.ndarray) -> Told:
    return "array", (array.dtype, array.shape, array.tobytes())


def _array(dtype: np.dtype, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    array = np.frombuffer(data, dtype).reshape(shape).copy()  # whose memory is aligned, as that of the bytes is not
    array.flags.writeable = False
    return array


_PLAIN = Vocabulary(
    tell={
        tuple: lambda one: ("tuple", one),
        dict: lambda one: ("dict", tuple(one.items())),
        slice: lambda one: ("slice", (one.start, one.stop, one.step)),
        np.dtype: _told_dtype,
        np.generic: lambda one: ("scalar", (one.dtype, one.tobytes().hex())),
        np.ndarray: tell_array,
    },
    make={
        "tuple": lambda *parts: parts,
        "dict": lambda *items: dict(items),
        "slice": slice,
        "dtype": np.dtype,
        "scalar": lambda dtype, digits: np.frombuffer(bytes.fromhex(digits), dtype)[0],
        "array": _array,
    },
)
