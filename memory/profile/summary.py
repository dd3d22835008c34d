"""A recording in numbers: bytes and rates of copies, what computation hid, stalls and why, peaks, values.

Computation hides a copy for as long as both run. Without times (events of a device that takes none) only bytes are
known, and the text says so.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ctrlgrad.memory.profile.records import Drop, Overwrite, Phase, Recompute, Recording, Slice, Stalled
from ctrlgrad.memory.sizes import show_size
from ctrlgrad.records import record

T = TypeVar("T")
K = TypeVar("K")


@record(order=True)
class Interval:
    """From `start` to `end`, in seconds; `key` says whose it is."""

    start: float
    end: float
    key: int = 0

    @property
    def length(self) -> float:
        return self.end - self.start


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as few intervals that neither overlap nor touch, sorted.

    >>> union([Interval(3, 4), Interval(0, 2), Interval(1, 3), Interval(6, 7)])
    [Interval(start=0, end=4, key=0), Interval(start=6, end=7, key=0)]
    """
    joined: list[Interval] = []
    for interval in sorted(intervals):
        if joined and interval.start <= joined[-1].end:
            joined[-1] = Interval(joined[-1].start, max(joined[-1].end, interval.end))
        else:
            joined.append(Interval(interval.start, interval.end))
    return joined


def covered(interval: Interval, by: Sequence[Interval]) -> float:
    """Length of an interval's part that lies in a `union` of intervals.

    >>> covered(Interval(1, 5), [Interval(0, 2), Interval(4, 9)])
    2.0
    """
    total = 0.0
    for other in by[max(bisect_left(by, interval.start, key=lambda i: i.start) - 1, 0) :]:
        if other.start >= interval.end:
            break
        total += max(min(interval.end, other.end) - max(interval.start, other.start), 0)
    return total


def on_top(intervals: Sequence[Interval]) -> list[Interval]:
    """Intervals that do not overlap: at each time, the one that began last, of those the last in the sequence.

    An interval comes out in several parts, all with its key, where other intervals lie on it.

    >>> on_top([Interval(0, 10, key=1), Interval(2, 3, key=2)])
    [Interval(start=0, end=2, key=1), Interval(start=2, end=3, key=2), Interval(start=3, end=10, key=1)]
    """
    order = sorted(range(len(intervals)), key=lambda position: (intervals[position].start, position))
    bounds = sorted({t for i in intervals for t in (i.start, i.end)})
    parts: list[Interval] = []
    # Intervals that have begun, the last first.
    begun: list[tuple[int, Interval]] = []
    waiting = 0
    for start, end in itertools.pairwise(bounds):
        while waiting < len(order) and intervals[order[waiting]].start <= start:
            heapq.heappush(begun, (-waiting, intervals[order[waiting]]))
            waiting += 1
        while begun and begun[0][1].end <= start:
            heapq.heappop(begun)
        if not begun:
            continue
        key = begun[0][1].key
        if parts and parts[-1].key == key and parts[-1].end == start:
            parts[-1] = Interval(parts[-1].start, end, key)
        else:
            parts.append(Interval(start, end, key))
    return parts


@record
class Sample:
    """From a time on, so many bytes are in use."""

    time: float
    nbytes: int


@record
class Usage:
    """One tier of one device under one limit, summed over all managers of that kind.

    `name` is the tier's, with its device where there are several; `key` differs for two limits too. There is at least
    one sample. The peak may have passed between two samples: of those of one time the last is there.
    """

    name: str
    key: str
    limit: int | None
    peak: int
    samples: tuple[Sample, ...]


# A device, a tier of it, and its limit.
_Key = tuple[str, str, int | None]


def usages(recording: Recording) -> tuple[Usage, ...]:
    """Each tier that was counted, in the order of the managers and their tiers."""
    keys = {
        (manager, tier): (recording.devices.get(manager, ""), tier, limit)
        for manager, tiers in recording.tiers.items()
        for tier, limit in tiers
    }
    samples: dict[_Key, list[Sample]] = {key: [] for key in keys.values()}
    # Managers of one kind: what each has in use, and all of them.
    parts: Counter[tuple[int, str]] = Counter()
    totals: Counter[_Key] = Counter()
    peaks: Counter[_Key] = Counter()
    for used in recording.in_use:
        part = used.manager, used.tier
        key = keys[part]
        totals[key] += used.nbytes - parts[part]
        parts[part] = used.nbytes
        peaks[key] = max(peaks[key], totals[key])
        _add(samples[key], Sample(used.time, totals[key]))
    counted = [key for key, found in samples.items() if found]
    return tuple(_usage(key, counted, peaks[key], tuple(samples[key])) for key in counted)


