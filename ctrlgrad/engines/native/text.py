"""LLVM's text: its types and constants for NumPy's dtypes, and the lines of one function as they are written.

Values are numbered in the order of the lines (`%12`), which costs LLVM least to read; what is put into the entry block
while later blocks are written has a name (`%e3`). A bool is one bit in registers and a byte in memory.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, dtype_kind

# Processors compute with few bfloat16 or none: its bits, widened to a float for each operation.
_TYPES = {"bool": "i1", "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double"}
_TYPES |= {f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


@functools.cache
def type_of(dtype: np.dtype, width: int = 1) -> str:
    """The type of a value in registers: of one element, or of a vector of `width`."""
    kind = _TYPES[dtype.name]
    return kind if width == 1 else f"<{width} x {kind}>"


@functools.cache
def memory_type_of(dtype: np.dtype, width: int = 1) -> str:
    """The type of what lies in memory: as in registers, but a bool is a byte."""
    return type_of(np.dtype(np.uint8) if dtype_kind(dtype) == "b" else dtype, width)


def constant(value: Any, dtype: np.dtype) -> str:
    """A number of a dtype, exactly."""
    if dtype_kind(dtype) == "b":
        return "true" if value else "false"
    if dtype_kind(dtype) in "iu":
        number, bits = int(value), 8 * dtype.itemsize
        return str(number - (1 << bits) if number >= 1 << (bits - 1) else number)
    if dtype == BFLOAT16:
        return str(int(dtype.type(value).view(np.int16)))
    if dtype.itemsize == 2:
        return f"0xH{int(dtype.type(value).view(np.uint16)):04X}"
    # A float is written as the double of its value; Python's is one.
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def splat(text: str, dtype: np.dtype, width: int) -> str:
    """A vector of one constant."""
    return f"splat ({type_of(dtype)} {text})"


def is_number(text: str) -> bool:
    """Return true if an integer operand is a literal, not a name."""
    return text.lstrip("-").isdecimal()


class Phi:
    """A phi whose incoming values become known while later blocks are written."""

    __slots__ = ("_incoming", "kind", "name")

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self._incoming: list[str] = []

    def add(self, value: str, label: str) -> None:
        """The value that it has when control comes from the block of a label."""
        self._incoming.append(f"[ {value}, %{label} ]")

    def __str__(self) -> str:
        return f"  {self.name} = phi {self.kind} {', '.join(self._incoming)}"


class Writer:
    """The lines of one function, and what its module has to declare for it.

    Functions of one module share `declarations` and `functions`: a writer is given another one of its module.

    Lines are written in order, into the block that `label` began last; the first block is `entry`.
    """

    def __init__(self, outer: Writer | None = None) -> None:
        self.declarations: dict[str, None] = {} if outer is None else outer.declarations
        # Names of the module's further functions, by their text behind the name.
        self.functions: dict[str, str] = {} if outer is None else outer.functions
        self.block = "entry"
        """The label of the block that is being written: what a phi names."""
        self._entry: list[str] = []
        self._lines: list[object] = []
        self._values = 0
        self._names = 0
        # Bytes of the memory that steps use in turn.
        self._passing = 0

    def fresh(self) -> str:
        """A name for the value of the next line; names must be used in the order in which they were given."""
        name = f"%{self._values}"
        self._values += 1
        return name

    def line(self, text: str) -> None:
        """Write an instruction that gives no value."""
        self._lines.append(f"  {text}")

    def late_line(self, text: object) -> None:
        """Write a line whose text is known when the function is complete."""
        self._lines.append(text)

    def op(self, text: str) -> str:
        """Write an instruction; the name of its value."""
        name = f"%{self._values}"
        self._values += 1
        self._lines.append(f"  {name} = {text}")
        return name

    def add(self, a: str, b: str) -> str:
        """The sum of two i64; of numbers that are known, the number."""
        if is_number(a) and is_number(b):
            return str(int(a) + int(b))
        return b if a == "0" else a if b == "0" else self.op(f"add i64 {a}, {b}")

    def multiply(self, a: str, b: str) -> str:
        """The product of two i64; of numbers that are known, the number."""
        if is_number(a) and is_number(b):
            return str(int(a) * int(b))
        if "0" in (a, b):
            return "0"
        return b if a == "1" else a if b == "1" else self.op(f"mul i64 {a}, {b}")

    def in_all_lanes(self, value: str, kind: str, width: int) -> str:
        """A vector of one value of a type."""
        vector = f"<{width} x {kind}>"
        first = self.op(f"insertelement {vector} poison, {kind} {value}, i64 0")
        return self.op(f"shufflevector {vector} {first}, {vector} poison, <{width} x i32> zeroinitializer")

    def at_entry(self, text: str) -> str:
        """Write an instruction at the end of what stands at the function's start; the name of its value."""
        name = f"%e{self._names}"
        self._names += 1
        self._entry.append(f"  {name} = {text}")
        return name

    def alloca(self, kind: str, align: int | None = None) -> str:
        """Memory for the time of the call; its address. LLVM makes registers of it where it can."""
        return self.at_entry(f"alloca {kind}" + (f", align {align}" if align else ""))

    def passing(self, nbytes: int, at: int = 0) -> str:
        """Memory that one step after another uses, from byte `at` on; its address."""
        self._passing = max(self._passing, at + nbytes)
        return self.op(f"getelementptr i8, ptr %passing, i64 {at}") if at else "%passing"

    def declare(self, signature: str) -> None:
        """Declare a function outside of the module, once: `float @sinf(float)`, with attributes behind it."""
        self.declarations[signature] = None

    def new_label(self, hint: str) -> str:
        """A label that no block has."""
        self._names += 1
        return f"{hint}.{self._names}"

    def label(self, name: str) -> None:
        """Begin a block."""
        self._lines.append(f"{name}:")
        self.block = name

    def branch(self, label: str) -> None:
        """End the block: go on at a label."""
        self._lines.append(f"  br label %{label}")

    def branch_if(self, condition: str, yes: str, no: str) -> None:
        """End the block: go on at one label or another."""
        self._lines.append(f"  br i1 {condition}, label %{yes}, label %{no}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Context of code that runs where the condition holds."""
        inside, after = self.new_label("when"), self.new_label("after")
        self.branch_if(condition, inside, after)
        self.label(inside)
        yield
        self.branch(after)
        self.label(after)

    def phi(self, kind: str) -> Phi:
        """Write a phi, at the start of a block."""
        phi = Phi(self.fresh(), kind)
        self._lines.append(phi)
        return phi

    def function(self, signature: str, alignment: int | None = None) -> str:
        """The function: `void @f(ptr %table)` with what has been written. Nothing is thrown through it.

        `alignment` is how its stack is aligned, for vectors that registers have no room for: LLVM comes to know of them
        when it has given the register away by which it would align the stack, and then lets them lie across two lines
        of the cache.
        """
        stack = f"alignstack({alignment}) " if alignment else ""
        passing = [f"  %passing = alloca [{self._passing} x i8], align 64"] if self._passing else []
        lines = [*passing, *self._entry, *map(str, self._lines)]
        return "\n".join([f"define {signature} {stack}nounwind {{", "entry:", *lines, "}", ""])

    def call(self, hint: str, inner: Writer, captures: Captures, alignment: int) -> None:
        """Write a call of what `inner` has written, a function of the module. Equal ones are one function."""
        inner.line("ret void")
        text = inner.function(f"({', '.join(captures.parameters)}) noinline", alignment)
        name = self.functions.setdefault(text.removeprefix("define "), f"{hint}{len(self.functions)}")
        self.line(f"call void @{name}({', '.join(captures.arguments)})")

    def module(self, *functions: str) -> str:
        """A module of functions with the declarations and the further functions of this writer."""
        declared = [f"declare {text}" for text in self.declarations]
        return "\n".join([*declared, *(f"define internal void @{n}{t}" for t, n in self.functions.items()), *functions])


class Captures:
    """Captures of a function: its parameters, in the order in which its text uses them."""

    def __init__(self) -> None:
        self.parameters: list[str] = []
        self.arguments: list[str] = []
        self._known: dict[Hashable, str] = {}

    def take(self, key: Hashable, kind: str, text: Callable[[], str]) -> str:
        """The name inside of what `text` gives outside; numbers that are known are written as they are."""
        if key not in self._known:
            outside = text()
            name = outside
            if outside.startswith("%"):
                name = f"%a{len(self.parameters)}"
                self.parameters.append(f"{kind} {name}")
                self.arguments.append(f"{kind} {outside}")
            self._known[key] = name
        return self._known[key]
