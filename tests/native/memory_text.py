"""What a line of generated code reads and writes."""

from __future__ import annotations

import re
from collections.abc import Callable

from ctrlgrad.engines.native.memory_trace import Bind, Count, Disturbed, Swap

_ACCESS = re.compile(r"\b(fetch|load|put|store|shifted|span|gemm|gemv)\(")
_NAME = re.compile(r"[A-Za-z_]\w*")

# A buffer and an index.
Place = tuple[str, str]


def _arguments(text: str, start: int) -> list[str]:
    """The arguments of the call whose first one begins at `start`."""
    parts, depth, begin = [], 0, start
    for place in range(start, len(text)):
        letter = text[place]
        if letter == "(":
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        elif letter in ",)" and not depth:
            parts.append(text[begin:place].strip())
            begin = place + 1
            if letter == ")":
                break
    return parts


def accesses(text: str) -> tuple[list[Place], list[Place]]:
    """The places that a line reads, and those that it writes."""
    reads, writes, shifted = [], [], []
    is_product = False
    for match in _ACCESS.finditer(text):
        name, arguments = match[1], _arguments(text, match.end())
        if name in ("gemm", "gemv"):
            is_product = True
            continue
        place = (arguments[0], arguments[1])
        if name in ("put", "store") or (name == "span" and arguments[3] == "1"):
            writes.append(place)
        elif name == "shifted":
            shifted.append(place)
        else:
            reads.append(place)
    if is_product:
        writes.append(shifted.pop())
    return reads + shifted, writes


def structure(text: str) -> Bind | Swap | Count | Disturbed | None:
    """What a line does to pointers and to the lengths of stacks."""
    if found := re.fullmatch(r"([AB]\w*) = pointer_\w+\((\w+)\)", text):
        return Bind(found[1], found[2])
    if found := re.fullmatch(r"([AB]\d+) = shifted\((S\d+), (.*)\)", text):
        return Bind(found[1], found[2], int("+ 1" in found[3]))
    if found := re.fullmatch(r"(a\w*), (b\w*) = (b\w*), (a\w*)", text):
        return Swap(found[1], found[2])
    if found := re.fullmatch(r"n(\d+) ([+-])= 1", text):
        return Count(f"S{found[1]}", 1 if found[2] == "+" else -1)
    if found := re.fullmatch(r"n(\d+) = .*", text):
        return Disturbed(f"S{found[1]}")
    return None


def expanded(index: str, written_out: Callable[[str], str]) -> str:
    """An index with names replaced until none is left to replace."""
    for _ in range(8):
        index = _NAME.sub(lambda m: written_out(m[0]), index)
    return index


__all__ = ["Place", "accesses", "expanded", "structure"]