def _usage(key: _Key, keys: list[_Key], peak: int, samples: tuple[Sample, ...]) -> Usage:
    (device, name, limit), namesakes = key, [other for other in keys if other[1] == key[1]]
    if len({other for other, _, _ in namesakes}) > 1:
        name += f" of {device}"
    unique = name
    if len([other for other, _, _ in namesakes if other == device]) > 1:
        unique += f" ({'no limit' if limit is None else f'limit {show_size(limit)}'})"
    return Usage(name, unique, limit, peak, samples)


def _add(samples: list[Sample], sample: Sample) -> None:
    if samples and samples[-1].time == sample.time:
        samples.pop()
    if not samples or samples[-1].nbytes != sample.nbytes:
        samples.append(sample)


@record
class Route:
    """Copies from one tier to another. Seconds are None where no times were measured."""

    source: str
    target: str
    copies: int
    nbytes: int
    seconds: float | None
    hidden_seconds: float | None

    @property
    def rate(self) -> float | None:
        """Bytes per second while a copy ran."""
        return self.nbytes / self.seconds if self.seconds else None

    @property
    def hidden(self) -> float | None:
        """The share of the copies' time in which computation ran too."""
        return (self.hidden_seconds or 0.0) / self.seconds if self.seconds else None


@record
class Stall:
    """Computation had nothing to do, for one cause."""

    phase: Phase
    cause: str
    times: int
    seconds: float | None


@record
class Peak:
    """The most bytes that were in use at once, and the limit."""

    tier: str
    nbytes: int
    limit: int | None


@record
class Fallback:
    """Something was done otherwise than planned, so many times."""

    text: str
    times: int


@record
class Value:
    """A pushed value: how much of it there was, its policy, and why. `dropped` blocks were to be computed again."""

    label: str
    loop: str
    policy: str
    reason: str
    blocks: int
    nbytes: int
    out_bytes: int
    in_bytes: int
    dropped: int = 0


@record
class LoopBytes:
    """Fate of the bytes that a loop pushed: they stayed, were copied away, or were dropped and computed again.

    Bytes that were copied and then dropped count for both. Seconds are of copies of its blocks that computation hid,
    and of waits for its blocks; None where no times were measured.
    """

    loop: str
    pushed: int
    kept: int
    copied: int
    recomputed: int
    hidden_seconds: float | None
    stalled_seconds: float | None


@record
class Summary:
    """The numbers of a recording; `str` gives them as text. `seconds` is from the first to the last event."""

    devices: tuple[str, ...]
    seconds: float | None
    forward_seconds: float
    backward_seconds: float
    recomputed_seconds: float
    recomputed_chunks: int
    routes: tuple[Route, ...]
    stalls: tuple[Stall, ...]
    fallbacks: tuple[Fallback, ...]
    peaks: tuple[Peak, ...]
    values: tuple[Value, ...]
    loops: tuple[LoopBytes, ...]

    def stalled(self, phase: Phase) -> float:
        """Seconds without computation in a phase."""
        return sum(stall.seconds or 0.0 for stall in self.stalls if stall.phase == phase)

    @property
    def elsewhere(self) -> float:
        """Seconds in which no chunk was computed or waited for: what the program does between and around its loops."""
        rest = (self.seconds or 0.0) - self.forward_seconds - self.backward_seconds
        return max(rest - self.stalled("forward") - self.stalled("backward"), 0.0)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def summarize(recording: Recording) -> Summary:
    """The numbers of a recording."""
    computing = busy(recording)
    timed = [*times(recording.computed), *times(recording.copied), *times(recording.stalled)]
    again = [c for c in recording.computed if c.again]
    return Summary(
        devices=tuple(dict.fromkeys(recording.devices.values())),
        seconds=max(i.end for i in timed) - min(i.start for i in timed) if timed else None,
        forward_seconds=_seconds(recording, computing, "forward"),
        backward_seconds=_seconds(recording, computing, "backward"),
        recomputed_seconds=sum(i.length for i in times(again)),
        recomputed_chunks=sum(isinstance(entry.action, Recompute) for entry in recording.actions),
        routes=tuple(_routes(recording, union(computing))),
        stalls=tuple(_stalls(recording.stalled)),
        fallbacks=tuple(Fallback(text, n) for text, n in Counter(f.text for f in recording.fell_back).items()),
        peaks=tuple(Peak(usage.name, usage.peak, usage.limit) for usage in usages(recording)),
        values=tuple(_values(recording)),
        loops=tuple(_loops(recording, union(computing))),
    )


def times(slices: Sequence[Slice]) -> Iterator[Interval]:
    """The slices whose times are known; a key is the slice's position."""
    for position, found in enumerate(slices):
        if found.start is not None and found.end is not None:
            yield Interval(found.start, found.end, position)


