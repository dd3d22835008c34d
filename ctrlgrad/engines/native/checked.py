"""A test mode: generated loops run as plain Python, and every access to memory is checked.

Within `checked()` a loop is not compiled. Its source runs in the Python interpreter, element by element, with pointers
that know their buffer. An `AccessError` is raised where

- an access leaves its buffer, or a matrix product one of its matrices;
- an element is read that nothing wrote, be it in a temporary, in a carry's other array or in a fresh block of a stack;
- something is written into what the function may only read;
- a promise made to LLVM (`machine`) is broken: within one execution of a loop nest no `load` touches what a `store` of
  that nest writes, and no two stores of different numbers touch each other;
- a carried array or a row of a stack is handed back with elements that were never written.

Scalar functions are NumPy's, so results agree with the reference engine to rounding. What compilation itself may get
wrong (the kernels of `elementary`, types that Numba infers) is not seen here.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ctrlgrad.engines.native.elementary_table import KERNELS
from ctrlgrad.engines.native.program import FIRST_ENTRY, STATUS, LoopProgram, Status

_ON: ContextVar[bool] = ContextVar("checked", default=False)


@contextmanager
def checked() -> Iterator[None]:
    """Loops that are planned and run within are checked; compiled ones are neither used nor replaced."""
    before = _ON.set(True)
    try:
        yield
    finally:
        _ON.reset(before)


def is_checked() -> bool:
    return _ON.get()


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
        self.flat[place] = _converted(value, self.flat.dtype)
        self.written[place] = 1

    def address(self, index: Any) -> int:
        return self.buffer.address + (self.start + int(index)) * self.flat.itemsize

    def __getitem__(self, index: Any) -> Any:
        return self.read(index, "read")


def _converted(value: Any, dtype: np.dtype) -> Any:
    """A number in another type, as a processor does it: integers wrap."""
    known = isinstance(value, np.generic) and value.dtype == dtype
    return value if known else np.asarray(value).astype(dtype)[()]


def _pointer_maker(name: str) -> Callable[[Any], Pointer]:
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


@dataclass(frozen=True)
class Matrix:
    """A matrix or vector in a buffer: `places` are its elements."""

    name: str
    pointer: Pointer
    places: np.ndarray

    def __post_init__(self) -> None:
        """Its ends lie in the buffer."""
        for end in (self.places.min(), self.places.max()) if self.places.size else ():
            self.pointer.place(int(end) - self.pointer.start, self.name)

    def values(self) -> np.ndarray:
        """Its elements, which must have been written."""
        missing = [place for place in self.places.flat if not self.pointer.written[place]]
        if missing:
            raise AccessError(f"{self.name}: element {missing[0]} of {self.pointer.buffer.name} was never written")
        return np.asarray(self.pointer.flat[self.places])


def _matrix(name: str, pointer: Pointer, rows: int, columns: int, leading: int) -> Matrix:
    if leading < max(1, rows):
        raise AccessError(f"matrix {name} of a product has the leading dimension {leading}, and {rows} rows")
    places = pointer.start + np.arange(rows)[:, None] + leading * np.arange(columns)
    return Matrix(f"matrix {name} of a product", pointer, places)


def _vector(name: str, pointer: Pointer, length: int, step: int) -> Matrix:
    if step < 1:
        raise AccessError(f"vector {name} of a product has the step {step}")
    return Matrix(f"vector {name} of a product", pointer, pointer.start + step * np.arange(length))


def _gemm(
    routine: Any,
    transpose_a: int,
    transpose_b: int,
    m: int,
    n: int,
    k: int,
    alpha: Any,
    a: Pointer,
    lda: int,
    b: Pointer,
    ldb: int,
    beta: Any,
    c: Pointer,
    ldc: int,
) -> None:
    """As `machine.gemm`, on elements that are all checked first."""
    plain_a, plain_b = transpose_a == ord("N"), transpose_b == ord("N")
    left = _matrix("A", a, *((m, k) if plain_a else (k, m)), int(lda))
    right = _matrix("B", b, *((k, n) if plain_b else (n, k)), int(ldb))
    result = _matrix("C", c, m, n, int(ldc))
    if m and n:
        a_, b_ = left.values(), right.values()
        _update(result, (left, right), alpha * ((a_ if plain_a else a_.T) @ (b_ if plain_b else b_.T)), beta)


def _gemv(
    routine: Any,
    transpose: int,
    m: int,
    n: int,
    alpha: Any,
    a: Pointer,
    lda: int,
    x: Pointer,
    step_x: int,
    beta: Any,
    y: Pointer,
    step_y: int,
) -> None:
    """As `machine.gemv`. BLAS leaves y as it is where m or n is 0."""
    plain = transpose == ord("N")
    length_x, length_y = (n, m) if plain else (m, n)
    matrix = _matrix("A", a, m, n, int(lda))
    vector, result = (_vector(*v) for v in (("x", x, length_x, int(step_x)), ("y", y, length_y, int(step_y))))
    if m and n:
        values = matrix.values()
        _update(result, (matrix, vector), alpha * ((values if plain else values.T) @ vector.values()), beta)


def _update(result: Matrix, operands: Sequence[Matrix], product: Any, beta: Any) -> None:
    """Write a product into a matrix that may not overlap its operands."""
    pointer = result.pointer
    for operand in operands:
        if operand.pointer.buffer is pointer.buffer and np.intersect1d(operand.places, result.places).size:
            raise AccessError(f"{operand.name} and {result.name} overlap in {pointer.buffer.name}")
    if not pointer.buffer.writable:
        raise AccessError(f"{result.name}: {pointer.buffer.name} may only be read")
    pointer.flat[result.places] = product if beta == 0 else product + beta * result.values()
    for place in result.places.flat:
        pointer.written[place] = 1


# What generated code calls.


def _shifted(pointer: Pointer, distance: Any) -> Pointer:
    return Pointer(pointer.buffer, pointer.start + int(distance))


def _span(pointer: Pointer, index: Any, count: int, writes: int) -> int:
    """As `machine.span`, on elements that are all checked first."""
    first = pointer.place(index, "span") if count else pointer.start
    if count:
        pointer.place(int(index) + count - 1, "span")
    if writes:
        if not pointer.buffer.writable:
            raise AccessError(f"span: {pointer.buffer.name} may only be read")
        pointer.written[first : first + count] = b"\1" * count
    elif pointer.written.find(0, first, first + count) >= 0:
        raise AccessError(f"span: an element of {pointer.buffer.name} was never written")
    return pointer.address(index)


def _invoke(routine: int, number: int, addresses: Pointer) -> int:
    """As `machine.invoke`."""
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(routine)
    status: int = function(number, addresses.address(0))
    return status


def _sigmoid(x: Any) -> Any:
    half = x.dtype.type(0.5)
    return np.tanh(x * half) * half + half


def _number(dtype: np.dtype) -> Callable[[Any], Any]:
    return lambda value: _converted(value, dtype)


_DTYPES = [
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
_NUMPY = {"sigmoid": _sigmoid}


@functools.cache
def _functions() -> dict[str, Any]:
    """The names that mean the same in every run."""
    from ctrlgrad.engines.native import scalars  # imports Numba, which the rest of this file does without

    names: dict[str, Any] = {}
    for name, function in scalars.FUNCTIONS.items():
        known = getattr(np, name.removeprefix("complex_"), None)
        names[name] = known if isinstance(known, np.ufunc) and known.nin == 1 else function.py_func
    for (op, _), kernel in KERNELS.items():
        names[kernel.name] = _NUMPY.get(op) or getattr(np, op)
    names |= {f"pointer_{name}": _pointer_maker(name) for name in _DTYPES}
    names |= {name: _number(np.dtype(name)) for name in _DTYPES if name != "bool"}
    names |= {"fetch": lambda pointer, index: pointer.read(index, "fetch"), "shifted": _shifted}
    names |= {"widest_vectors": lambda: None, "gemm": _gemm, "gemv": _gemv, "span": _span, "invoke": _invoke}
    names |= {"put": lambda pointer, index, value: pointer.write(index, value, "put"), "inf": np.inf, "nan": np.nan}
    return names


@functools.lru_cache(maxsize=256)
def _code(source: str) -> Any:
    return compile(source, "<checked loop>", "exec")


def _check_apart(buffers: list[Buffer]) -> None:
    """What is written overlaps nothing else."""
    ordered = sorted((b for b in buffers if b.size), key=lambda b: b.address)
    end, last = 0, None
    for buffer in ordered:
        if last is not None and buffer.address < end and (buffer.writable or last.writable):
            raise AccessError(f"{buffer.name} overlaps {last.name}")
        if buffer.address + buffer.flat.nbytes >= end:
            end, last = buffer.address + buffer.flat.nbytes, buffer


class CheckedFunction:
    """The function of a source, in Python."""

    def __init__(self, source: str) -> None:
        self.code = _code(source)

    def run(self, table: np.ndarray, buffers: Mapping[int, Buffer]) -> None:
        """Run on a table whose places `buffers` are addresses. Raises `AccessError`."""
        _check_apart(list(buffers.values()))
        nests = Nests()
        names = {**_functions(), "scopes": nests.begin, "load": nests.load, "store": nests.store}
        exec(self.code, names)
        given = table.tolist()
        for place, buffer in buffers.items():
            if given[place] != buffer.address:
                raise AccessError(f"place {place} of the table is not the address of {buffer.name}")
            given[place] = Address(buffer)
        with np.errstate(all="ignore"):
            names["loop"](given)
        table[:] = [int(x) for x in given]
        if table[STATUS] <= Status.EMPTY:  # otherwise the driver uses nothing of it
            for place, buffer in buffers.items():
                if buffer.is_result:
                    given[place].buffer.check_result(given)


class Execution(Protocol):
    """What a run of a loop has that the table points to; `loop` says what each is."""

    program: LoopProgram
    table: np.ndarray
    kept: dict[int, np.ndarray]
    temporaries: dict[int, np.ndarray]
    scalars: dict[int, np.ndarray]
    states: dict[int, list[np.ndarray]]
    stacks: Any


def buffers_of(execution: Execution) -> dict[int, Buffer]:
    """What stands behind each address in a run's table, by its place."""
    buffers = {}
    for place, entry in enumerate(execution.program.entries, FIRST_ENTRY):
        kind, position = entry.kind, entry.position
        if kind in ("operand", "constant"):
            buffers[place] = Buffer(f"{kind} {position}", execution.kept[place], writable=entry.is_writable)
        elif kind == "temporary":
            buffers[place] = Buffer(f"the temporary at place {place}", execution.temporaries[place], given=0)
        elif kind == "scalar":
            buffers[place] = Buffer(f"scalar {position}", execution.scalars[position], is_result=True)
        elif kind in ("state", "other"):
            (array,) = (x for x in execution.states[position] if x.ctypes.data == execution.table[place])
            is_state = kind == "state"
            buffers[place] = Buffer(f"an array of carry {position}", array, None if is_state else 0, is_result=is_state)
        elif kind == "rows":
            buffers[place] = _rows(execution.stacks[position])
        elif kind == "written":
            buffers[place] = Buffer(f"the marks of stack {position}", execution.stacks[position].stack.written)
    return buffers


def _rows(stack: Any) -> Buffer:
    writable = stack.use.mode in ("push", "whole")
    length = stack.place["length"]
    name = f"stack {stack.use.position} ({stack.use.mode})"
    return Buffer(name, stack.block, stack.start, writable, is_result=True, length_place=length)


__all__ = ["AccessError", "CheckedFunction", "OutOfBuffer", "buffers_of", "checked", "is_checked"]
