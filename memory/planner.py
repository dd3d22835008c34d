"""Chooses which chunks are copied away and which are computed again, from measured times.

Measured are seconds per byte: of forward and backward computation and of recoveries, for the loops of one label, and of
copies, for each link. A new measurement counts for a quarter, so a link that slows down is noticed after a few copies.
Which share of the chunks is best copied follows from the times; the copied ones are spread evenly, so that neither the
link nor the computation waits long for the other. Until the times are known, chunks are copied. Where the cores that
compute make the copies too, nothing hides anything, and all chunks get the policy that takes less of the cores; there
copies and recoveries have usual times until they are measured.

A chunk that leaves the device costs either its copies, which run beside the computation, or a recovery. With f and b
the seconds that a chunk computes forward and backward, a those of its recovery, x and y those of its copies out and in,
and p the share of chunks that are copied, the time per chunk is

    max(f, p x) + max(b + (1 - p) a, p y)

which is least at one of its corners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import field
from functools import partial

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.chunk import UNDECIDED, ChunkRecord, LoopRecord, Policy, Recompute
from ctrlgrad.memory.devices.device import Device, Event
from ctrlgrad.memory.schedule import States
from ctrlgrad.records import record


@record
class ChunkTimes:
    """Seconds of one chunk: computed forward and backward, copied out and in, computed again."""

    forward: float
    backward: float
    out: float
    into: float
    again: float

    def per_chunk(self, share: float) -> float:
        """Seconds per chunk when a share of the chunks is copied and the rest is computed again."""
        again = (1 - share) * self.again
        return max(self.forward, share * self.out) + max(self.backward + again, share * self.into)


def copied_share(times: ChunkTimes) -> float:
    """The share of chunks that are best copied; the rest is best computed again.

    >>> copied_share(ChunkTimes(forward=1.0, backward=2.0, out=0.9, into=0.9, again=1.0))
    1.0
    >>> copied_share(ChunkTimes(forward=1.0, backward=2.0, out=2.0, into=2.0, again=1.0))
    0.5
    """
    corners = [0.0, 1.0]
    if times.out > 0:
        corners.append(times.forward / times.out)
    if times.into + times.again > 0:
        corners.append((times.backward + times.again) / (times.into + times.again))
    possible = [share for share in corners if 0 <= share <= 1]
    # Of equals the one that computes least again.
    return min(possible, key=lambda share: (round(times.per_chunk(share), 12), -share))


def uncopied_bytes(limit: int, chunk_bytes: int) -> int:
    """Bytes of blocks without a backup that may stay on the device: what would still fit at the end is not copied.

    >>> uncopied_bytes(1600, 100), uncopied_bytes(300, 100)
    (650, 0)
    """
    return max(0, limit // 2 - 3 * chunk_bytes // 2)


# Time of a chunk's backward pass, in its forward times, until it has been measured.
USUAL_BACKWARD = 2.0
# Cost of a second of copying to a computation on the same cores: a product's threads wait for the slowest of them.
COST_OF_CORES = 1.25
# Cost of a recovery on these cores until one has been measured: runs of the chunk, once and more often the larger a
# state is beside it, since fewer are kept, and seconds of the host, more than for copies. Fitted to loops over 10 to
# 100,000 numbers and to an LSTM.
MOST_RUNS, RUNS_FOR_STATES, USUAL_OVERHEAD = 3.0, 32.0, 1.2e-4
# Seconds per byte of a copy on these cores until so many have been measured: the first ones wait for the file, or for
# other processes.
USUAL_COPY, FIRST_COPIES = 1e-9, 2
# How much a new measurement counts against those before.
FRESHNESS = 0.25


@record(eq=False, frozen=False)
class Rate:
    """A quantity that is measured again and again."""

    value: float | None = None
    # Measurements, or bytes.
    count: int = 0

    def observe(self, seconds: float, nbytes: int) -> None:
        """Observe work of so many bytes; it counts for a quarter."""
        self.count, rate = self.count + 1, seconds / nbytes
        self.value = rate if self.value is None else self.value + FRESHNESS * (rate - self.value)

    def observe_least(self, seconds: float, nbytes: int) -> None:
        """Observe work that may have waited for a core: the value falls at once, and rises by a quarter at most. If all
        chunks are computed again because a copy waited, no further copy corrects the value."""
        self.count, rate = self.count + 1, seconds / nbytes
        self.value = rate if self.value is None else min(rate, (1 + FRESHNESS) * self.value)

    def observe_all(self, seconds: float, nbytes: int) -> None:
        """Observe work of which all bytes count alike."""
        before, self.count = self.count, self.count + nbytes
        self.value = ((self.value or 0.0) * before + seconds) / self.count


@record(eq=False, frozen=False)
class LoopTimes:
    """Measured seconds per byte of blocks, forward and backward, of the loops with one label."""

    forward: Rate = field(default_factory=Rate)
    backward: Rate = field(default_factory=Rate)
    # Of all recoveries: the first one between two entry states takes many runs, the next ones take few.
    again: Rate = field(default_factory=Rate)


@record
class Timed:
    """Work between two events, and the callback that gets its seconds and bytes when it is over."""

    observe: Callable[[float, int], None]
    nbytes: int
    begun: Event
    ended: Event


class Planner:
    """Measures, and decides for loops to which both policies are open; see the module's docstring."""

    def __init__(self, copies_take_cores: bool) -> None:
        self.copies_take_cores = copies_take_cores
        self._observe = Rate.observe_least if copies_take_cores else Rate.observe
        # Seconds per byte of copies between levels.
        self.links = {link: Rate() for link in ((0, 1), (1, 0), (1, 2), (2, 1))}
        # Callbacks for copies between levels.
        self.copied = {link: partial(self._observe, rate) for link, rate in self.links.items()}
        self.loops: defaultdict[str, LoopTimes] = defaultdict(LoopTimes)
        # Labels of loops: whose chunks are copied whatever the times are; that keep to the least memory; and of which
        # more was taken: chunks were long, or some were to be computed again, from states that were kept for that.
        self._copied: set[str] = set()
        self._least: set[str] = set()
        self._took_more: set[str] = set()
        # Copies, backward passes and recoveries that have not been observed yet, the last 256 at most.
        self.timed: list[Timed] = []
        self._reading: tuple[ChunkRecord, Event] | None = None

    # Choices.

    def keep_to_least(self, label: str) -> bool:
        """Choose short chunks and copies for such loops from now on; answers whether more has ever been chosen.

        Whether the bytes for more are there is only seen when they are taken.
        """
        self.copy_only(label)
        self._least.add(label)
        return label in self._took_more

    def keeps_to_least(self, label: str) -> bool:
        """Return true if `keep_to_least` was called for such loops."""
        return label in self._least

    def takes_more(self, label: str) -> bool:
        """Note that long chunks are chosen for such loops; false if they keep to the least."""
        if label not in self._least:
            self._took_more.add(label)
        return label not in self._least

    def copy_only(self, label: str) -> None:
        """Never choose from now on to compute chunks of such loops again."""
        self._copied.add(label)

    def wants_state(self, loop: LoopRecord) -> bool:
        """Return true if a loop with both policies open keeps a chunk's entry state."""
        if loop.label in self._copied:
            return False
        times = self._times(loop, loop.most_bytes)
        wants = times is None or self._best_share(times) < 1
        if wants:
            self._took_more.add(loop.label)
        return wants

    def computes_again(self, loop: LoopRecord) -> bool:
        """Return true if all chunks of a loop that leave the device are computed again, as far as is known now."""
        if not loop.is_mixed:
            return loop.policy == "recompute"
        times = self._times(loop, loop.most_bytes)
        return times is not None and loop.label not in self._copied and self._best_share(times) == 0

    def decide(self, chunk: ChunkRecord, may_recover: bool) -> None:
        """A chunk to which both policies are open is about to be copied: copy it, or let it be computed again, if there
        is room for that."""
        loop = chunk.loop
        if not may_recover:
            self.copy_only(loop.label)
        if loop.recompute is None or loop.states.nearest(chunk.index) is None:
            return
        group = chunk.index // loop.states.distance
        if group not in loop.decided:
            times = self._times(loop, chunk.nbytes)
            if times is None:
                return
            loop.debt += self._best_share(times)
            copies = loop.debt >= 1 - 1e-9 or loop.label in self._copied
            loop.debt -= copies
            loop.decided[group] = "copy" if copies else "recompute"
        chunk.policy = loop.decided[group]
        if chunk.policy == "recompute":
            self._took_more.add(loop.label)
        if self.copies_take_cores:
            more, less = "computing it again", "copying it"
            chunk.reason = f"{more if chunk.policy == 'copy' else less} would take more of the processor"
        else:
            chunk.reason = "the link can hide its copy" if chunk.policy == "copy" else "the link cannot hide its copy"

    def computed_again(self, loop: LoopRecord) -> None:
        """Chunks of a loop will be computed again; noted where that was the planner's choice."""
        if loop.is_mixed:
            self._took_more.add(loop.label)

    def _best_share(self, times: ChunkTimes) -> float:
        if not self.copies_take_cores:
            return copied_share(times)
        return 1.0 if COST_OF_CORES * (times.out + times.into) < times.again else 0.0

    def _times(self, loop: LoopRecord, nbytes: int) -> ChunkTimes | None:
        return self.times(loop.label, nbytes, loop.states.largest)

    def times(self, label: str, nbytes: int, state_bytes: int = 0) -> ChunkTimes | None:
        """Times of a chunk of this size and with such states, as far as they were measured; of no bytes None."""
        loop = self.loops.get(label)
        out = self._link(0, 1)
        if not nbytes or loop is None or loop.forward.value is None or out is None:
            return None
        into = self._link(1, 0)
        forward = loop.forward.value * nbytes
        backward = loop.backward.value * nbytes if loop.backward.value is not None else USUAL_BACKWARD * forward
        again = forward
        if self.copies_take_cores:
            again = min(MOST_RUNS, 1 + RUNS_FOR_STATES * state_bytes / nbytes) * forward + USUAL_OVERHEAD
        if loop.again.value is not None:
            again = loop.again.value * nbytes
        return ChunkTimes(forward, backward, out * nbytes, (into or out) * nbytes, again)

    def _link(self, source: int, target: int) -> float | None:
        rate = self.links[source, target]
        return USUAL_COPY if self.copies_take_cores and rate.count < FIRST_COPIES else rate.value

    # Measurements.

    def ran(self, chunk: ChunkRecord, seconds: float) -> None:
        """A chunk was computed forward."""
        if chunk.nbytes:
            self._observe(self.loops[chunk.loop.label].forward, seconds, chunk.nbytes)

    def opened(self, chunk: ChunkRecord, device: Device) -> bool:
        """A block of a chunk was opened: its backward pass begins, unless it has begun. Answers whether it begins."""
        if self._reading is not None and self._reading[0] is chunk:
            return False
        self._reading = (chunk, device.compute.record())
        return True

    def closed(self, chunk: ChunkRecord, device: Device) -> None:
        """A block was closed; with the last one of a chunk its backward pass ends."""
        if self._reading is None or self._reading[0] is not chunk:
            return
        for block in chunk.blocks:
            if block.pins:
                return
        if chunk.loop.label in self.loops:
            observe = self.loops[chunk.loop.label].backward.observe
            self.timed.append(Timed(observe, chunk.nbytes, self._reading[1], device.compute.record()))
            del self.timed[:-256]

    def recovered(self, label: str, nbytes: int, begun: Event, ended: Event) -> None:
        """So many bytes of blocks were computed again between two events, other runs that this took included."""
        if self.timed[63:]:
            self.observe()
        self.timed.append(Timed(self.loops[label].again.observe_all, nbytes, begun, ended))

    def observe(self) -> None:
        """Observe what is over; on a device that measures no times it is forgotten."""
        waiting = []
        for timed in self.timed:
            ended = timed.ended.time
            if ended is not None:
                begun = timed.begun.time
                if begun is not None and timed.nbytes:
                    timed.observe(ended - begun, timed.nbytes)
            elif not timed.ended.is_done():
                waiting.append(timed)
        self.timed = waiting