def busy(recording: Recording) -> list[Interval]:
    """Intervals of computation, without its stalls and without overlap; a key is the position in `computed`."""
    stalls = [Interval(i.start, i.end, -1) for i in times(recording.stalled)]
    return [part for part in on_top([*times(recording.computed), *stalls]) if part.key >= 0]


def _seconds(recording: Recording, computing: Iterable[Interval], phase: Phase) -> float:
    return sum(part.length for part in computing if recording.computed[part.key].phase == phase)


def _routes(recording: Recording, computing: Sequence[Interval]) -> Iterator[Route]:
    for (source, target), copies in _grouped(recording.copied, lambda c: (c.source, c.target)).items():
        timed = list(times(copies))
        yield Route(
            source,
            target,
            len(copies),
            sum(copied.nbytes for copied in copies),
            sum(i.length for i in timed) if len(timed) == len(copies) else None,
            sum(covered(i, computing) for i in timed) if len(timed) == len(copies) else None,
        )


def _stalls(stalled: Sequence[Stalled]) -> Iterator[Stall]:
    """By phase and cause, the longest first in each phase; those that took no time are left out."""
    found = []
    for (phase, cause), stalls in _grouped(stalled, lambda s: (s.phase, s.cause)).items():
        timed = list(times(stalls))
        waited = [i for i in timed if i.length > 0]
        if len(timed) < len(stalls):
            found.append(Stall(phase, cause, len(stalls), None))
        elif waited:
            found.append(Stall(phase, cause, len(waited), sum(i.length for i in waited)))
    yield from sorted(found, key=lambda s: (s.phase != "forward", -(s.seconds or 0.0)))


def _values(recording: Recording) -> Iterator[Value]:
    """By value and by what became of it, in the order in which they were first pushed."""
    out, back = _bytes_by_block(recording, away=True), _bytes_by_block(recording, away=False)
    dropped, became = _dropped(recording), recording.became
    groups = _grouped(recording.blocks, lambda b: (b.label, b.loop, *became.get(b.block, (b.policy, b.reason))))
    for (label, loop, policy, reason), entries in groups.items():
        yield Value(
            label,
            loop,
            policy,
            reason,
            len(entries),
            sum(entry.nbytes for entry in entries),
            sum(out.get(entry.block, 0) for entry in entries),
            sum(back.get(entry.block, 0) for entry in entries),
            sum(entry.block in dropped for entry in entries),
        )


def _loops(recording: Recording, computing: Sequence[Interval]) -> Iterator[LoopBytes]:
    out, dropped = _bytes_by_block(recording, away=True), _dropped(recording)
    for loop, entries in _grouped(recording.blocks, lambda b: b.loop).items():
        numbers, labels = {entry.block for entry in entries}, tuple({entry.label for entry in entries})
        copies = [copied for copied in recording.copied if copied.block in numbers]
        waits = [stall for stall in recording.stalled if any(label in stall.cause for label in labels)]
        hidden, waited = list(times(copies)), list(times(waits))
        yield LoopBytes(
            loop,
            pushed=sum(entry.nbytes for entry in entries),
            kept=sum(entry.nbytes for entry in entries if entry.block not in out and entry.block not in dropped),
            copied=sum(entry.nbytes for entry in entries if entry.block in out),
            recomputed=sum(entry.nbytes for entry in entries if entry.block in dropped),
            hidden_seconds=sum(covered(i, computing) for i in hidden) if len(hidden) == len(copies) else None,
            stalled_seconds=sum(i.length for i in waited) if len(waited) == len(waits) else None,
        )


