"""Loops over a count, as LLVM text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ctrlgrad.engines.native.text import Writer


@contextmanager
def counted_loop(writer: Writer, start: str, end: str, step: int | str = 1) -> Iterator[str]:
    """A loop over start, start + step, ... below end; gives the number."""
    variable = writer.alloca("i64")
    head, body, exit = writer.new_label("head"), writer.new_label("body"), writer.new_label("exit")
    writer.line(f"store i64 {start}, ptr {variable}")
    writer.branch(head)
    writer.label(head)
    i = writer.op(f"load i64, ptr {variable}")
    inside = writer.op(f"icmp slt i64 {i}, {end}")
    writer.branch_if(inside, body, exit)
    writer.label(body)
    yield i
    following = writer.op(f"add nsw i64 {i}, {step}")
    writer.line(f"store i64 {following}, ptr {variable}")
    writer.branch(head)
    writer.label(exit)


__all__ = ["counted_loop"]
