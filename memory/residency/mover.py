"""Moves blocks between tiers: starts copies in the right order, logs what is done, forgets what is not needed.

Order: a copy waits for the mark after which its source is written; a copy that lands in device memory also waits for
the computation that used those bytes before; computation waits for the mark after the copy; a slot is given back when
the marks after all copies that use it have been seen.
"""

from __future__ import annotations

from ctrlgrad.memory.arena.arena import Arena, Slot
from ctrlgrad.memory.arena.order import Mark, Order
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord
from ctrlgrad.memory.devices.device import Device, Event, Stream
from ctrlgrad.memory.profile.actions import CopyOut, Drop, Evict, Fetch, Free, Lose, Place
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.profile.statistics import Statistics
from ctrlgrad.memory.residency.index import ResidencyIndex
from ctrlgrad.records import record


@record(frozen=False)
class Transfer:
    """A copy that was started: between which levels, how many bytes, and the events around it."""

    source: int
    target: int
    nbytes: int
    begun: Event
    ended: Mark


class Mover:
    """Copies, evictions and drops of blocks whose new slots are already allocated."""

    def __init__(
        self,
        device: Device,
        arena: Arena,
        index: ResidencyIndex,
        order: Order,
        recorder: Recorder,
        statistics: Statistics,
    ) -> None:
        self.device, self.arena, self.index, self.order = device, arena, index, order
        self._recorder, self._statistics = recorder, statistics
        self._tier_names = [tier.name for tier in device.tiers]
        # Copies whose speed is not yet recorded.
        self.transfers: list[Transfer] = []

    def copy_out(self, block: BlockRecord, level: int, target: Slot) -> None:
        """Start the copy from a level to the next one away from the device."""
        self._copy(block, level, target, self.device.out if level == 0 else self.device.disk, CopyOut)
        self._statistics.copies_out += 1
        self._statistics.bytes_out += block.nbytes

    def fetch(self, block: BlockRecord, level: int, target: Slot) -> None:
        """Start the copy from a level to the next one towards the device."""
        self._copy(block, level, target, self.device.into if level == 1 else self.device.disk, Fetch)
        self._statistics.copies_in += 1
        self._statistics.bytes_in += block.nbytes

    def _copy(
        self, block: BlockRecord, level: int, target: Slot, stream: Stream, action: type[CopyOut] | type[Fetch]
    ) -> None:
        source = block.slots[level]
        assert source is not None and source.written is not None
        self.order.follow(stream, source.written)
        if target.level == 0 and self.arena.vacated is not None:
            self.order.follow(stream, self.arena.vacated)
        self.place(block, target)
        self._recorder.log(action, block.number, source.number, target.number, stream.name)
        begun = stream.record()
        failure: BaseException | None = None
        try:
            self.device.copy(source.piece, target.piece, block.nbytes, stream)
        except BaseException as error:
            # Some of it may be under way, so it ends where one does that fails on its stream.
            failure = error
        mark = self.order.mark(stream)
        if failure is not None:
            self.order.fail(mark, failure)
        source.users.append(mark)
        target.users.append(mark)
        target.written = mark
        self.transfers.append(Transfer(source.level, target.level, block.nbytes, begun, mark))
        names = self._tier_names
        self._recorder.copied(block, names[source.level], names[target.level], stream.name, begun, mark.event)
        if failure is not None and not isinstance(failure, Exception):
            raise failure

    def place(self, block: BlockRecord, slot: Slot) -> None:
        """A block is going to lie in a slot."""
        self._recorder.log(Place, block.number, slot.number)
        self.index.put(block, slot)

    def is_whole(self, block: BlockRecord, level: int) -> bool:
        """Return true if a level has all of a block's bytes, as far as the host can see. A failed copy is forgotten."""
        slot = block.slots[level]
        if slot is None or slot.written is None or not (slot.written.seen or self.order.is_done(slot.written)):
            return False
        return slot.written.failure is None or self.check(block, level) is None

    def check(self, block: BlockRecord, level: int) -> BaseException | None:
        """The error of the copy that filled a level's bytes, which are then forgotten."""
        slot = block.slots[level]
        if slot is None or slot.written is None or slot.written.failure is None:
            return None
        failure = slot.written.failure
        self._recorder.log(Lose, block.number, slot.number)
        self.index.take(block, level)
        block.failures.append(failure)
        self._statistics.failed_copies += 1
        self._recorder.fall_back(f"{block.label}: a copy failed: {failure}")
        self.arena.retire(slot)
        return failure

    def is_clean(self, block: BlockRecord, level: int = 0) -> bool:
        """Return true if a level further away has all bytes."""
        return any(self.is_whole(block, other) for other in range(level + 1, len(block.slots)))

    def evict(self, block: BlockRecord, level: int) -> None:
        """A block leaves a level; another one has its bytes."""
        slot = block.slots[level]
        assert slot is not None
        self._recorder.log(Evict, block.number, level)
        self.index.take(block, level)
        self.arena.retire(slot)
        self._statistics.evictions += 1

    def drop(self, chunk: ChunkRecord) -> None:
        """A chunk's blocks, but for those in use, leave every tier, to be computed again."""
        blocks = [block for block in chunk.blocks if block.holders and not block.pins]
        self._recorder.log(Drop, chunk.loop.number, chunk.index, tuple(block.number for block in blocks))
        chunk.is_dropped = chunk.loop.has_dropped = True
        chunk.is_leaving = False
        self._statistics.drops += 1
        for block in blocks:
            self._clear(block)

    def free(self, block: BlockRecord) -> None:
        """Drop a block that is not read again."""
        self._recorder.log(Free, block.number)
        self._clear(block)

    def _clear(self, block: BlockRecord) -> None:
        for slot in self.index.take(block, *range(len(block.slots))):
            self.arena.retire(slot)


__all__ = ["Mover", "Transfer"]
