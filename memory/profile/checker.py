"""Replays what a manager did and proves that it was sound, from the actions alone.

Proved: counted bytes never pass a limit; a block that is held always lies whole in some tier, or can be computed
again from a kept state; bytes are read after they were written, and bytes are written or given back only
after their readers; at the end everything has been given back.

The order of work is judged by vector clocks (Fidge 1988, Mattern 1989), not by the order in which things happened to
run: each stream, and the host, has a clock that counts its own steps and those known of other clocks. Work on a stream
comes after what the host knew when it put it there; a mark takes the clock of its stream; who waits for the mark learns
it. Two accesses to the same bytes, one of them writing, must be ordered so in every possible run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ctrlgrad.errors import VerificationError
from ctrlgrad.memory.profile import records as actions
from ctrlgrad.memory.profile.records import Action
from ctrlgrad.records import pairs

Clock = dict[str, int]
HOST, COMPUTE = "host", "compute"
# Methods that replay actions, if they are not called as these.
HANDLERS = pairs("CopyOut:copy Fetch:copy KeepState:keep_state LetStateGo:let_state_go Await:wait")


@dataclass(frozen=True)
class Access:
    """One step of a stream that reads or writes a slot."""

    stream: str
    step: int
    writes: bool

    def is_before(self, clock: Clock) -> bool:
        """Return true if the owner of a clock comes after this moment."""
        return clock.get(self.stream, 0) >= self.step


@dataclass(eq=False)
class CheckedSlot:
    level: int
    nbytes: int
    # Steps that must be over before the bytes allocated here are written.
    vacated: Clock
    accesses: list[Access] = field(default_factory=list)
    # The block that lies here, and the access that completed it.
    block: int | None = None
    whole: Access | None = None


@dataclass(eq=False)
class CheckedBlock:
    slots: dict[int, int] = field(default_factory=dict)
    opened: int = 0
    is_dropped: bool = False
    is_filled: bool = False


def join(into: Clock, other: Clock) -> None:
    """The later of two clocks, entry by entry."""
    for stream, step in other.items():
        into[stream] = max(into.get(stream, 0), step)


class Checker:
    """Replays actions one by one. Limits are bytes by level; None is no limit."""

    def __init__(self, limits: Sequence[int | None]) -> None:
        self.limits = limits
        self.used = [0] * len(limits)
        self.clocks: dict[str, Clock] = {HOST: {}}
        self.marks: dict[int, Clock] = {}
        self.vacated: Clock = {}
        self.slots: dict[int, CheckedSlot] = {}
        self.blocks: dict[int, CheckedBlock] = {}
        self.states: dict[tuple[int, int], int] = {}
        self.last_run: dict[int, int] = {}
        self.position = 0
        self._action: Action | None = None

    def replay(self, actions: Iterable[Action]) -> None:
        """Take actions in the host's order. Raises `VerificationError` at the first that is unsound."""
        for action in actions:
            self.position += 1
            self._action = action
            getattr(self, HANDLERS.get(name := type(action).__name__, name.lower()))(action)

    def finish(self) -> None:
        """Everything has been given back."""
        self._action = None
        self._require(not self.slots, f"slots {sorted(self.slots)} were never given back")
        self._require(not self.states, f"states {sorted(self.states)} were never let go")
        self._require(not self.blocks, f"blocks {sorted(self.blocks)} were never freed")
        self._require(not any(self.used), f"{self.used} bytes are still counted")

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise VerificationError(
                f"memory plan: {problem}", got=f"action {self.position}: {self._action}" if self._action else None
            )

    # Order.

    def _issue(self, stream: str) -> Clock:
        """A step of a stream that the host puts there now."""
        clock = self.clocks.setdefault(stream, {})
        join(clock, self.clocks[HOST])
        clock[stream] = clock.get(stream, 0) + 1
        return clock

    def _read(self, slot: int, stream: str) -> None:
        found = self._slot(slot)
        clock = self._issue(stream)
        self._require(found.whole is not None, f"slot {slot} is read and holds nothing")
        for access in found.accesses:
            if access.writes:
                self._require(access.is_before(clock), f"slot {slot} is read before {access.stream} has written it")
        found.accesses.append(Access(stream, clock[stream], False))

    def _write(self, slot: int, stream: str, block: int) -> None:
        found = self._slot(slot)
        clock = self._issue(stream)
        late = {s: step for s, step in found.vacated.items() if clock.get(s, 0) < step}
        self._require(
            not late or stream == COMPUTE, f"slot {slot} is written while {', '.join(late)} may use its bytes"
        )
        for access in found.accesses:
            self._require(access.is_before(clock), f"slot {slot} is written while {access.stream} may use it")
        written = Access(stream, clock[stream], True)
        found.accesses.append(written)
        if found.block == block:
            found.whole = written

    def _slot(self, slot: int) -> CheckedSlot:
        self._require(slot in self.slots, f"slot {slot} is not allocated")
        return self.slots[slot]

    def _block(self, block: int) -> CheckedBlock:
        self._require(block in self.blocks, f"block {block} does not exist")
        return self.blocks[block]

    # Bytes.

    def _count(self, level: int, nbytes: int) -> None:
        self.used[level] += nbytes
        limit = self.limits[level]
        self._require(
            limit is None or self.used[level] <= limit, f"{self.used[level]} bytes of level {level}, limit {limit}"
        )

    def take(self, action: actions.Take) -> None:
        self._count(action.level, action.nbytes)
        vacated = dict(self.vacated) if action.level == 0 else {}
        self.slots[action.slot] = CheckedSlot(action.level, action.nbytes, vacated)

    def give(self, action: actions.Give) -> None:
        slot = self._slot(action.slot)
        if slot.block is not None and slot.block in self.blocks:
            self._require(
                self.blocks[slot.block].slots.get(slot.level) != action.slot, f"slot {action.slot} holds a block"
            )
        self._require(
            slot.level > 0 or slot.block is None or bool(slot.accesses),
            f"slot {action.slot} goes, and the end of the computation that writes its block is unknown",
        )
        for access in slot.accesses:
            if access.stream == COMPUTE and slot.level == 0:
                self.vacated[COMPUTE] = max(self.vacated.get(COMPUTE, 0), access.step)
            else:
                self._require(
                    access.is_before(self.clocks[HOST]), f"slot {action.slot} goes while {access.stream} may use it"
                )
        self._count(slot.level, -slot.nbytes)
        del self.slots[action.slot]

    def use(self, action: actions.Use) -> None:
        slot = self._slot(action.slot)
        clock = self._issue(COMPUTE)
        slot.accesses.append(Access(COMPUTE, clock[COMPUTE], True))

    # Blocks.

    def place(self, action: actions.Place) -> None:
        slot = self._slot(action.slot)
        block = self.blocks.setdefault(action.block, CheckedBlock())
        self._require(slot.block is None, f"slot {action.slot} has block {slot.block}")
        self._require(slot.level not in block.slots, f"block {action.block} lies in level {slot.level} already")
        slot.block = action.block
        block.slots[slot.level] = action.slot

    def fill(self, action: actions.Fill) -> None:
        self._write(action.slot, COMPUTE, action.block)
        if self._slot(action.slot).block == action.block:
            block = self._block(action.block)
            block.is_dropped, block.is_filled = False, True

    def copy(self, action: actions.CopyOut | actions.Fetch) -> None:
        source, target = self._slot(action.source), self._slot(action.target)
        self._require(source.block == target.block == action.block, f"block {action.block} does not lie in both slots")
        step = 1 if isinstance(action, actions.CopyOut) else -1
        self._require(target.level - source.level == step, "the copy is not to the next tier")
        self._read(action.source, action.stream)
        self._write(action.target, action.stream, action.block)

    def lose(self, action: actions.Lose) -> None:
        slot, block = self._slot(action.slot), self._block(action.block)
        self._require(block.slots.get(slot.level) == action.slot, "the block did not lie there")
        del block.slots[slot.level]

    def open(self, action: actions.Open) -> None:
        block = self._block(action.block)
        self._require(block.slots.get(0) == action.slot, f"block {action.block} is not in slot {action.slot}")
        self._read(action.slot, COMPUTE)
        block.opened += 1

    def close(self, action: actions.Close) -> None:
        block = self._block(action.block)
        self._require(block.opened > 0, f"block {action.block} is not open")
        self._require(0 in block.slots, f"block {action.block} left the device while it was open")
        self._read(block.slots[0], COMPUTE)
        block.opened -= 1

    def evict(self, action: actions.Evict) -> None:
        block = self._block(action.block)
        self._require(action.level in block.slots, f"block {action.block} is not in level {action.level}")
        self._require(not (action.level == 0 and block.opened), f"block {action.block} is open")
        del block.slots[action.level]
        self._require(self._is_safe(block), f"block {action.block} is whole nowhere else")

    def _is_safe(self, block: CheckedBlock) -> bool:
        """Return true if some tier has all of a block, as far as the host knows."""
        whole = (self.slots[slot].whole for slot in block.slots.values())
        return any(w is not None and w.is_before(self.clocks[HOST]) for w in whole)

    def overwrite(self, action: actions.Overwrite) -> None:
        for number in action.blocks:
            self._require(number not in self.blocks, f"block {number} exists already")
            self.blocks[number] = CheckedBlock(is_filled=True)
        self.drop(action)

    def drop(self, action: actions.Drop | actions.Overwrite) -> None:
        self._require(
            any(loop == action.loop and chunk <= action.chunk for loop, chunk in self.states),
            f"chunk {action.chunk} of loop {action.loop} is dropped and has no state before it",
        )
        for number in action.blocks:
            block = self._block(number)
            self._require(not block.opened, f"block {number} is dropped while it is open")
            block.slots.clear()
            block.is_dropped = True

    def free(self, action: actions.Free) -> None:
        self._block(action.block)
        del self.blocks[action.block]

    # States.

    def keep_state(self, action: actions.KeepState) -> None:
        self._count(0, action.nbytes)
        self.states[action.loop, action.chunk] = action.nbytes

    def let_state_go(self, action: actions.LetStateGo) -> None:
        self._require((action.loop, action.chunk) in self.states, "the state is not kept")
        self._count(0, -self.states.pop((action.loop, action.chunk)))

    def recompute(self, action: actions.Recompute) -> None:
        if action.entry is None:
            self._require(
                self.last_run.get(action.loop) == action.chunk - 1, "it does not follow the chunk that ran before"
            )
        else:
            self._require((action.loop, action.entry) in self.states, f"the state of chunk {action.entry} is not kept")
            self._require(action.entry == action.chunk, "it does not start from its own state")
        self.last_run[action.loop] = action.chunk

    # Marks.

    def signal(self, action: actions.Signal) -> None:
        clock = dict(self._issue(action.stream))
        self.marks[action.mark] = clock

    def wait(self, action: actions.Await) -> None:
        self._require(action.mark in self.marks, f"mark {action.mark} was not set")
        join(self.clocks.setdefault(action.waiter, {}), self.marks[action.mark])


def check(actions: Iterable[Action], limits: Sequence[int | None], *, finished: bool = True) -> None:
    """Replay all actions of one manager, from its start; `finished`: to its end.

    >>> check([actions.Take(1, 0, 8, "blocks"), actions.Give(1)], [8])
    >>> check([actions.Take(1, 0, 9, "blocks")], [8])
    Traceback (most recent call last):
        ...
    ctrlgrad.errors.VerificationError: memory plan: 9 bytes of level 0, limit 8
      got: action 1: Take(slot=1, level=0, nbytes=9, kind='blocks')
    """
    checker = Checker(limits)
    checker.replay(actions)
    if finished:
        checker.finish()


__all__ = ["Checker", "check"]