def _grouped(entries: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The entries by a key, in the order of the first of each."""
    groups: dict[K, list[T]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def _dropped(recording: Recording) -> set[int]:
    """The blocks that were to be computed again."""
    drops = (entry.action for entry in recording.actions if isinstance(entry.action, Drop | Overwrite))
    return {block for action in drops for block in action.blocks}


def _bytes_by_block(recording: Recording, away: bool) -> dict[int, int]:
    """Bytes that each block's copies moved away from the device, or towards it; between two further tiers neither."""
    first = {tiers[0][0] for tiers in recording.tiers.values() if tiers}
    moved: dict[int, int] = {}
    for copied in recording.copied:
        if (copied.source if away else copied.target) in first:
            moved[copied.block] = moved.get(copied.block, 0) + copied.nbytes
    return moved


# Text.


def show_seconds(seconds: float | None) -> str:
    """A time for people.

    >>> show_seconds(0.0123), show_seconds(90.0), show_seconds(None)
    ('12.3 ms', '90.0 s', '?')
    """
    if seconds is None:
        return "?"
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def show_rate(rate: float | None) -> str:
    """Bytes per second in powers of ten, as links are sold.

    >>> show_rate(2.5e9), show_rate(3e5), show_rate(40.0), show_rate(None)
    ('2.50 GB/s', '0.30 MB/s', '0.04 kB/s', '?')
    """
    if rate is None:
        return "?"
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s")):
        if rate >= unit / 10:
            return f"{rate / unit:.2f} {name}"
    return f"{rate / 1e3:.2f} kB/s"


def show_peak(peak: Peak) -> str:
    """The peak and the limit of a tier."""
    return show_size(peak.nbytes) + (", no limit" if peak.limit is None else f" of {show_size(peak.limit)}")


def show_share(share: float | None) -> str:
    """A share in per cent."""
    return "?" if share is None else f"{share:.0%}"


def what_became(value: Value) -> str:
    """Fate of a value and the reason, in a few words.

    >>> what_became(Value("x", "loop", "keep", "it fits", 1, 8, 0, 0))
    'kept (it fits)'
    >>> what_became(Value("x", "loop", "copy", "the link can hide its copy", 4, 4096, 3072, 2048, dropped=1))
    'swapped: 3.0 KiB out, 2.0 KiB in; 1 block dropped, to be computed again (the link can hide its copy)'
    """
    did = []
    if value.out_bytes:
        did.append(f"swapped: {show_size(value.out_bytes)} out, {show_size(value.in_bytes)} in")
    if value.dropped:
        did.append(f"{_counted(value.dropped, 'block')} dropped, to be computed again")
    if not did:
        did.append("kept" if value.policy == "keep" else "not swapped or dropped: nothing had to leave")
    return "; ".join(did) + (f" ({value.reason})" if value.reason else "")


def _counted(number: int, one: str, more: str | None = None) -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def _lines(summary: Summary) -> Iterator[str]:
    yield f"memory on {', '.join(summary.devices) or 'no device: nothing was recorded'}"
    if summary.seconds is None:
        yield "  no times were taken"
    else:
        yield (
            f"  {show_seconds(summary.seconds)} in all: computing {show_seconds(summary.forward_seconds)} forward, "
            f"{show_seconds(summary.backward_seconds)} backward; stalled {show_seconds(summary.stalled('forward'))} "
            f"forward, {show_seconds(summary.stalled('backward'))} backward; "
            f"{show_seconds(summary.elsewhere)} elsewhere"
        )
    if summary.recomputed_chunks:
        yield (
            f"  computed again: {_counted(summary.recomputed_chunks, 'chunk')} in "
            f"{show_seconds(summary.recomputed_seconds)}, part of the times above"
        )
    for title, rows in (
        ("peak bytes", [f"{p.tier}: {show_peak(p)}" for p in summary.peaks]),
        ("copies", [_route(route) for route in summary.routes] or ["none"]),
        ("stalls", [_stall(stall) for stall in summary.stalls] or ["none"]),
        ("otherwise than planned", [line for f in summary.fallbacks for line in _fallback(f)] or ["nothing"]),
        ("loops", [_loop(loop) for loop in summary.loops] or ["none pushed"]),
        ("pushed values", [line for value in summary.values for line in _value(value)] or ["none"]),
    ):
        yield title
        yield from (f"  {row}" for row in rows)


def _route(route: Route) -> str:
    return (
        f"{route.source} to {route.target}: {show_size(route.nbytes)} in {_counted(route.copies, 'copy', 'copies')}, "
        f"{show_rate(route.rate)}, {show_share(route.hidden)} of their time hidden behind computation"
    )


def _stall(stall: Stall) -> str:
    return f"{stall.phase}: {show_seconds(stall.seconds)} in {_counted(stall.times, 'wait')}: {stall.cause}"


def _loop(loop: LoopBytes) -> str:
    return (
        f"{loop.loop}: pushed {show_size(loop.pushed)}: {show_size(loop.kept)} kept, {show_size(loop.copied)} copied, "
        f"{show_size(loop.recomputed)} computed again; {show_seconds(loop.hidden_seconds)} of copies hidden, "
        f"{show_seconds(loop.stalled_seconds)} stalled"
    )


def _fallback(fallback: Fallback) -> Iterator[str]:
    first, *rest = fallback.text.split("\n")
    yield f"{_counted(fallback.times, 'time')}: {first}"
    yield from (f"  {line.strip()}" for line in rest)


def _value(value: Value) -> Iterator[str]:
    yield f"{value.label} in {value.loop}: {show_size(value.nbytes)} in {_counted(value.blocks, 'block')}"
    yield f"  {what_became(value)}"
