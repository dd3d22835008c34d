"""Elements of arrays, read and written: one or a vector of them, by an address and a position in elements.

Of a vector, only the first lanes may be meant. Where the text knows how many, they are read and written in pieces,
which every processor does at once; where only the run knows, by a mask. A vector of complex numbers is two, of their
real and of their imaginary parts: in memory, where the parts of each lie side by side, one of twice as many lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.reductions import element_parts
from ctrlgrad.engines.native.text import Writer, memory_type_of, type_of

First = int | str
"""How many of a vector's first lanes are meant, or the name of their mask."""


class Elements:
    """Writes loads and stores. Where it is lies `further` elements beyond `at`; a complex one has two parts."""

    def __init__(self, writer: Writer) -> None:
        self.w = writer
        # Addresses by what computes them, within a turn.
        self._known: dict[str, str] | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Context of one turn of a loop: addresses computed inside are reused until its end."""
        self._known = {}
        yield
        self._known = None

    def load(
        self, base: str, at: str, dtype: np.dtype, part: int, width: int, further: int = 0, first: First | None = None
    ) -> str:
        """Load an element, a vector, or a vector's first lanes (the remaining lanes are 0). Of a complex element, load
        one part."""
        real, parts = element_parts(dtype)
        if width > 1 and parts == 2:
            # A kernel that reads both parts emits the same load twice; LLVM merges the two.
            both = self._vector(base, at, real, parts, 0, 2 * width, 2 * further, _of_pairs(self.w, first, width))
            kind, own = memory_type_of(real, 2 * width), _lanes(range(part, 2 * width, 2))
            return self.w.op(f"shufflevector {kind} {both}, {kind} poison, {own}")
        return self._vector(base, at, real, parts, part, width, further, first)

    def load_backwards(self, base: str, at: str, dtype: np.dtype, width: int, further: int) -> str:
        """Load a vector in reverse order: lane k lies `further` + k elements before `at`."""
        value, kind = self.load(base, at, dtype, 0, width, 1 - width - further), type_of(dtype, width)
        return self.w.op(f"shufflevector {kind} {value}, {kind} poison, {_lanes(range(width - 1, -1, -1))}")

    def _vector(
        self, base: str, at: str, real: np.dtype, parts: int, part: int, width: int, further: int, first: First | None
    ) -> str:
        kind = memory_type_of(real, width)
        if isinstance(first, int):
            value = "zeroinitializer"
            for start, lanes in _pieces(width, first):
                piece = memory_type_of(real, lanes)
                address = self._address(base, at, real, parts, part, further + start)
                loaded = self.w.op(f"load {piece}, ptr {address}, align {real.itemsize}")
                value = self._inserted(value, loaded, real, width, start, lanes)
        else:
            address = self._address(base, at, real, parts, part, further)
            value = self._loaded(kind, address, real, width, first)
        return self.w.op(f"trunc {kind} {value} to {type_of(real, width)}") if dtype_kind(real) == "b" else value

    def store(
        self,
        base: str,
        at: str,
        dtype: np.dtype,
        parts: int,
        part: int,
        value: str,
        width: int,
        further: int = 0,
        first: First | None = None,
    ) -> None:
        """Write an element, or a vector, or its first lanes; of complex numbers a part of one."""
        assert parts == 1 or width == 1, "the parts of several complex numbers are written together"
        self._store(base, at, dtype, parts, part, value, width, further, first)

    def store_parts(
        self,
        base: str,
        at: str,
        dtype: np.dtype,
        values: Sequence[str],
        width: int,
        further: int = 0,
        first: First | None = None,
    ) -> None:
        """Write an element of one part or two, or a vector of them, or its first lanes."""
        if len(values) == 1 or width == 1:
            for part, value in enumerate(values):
                self._store(base, at, dtype, len(values), part, value, width, further, first)
            return
        kind, order = memory_type_of(dtype, width), _lanes(k // 2 + k % 2 * width for k in range(2 * width))
        both = self.w.op(f"shufflevector {kind} {values[0]}, {kind} {values[1]}, {order}")
        # LLVM takes pairs with a zero for integers of twice the size. Where the array then lies in registers of 512
        # bits and the next reader takes a part of it, LLVM 22 cannot select an instruction, and aborts. A frozen value
        # hides the zeros from it.
        both = self.w.op(f"freeze {memory_type_of(dtype, 2 * width)} {both}")
        self._store(base, at, dtype, 2, 0, both, 2 * width, 2 * further, _of_pairs(self.w, first, width))

    def _store(
        self,
        base: str,
        at: str,
        dtype: np.dtype,
        parts: int,
        part: int,
        value: str,
        width: int,
        further: int,
        first: First | None,
    ) -> None:
        kind = memory_type_of(dtype, width)
        if dtype_kind(dtype) == "b":
            value = self.w.op(f"zext {type_of(dtype, width)} {value} to {kind}")
        if isinstance(first, str):
            address = self._address(base, at, dtype, parts, part, further)
            name = f"@llvm.masked.store.{_suffix(dtype, width)}.p0"
            self.w.declare(f"void {name}({kind}, ptr, i32 immarg, <{width} x i1>)")
            self.w.line(
                f"call void {name}({kind} {value}, ptr {address}, i32 {dtype.itemsize}, <{width} x i1> {first})"
            )
            return
        for start, lanes in [(0, width)] if first is None else _pieces(width, first):
            address = self._address(base, at, dtype, parts, part, further + start)
            piece = value if lanes == width else self._extracted(value, dtype, width, start, lanes)
            self.w.line(f"store {memory_type_of(dtype, lanes)} {piece}, ptr {address}, align {dtype.itemsize}")

    def first(self, width: int, count: int | str) -> First:
        """Selection of a vector's first `count` lanes: the number if it is known, else a mask."""
        if isinstance(count, int):
            return count
        count = self.w.in_all_lanes(self.w.op(f"trunc i64 {count} to i32"), "i32", width)
        numbers = ", ".join(f"i32 {k}" for k in range(width))
        return self.w.op(f"icmp ugt <{width} x i32> {count}, <{numbers}>")

    def _loaded(self, kind: str, address: str, dtype: np.dtype, width: int, mask: str | None) -> str:
        """Load the vector at an address, or the lanes that a mask selects."""
        if mask is None:
            return self.w.op(f"load {kind}, ptr {address}, align {dtype.itemsize}")
        name = f"@llvm.masked.load.{_suffix(dtype, width)}.p0"
        self.w.declare(f"{kind} {name}(ptr, i32 immarg, <{width} x i1>, {kind})")
        where = f"ptr {address}, i32 {dtype.itemsize}, <{width} x i1> {mask}"
        return self.w.op(f"call {kind} {name}({where}, {kind} zeroinitializer)")

    def _inserted(self, vector: str, piece: str, dtype: np.dtype, width: int, first: int, lanes: int) -> str:
        """A vector with a piece in it, whose lanes before it are there and whose other lanes are 0."""
        kind, of_piece = memory_type_of(dtype, width), memory_type_of(dtype, lanes)
        if lanes == 1:
            return self.w.op(f"insertelement {kind} {vector}, {of_piece} {piece}, i64 {first}")
        widened = _lanes(min(k, lanes) for k in range(width))
        piece = self.w.op(f"shufflevector {of_piece} {piece}, {of_piece} zeroinitializer, {widened}")
        if first == 0:
            return piece
        places = _lanes(k if k < first else min(width + k - first, 2 * width - 1) for k in range(width))
        return self.w.op(f"shufflevector {kind} {vector}, {kind} {piece}, {places}")

    def _extracted(self, vector: str, dtype: np.dtype, width: int, first: int, lanes: int) -> str:
        """A piece of a vector."""
        kind = memory_type_of(dtype, width)
        if lanes == 1:
            return self.w.op(f"extractelement {kind} {vector}, i64 {first}")
        return self.w.op(f"shufflevector {kind} {vector}, {kind} poison, {_lanes(range(first, first + lanes))}")

    def _address(self, base: str, at: str, dtype: np.dtype, parts: int, part: int, further: int) -> str:
        kind = memory_type_of(dtype)
        if parts == 2:
            at = self.w.add(self.w.multiply(at, "2"), str(part))
        address = self._op(f"getelementptr {kind}, ptr {base}, i64 {at}")
        return address if further == 0 else self._op(f"getelementptr {kind}, ptr {address}, i64 {further}")

    def _op(self, text: str) -> str:
        """The name of an instruction's value, which a turn computes once."""
        if self._known is None:
            return self.w.op(text)
        if text not in self._known:
            self._known[text] = self.w.op(text)
        return self._known[text]


def _of_pairs(writer: Writer, first: First | None, width: int) -> First | None:
    """The first lanes of a vector of complex numbers, as lanes of their parts in memory."""
    if not isinstance(first, str):
        return None if first is None else 2 * first
    mask = f"<{width} x i1>"
    return writer.op(f"shufflevector {mask} {first}, {mask} poison, {_lanes(k // 2 for k in range(2 * width))}")


def _suffix(dtype: np.dtype, width: int) -> str:
    """Suffix of memory intrinsics' names: `v4f64`, `v8i32`."""
    letter = "f" if memory_type_of(dtype) in ("half", "float", "double") else "i"
    return f"v{width}{letter}{8 * dtype.itemsize}"


def _pieces(width: int, count: int) -> Iterator[tuple[int, int]]:
    """The first lanes of a vector as few vectors of powers of two: where each begins, how many it has."""
    first, lanes = 0, width
    while first < count:
        if lanes <= count - first:
            yield first, lanes
            first += lanes
        lanes //= 2


def _lanes(numbers: Iterable[int]) -> str:
    """Numbers of lanes."""
    found = [f"i32 {number}" for number in numbers]
    return f"<{len(found)} x i32> <{', '.join(found)}>"
