"""Memory whose every access is checked, for loops that run as plain Python; see `checked` for the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class AccessError(AssertionError):
    """Generated code does what it must not."""


class OutOfBuffer(AccessError):
    """An access outside of a buffer."""

    def __init__(self, operation: str, buffer: Buffer, index: int) -> None:
        super().__init__(f"{operation}: element {index} of {buffer.name}, which has {buffer.size} elements")


@dataclass
class Buffer:
    """What an address in the table stands for. `given`: how many leading rows hold values when the function starts."""

    name: str
    array: np.ndarray
    given: int | None = None
    writable: bool = True
    # When the function returns, what stands at this place holds values in full, or as many rows as another place says.
    is_result: bool = False
    length_place: int | None = None
    flat: np.ndarray = field(init=False)
    written: bytearray = field(init=False)

    def __post_init__(self) -> None:
        array = self.array.view(np.uint8) if self.array.dtype == bool else self.array
        low, high = np.lib.array_utils.byte_bounds(array)
        self.address = low
        if array.ctypes.data != low:
            raise AccessError(f"{self.name}: the address given is not that of the first element")
        count = (high - low) // array.itemsize
        self.flat = np.lib.stride_tricks.as_strided(array, (count,), (array.itemsize,))
        # A bool is a byte in memory.
        self.row = int(np.prod(array.shape[1:])) if array.ndim else 1
        given = count if self.given is None else self.given * self.row
        self.written = bytearray(b"\1" * given + b"\0" * (count - given))

    @property
    def size(self) -> int:
        return len(self.written)

    def check_result(self, table: list[Any]) -> None:
        """At the end: what the driver takes back was written."""
        end = self.size if self.length_place is None else int(table[self.length_place]) * self.row
        if end > self.size:
            raise OutOfBuffer("the length given back", self, end - 1)
        if self.written.find(0, 0, end) >= 0:
            raise AccessError(f"{self.name}: element {self.written.find(0, 0, end)} of {end} was never written")


class Address(int):
    """An address that knows its buffer."""

    buffer: Buffer

    def __new__(cls, buffer: Buffer) -> Address:
        made = super().__new__(cls, buffer.address)
        made.buffer = buffer
        return made


class Pointer:
    """Element `start` of a buffer."""

    __slots__ = ("buffer", "flat", "start", "written")

    def __init__(self, buffer: Buffer, start: int = 0) -> None:
        self.buffer, self.flat, self.written, self.start = buffer, buffer.flat, buffer.written, start

    def place(self, index: Any, operation: str) -> int:
        place = self.start + int(index)
        if not 0 <= place < len(self.written):
            raise OutOfBuffer(operation, self.buffer, place)
        return place

    def read(self, index: Any, operation: str) -> Any:
        place = self.place(index, operation)
        if not self.written[place]:
            raise AccessError(f"{operation}: element {place} of {self.buffer.name} was never written")
        return self.flat[place]

    def write(self, index: Any, value: Any, operation: str) -> None:
        place = self.place(index, operation)
        if not self.buffer.writable:
            raise AccessError(f"{operation}: {self.buffer.name} may only be read")
        self.flat[place] = converted(value, self.flat.dtype)
        self.written[place] = 1

    def address(self, index: Any) -> int:
        return self.buffer.address + (self.start + int(index)) * self.flat.itemsize

    def __getitem__(self, index: Any) -> Any:
        return self.read(index, "read")


def converted(value: Any, dtype: np.dtype) -> Any:
    """A number in another type, as a processor does it: integers wrap."""
    known = isinstance(value, np.generic) and value.dtype == dtype
    return value if known else np.asarray(value).astype(dtype)[()]


def pointer_maker(name: str) -> Callable[[Any], Pointer]:
    """What makes a pointer to elements of a type of an address."""
    wanted = np.dtype(np.uint8 if name == "bool" else name)

    def pointer(address: Any) -> Pointer:
        if not isinstance(address, Address):
            raise AccessError(f"pointer_{name}: {address!r} is no address from the table")
        if address.buffer.flat.dtype != wanted:
            raise AccessError(f"pointer_{name}: {address.buffer.name} is of {address.buffer.flat.dtype}")
        return Pointer(address.buffer)

    return pointer


class Nests:
    """What each loop nest loaded and stored in its present execution. A nest that stores says when it begins."""

    def __init__(self) -> None:
        self.stores: dict[int, int] = {}
        self.loaded: dict[int, set[int]] = {}
        self.stored: dict[int, dict[int, int]] = {}

    def begin(self, loop: int, stores: int) -> None:
        """A loop with so many stores begins."""
        self.stores[loop], self.loaded[loop], self.stored[loop] = stores, set(), {}

    def load(self, pointer: Pointer, index: Any, loop: int) -> Any:
        if loop in self.stores:
            address = pointer.address(index)
            if address in self.stored[loop]:
                raise AccessError(f"load: loop {loop} stored element {int(index)} of {pointer.buffer.name} before")
            self.loaded[loop].add(address)
        return pointer.read(index, "load")

    def store(self, pointer: Pointer, index: Any, value: Any, loop: int, number: int) -> None:
        if number >= self.stores.get(loop, 0):
            raise AccessError(f"store: loop {loop} began without a store of number {number}")
        address, name = pointer.address(index), pointer.buffer.name
        if address in self.loaded[loop]:
            raise AccessError(f"store: loop {loop} loaded element {int(index)} of {name} before")
        if self.stored[loop].setdefault(address, number) != number:
            raise AccessError(f"store: another store of loop {loop} wrote element {int(index)} of {name}")
        pointer.write(index, value, "store")


__all__ = ["AccessError", "Address", "Buffer", "Nests", "OutOfBuffer", "Pointer", "converted", "pointer_maker"]
