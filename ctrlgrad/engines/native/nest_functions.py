"""Kernels that the plan makes functions (`Plan.functions`), as LLVM text."""

from __future__ import annotations

from collections.abc import Callable

from ctrlgrad.engines.native.nests import KernelWriter, cannot_fail
from ctrlgrad.engines.native.text import Captures, Writer, type_of
from ctrlgrad.plan.model import Array, Kernel, Register
from ctrlgrad.plan.sizes import Size


def call_kernel(
    writer: Writer,
    kernel: Kernel,
    place: Callable[[Array], str],
    number: Callable[[Register], str],
    size: Callable[[Size], str],
    vector_bytes: int,
) -> None:
    """Write a call of a kernel's function `void @nestK(addresses, numbers, sizes)`."""
    given, inner = Captures(), Writer(writer)
    KernelWriter(
        inner,
        kernel,
        lambda array: given.take(array, "ptr", lambda: place(array)),
        lambda register: given.take(register, type_of(register.dtype), lambda: number(register)),
        lambda wanted: given.take(wanted, "i64", lambda: size(wanted)),
        cannot_fail,
        vector_bytes,
    ).write()
    writer.call("nest", inner, given, vector_bytes)
