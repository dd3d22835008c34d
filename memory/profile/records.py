"""Records of a run for the profile and the checker: actions, computation, copies, stalls, fallbacks, bytes in use.

A manager records each action before it acts; `ctrlgrad.memory.profile.checker` replays them. Blocks, slots (allocations
in one tier), marks (places in a stream) and loops have numbers, chunks count within their loop; tiers go by level, 0
being the device's own memory. An action that concerns a stream holds in the order of that stream, not of the host.

Read a recording after its context has ended. Times are seconds on the device's clock; those that were never known
(events without times) are None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Literal, Protocol

from ctrlgrad.memory.devices.device import Event
from ctrlgrad.records import record


@record
class Take:
    """Bytes of a tier are allocated, and counted from now on."""

    slot: int
    level: int
    nbytes: int
    kind: str


@record
class Give:
    """The bytes of a slot are given back. Those of the device may still be used by computation issued before."""

    slot: int


@record
class Place:
    """A block is going to lie in a slot."""

    block: int
    slot: int


@record
class Fill:
    """The computation issued so far has filled a slot with a block's rows."""

    block: int
    slot: int


@record
class Use:
    """The computation issued so far uses a slot that is about to be given back."""

    slot: int


@record
class Lose:
    """The copy that was to fill a slot has failed: the block is not there."""

    block: int
    slot: int


@record
class CopyOut:
    """A copy of a block to the next tier away from the device is put on a stream."""

    block: int
    source: int
    target: int
    stream: str


@record
class Fetch:
    """A copy of a block to the next tier towards the device is put on a stream."""

    block: int
    source: int
    target: int
    stream: str


@record
class Signal:
    """A mark is set in a stream, after all work so far."""

    mark: int
    stream: str


@record
class Await:
    """A stream, or the host, goes on after a mark."""

    waiter: str
    mark: int


@record
class Open:
    """Computation issued from now on reads a block."""

    block: int
    slot: int


@record
class Close:
    """The reader has issued all that reads the block."""

    block: int


@record
class Evict:
    """A block leaves a tier; another tier has its bytes."""

    block: int
    level: int


@record
class Overwrite:
    """A chunk has run, and the next one runs in the same bytes: its blocks are nowhere, to be computed again."""

    loop: int
    chunk: int
    blocks: tuple[int, ...]


@record
class Drop:
    """A chunk's blocks leave every tier; the chunk is run again when they are needed."""

    loop: int
    chunk: int
    blocks: tuple[int, ...]


@record
class KeepState:
    """The state at a chunk's start is kept."""

    loop: int
    chunk: int
    nbytes: int


@record
class LetStateGo:
    """A kept state is forgotten."""

    loop: int
    chunk: int


@record
class Recompute:
    """A chunk of a loop is run again: from a kept state (`entry` is its chunk), or from where the last one ended."""

    loop: int
    chunk: int
    entry: int | None


@record
class Free:
    """A block is not read again."""

    block: int


Action = (
    Take | Give | Place | Fill | Use | Lose | CopyOut | Fetch | Signal | Await | Open | Close
    | Evict | Overwrite | Drop | KeepState | LetStateGo | Recompute | Free
)  # fmt: skip

# Takes an action's class and its fields: an object is made only where there is a recording.
Log = Callable[..., object]


class Logging(Protocol):
    """Receiver of actions."""

    log: Log


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
