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
    writer.line(f"store i64 {counted(writer, following)}, ptr {variable}")
    writer.branch(head)
    writer.label(exit)


def counted(writer: Writer, number: str) -> str:
    """The same number, of which LLVM does not know that it grows by as much in each iteration.

    Where it knows, it looks for what else could be counted instead ("loop strength reduction"): for half of the time
    that it takes in all, where a loop has many addresses, and what it finds is no faster than a processor's own
    addresses of a base and an index. What hides the number is taken away before instructions are chosen.
    """
    address = hidden(writer, writer.op(f"inttoptr i64 {number} to ptr"))
    return writer.op(f"ptrtoint ptr {address} to i64")


def hidden(writer: Writer, address: str) -> str:
    """The same address, of which LLVM does not know how it was found: what uses it in a loop does not find it again."""
    writer.declare("ptr @llvm.launder.invariant.group.p0(ptr)")
    return writer.op(f"call ptr @llvm.launder.invariant.group.p0(ptr {address})")
