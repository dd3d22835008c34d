"""Residency: in which tiers the bytes of each block are, and the copies, evictions and fetches that change it.

Order: a copy waits for the mark after which its source is written; a copy that lands in device memory also waits for
the computation that used those bytes before; computation waits for the mark after the copy; a slot is given back when
the marks after all copies that use it have been seen.

Eviction: the oldest chunks leave first, for they are popped last. What costs nothing goes before what costs a wait:
slots that nothing uses any more, blocks that another tier also has, chunks that were planned to be computed again; then
the host waits for copies under way; then copies are started that had not been; and a chunk that could also be computed
again is dropped though that was not planned. Only when nothing is left is the request refused.

Copies ahead: forward, the oldest blocks are copied while younger ones are still being computed, so that they can leave
at no cost when bytes are needed. What would still fit at the end of the loop is not copied: blocks without a backup may
fill about half of the device's budget. Backward, blocks that are read next are fetched as far ahead as there are free
bytes that no other read is about to use.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator

from ctrlgrad.errors import BlockLostError, MemoryBudgetError, TierRefusedError
from ctrlgrad.memory.arena import BLOCKS, STATES, Arena, Mark, Slot, budget_error
from ctrlgrad.memory.chunk import BlockRecord, ChunkRecord, LoopRecord
from ctrlgrad.memory.devices.device import raised
from ctrlgrad.memory.planner import Planner, Timed, uncopied_bytes
from ctrlgrad.memory.profile.recorder import Recorder
from ctrlgrad.memory.profile.records import CopyOut, Drop, Evict, Fetch, Free, Lose, Place, Use
from ctrlgrad.memory.schedule import OrderedNumbers
from ctrlgrad.memory.sizes import show_exactly

HINTS = {
    0: "a larger device budget, shorter chunks, or swap_memory/checkpoint on the loops that push",
    1: "a larger host budget, a disk, or checkpoint on the loops that push",
    2: "a larger disk",
}
# How often a block is copied away in vain before its error reaches the caller.
TRIES = 2
# Chunks off the device that one call looks at for something to fetch: the next call comes with the next block.
AHEAD = 4


class ResidencyIndex:
    """Slot of each block in each tier, and the chunks that lie in a tier. The manager's lock is held.

    Nothing else writes a block's `slots`. There may be very many chunks, of which few are on the device: no search for
    a block to copy, evict or fetch goes through all of them.
    """

    def __init__(self, levels: int) -> None:
        self._chunks: dict[int, ChunkRecord] = {}
        # Chunks by level, and at last those with a block that is wanted and not on the device.
        self._numbers = [OrderedNumbers() for _ in range(levels + 1)]
        self._further = [numbers.sorted for numbers in self._numbers[1:-1]]
        self.away_bit = 1 << levels
        # Chunks that wait for copies, and the sum of their bytes.
        self._uncopied = OrderedNumbers()
        self.uncopied_bytes = 0

    def add(self, chunk: ChunkRecord) -> None:
        self._chunks[chunk.number] = chunk
        if chunk.blocks:
            self._update(chunk)

    def remove(self, chunk: ChunkRecord) -> None:
        """A chunk holds nothing any more."""
        if self._chunks.pop(chunk.number, None) is not None:
            if chunk.places:
                self._update(chunk)
            self.put_uncopied(chunk, 0)

    def put(self, block: BlockRecord, slot: Slot) -> None:
        """A block lies in a slot from now on."""
        block.slots[slot.level] = slot
        block.places |= 1 << slot.level
        if not slot.level:
            block.places &= ~self.away_bit
        self._update(block.chunk)

    def take(self, block: BlockRecord, levels: Iterable[int]) -> list[Slot]:
        """A block lies in these tiers no longer; gives the slots that it had there."""
        slots = []
        for level in levels:
            slot, block.slots[level] = block.slots[level], None
            if slot is not None:
                slots.append(slot)
                block.places &= ~(1 << level)
        if block.slots[0] is None:
            block.places = block.places & ~self.away_bit | (self.away_bit if block.holders else 0)
        self._update(block.chunk)
        return slots

    def _update(self, chunk: ChunkRecord) -> None:
        """The places of a block of a chunk have changed, or the chunk itself is gone."""
        places = 0
        if chunk.number in self._chunks:
            for block in chunk.blocks:
                places |= block.places
        changed, chunk.places = places ^ chunk.places, places
        for numbers in self._numbers if changed else ():
            if changed & 1:
                numbers.put(chunk.number, bool(places & 1))
            changed, places = changed >> 1, places >> 1

    def is_away(self, chunk: ChunkRecord) -> bool:
        """Return true if a block of a chunk is wanted and not on the device."""
        return bool(chunk.places & self.away_bit)

    def __len__(self) -> int:
        return len(self._chunks)

    def all(self) -> list[ChunkRecord]:
        return list(self._chunks.values())

    def put_uncopied(self, chunk: ChunkRecord, nbytes: int) -> None:
        """A chunk waits for copies of so many bytes; 0: it waits for none. One that holds nothing does not wait."""
        nbytes = nbytes if chunk.number in self._chunks else 0
        if nbytes == chunk.uncopied:
            return
        if not nbytes or not chunk.uncopied:
            self._uncopied.put(chunk.number, nbytes > 0)
        self.uncopied_bytes += nbytes - chunk.uncopied
        chunk.uncopied = nbytes

    def uncopied(self) -> Iterator[ChunkRecord]:
        """Chunks that no copy was started of, the oldest first."""
        return map(self._chunks.__getitem__, self._uncopied.rising())

    def has_copies(self, newest: ChunkRecord, count: int) -> bool:
        """Return true if one of so many chunks that `away` gives first may have a block in a tier behind the device."""
        for further in self._further:
            place = bisect_right(further, newest.number)
            if place:
                numbers = self._numbers[-1].sorted
                first = bisect_right(numbers, newest.number) - count
                if first <= 0 or further[place - 1] >= numbers[first]:
                    return True
        return False

    def in_level(self, level: int) -> Iterator[ChunkRecord]:
        """Chunks with a block in a tier."""
        return map(self._chunks.__getitem__, self._numbers[level].rising())

    def away(self, newest: ChunkRecord) -> Iterator[ChunkRecord]:
        """Chunks with a block that is wanted and not on the device: a given one and older ones, the newest first."""
        numbers = self._numbers[-1].sorted
        place = bisect_right(numbers, newest.number)
        while place:
            number = numbers[place - 1]
            yield self._chunks[number]
            # They may have changed meanwhile.
            place = bisect_left(numbers, number)


class Residency:
    """Takes bytes for blocks, evicts other blocks for them, copies and fetches. The manager's lock is held."""

    def __init__(self, arena: Arena, recorder: Recorder, planner: Planner, spare_state: Callable[[], bool]) -> None:
        self.arena, self.order, self.device, self.accounts = arena, arena.order, arena.device, arena.accounts
        self.index = ResidencyIndex(len(self.accounts))
        self._recorder, self._statistics, self._planner = recorder, recorder.statistics, planner
        # The last resort: an entry state less, and more to compute. False where there is none to spare.
        self._spare_state = spare_state
        self._tier_names = [account.tier for account in self.accounts]

    # Bytes, for which blocks leave.

    def take(self, level: int, nbytes: int, kind: str, what: str, keep: ChunkRecord | None = None) -> Slot:
        """Bytes of a tier; blocks of other chunks than `keep` leave it where they must.

        Raises `MemoryBudgetError`, or `TierRefusedError` where the tier has fewer bytes than the budget.
        """
        counted = self.arena.counted(level, nbytes)
        while True:
            self.reserve(level, counted, what, keep)
            try:
                return self.arena.take(level, counted, kind)
            except TierRefusedError as refused:
                # Other processes use the tier too: it may be full before the budget is.
                if not self._step(level, keep):
                    raise self._refused(level, counted, what, refused) from refused

    def take_if_free(self, level: int, nbytes: int, kind: str) -> Slot | None:
        """Bytes of a tier if they are free without any wait; None otherwise."""
        counted = self.arena.counted(level, nbytes)
        while not self.accounts[level].fits(counted):
            if not (self.arena.sweep(level) or self._leave_now(level, None)):
                return None
        try:
            return self.arena.take(level, counted, kind)
        except TierRefusedError:
            return None

    def reserve(self, level: int, nbytes: int, what: str, keep: ChunkRecord | None = None) -> None:
        """See to it that so many bytes fit the account."""
        account = self.accounts[level]
        limit = account.limit
        while limit is not None and account.used + nbytes > limit:
            if nbytes > limit or not self._step(level, keep):
                refused = self.arena.refusals.values()
                hint = "; ".join([HINTS[level], *(error.hint for error in refused if error.hint)])
                raise budget_error(self.accounts, level, nbytes, what, hint, [error.problem for error in refused])

    def _refused(self, level: int, nbytes: int, what: str, refused: TierRefusedError) -> TierRefusedError:
        account = self.accounts[level]
        within = "" if account.limit is None else ", although its budget has room"
        return TierRefusedError(
            f"memory: {what} needs {show_exactly(nbytes)} of tier {account.tier!r}{within}: {refused.problem}",
            expected=refused.expected,
            got="\n".join([*([refused.got] if refused.got else []), *(a.show() for a in self.accounts)]),
            hint=refused.hint or "a smaller budget, so that blocks leave the tier before it is full; or more memory",
        )

    def _step(self, level: int, keep: ChunkRecord | None) -> bool:
        """Do one thing that frees bytes, or brings that nearer; False where there is none."""
        if self.arena.sweep(level) or self._leave_now(level, keep) or self._wait(level, keep):
            return True
        return self._start(level, keep) or (level == 0 and (self._give_up_copies(keep) or self._spare_state()))

    def movable(self, level: int, keep: ChunkRecord | None = None) -> Iterator[tuple[BlockRecord, Slot]]:
        """Blocks in a level that may leave it now, with their slots there, the oldest chunks first.

        Left out are blocks that are being written or read, blocks without a holder, and the sealed chunk `keep`, for
        which bytes are wanted. Complete blocks of a chunk that still runs are given, even if it is `keep`.
        """
        for chunk in self.index.in_level(level):
            if chunk is keep and chunk.is_sealed:
                continue
            for block in chunk.blocks:
                slot = block.slots[level]
                if slot is not None and not (block.is_open or block.pins) and block.holders:
                    yield block, slot

    def recoverable(self, chunk: ChunkRecord) -> bool:
        """Return true if a chunk may be dropped and computed again: it is not being read."""
        return self.has_state(chunk) and not any(block.pins for block in chunk.blocks)

    def has_state(self, chunk: ChunkRecord) -> bool:
        """Return true if a chunk can be computed again."""
        loop = chunk.loop
        return chunk.is_sealed and loop.recompute is not None and loop.states.nearest(chunk.index) is not None

    def _leave_now(self, level: int, keep: ChunkRecord | None) -> bool:
        """Something leaves that costs no wait."""
        for block, slot in self.movable(level, keep):
            # Else it is being copied in, or its computation is still under way.
            written = slot.written
            if written is not None and (written.seen or self.order.is_done(written)):
                if written.failure is not None:
                    self.check(block, level)
                    return True
                if self.is_clean(block, level) and not self.arena.pending(slot):
                    self._evict(block, level)
                    return True
            if level == 0 and block.chunk.policy == "recompute" and self.recoverable(block.chunk):
                self.drop(block.chunk)
                return True
        return level > 0 and self._leave_backups(level, keep)

    def _leave_backups(self, level: int, keep: ChunkRecord | None) -> bool:
        """A block that is on the device too leaves the tiers behind it: the newest first, which is popped soon."""
        oldest_need = keep.number if keep is not None else -1
        for block, slot in reversed(list(self.movable(level))):
            is_newer = block.chunk.number > oldest_need
            is_backup = is_newer and self._is_whole(block, 0) and self._is_whole(block, level)
            if is_backup and not self.arena.pending(slot):
                block.chunk.is_leaving = False
                self.index.put_uncopied(block.chunk, block.chunk.nbytes)
                self._evict(block, level)
                return True
        return False

    def _wait(self, level: int, keep: ChunkRecord | None) -> bool:
        """Wait for a copy after which something can leave. What has ended since the last look counts as waited for."""
        for slot in self.arena.retired[level]:
            for mark in self.arena.pending(slot):
                self._wait_for(mark, f"{self.accounts[level].tier}: bytes that are still being copied")
                break
            return True
        for block, slot in self.movable(level, keep):
            for mark in self.arena.pending(slot):
                self._wait_for(mark, f"{self.accounts[level].tier}: {block.label} is on its way")
                return True
            if self.is_clean(block, level):
                # Its copy began after this mark, but until the host has seen the mark itself the block stays.
                assert slot.written is not None
                self._wait_for(slot.written, f"{self.accounts[level].tier}: {block.label} is still being written")
                return True
        return False

    def _wait_for(self, mark: Mark, cause: str) -> None:
        with self._recorder.stalling(cause):
            self.order.wait(mark)

    def _start(self, level: int, keep: ChunkRecord | None) -> bool:
        """Start the copy of the oldest block that has none further away."""
        if level + 1 >= len(self.accounts):
            return False
        for block, _ in self.movable(level, keep):
            if not block.chunk.loop.may_copy or block.chunk.policy == "recompute":
                continue
            if len(block.failures) >= TRIES:
                if self.recoverable(block.chunk) and level == 0:
                    continue
                raise raised(block.failures[-1])
            if self._start_copy(block, level):
                return True
        return False

    def _start_copy(self, block: BlockRecord, level: int) -> bool:
        """Start a copy away from a level. False where it has one, or where the chunk can be computed again instead."""
        if any(block.slots[level + 1 :]):
            return False
        try:
            target = self.take(level + 1, block.nbytes, BLOCKS, f"the copy of {block.label}", block.chunk)
        except (MemoryBudgetError, TierRefusedError) as error:
            if not self.recoverable(block.chunk):
                raise
            cause = error.__cause__ if isinstance(error.__cause__, TierRefusedError) else error
            self._compute_again(block, f"no room in the next tier: {cause.problem}")
            return level == 0
        if block.failures:
            # Work that is put on a stream before its errors have been seen fails with it.
            self.order.settle((self.device.out, self.device.disk))
        self._copy(block, level, target)
        return True

    def _give_up_copies(self, keep: ChunkRecord | None) -> bool:
        """Drop a chunk that was not meant to be computed again, but can be."""
        for block, _ in self.movable(0, keep):
            if self.recoverable(block.chunk):
                self._compute_again(block, "its copy was not possible")
                self.drop(block.chunk)
                return True
        return False

    def _compute_again(self, block: BlockRecord, reason: str) -> None:
        block.chunk.policy, block.chunk.reason = "recompute", reason
        self._recorder.fall_back(f"{block.label}: {reason}")

    # Copies, evictions and drops of blocks whose new slots are already allocated.

    def _copy(self, block: BlockRecord, level: int, target: Slot) -> None:
        """Start the copy from a level to a neighbouring one."""
        source, names, device = block.slots[level], self._tier_names, self.device
        assert source is not None and source.written is not None
        is_out = target.level > level
        stream = device.disk if level + target.level > 1 else device.out if is_out else device.into
        self.order.follow(stream, source.written)
        if target.level == 0 and self.arena.vacated is not None:
            self.order.follow(stream, self.arena.vacated)
        begun = stream.record()
        self._recorder.log(Place, block.number, target.number)
        self.index.put(block, target)
        self._recorder.log(CopyOut if is_out else Fetch, block.number, source.number, target.number, stream.name)
        failure: BaseException | None = None
        try:
            device.copy(source.piece, target.piece, block.nbytes, stream)
        except BaseException as error:
            # Some of it may be under way, so it ends where one does that fails on its stream.
            failure = error
        mark = self.order.mark(stream)
        if failure is not None:
            # A copy of the error: the caller's frames lie on what is raised.
            self.order.fail(mark, raised(failure))
        source.users.append(mark)
        target.users.append(mark)
        target.written = mark
        planner = self._planner
        planner.timed.append(Timed(planner.copied[source.level, target.level], block.nbytes, begun, mark.event))
        self._recorder.copied(block, names[source.level], names[target.level], stream.name, begun, mark.event)
        if failure is not None and not isinstance(failure, Exception):
            # Once told, an interrupt is no failure of the block: its next reader copies anew.
            self.check(block, target.level)
            block.failures.pop()
            raise failure
        statistics = self._statistics
        if is_out:
            statistics.copies_out, statistics.bytes_out = statistics.copies_out + 1, statistics.bytes_out + block.nbytes
        else:
            statistics.copies_in, statistics.bytes_in = statistics.copies_in + 1, statistics.bytes_in + block.nbytes

    def forget_unmarked(self, block: BlockRecord) -> None:
        """Forget the device's bytes of a block if an interrupt came between their fetch and its mark."""
        slot = block.slots[0]
        if slot is not None and slot.written is None:
            slot.written = self.order.mark(self.device.into)
            slot.users.append(slot.written)
            self.order.fail(slot.written, KeyboardInterrupt())
            self.check(block, 0)
            block.failures.pop()

    def _is_whole(self, block: BlockRecord, level: int) -> bool:
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
        self.index.take(block, (level,))
        block.failures.append(failure)
        self._statistics.failed_copies += 1
        self._recorder.fall_back(f"{block.label}: a copy failed: {failure}")
        self.arena.retire(slot)
        return failure

    def is_clean(self, block: BlockRecord, level: int = 0) -> bool:
        """Return true if a level further away has all bytes."""
        return any(map(self._is_whole, itertools.repeat(block), range(level + 1, len(block.slots))))

    def _evict(self, block: BlockRecord, level: int) -> None:
        """A block leaves a level; another one has its bytes."""
        self._recorder.log(Evict, block.number, level)
        self._statistics.evictions += 1
        self._clear(block, (level,))

    def drop(self, chunk: ChunkRecord) -> None:
        """A chunk's blocks, but for those in use, leave every tier, to be computed again."""
        blocks = [block for block in chunk.blocks if block.holders and not block.pins]
        self._recorder.log(Drop, chunk.loop.number, chunk.index, tuple(block.number for block in blocks))
        chunk.is_dropped = chunk.loop.has_dropped = True
        chunk.is_leaving = False
        self._statistics.drops += 1
        for block in blocks:
            self._clear(block, range(len(block.slots)))

    def free(self, block: BlockRecord) -> None:
        """Drop a block that is not read again. Computation issued so far may still write or read an open one."""
        slot = block.slots[0]
        if slot is not None and (block.pins or block.is_open):
            self._recorder.log(Use, slot.number)
            slot.last_use = self.order.mark(self.device.compute)
        block.pins = 0
        self._recorder.log(Free, block.number)
        self._clear(block, range(len(block.slots)))

    def _clear(self, block: BlockRecord, levels: Iterable[int]) -> None:
        for slot in self.index.take(block, levels):
            self.arena.retire(slot)

    # Copies ahead, forward.

    def leave_early(self, sealed: ChunkRecord) -> None:
        """A chunk was sealed: drop what a loop without a budget need not keep; under one, copy the oldest blocks that
        have no backup, down to `uncopied_bytes`."""
        self._planner.observe()
        loop, limit = sealed.loop, self.accounts[0].limit
        if loop.drops_eagerly:
            held = 1 if loop.states.limit is not None else loop.states.distance
            own = (chunk for chunk in self.index.in_level(0) if chunk.loop is loop)
            here = [c for c in own if c.is_sealed and not c.is_dropped and c.held]
            for chunk in here[:-held]:
                if self.recoverable(chunk):
                    self.drop(chunk)
        elif limit is not None and len(self.accounts) > 1:
            self._spill(sealed.nbytes)
            self._back_up(sealed, limit)

    def _back_up(self, sealed: ChunkRecord, limit: int) -> None:
        most, index = uncopied_bytes(limit, sealed.nbytes), self.index
        if sealed.policy == "copy" and sealed.held:
            index.put_uncopied(
                sealed, sum([block.slots[0].nbytes for block in self._uncopied(sealed) if block.slots[0]])
            )
        # One more such chunk, and the device would still be half empty: nothing may ever have to leave.
        if self.accounts[0].used + sealed.nbytes <= limit // 2 or index.uncopied_bytes <= most:
            return
        for chunk in index.uncopied():
            if index.uncopied_bytes <= most:
                break
            if chunk.policy == "copy" and not chunk.is_leaving and (blocks := self._uncopied(chunk)):
                if chunk.loop.is_mixed:
                    self._planner.decide(chunk, self.may_recover(chunk.loop))
                if chunk.policy == "copy" and not self._copy_all(chunk, blocks):
                    break
            index.put_uncopied(chunk, 0)

    def may_recover(self, loop: LoopRecord) -> bool:
        """Return true if a recovery fits beside all that is no block now: a kept state, two that run, and a chunk.

        Chunks that leave the call are read when it cannot begin anew: they are copied where this is not sure.
        """
        account = self.accounts[0]
        others = account.used - account.kinds[BLOCKS] - account.kinds[STATES]
        return account.fits(others + 3 * loop.states.largest + loop.most_bytes - account.used)

    def _uncopied(self, chunk: ChunkRecord) -> list[BlockRecord]:
        """Blocks of a chunk that lie on the device alone."""
        return [b for b in chunk.blocks if b.slots[0] is not None and not b.failures and not any(b.slots[1:])]

    def _copy_all(self, chunk: ChunkRecord, blocks: list[BlockRecord]) -> bool:
        """Start copies of a chunk's blocks; False where the next tier has no bytes just now."""
        for block in blocks:
            target = self.take_if_free(1, block.nbytes, BLOCKS)
            if target is None:
                return False
            self._copy(block, 0, target)
        chunk.is_leaving = True
        return True

    def _spill(self, chunk_bytes: int) -> None:
        """Copy the oldest blocks of the second tier to the third, where there is one and the second fills up."""
        if len(self.accounts) < 3 or self.accounts[1].limit is None:
            return
        most = uncopied_bytes(self.accounts[1].limit, chunk_bytes)
        waiting = [block for block, _ in self.movable(1) if block.slots[2] is None and not block.failures]
        total = sum(block.nbytes for block in waiting)
        for block in waiting:
            if total <= most:
                break
            target = self.take_if_free(2, block.nbytes, BLOCKS)
            if target is None:
                break
            self._copy(block, 1, target)
            total -= block.nbytes

    # Fetches, backward.

    def fetch(self, block: BlockRecord) -> Slot:
        """Bytes of a block on the device; a copy is started where there is none, and other blocks leave for it."""
        slot = block.slots[0]
        if slot is not None:
            return slot
        block.pins += 1
        try:
            if len(block.slots) > 2 and block.slots[1] is None and block.slots[2] is not None:
                landing = self.take(1, block.nbytes, BLOCKS, f"reading {block.label}", block.chunk)
                self._copy(block, 2, landing)
            slot = self._take_to_read(block)
            if block.slots[1] is None:
                self.arena.retire(slot)
                raise BlockLostError(f"block {block.label!r}: no tier has its bytes")
            self._copy(block, 1, slot)
        finally:
            block.pins -= 1
        return slot

    def _take_to_read(self, block: BlockRecord) -> Slot:
        """The device's bytes for a block, for which blocks of its own chunk leave only as a last resort."""
        nbytes, what = block.nbytes, f"reading {block.label}"
        try:
            return self.take(0, nbytes, BLOCKS, what, block.chunk)
        except MemoryError:
            return self.take(0, nbytes, BLOCKS, what)

    def fetch_ahead(self, current: ChunkRecord) -> None:
        """Fetch blocks that are read after those of a chunk, the next ones first, into free bytes."""
        account = self.accounts[0]
        if account.limit is None or not self.index.has_copies(current, AHEAD):
            return
        if self.arena.retired[0]:
            self.arena.sweep(0)
        # Bytes that other parts had at their peak may be needed again; a block that had to leave for it would be
        # fetched twice.
        free = account.limit - account.used - account.below_peaks(BLOCKS, STATES)
        if free < 0:
            return
        # Chunks that are run again in between need bytes one after the other.
        spare = 0
        for chunk in itertools.islice(self.index.away(current), AHEAD):
            if not chunk.is_sealed:
                continue
            if chunk.is_dropped:
                again = chunk.nbytes + 2 * chunk.loop.states.largest
                free -= max(0, again - spare)
                spare = max(spare, again)
            for block in chunk.blocks:
                if not block.holders or block.slots[0] is not None or not block.is_anywhere:
                    continue
                if block.nbytes > free or not self._fetch_into_free(block):
                    return
                free -= block.nbytes
            if free <= 0:
                return

    def _fetch_into_free(self, block: BlockRecord) -> bool:
        if len(block.slots) > 2 and block.slots[1] is None:
            landing = self.take_if_free(1, block.nbytes, BLOCKS)
            if landing is None:
                return False
            self._copy(block, 2, landing)
        # Nothing leaves for it.
        fits = self.accounts[0].fits(self.arena.counted(0, block.nbytes))
        slot = self.take_if_free(0, block.nbytes, BLOCKS) if fits else None
        if slot is not None:
            self._copy(block, 1, slot)
        return slot is not None
