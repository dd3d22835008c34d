"""Kernels that the plan makes functions (`Plan.functions`), as LLVM text."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ctrlgrad.engines.native.nests import KernelWriter, cannot_fail
from ctrlgrad.engines.native.text import Writer, type_of
from ctrlgrad.plan.model import Array, Kernel, Register
from ctrlgrad.plan.sizes import Size


class _Given:
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


class NestFunctions:
    """The functions `void @nestK(addresses, numbers, sizes)` of a plan's kernels, each written once."""

    def __init__(self, vector_bytes: int) -> None:
        self.vector_bytes = vector_bytes
        # Names by what comes after them in the text.
        self.names: dict[str, str] = {}

    def call(
        self,
        writer: Writer,
        kernel: Kernel,
        place: Callable[[Array], str],
        number: Callable[[Register], str],
        size: Callable[[Size], str],
    ) -> str | None:
        """Write a call of a kernel's function; the function's text, where it is a new one."""
        given, inner = _Given(), Writer(writer.declarations)
        KernelWriter(
            inner,
            kernel,
            lambda array: given.take(array, "ptr", lambda: place(array)),
            lambda register: given.take(register, type_of(register.dtype), lambda: number(register)),
            lambda wanted: given.take(wanted, "i64", lambda: size(wanted)),
            cannot_fail,
            self.vector_bytes,
        ).write()
        inner.line("ret void")
        text = inner.function(f"internal void @nest({', '.join(given.parameters)}) noinline", self.vector_bytes)
        rest = text.removeprefix("define internal void @nest")
        name, is_new = self.names.get(rest, f"nest{len(self.names)}"), rest not in self.names
        self.names[rest] = name
        writer.line(f"call void @{name}({', '.join(given.arguments)})")
        return f"define internal void @{name}{rest}" if is_new else None
