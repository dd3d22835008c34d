"""Elements of arrays, read and written: one or a vector of them, by an address and a position in elements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native.reductions import element_parts
from ctrlgrad.engines.native.text import Writer, memory_type_of, type_of


class Elements:
    """Writes loads and stores. Where it is lies `further` elements beyond `at`; a complex one has two parts."""

    def __init__(self, writer: Writer) -> None:
        self.w = writer
        # Addresses by what computes them, within a turn.
        self._known: dict[str, str] | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What is written inside is one turn of a loop: an address that it has computed is there till its end."""
        self._known = {}
        yield
        self._known = None

    def load(self, base: str, at: str, dtype: np.dtype, part: int, width: int, further: int = 0) -> str:
        real, parts = element_parts(dtype)
        address = self._address(base, at, real, parts, part, further)
        kind = memory_type_of(real, width)
        value = self.w.op(f"load {kind}, ptr {address}, align {real.itemsize}")
        return self.w.op(f"trunc {kind} {value} to {type_of(real, width)}") if dtype_kind(real) == "b" else value

    def store(
        self, base: str, at: str, dtype: np.dtype, parts: int, part: int, value: str, width: int, further: int = 0
    ) -> None:
        address = self._address(base, at, dtype, parts, part, further)
        kind = memory_type_of(dtype, width)
        if dtype_kind(dtype) == "b":
            value = self.w.op(f"zext {type_of(dtype, width)} {value} to {kind}")
        self.w.line(f"store {kind} {value}, ptr {address}, align {dtype.itemsize}")

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


__all__ = ["Elements"]
