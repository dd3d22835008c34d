"""The two float types of fast products: their vectors on a processor, and how vectors are read and written.

A product is made of tiles: `rows` by `vectors` accumulators, as many as the vector registers hold beside a row of the
right operand and one broadcast element of the left (6 x 2 of 16 registers, 12 x 2 of 32; Goto and van de Geijn,
"Anatomy of High-Performance Matrix Multiplication", section 6).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.engines.native.products.function import Function, Number
from ctrlgrad.engines.native.target import Target
from ctrlgrad.records import record

KINDS = {"f": "f32", "d": "f64", "F": "c64", "D": "c128", "b": "i8", "B": "i8", "h": "i16", "H": "i16", "i": "i32"}
KINDS |= {"I": "i32", "l": "i64", "L": "i64", "q": "i64", "Q": "i64"}
"""The names that routines have for elements, by NumPy's characters."""


@record
class Real:
    """A float type (`name` "f32" or "f64") and the tile of its products on a processor."""

    name: str
    bytes: int
    lanes: int
    rows: int
    masks: bool
    vectors: int = 2

    @property
    def scalar(self) -> str:
        return "float" if self.bytes == 4 else "double"

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"f{self.bytes}")

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x {self.scalar}>"

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors

    @property
    def suffix(self) -> str:
        """The overload of an intrinsic function on vectors."""
        return f"v{self.lanes}{self.name}"

    @property
    def bits(self) -> str:
        return f"<{self.lanes} x i1>"

    @property
    def declarations(self) -> list[str]:
        v, m, s = self.vector, self.bits, self.suffix
        return [
            f"declare {v} @llvm.fmuladd.{s}({v}, {v}, {v})",
            f"declare {self.scalar} @llvm.fmuladd.{self.name}({self.scalar}, {self.scalar}, {self.scalar})",
            f"declare {v} @llvm.masked.load.{s}.p0(ptr, {m}, {v})",
            f"declare void @llvm.masked.store.{s}.p0({v}, ptr, {m})",
            f"declare {self.scalar} @llvm.vector.reduce.fadd.{s}({self.scalar}, {v})",
            f"declare {self.scalar} @llvm.fabs.{self.name}({self.scalar})",
            f"declare {self.scalar} @llvm.sqrt.{self.name}({self.scalar})",
        ]

    # Scalars.

    def element(self, f: Function, address: str) -> str:
        return f.load(self.scalar, address, self.bytes)

    def put(self, f: Function, value: str, address: str) -> None:
        f.store(self.scalar, value, address, self.bytes)

    def at(self, f: Function, pointer: str, index: Number) -> str:
        return f.at(pointer, index, self.scalar)

    def multiply_add(self, f: Function, a: str, b: str, c: str) -> str:
        t = self.scalar
        return f.op(f"call {t} @llvm.fmuladd.{self.name}({t} {a}, {t} {b}, {t} {c})")

    # Vectors.

    def read(self, f: Function, address: str, mask: str | None = None) -> str:
        """A vector from memory; lanes that the mask leaves out are 0 and are not touched."""
        if mask is None:
            return f.load(self.vector, address, self.bytes)
        given = f"ptr align {self.bytes} {address}, {self.bits} {mask}, {self.vector} zeroinitializer"
        return f.op(f"call {self.vector} @llvm.masked.load.{self.suffix}.p0({given})")

    def mask(self, f: Function, count: str) -> str:
        """The first `count` lanes."""
        wide = f"<{self.lanes} x i{8 * self.bytes}>"
        narrow = f.op(f"trunc i64 {count} to i{8 * self.bytes}") if self.bytes < 8 else count
        first = f.op(f"insertelement {wide} undef, i{8 * self.bytes} {narrow}, i32 0")
        counts = f.op(f"shufflevector {wide} {first}, {wide} undef, <{self.lanes} x i32> zeroinitializer")
        own = ", ".join(f"i{8 * self.bytes} {k}" for k in range(self.lanes))
        return f.op(f"icmp slt {wide} <{own}>, {counts}")

    def write(self, f: Function, value: str, address: str) -> None:
        f.store(self.vector, value, address, self.bytes)

    def write_first(self, f: Function, value: str, address: str, count: str, mask: str) -> None:
        """The first `count` lanes (1 to all) to memory: halves, where masked stores are slow or not there."""
        if self.masks:
            given = f"{self.vector} {value}, ptr align {self.bytes} {address}, {self.bits} {mask}"
            f.line(f"call void @llvm.masked.store.{self.suffix}.p0({given})")
            return
        left, place = f.variable(self.vector, value), f.variable("ptr", address)
        lanes, kind = self.lanes, self.vector
        while lanes:
            half = f"<{lanes} x {self.scalar}>" if lanes > 1 else self.scalar
            if not count.isdecimal() or int(count) & lanes:
                with f.when(f.test("ne", f.op(f"and i64 {count}, {lanes}"), 0)):
                    now, to = f.get(left), f.get(place)
                    if lanes > 1:
                        low = ", ".join(f"i32 {k}" for k in range(lanes))
                        first = f.op(f"shufflevector {kind} {now}, {kind} undef, <{lanes} x i32> <{low}>")
                    else:
                        first = f.op(f"extractelement {kind} {now}, i32 0")
                    f.store(half, first, to, self.bytes)
                    rest = ", ".join(f"i32 {(k + lanes) % self.lanes}" for k in range(self.lanes))
                    f.set(left, f.op(f"shufflevector {kind} {now}, {kind} undef, <{self.lanes} x i32> <{rest}>"))
                    f.set(place, self.at(f, to, lanes))
            lanes //= 2

    def spread(self, f: Function, value: str) -> str:
        """A scalar in every lane."""
        v = self.vector
        first = f.op(f"insertelement {v} undef, {self.scalar} {value}, i32 0")
        return f.op(f"shufflevector {v} {first}, {v} undef, <{self.lanes} x i32> zeroinitializer")

    def shuffled(self, f: Function, one: str, two: str, order: Sequence[int]) -> str:
        """Elements of two vectors, those of the second numbered after those of the first."""
        chosen = ", ".join(f"i32 {k}" for k in order)
        return f.op(f"shufflevector {self.vector} {one}, {self.vector} {two}, <{self.lanes} x i32> <{chosen}>")

    def fma(self, f: Function, a: str, b: str, c: str) -> str:
        v = self.vector
        return f.op(f"call {v} @llvm.fmuladd.{self.suffix}({v} {a}, {v} {b}, {v} {c})")

    def plus(self, f: Function, a: str, b: str) -> str:
        return f.op(f"fadd {self.vector} {a}, {b}")

    def total(self, f: Function, value: str) -> str:
        """The sum of a vector's lanes, in whatever order is fast."""
        t = self.scalar
        return f.op(f"call reassoc {t} @llvm.vector.reduce.fadd.{self.suffix}({t} -0.0, {self.vector} {value})")


def reals(target: Target) -> tuple[Real, Real]:
    """float32 and float64 on a processor."""
    rows = 12 if target.vector_registers == 32 else 6
    lanes, masks = target.vector_bytes, target.has("avx512f")
    return Real("f32", 4, lanes // 4, rows, masks), Real("f64", 8, lanes // 8, rows, masks)
