"""Judges what compiled code does to memory: an abstract machine replays a trace (`memory_trace`).

Every memory of the machine holds values under their names and the iterations in which they were computed. A read must
find the value that it wants, of the iteration that it wants. So a value that is overwritten, read or pushed before its
time, swapped once too often, or updated where another still needs it, is found, whoever decided it and for whatever
reason. Each loop runs several times, and not at all; each branch is taken in turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ctrlgrad.engines.native.memory_trace import (
    Access,
    Bind,
    Branch,
    Count,
    Disturbed,
    Enter,
    Event,
    Given,
    Joined,
    Kernel,
    Loop,
    Popped,
    Pushed,
    Rename,
    Slot,
    Swap,
)

Path = tuple[int, ...]

# How long every stack is at first.
_LENGTH = 1000
_NAME = re.compile(r"[A-Za-z_]\w*")


class MemoryTraceError(AssertionError):
    """Compiled code would read what it does not want."""


@dataclass
class _Stack:
    """A stack: its length as the code counts it, and the rows that it means to have."""

    length: int = _LENGTH
    rows: dict[int, str] = field(default_factory=dict)
    meant: int = _LENGTH
    # How often rows changed that are not known.
    age: int = 0


class _Machine:
    def __init__(self, trips: int, first_branch: int) -> None:
        self.trips, self.branch = trips, first_branch
        self.iteration: list[int] = []
        self.named: dict[str, str] = {}
        self.memory: dict[str, dict[Path, str]] = {}
        self.pointers: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.slots: dict[str, tuple[str, int | None]] = {}
        self.stacks: dict[str, _Stack] = {}

    # Names.

    def value(self, name: str) -> str:
        """What a name stands for now: the value, and the iterations that it was computed in."""
        return self.named.setdefault(name, "@".join([name, *map(str, self.iteration)]))

    def rename(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.named.update([(new, self.value(old)) for new, old in pairs])

    # Memory.

    def place(self, buffer: str, index: str) -> str | None:
        """The memory behind an access; None for rows that only a run knows."""
        if buffer in self.stacks:
            found = next((self.slots[name] for name in _NAME.findall(index) if name in self.slots), None)
            if found is None or found[1] is None:
                return None
            return self.row(found[0], found[1])
        return self.pointers.get(buffer) or self.places.get(buffer, buffer)

    def row(self, stack: str, position: int) -> str:
        """The memory of a row, which at first holds what it did when the stack came."""
        name = f"{stack}[{position}]"
        self.memory.setdefault(name, {(): f"{name} of age {self.stacks[stack].age}"})
        return name

    def stack(self, name: str) -> _Stack:
        return self.stacks.setdefault(name, _Stack())

    def holds(self, memory: str, value: str) -> bool:
        return value in self.memory.get(memory, {}).values()

    def put(self, memory: str, part: Path, value: str) -> None:
        """Store a value over all that overlaps it."""
        old = self.memory.get(memory, {})
        apart = {p: v for p, v in old.items() if p[: len(part)] != part and part[: len(p)] != p}
        self.memory[memory] = {**apart, part: value}

    # Events.

    def run(self, events: Sequence[Event]) -> None:
        for event in events:
            self.step(event)

    def step(self, event: Event) -> None:
        match event:
            case Kernel():
                self.kernel(event)
            case Enter(values):
                for v in values:
                    self.named.pop(v, None)
            case Rename(pairs):
                self.rename(pairs)
            case Given(buffer, value):
                self.put(self.place(buffer, "") or buffer, (), self.value(value))
            case Joined():
                self.join(event)
            case Bind(pointer, memory, above):
                found = self.places.get(memory, memory)
                self.pointers[pointer] = found if above is None else self.row(memory, self.stack(memory).length + above)
            case Swap(a, b):
                self.places[a], self.places[b] = self.places.get(b, b), self.places.get(a, a)
            case Slot(name, stack, above):
                length = self.stack(stack).length
                self.slots[name] = (stack, None if above is None else length + above)
            case Count(stack, change):
                self.stack(stack).length += change
            case Loop(head, body):
                self.loop(head, body)
            case Branch(alternatives):
                self.branch += 1
                self.run(alternatives[self.branch % len(alternatives)])
            case _:
                self.stack_event(event)

    def loop(self, head: Sequence[Event], body: Sequence[Event]) -> None:
        self.iteration.append(0)
        for trip in range(self.trips):
            self.iteration[-1] = trip
            self.run([*head, *body])
            for name, stack in self.stacks.items():
                self.check_rows(name)
                if stack.length != stack.meant:
                    raise MemoryTraceError(f"stack {name} has {stack.length - stack.meant} rows more than were pushed")
        self.run(head)
        self.iteration.pop()

    def stack_event(self, event: Event) -> None:
        match event:
            case Pushed(name, value):
                stack = self.stack(name)
                if value is not None:
                    stack.rows[stack.meant] = self.value(value)
                else:
                    stack.rows.pop(stack.meant, None)
                    self.memory.pop(f"{name}[{stack.meant}]", None)
                stack.meant += 1
            case Popped(name, value):
                stack = self.stack(name)
                stack.meant -= 1
                self.named[value] = self.wanted_row(name, stack.meant)
            case Disturbed(name):
                stack = self.stack(name)
                self.stacks[name] = _Stack(age=stack.age + 1)
                for memory in [m for m in self.memory if m.startswith(f"{name}[")]:
                    del self.memory[memory]

    def wanted_row(self, name: str, position: int) -> str:
        stack = self.stacks[name]
        return stack.rows.get(position, f"{name}[{position}] of age {stack.age}")

    def check_rows(self, name: str) -> None:
        """A stack's rows hold what was pushed on it."""
        stack = self.stacks[name]
        for position, value in stack.rows.items():
            if position < stack.meant and not self.holds(self.row(name, position), value):
                self.fail(f"stack {name} has to hold", value, self.row(name, position))

    def kernel(self, kernel: Kernel) -> None:
        for read in kernel.reads:
            self.read(read)
        written = [(self.place(w.buffer, w.index), w) for w in kernel.writes]
        for read in kernel.reads:
            memory = self.place(read.buffer, read.index)
            indices = {w.index for m, w in written if m == memory and m is not None}
            if read.value is not None and indices and indices != {read.index}:
                raise MemoryTraceError(
                    f"{read.value} is read at {read.index} of {memory} while that is written at {sorted(indices)}"
                )
        for memory, write in written:
            if memory is not None and write.value is not None:
                self.put(memory, write.part, self.value(write.value))
            elif memory is not None:
                self.put(memory, write.part, "intermediate results")

    def read(self, read: Access) -> None:
        memory = self.place(read.buffer, read.index)
        if memory is None:
            self.check_rows(read.buffer)
        elif read.value is not None and not self.holds(memory, self.value(read.value)):
            self.fail("a read wants", self.value(read.value), memory)

    def join(self, event: Joined) -> None:
        memory = self.place(event.buffer, event.index) or event.buffer
        held = self.memory.setdefault(memory, {})
        for position, part in enumerate(event.parts):
            if held.get((*event.part, position)) != self.value(part):
                self.fail(f"part {position} of {event.value} has to be", self.value(part), memory)
        held[event.part] = self.value(event.value)

    def fail(self, wish: str, value: str, memory: str) -> None:
        held = ", ".join(self.memory.get(memory, {}).values()) or "nothing"
        raise MemoryTraceError(f"{wish} {value} in {memory}, which holds {held}")


def check(events: Sequence[Event]) -> None:
    """Replay a trace with loops of no, one and three iterations, and each branch first. Raises `MemoryTraceError`."""
    most = max([len(b.alternatives) for b in _branches(events)], default=1)
    for trips in (3, 1, 0):
        for first in range(most if trips == 3 else 1):
            _Machine(trips, first).run(events)


def _branches(events: Sequence[Event]) -> list[Branch]:
    found = []
    for event in events:
        if isinstance(event, Loop):
            found += [*_branches(event.head), *_branches(event.body)]
        elif isinstance(event, Branch):
            found += [event, *(b for a in event.alternatives for b in _branches(a))]
    return found


__all__ = ["MemoryTraceError", "check"]
