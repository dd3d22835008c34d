"""A recording as a Chrome trace, which Perfetto and chrome://tracing open.

One row for each stream: computation with its stalls, copies out, copies in, the disk. A counter for each tier's bytes.
Arrows lead from the slice that pushed a block through its copies to the slice that read it. Slices of a row never
overlap: where computation stalls, its slice is cut.

Format: "Trace Event Format" of the Chromium project; times are microseconds from the first event.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ctrlgrad.memory.profile.actions import Open
from ctrlgrad.memory.profile.intervals import Interval, on_top
from ctrlgrad.memory.profile.records import BlockEntry, Computed, Copied, Phase, Recording
from ctrlgrad.memory.profile.summary import times
from ctrlgrad.memory.profile.usage import usages
from ctrlgrad.records import record

PROCESS = 1
# Below this, times differ by rounding alone.
NANOSECOND = 1e-9
# The categories of copies: away from the device, and towards it.
AWAY, BACK = "copy away", "copy back"
# In the order of the rows.
ROWS = {"compute": 1, "out": 2, "in": 3, "disk": 4}


@record
class Part:
    """A slice as it is drawn: on a row, in seconds of the device's clock, with what it is."""

    row: str
    start: float
    end: float
    name: str
    category: str
    details: Mapping[str, Any]

    @property
    def length(self) -> float:
        return self.end - self.start


@record
class Stop:
    """A time in a part that an arrow leads through."""

    part: Part
    time: float


@record
class Flow:
    """A block's policy: where its arrow starts, what it leads through, and where it ends."""

    block: int
    label: str
    stops: tuple[Stop, ...]


@record
class Timeline:
    """Contents of the drawing. `flows` lead through some of the parts."""

    parts: tuple[Part, ...]
    flows: tuple[Flow, ...]
    start: float

    def rows(self) -> tuple[str, ...]:
        """The rows that have something on them."""
        used = {part.row for part in self.parts}
        return tuple(row for row in ROWS if row in used)


def timeline(recording: Recording) -> Timeline:
    """The drawing of a recording; entries without times are left out."""
    computing = _compute_parts(recording)
    copies = {
        interval.key: Part(
            recording.copied[interval.key].stream,
            interval.start,
            interval.end,
            recording.copied[interval.key].label,
            BACK if _comes_back(recording, recording.copied[interval.key]) else AWAY,
            _copy_details(recording, interval.key),
        )
        for interval in times(recording.copied)
    }
    parts = sorted([*(part for part, _ in computing), *copies.values()], key=lambda part: (part.start, ROWS[part.row]))
    starts = [part.start for part in parts] + [used.time for used in recording.in_use]
    flows = tuple(_flows(recording, _Computation(computing), copies))
    return Timeline(tuple(parts), flows, min(starts, default=0.0))


def _compute_parts(recording: Recording) -> list[tuple[Part, Computed | None]]:
    """Computation and stalls without overlap, in order, each with its entry; None for a stall."""
    stalled = [Interval(i.start, i.end, -1 - i.key) for i in times(recording.stalled)]
    found: list[tuple[Part, Computed | None]] = []
    for interval in on_top([*times(recording.computed), *stalled]):
        if interval.key < 0:
            stall = recording.stalled[-1 - interval.key]
            details: dict[str, Any] = {"cause": stall.cause, "phase": stall.phase}
            found.append((Part("compute", interval.start, interval.end, "stall", "stall", details), None))
            continue
        entry = recording.computed[interval.key]
        category = "recompute" if entry.again else entry.phase
        details = {"phase": entry.phase, "again": entry.again}
        if entry.loop:
            details |= {"loop": entry.loop, "chunk": entry.chunk}
        found.append((Part("compute", interval.start, interval.end, entry.label, category, details), entry))
    return found


def _copy_details(recording: Recording, position: int) -> dict[str, Any]:
    copied = recording.copied[position]
    return {"block": copied.block, "from": copied.source, "to": copied.target, "bytes": copied.nbytes}


def _comes_back(recording: Recording, copied: Copied) -> bool:
    """Return true if a copy leads towards the device: it lists its tiers from the nearest on."""
    orders = ([tier for tier, _ in tiers] for tiers in recording.tiers.values())
    return any(copied.source in o and copied.target in o[: o.index(copied.source)] for o in orders)


# Arrows.


class _Computation:
    """Finds the computation that pushed, or read, a block: by its chunk, or where it does not say, by its time."""

    def __init__(self, parts: list[tuple[Part, Computed | None]]) -> None:
        self._chunks: dict[tuple[str, int], list[tuple[Part, Computed]]] = {}
        self._forward: list[Part] = []
        self._backward: list[Part] = []
        for part, entry in parts:
            if entry is not None:
                self._chunks.setdefault((entry.loop, entry.chunk), []).append((part, entry))
                if not entry.again:
                    (self._forward if entry.phase == "forward" else self._backward).append(part)

    def pusher(self, block: BlockEntry, before: float) -> Part | None:
        """The last part of the computation that filled the block, which left at a time."""
        named = self._named(block, "forward")
        early = [part for part in named or self._forward if part.end <= before]
        return early[-1] if early else named[-1] if named else None

    def again(self, block: BlockEntry, after: float) -> list[Part]:
        """The last parts of the runs that computed the block again."""
        ends: dict[int, Part] = {}
        for part, entry in self._chunks.get((block.loop, block.chunk), ()):
            if entry.again and part.start >= after:
                ends[id(entry)] = part
        return list(ends.values())

    def reader(self, block: BlockEntry, after: float) -> Part | None:
        """The first part of the backward computation that can have read the block, which was there at a time."""
        named = [part for part in self._named(block, "backward") if part.end > after]
        if named:
            return named[0]
        position = bisect_right(self._backward, after, key=lambda part: part.end)
        return self._backward[position] if position < len(self._backward) else None

    def _named(self, block: BlockEntry, phase: Phase) -> list[Part]:
        found = self._chunks.get((block.loop, block.chunk), ())
        return [part for part, entry in found if entry.phase == phase and not entry.again]


