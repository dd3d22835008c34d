"""The planner's choices, and the duration of loops on the simulated device's clock, against a model of the rules."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from instruments.sessions import check_actions
from instruments.simulated import SimulatedDevice
from instruments.tables import in_turn
from memory_cases.driving import CHUNK, Driver, chunks
from memory_cases.model import Setting, forecast

from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.planner import ChunkTimes, Planner, copied_share, uncopied_bytes
from ctrlgrad.memory.profile.recorder import Statistics
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.sizes import Budget

STATE = 2
# A chunk computes forward for one second and backward for two; this link copies one chunk a second.
NEEDED = float(CHUNK)


@dataclass(frozen=True)
class Result:
    seconds: float
    stalled: float
    stats: Statistics
    manager: Manager


def run(length: int, room: int, bandwidth: float, *, blocking: bool = True, **ways: Any) -> Result:
    """Run a loop under a budget in chunks, over a link with a bandwidth in bytes per second."""
    device = SimulatedDevice(
        {"device": 1 << 30, "host": 1 << 30}, blocking=blocking, bandwidth_out=bandwidth, bandwidth_in=bandwidth
    )
    recording = Recording()
    manager = Manager(device, Budget(device=room * CHUNK), recording)
    Driver(manager, chunks(length), state_bytes=STATE).run(**ways)
    seconds = device.now()
    stalled = sum((s.end or 0.0) - (s.start or 0.0) for s in recording.stalled)
    manager.close()
    check_actions(recording, manager)
    return Result(seconds, stalled, manager.stats, manager)


@pytest.mark.parametrize(
    ("out", "into", "backward", "share"),
    [
        (0.5, 0.5, 2.0, 1.0),
        (1.0, 2.0, 2.0, 1.0),
        (2.0, 2.0, 2.0, 0.5),
        (4.0, 4.0, 2.0, 0.25),
        (1.0, 6.0, 2.0, 3 / 7),
        (1e9, 1e9, 2.0, 1e-9),
    ],
)
def test_the_share_that_is_copied(out: float, into: float, backward: float, share: float) -> None:
    assert copied_share(ChunkTimes(1.0, backward, out, into, 1.0)) == pytest.approx(share)


def test_the_share_is_the_best_of_all() -> None:
    for out, into, again in product((0.3, 1.0, 1.4, 3.0), (0.3, 1.0, 2.5, 5.0), (1.0, 2.5)):
        times = ChunkTimes(1.0, 2.0, out, into, again)
        best = min(times.per_chunk(k / 200) for k in range(201))
        assert times.per_chunk(copied_share(times)) <= best + 1e-9


def test_bytes_that_stay_uncopied() -> None:
    assert [uncopied_bytes(room * 100, 100) for room in (1, 2, 3, 4, 8, 100)] == [0, 0, 0, 50, 250, 4850]


@pytest.mark.parametrize("blocking", [True, False], ids=["host computes", "asynchronous"])
@pytest.mark.parametrize("ways", [{}, {"swap": True}], ids=["free", "swap"])
def test_a_link_a_tenth_faster_than_needed_hides_the_copies(blocking: bool, ways: dict[str, Any]) -> None:
    result = run(60, 6, 1.1 * NEEDED, blocking=blocking, **ways)
    assert result.stats.copies_out >= 100
    assert result.stalled < 0.05 * result.seconds
    assert result.seconds <= 1.05 * 180


@pytest.mark.parametrize("blocking", [True, False], ids=["host computes", "asynchronous"])
@pytest.mark.parametrize("room", [5, 8, 16])
def test_on_half_the_link_both_ways_together_beat_each_alone(room: int, blocking: bool) -> None:
    mixed = run(80, room, 0.5 * NEEDED, blocking=blocking)
    swapped = run(80, room, 0.5 * NEEDED, blocking=blocking, swap=True)
    computed = run(80, room, 0.5 * NEEDED, blocking=blocking, checkpoint=True)
    assert mixed.seconds < 0.96 * min(swapped.seconds, computed.seconds)
    assert mixed.stats.copies_out and mixed.stats.recomputed_chunks
    assert swapped.stats.recomputed_chunks == 0 and computed.stats.copies_out == 0


def test_fitting_chunks_are_neither_copied_nor_recomputed() -> None:
    result = run(3, 10, NEEDED)
    assert result.stats.copies_out == result.stats.drops == 0


@in_turn("sizes, link", list(product((30, 90), (3, 5, 8, 16))), [4.0, 1.1, 0.8, 0.5, 0.25])
def test_the_manager_is_as_quick_as_its_rules(sizes: tuple[int, int], link: float) -> None:
    length, room = sizes
    times = ChunkTimes(1.0, 2.0, 1 / link, 1 / link, 1.0)
    for ways, share in (({}, None), ({"swap": True}, 1.0), ({"checkpoint": True}, 0.0)):
        result = run(length, room, link * NEEDED, **ways)
        found = forecast(Setting(length, CHUNK, STATE, room * CHUNK, times, share))
        assert found.seconds == pytest.approx(result.seconds, rel=0.15)
        if room >= 5:
            assert found.seconds == pytest.approx(result.seconds, rel=0.04)
            assert abs(found.run_again - result.stats.recomputed_chunks) <= 3


def test_times_are_measured() -> None:
    result = run(30, 5, 0.5 * NEEDED)
    times = result.manager.planner.times("loop", CHUNK)
    assert times is not None
    assert times.forward == pytest.approx(1.0) and times.out == pytest.approx(2.0) and times.into == pytest.approx(2.0)
    assert times.backward == pytest.approx(2.0, rel=0.35)
    found = forecast(Setting(30, CHUNK, STATE, 5 * CHUNK, times))
    assert found.seconds == pytest.approx(result.seconds, rel=0.15)
    assert result.manager.planner.times("another loop", CHUNK) is None


class CopiesByItself(SimulatedDevice):
    """A device like the CPU: copies take the cores that compute."""

    copies_take_cores = True


@pytest.mark.parametrize(
    ("state", "copying", "way"),
    [
        (CHUNK // 16, 0.3, "copy"),
        (CHUNK // 16, 1.1, "copy"),
        (CHUNK // 16, 1.3, "recompute"),
        (CHUNK // 32, 0.75, "copy"),
        (CHUNK // 32, 0.85, "recompute"),
        (0, 0.35, "copy"),
        (0, 0.45, "recompute"),
        (0, 4.0, "recompute"),
    ],
)
def test_where_copies_take_cores_all_chunks_go_the_way_that_takes_less(state: int, copying: float, way: str) -> None:
    """If copies take cores, all chunks get the cheaper policy. A copy out and in counts 1.25 times its seconds; a
    chunk computes forward for one, and again for one to three, by its state's bytes, before a recovery is measured."""
    device = CopiesByItself(
        {"device": 1 << 30, "disk": 1 << 30},
        blocking=True,
        bandwidth_out=NEEDED / copying,
        bandwidth_in=NEEDED / copying,
    )
    recording = Recording()
    manager = Manager(device, Budget(device=5 * CHUNK), recording)
    driver = Driver(manager, chunks(40), state_bytes=state)
    for _ in range(2):
        copies, runs = manager.stats.copies_out, manager.stats.recomputed_chunks
        driver.run()
    copies, runs = manager.stats.copies_out - copies, manager.stats.recomputed_chunks - runs
    manager.close()
    assert (copies > 50, runs > 20) == (way == "copy", way == "recompute")
    # The second run knows the choice from the start.
    assert (copies == 0) == (way == "recompute") and (runs == 0) == (way == "copy")
    reasons = {reason for _, reason in recording.became.values()}
    better = {"copy": "computing it again", "recompute": "copying it"}[way]
    assert f"{better} would take more of the processor" in reasons
    assert not any("link" in reason for reason in reasons if "measured" not in reason)


