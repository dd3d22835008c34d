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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from ctrlgrad.engines.native.checked_memory import (
    AccessError,
    Address,
    Buffer,
    Nests,
    Pointer,
    converted,
    pointer_maker,
)
from ctrlgrad.engines.native.checked_products import gemm, gemv
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


def _look(address: int) -> int:
    """As `machine.look`."""
    left: int = ctypes.CFUNCTYPE(ctypes.c_int64)(address)()
    return left


def _sigmoid(x: Any) -> Any:
    half = x.dtype.type(0.5)
    return np.tanh(x * half) * half + half


def _number(dtype: np.dtype) -> Callable[[Any], Any]:
    return lambda value: converted(value, dtype)


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
    names |= {f"pointer_{name}": pointer_maker(name) for name in _DTYPES}
    names |= {name: _number(np.dtype(name)) for name in _DTYPES if name != "bool"}
    names |= {"fetch": lambda pointer, index: pointer.read(index, "fetch"), "shifted": _shifted}
    names |= {
        "widest_vectors": lambda: None,
        "gemm": gemm,
        "gemv": gemv,
        "span": _span,
        "invoke": _invoke,
        "look": _look,
    }
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


__all__ = ["CheckedFunction", "buffers_of", "checked", "is_checked"]
