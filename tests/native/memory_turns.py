"""Whose turn it is while code is generated, and the lines that are written in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ctrlgrad.engines.native.frames import Group
from ctrlgrad.engines.native.memory_trace import Access, Event
from ctrlgrad.ir import Node, Value


@dataclass
class Turn:
    """Whose turn it is: what it asked for, by buffer, and what it wrote."""

    node: Node | None = None
    group: Group | None = None
    wanted: dict[str, dict[Value, None]] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)
    # What it writes: by buffer; a group's by their order.
    results: dict[str, Value] = field(default_factory=dict)
    in_order: list[Value] = field(default_factory=list)
    parts: dict[Value, tuple[int, ...]] = field(default_factory=dict)
    last: Value | None = None
    alternatives: list[tuple[Event, ...]] = field(default_factory=list)


@dataclass
class Lines:
    """A loop over elements while it is written; the values that it writes are known when its turn is over."""

    turn: Turn
    depth: int
    is_flat: bool
    reads: list[Access] = field(default_factory=list)
    writes: list[tuple[str, str]] = field(default_factory=list)
    # Values of which the first write is a part: they were there before.
    updated: list[tuple[str, Value]] = field(default_factory=list)


__all__ = ["Lines", "Turn"]