def _flows(recording: Recording, computation: _Computation, copies: Mapping[int, Part]) -> Iterator[Flow]:
    """Arrows of the blocks that were read; a block that is not read has no arrow."""
    opened: dict[int, float] = {}
    for logged in recording.actions:
        if isinstance(logged.action, Open):
            opened.setdefault(logged.action.block, logged.time)
    moved: dict[int, list[Part]] = {}
    for position, part in copies.items():
        moved.setdefault(recording.copied[position].block, []).append(part)
    for block in recording.blocks:
        if block.block not in opened:
            continue
        copied = sorted(moved.get(block.block, []), key=lambda part: part.start)
        pushed = computation.pusher(block, copied[0].start if copied else block.time)
        if pushed is None:
            continue
        path = sorted(copied + computation.again(block, pushed.end), key=lambda part: part.start)
        # A copy away may still run while the block, which never left, is read; one towards the device comes before.
        there = max([opened[block.block], *(part.end for part in path if part.category != AWAY)])
        read = computation.reader(block, there + NANOSECOND)
        if read is not None:
            # Late in the slice that pushed, early in the one that reads, but not before the block was there.
            begun = max(read.start, there)
            last = Stop(read, begun + 0.1 * (read.end - begun))
            first = Stop(pushed, pushed.start + 0.9 * pushed.length)
            middle = (Stop(part, part.start + 0.5 * part.length) for part in path if part.end <= last.time)
            yield Flow(block.block, block.label, (first, *middle, last))


# The file.


def trace(recording: Recording) -> dict[str, Any]:
    """The trace as JSON's types."""
    drawn = timeline(recording)
    clock = _Clock(drawn.start)
    events = [*_names(recording), *_counters(recording, clock), *_fallbacks(recording, clock)]
    for part in drawn.parts:
        start, end = clock.nanoseconds(part.start), clock.nanoseconds(part.end)
        events.append(
            _event(part.row, "X", start, name=part.name, cat=part.category, dur=(end - start) / 1e3, args=part.details)
        )
    for number, flow in enumerate(drawn.flows, start=1):
        events += _arrow(flow, number, clock)
    limits = {usage.key: usage.limit for usage in usages(recording)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"limits": limits}}


def write_trace(recording: Recording, path: Path) -> None:
    """Write the trace as a JSON file."""
    path.write_text(json.dumps(trace(recording), allow_nan=False), encoding="utf-8")


@record
class _Clock:
    """Whole nanoseconds, so that what touches does not overlap by a rounding."""

    start: float

    def nanoseconds(self, moment: float) -> int:
        return round((moment - self.start) * 1e9)


def _event(row: str, phase: str, nanoseconds: int, **rest: Any) -> dict[str, Any]:
    return {"ph": phase, "pid": PROCESS, "tid": ROWS[row], "ts": nanoseconds / 1e3, **rest}


def _names(recording: Recording) -> Iterator[dict[str, Any]]:
    devices = ", ".join(dict.fromkeys(recording.devices.values()))
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": f"ctrlgrad memory on {devices}"}}
    for row, number in ROWS.items():
        yield {"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_name", "args": {"name": row}}
        yield {"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}


def _counters(recording: Recording, clock: _Clock) -> Iterator[dict[str, Any]]:
    for usage in usages(recording):
        for sample in usage.samples:
            yield {
                "ph": "C",
                "pid": PROCESS,
                "name": f"{usage.key} bytes",
                "ts": clock.nanoseconds(sample.time) / 1e3,
                "args": {"bytes": sample.nbytes},
            }


def _fallbacks(recording: Recording, clock: _Clock) -> Iterator[dict[str, Any]]:
    """A mark across the compute row wherever something was done otherwise than planned."""
    for fell in recording.fell_back:
        moment = clock.nanoseconds(fell.time)
        yield _event("compute", "i", moment, name="otherwise than planned", s="t", args={"what": fell.text})


def _arrow(flow: Flow, number: int, clock: _Clock) -> Iterator[dict[str, Any]]:
    """An arrow's points; each leads to the slice around its time."""
    phases = ["s", *"t" * (len(flow.stops) - 2), "f"]
    for phase, stop in zip(phases, flow.stops, strict=True):
        moment = clock.nanoseconds(stop.time)
        yield _event(
            stop.part.row, phase, moment, name="block", cat="block", id=number, bp="e", args={"block": flow.block}
        )


__all__ = ["AWAY", "BACK", "ROWS", "Flow", "Part", "Stop", "Timeline", "timeline", "trace", "write_trace"]
