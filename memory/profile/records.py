"""Records of a run for the profile and the checker: actions, computation, copies, stalls, fallbacks, bytes in use.

A manager writes while it runs; read it after its context has ended. Times are seconds on the device's
clock; those that were never known (events without times) are None.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from ctrlgrad.memory.devices.device import Event
from ctrlgrad.memory.profile.actions import Action
from ctrlgrad.records import record

Phase = Literal["forward", "backward"]


@record
class TimedAction:
    """An action, when the host logged it, and of which manager."""

    time: float
    manager: int
    action: Action


@record
class Slice:
    """Something that took time on a stream between two events."""

    stream: str
    label: str
    begun: Event
    ended: Event

    @property
    def start(self) -> float | None:
        return self.begun.time

    @property
    def end(self) -> float | None:
        return self.ended.time


@record
class Computed(Slice):
    """A chunk's forward or backward computation; `again` where it was a recomputation."""

    phase: Phase
    loop: str
    chunk: int
    again: bool = False


@record
class Copied(Slice):
    """A block's copy between two tiers."""

    block: int
    source: str
    target: str
    nbytes: int


@record
class Stalled(Slice):
    """The computation may have had nothing to do between the two events, for a cause."""

    phase: Phase
    cause: str


@record
class BytesInUse:
    """Counted bytes of a manager's tier from a time on."""

    time: float
    manager: int
    tier: str
    nbytes: int


@record
class FellBack:
    """A manager had to do otherwise than planned: what happened to which value, in words."""

    time: float
    manager: int
    text: str


@record
class BlockEntry:
    """Description of a block: the label of the pushed value, its loop and chunk, and its policy with the reason."""

    block: int
    label: str
    loop: str
    chunk: int
    nbytes: int
    time: float
    policy: str
    reason: str


@record(frozen=False)
class Recording:
    """All that managers noted while the recording was on."""

    actions: list[TimedAction] = field(default_factory=list)
    computed: list[Computed] = field(default_factory=list)
    copied: list[Copied] = field(default_factory=list)
    stalled: list[Stalled] = field(default_factory=list)
    in_use: list[BytesInUse] = field(default_factory=list)
    fell_back: list[FellBack] = field(default_factory=list)
    blocks: list[BlockEntry] = field(default_factory=list)
    # By block: the policy of its chunk in the end, and why; a block that still lives has what `blocks` says.
    became: dict[int, tuple[str, str]] = field(default_factory=dict)
    # By manager: tier names, and limits in bytes.
    tiers: dict[int, tuple[tuple[str, int | None], ...]] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)

    def actions_of(self, manager: int) -> list[Action]:
        """The actions of one manager in the host's order."""
        return [entry.action for entry in self.actions if entry.manager == manager]


__all__ = [
    "BlockEntry",
    "BytesInUse",
    "Computed",
    "Copied",
    "FellBack",
    "Phase",
    "Recording",
    "Slice",
    "Stalled",
    "TimedAction",
]
