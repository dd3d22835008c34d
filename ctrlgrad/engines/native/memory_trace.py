"""What compiled code does to memory, as plain data: which value each access wants, and where it looks for it.

A trace is a tree of events in the order in which the code runs. It names buffers and values and holds no decision of
who makes it: `memory_check` replays it and finds out whether every read gets what it wants. A buffer is a pointer's
name; pointers are bound to memory, and memories change places (double buffers). A stack's memory is its rows, named by
how far above the stack's length they lie.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Access:
    """A read or write of a buffer by an index, written as the code writes it.

    `value`: the value that is wanted, or stored; None for the code's own intermediate results. `part`: where in a
    concatenation it lies: parts overlap if one path begins with the other.
    """

    buffer: str
    index: str
    value: str | None
    part: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A loop over elements: of each element all reads come first, but one element's writes before another's reads."""

    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


@dataclass(frozen=True)
class Enter:
    """A region begins: of these values there are none yet."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Rename:
    """Values under new names, all at once: (new, old). Inputs and outputs of regions, carries, other views."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Given:
    """A buffer holds a value that no code of the trace computes."""

    buffer: str
    value: str


@dataclass(frozen=True)
class Joined:
    """All parts of a concatenation lie in a buffer: from now on so does the whole."""

    buffer: str
    index: str
    part: tuple[int, ...]
    value: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Bind:
    """A pointer shows to a memory, or, `above` given, to the row so far above the length of the stack `memory`."""

    pointer: str
    memory: str
    above: int | None = None


@dataclass(frozen=True)
class Swap:
    """Two memories change names."""

    first: str
    second: str


@dataclass(frozen=True)
class Slot:
    """A name for a row of a stack as long as it is now: the one so far above the length, or (None) any one."""

    name: str
    stack: str
    above: int | None


@dataclass(frozen=True)
class Count:
    """A stack grows or shrinks by so many rows."""

    stack: str
    change: int


@dataclass(frozen=True)
class Pushed:
    """What a stack means has one row more: a value (None: a number, whose memory is not followed)."""

    stack: str
    value: str | None


@dataclass(frozen=True)
class Popped:
    """What a stack means has one row less, and this value is that row."""

    stack: str
    value: str


@dataclass(frozen=True)
class Disturbed:
    """Rows that only a run knows change, or the length does."""

    stack: str


@dataclass(frozen=True)
class Loop:
    """Events that repeat; `head`, which may leave the loop, runs once more than `body`."""

    head: tuple[Event, ...]
    body: tuple[Event, ...]


@dataclass(frozen=True)
class Branch:
    """Alternatives, one of which runs."""

    alternatives: tuple[tuple[Event, ...], ...]


Event = (
    Kernel | Enter | Rename | Given | Joined | Bind | Swap | Slot | Count | Pushed | Popped | Disturbed | Loop | Branch
)
