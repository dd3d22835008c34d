"""Simulation of the thread pool: it agrees with sums by hand, and shares are right for any number of threads."""

from __future__ import annotations

import pytest

from benchmarks.cores import CACHE, MOST_BANDWIDTH, THREADS, Costs, predicted
from ctrlgrad import threads

COSTS = Costs(claim=100.0, wake=4000.0, late=2000.0, bandwidth=10.0)
NONE = Costs(claim=0.0, wake=0.0, late=0.0, bandwidth=10.0)
WORK = [1 << bits for bits in range(10, 34)]


def time_of(work: int, count: int, costs: Costs = COSTS) -> float:
    return predicted(costs, work * threads.UNIT, threads.parts_of(work), work, count)


def test_a_job_without_costs_is_divided_evenly() -> None:
    assert predicted(NONE, 1024.0, 256, 1 << 40, 8) == pytest.approx(128.0)
    assert predicted(NONE, 1024.0, 4, 1 << 40, 8) == pytest.approx(256.0)
    assert predicted(NONE, 1024.0, 1, 1 << 40, 8) == predicted(NONE, 1024.0, 256, 1 << 40, 1) == 1024.0


def test_two_threads_by_hand() -> None:
    """The caller wakes (4 us), then claims (0.1) and works; the other thread begins 2 us later."""
    assert predicted(COSTS, 20_000.0, 2, 1 << 40, 2) == pytest.approx(4000 + 2000 + 100 + 10_000)


def test_memory_bounds_many_threads() -> None:
    alone, nbytes = 1e9, 10 * 10**9
    assert nbytes > CACHE and predicted(NONE, alone, 256, 1 << 40, 64, nbytes) == pytest.approx(alone / MOST_BANDWIDTH)
    assert predicted(NONE, alone, 256, 1 << 40, 64, CACHE) == pytest.approx(alone / 64)


@pytest.mark.parametrize("work", WORK)
def test_more_threads_are_never_slower(work: int) -> None:
    """A small program takes no longer with 64 threads than with 2, or with 1, but for the claims of its parts."""
    times = [time_of(work, count) for count in THREADS]
    assert max(times[1:]) <= 1.05 * times[0]
    assert all(later <= 1.01 * times[1] for later in times[2:])


@pytest.mark.parametrize("work", [w for w in WORK if w * threads.UNIT > 5e5])
def test_eight_threads_are_used_well(work: int) -> None:
    """From half a millisecond of work on, eight threads do at least 0.8 of their share, and so do 64 from 20 on."""
    alone = work * threads.UNIT
    assert alone / (8 * time_of(work, 8)) >= 0.8
    if alone > 2e7:
        assert alone / (64 * time_of(work, 64)) >= 0.8
