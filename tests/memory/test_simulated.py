"""The simulated device: virtual time, real bytes, visible violations of the rules, and injected faults."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from instruments.simulated import FREED, FRESH, Fault, ProtocolError, SimulatedDevice

from ctrlgrad.errors import BlockLostError, ExecutionError, TierRefusedError
from ctrlgrad.memory.devices.device import Device, Event, Piece

KIB = 1024


def device(**options: object) -> SimulatedDevice:
    """A simulated device of a thousand bytes a second, for simple times."""
    settings = {"bandwidth_out": 1000.0, "bandwidth_in": 500.0, "disk_bandwidth": 100.0} | options
    return SimulatedDevice({"device": 16 * KIB, "host": 16 * KIB, "disk": 16 * KIB}, **settings)  # type: ignore[arg-type]


def filled(made: Device, nbytes: int, value: int) -> Piece:
    piece = made.tiers[0].allocate(nbytes)
    made.array(piece, [nbytes], np.dtype("u1"))[:] = value
    return piece


def test_a_copy_takes_latency_and_bytes_over_bandwidth() -> None:
    made = device(latency=0.25)
    block, backup, far = (tier.allocate(500) for tier in made.tiers)
    made.copy(block, backup, 500, made.out)
    out = made.out.record()
    made.disk.wait(out)
    made.copy(backup, far, 100, made.disk)
    disk = made.disk.record()
    made.into.wait(disk)
    made.copy(backup, block, 500, made.into)
    back = made.into.record()
    assert [e.time for e in (out, disk, back)] == [None, None, None]
    back.wait()
    assert [e.time for e in (out, disk, back)] == [0.75, 0.75 + 1.25, 2.0 + 1.25]
    assert made.now() == 3.25
    made.close()


def test_streams_run_beside_each_other_and_the_host_waits_for_the_latest() -> None:
    made = device()
    block, backup = (tier.allocate(1000) for tier in made.tiers[:2])
    made.run(3.0)
    made.copy(block, backup, 1000, made.out)
    computed, copied = made.compute.record(), made.out.record()
    copied.wait()
    assert (made.now(), computed.is_done(), copied.is_done()) == (1.0, False, True)
    computed.wait()
    assert made.now() == 3.0
    # Work that is issued later starts later, even if its stream has been idle for long.
    made.copy(block, backup, 1000, made.out)
    later = made.out.record()
    later.wait()
    assert later.time == 4.0
    made.close()


def test_times_do_not_depend_on_delays() -> None:
    def times(seed: int | None) -> list[float | None]:
        made = device(seed=seed)
        blocks = [filled(made, 256, n) for n in range(8)]
        backups = [made.tiers[1].allocate(256) for _ in range(8)]
        events: list[Event] = []
        for block, backup in zip(blocks, backups, strict=True):
            made.run(0.1)
            made.out.wait(made.compute.record())
            made.copy(block, backup, 256, made.out)
            events.append(made.out.record())
        events[-1].wait()
        assert [int(made.peek(b)[0]) for b in backups] == list(range(8))
        made.close()
        return [event.time for event in events]

    undelayed = times(None)
    assert undelayed == times(1) == times(2)
    assert all(a is not None and b is not None and b - a == pytest.approx(0.256) for a, b in pairwise(undelayed))


def test_work_on_the_compute_stream_runs_after_what_it_waits_for() -> None:
    made = device(seed=5, delay=0.01)
    block, backup = filled(made, 64, 9), made.tiers[1].allocate(64)
    landing = made.tiers[0].allocate(64)
    made.copy(block, backup, 64, made.out)
    made.into.wait(made.out.record())
    made.copy(backup, landing, 64, made.into)
    made.compute.wait(made.into.record())
    seen: list[int] = []
    made.run(1.0, lambda: seen.append(int(made.peek(landing).sum())))
    made.compute.record().wait()
    assert seen == [9 * 64]
    made.close()


def test_a_blocking_compute_stream_is_the_host() -> None:
    made = device(blocking=True)
    block, backup = filled(made, 500, 3), made.tiers[1].allocate(500)
    made.run(2.0)
    assert made.now() == 2.0
    made.copy(block, backup, 500, made.out)
    made.compute.wait(made.out.record())
    assert made.now() == 2.5
    assert made.peek(backup).tolist() == [3] * 500
    made.close()


def test_fresh_and_freed_bytes_are_poisoned() -> None:
    made = device()
    piece = made.tiers[0].allocate(32)
    view = made.array(piece, [8], np.dtype("f4"))
    assert np.isnan(view).all()
    assert set(made.peek(made.tiers[1].allocate(8)).tolist()) == {FRESH}
    view[:] = 1
    made.tiers[0].free(piece)
    made.compute.record().wait()
    assert set(made.peek(piece).tolist()) == {FREED}
    made.close()


def test_a_missing_wait_shows_as_wrong_bytes() -> None:
    """A missing wait shows as wrong bytes, so the device can tell a correct manager from a wrong one."""
    found = set()
    for seed in range(30):
        made = device(seed=seed, delay=0.05)
        block, backup = filled(made, 64, 9), made.tiers[1].allocate(64)
        landing = made.tiers[0].allocate(64)
        made.copy(block, backup, 64, made.out)
        # `into` does not wait for `out`.
        made.copy(backup, landing, 64, made.into)
        made.into.record().wait()
        made.out.record().wait()
        found.add(int(made.peek(landing)[0]))
        made.close()
    assert FRESH in found


def test_broken_rules_are_errors() -> None:
    made = device()
    block, backup, far = (tier.allocate(100) for tier in made.tiers)
    with pytest.raises(ProtocolError, match="neighbours"):
        made.copy(block, far, 100, made.out)
    with pytest.raises(ProtocolError, match="copy of 101 bytes"):
        made.copy(block, backup, 101, made.out)
    made.copy(block, backup, 100, made.out)
    for tier, piece in zip(made.tiers[:2], (block, backup), strict=True):
        with pytest.raises(ProtocolError, match=r"while copy 1 on stream 'out' uses them until 0\.1"):
            tier.free(piece)
    with pytest.raises(ProtocolError, match="not one of 'host'"):
        made.tiers[1].free(block)
    made.out.record().wait()
    made.tiers[0].free(block)
    for broken in (
        lambda: made.tiers[0].free(block),
        lambda: made.array(block, [1], np.dtype("u1")),
        lambda: made.copy(block, backup, 1, made.out),
    ):
        with pytest.raises(ProtocolError, match="were freed before"):
            broken()
    other = device()
    with pytest.raises(ProtocolError, match="another device"):
        made.copy(backup, far, 1, object())  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="another device"):
        made.out.wait(object())  # type: ignore[arg-type]
    other.close()
    made.close()


def test_a_tier_refuses_only_what_does_not_fit() -> None:
    made = device()
    tier = made.tiers[0]
    whole = tier.allocate(16 * KIB)
    with pytest.raises(TierRefusedError, match="'device' of device 'simulated' is full") as caught:
        tier.allocate(1)
    assert "1 free bytes" in str(caught.value)
    assert "0 free of 16384, 16384 used" in str(caught.value)
    tier.free(whole)
    tier.free(tier.allocate(16 * KIB))
    assert (tier.used, tier.peak) == (0, 16 * KIB)
    made.close()


def test_injected_refusal() -> None:
    made = device(faults=[Fault("refuse", "host", 2)])
    made.tiers[1].allocate(1)
    with pytest.raises(TierRefusedError):
        made.tiers[1].allocate(1)
    made.tiers[1].allocate(1)
    made.close()


def test_injected_failure_of_a_copy_reaches_all_that_depends_on_it() -> None:
    made = device(faults=[Fault("fail", "out", 2)])
    blocks = [filled(made, 64, n) for n in range(3)]
    backups = [made.tiers[1].allocate(64) for _ in range(3)]
    events = []
    for block, backup in zip(blocks, backups, strict=True):
        made.copy(block, backup, 64, made.out)
        events.append(made.out.record())
    made.into.wait(events[1])
    behind = made.into.record()
    events[0].wait()
    for event in (events[1], events[2], behind):
        with pytest.raises(ExecutionError, match="copy 2 on stream 'out'"):
            event.wait()
    assert set(made.peek(backups[1]).tolist()) == {FRESH}
    # Both streams have reported the failure, and work again.
    made.copy(blocks[1], backups[1], 64, made.out)
    made.into.wait(made.out.record())
    made.into.record().wait()
    assert [int(made.peek(b)[5]) for b in backups] == [0, 1, 2]
    made.close()


def test_injected_corruption_is_found_on_disk_and_not_on_the_host() -> None:
    made = device(faults=[Fault("corrupt", "out", 1), Fault("corrupt", "disk", 1)])
    block, backup, far = filled(made, 64, 1), made.tiers[1].allocate(64), made.tiers[2].allocate(64)
    made.copy(block, backup, 64, made.out)
    made.out.record().wait()
    assert int(made.peek(backup).sum()) != 64
    made.copy(backup, far, 64, made.disk)
    made.disk.record().wait()
    made.copy(far, backup, 64, made.disk)
    with pytest.raises(BlockLostError, match="checksum"):
        made.disk.record().wait()
    made.close()


def test_injected_death_of_a_worker_fails_what_was_queued_and_the_next_work_runs() -> None:
    made = device(faults=[Fault("kill", "out", 2)])
    block, backup = filled(made, 64, 4), made.tiers[1].allocate(64)
    events = []
    for _ in range(3):
        made.copy(block, backup, 64, made.out)
        events.append(made.out.record())
    events[0].wait()
    for event in events[1:]:
        with pytest.raises(ExecutionError, match="its worker thread died"):
            event.wait()
    made.copy(block, backup, 64, made.out)
    made.out.record().wait()
    assert made.peek(backup).tolist() == [4] * 64
    made.close()


def test_a_closed_device_refuses_work() -> None:
    made = device()
    piece = made.tiers[0].allocate(4)
    made.close()
    made.close()
    for work in (
        lambda: made.run(1.0),
        lambda: made.tiers[0].allocate(4),
        lambda: made.copy(piece, piece, 1, made.out),
    ):
        with pytest.raises(ExecutionError, match="closed"):
            work()
    made.tiers[0].free(piece)
    assert made.tiers[0].used == 0