@pytest.mark.parametrize(("copies", "seconds"), [(0, 1e-6), (1, 1e-6), (2, 3.0), (3, 3.0)])
def test_copies_on_the_cores_have_a_usual_time_until_two_are_measured(copies: int, seconds: float) -> None:
    """Chunks are not copied for the sake of a measurement: an LSTM copied 16 MiB before each choice."""
    planner = Planner(copies_take_cores=True)
    assert planner.times("loop", 1000) is None
    planner.loops["loop"].forward.observe(1.0, 1000)
    for _ in range(copies):
        planner.copied[0, 1](3.0, 1000)
    times = planner.times("loop", 1000)
    assert times is not None and times.out == pytest.approx(seconds) and times.into == pytest.approx(1e-6)


def test_a_link_that_slows_down_is_measured_again() -> None:
    """A link that becomes four times slower is measured again: the second run of the loop copies less."""
    device = SimulatedDevice(
        {"device": 1 << 30, "host": 1 << 30}, blocking=True, bandwidth_out=2 * NEEDED, bandwidth_in=2 * NEEDED
    )
    manager = Manager(device, Budget(device=6 * CHUNK))
    Driver(manager, chunks(40), state_bytes=STATE).run()
    copies = manager.stats.copies_out
    device._bandwidth.update({(0, 1): NEEDED / 2, (1, 0): NEEDED / 2})
    Driver(manager, chunks(40), state_bytes=STATE).run()
    assert manager.stats.recomputed_chunks > 5
    assert manager.stats.copies_out - copies < copies
    manager.close()


def test_length_costs_nothing_more_per_iteration_when_swapped() -> None:
    """The time per iteration is the same within 3 % at all lengths, on a link that can carry the copies."""
    per_chunk = [run(length, 4, 1.5 * NEEDED, swap=True).seconds / length for length in (25, 50, 100, 200)]
    assert max(per_chunk) <= 1.03 * min(per_chunk)