def loop_record(
    number: int,
    label: str,
    swap: bool | None,
    checkpoint: bool | int | None,
    recompute: Recompute | None,
    *,
    tiers: int,
    is_limited: bool,
) -> LoopRecord:
    """The record of a loop that begins on a device with so many tiers, the first with a limit or without.

    Raises `ExecutionError` where chunks are to be run again and cannot be.
    """
    limit = checkpoint if isinstance(checkpoint, int) and not isinstance(checkpoint, bool) else None
    if limit is not None and limit < 1:
        raise ExecutionError(f"loop {label!r}: checkpoint={limit}", expected="at least one state")
    wants_recompute = checkpoint is not None and checkpoint is not False
    if wants_recompute and recompute is None:
        raise ExecutionError(f"loop {label!r}: checkpoint={checkpoint!r} for a loop that cannot be run again")
    is_free = checkpoint is None and swap is None
    may_recompute = recompute is not None and (wants_recompute or (is_free and is_limited))
    may_copy = tiers > 1 and swap is not False and not (wants_recompute and swap is None)
    is_mixed = may_copy and may_recompute and is_limited
    policy: Policy
    if is_mixed:
        policy, reason = "copy", UNDECIDED
    elif wants_recompute:
        policy, reason = "recompute", "checkpoint was asked for"
    elif not is_limited:
        policy, reason = "keep", "no device budget"
    elif may_recompute:
        policy, reason = "recompute", "there is no other tier"
    elif may_copy and swap:
        policy, reason = "copy", "swap_memory=True"
    elif may_copy:
        policy, reason = "copy", "checkpoint=False" if checkpoint is False else "the loop cannot be run again"
    elif swap is False:
        policy, reason = "keep", "swap_memory=False, or only the chunk that pushes it reads it"
    else:
        policy, reason = "keep", "there is no other tier, and the loop cannot be run again"
    return LoopRecord(
        number,
        label,
        may_copy,
        recompute if may_recompute else None,
        States(limit),
        is_mixed=is_mixed,
        drops_eagerly=wants_recompute and not is_limited,
        policy=policy,
        reason=reason,
    )
