"""Bytes in use over time, from a recording: what the trace counts, the picture draws, and the peaks come from."""

from __future__ import annotations

from collections import Counter

from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.sizes import show_size
from ctrlgrad.records import record


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


@record
class _Key:
    device: str
    tier: str
    limit: int | None


def usages(recording: Recording) -> tuple[Usage, ...]:
    """Each tier that was counted, in the order of the managers and their tiers."""
    keys = {
        (manager, tier): _Key(recording.devices.get(manager, ""), tier, limit)
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
    name, namesakes = key.tier, [other for other in keys if other.tier == key.tier]
    if len({other.device for other in namesakes}) > 1:
        name += f" of {key.device}"
    unique = name
    if len({other.limit for other in namesakes if other.device == key.device}) > 1:
        unique += f" ({'no limit' if key.limit is None else f'limit {show_size(key.limit)}'})"
    return Usage(name, unique, key.limit, peak, samples)


def _add(samples: list[Sample], sample: Sample) -> None:
    if samples and samples[-1].time == sample.time:
        samples.pop()
    if not samples or samples[-1].nbytes != sample.nbytes:
        samples.append(sample)


__all__ = ["Sample", "Usage", "usages"]
