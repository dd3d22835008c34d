"""Bytes in use as a profile shows them: every change counts, and managers with equal tier names are kept apart."""

from __future__ import annotations

from instruments.simulated import Fault, SimulatedDevice
from memory_cases.driving import CHUNK, Driver, chunks

from ctrlgrad.memory import budget, profile
from ctrlgrad.memory.profile.pictures import trace
from ctrlgrad.memory.profile.records import BytesInUse, Recording
from ctrlgrad.memory.profile.summary import Peak, Sample, summarize, usages


def simulated(name: str = "simulated", *faults: Fault) -> SimulatedDevice:
    device = SimulatedDevice({"device": 1 << 20, "host": 1 << 20}, blocking=True, faults=faults)
    device.name = name
    return device


def test_bytes_that_are_held_between_two_blocks_are_in_the_peak() -> None:
    """The peak includes bytes held between two blocks. A reservation made and released between two samples was once
    missed."""
    with profile() as recording, budget(device=1 << 16, devices={"cpu": simulated()}) as session:
        manager = session.manager()
        chunk = manager.loop("loop").begin()
        chunk.block((4,), "f8", "x")
        held = manager.reserve(5000, "scratch")
        held.release()
        chunk.block((4,), "f8", "y")
        chunk.seal(1.0)
        peak = manager.stats.peak_bytes["device"]
    assert peak == 5032
    assert summarize(recording).peaks[0] == Peak("device", peak, 1 << 16)


def test_a_profile_that_begins_late_starts_with_what_is_there() -> None:
    with budget(devices={"cpu": simulated()}) as session:
        held = session.manager().reserve(700, "scratch")
        with profile() as recording:
            pass
        held.release()
    device, host = usages(recording)
    assert (device.peak, host.peak) == (700, 0)


def test_managers_of_one_kind_are_added_up() -> None:
    made = Recording()
    for manager in (1, 2):
        made.devices[manager] = "cpu"
        made.tiers[manager] = (("device", 100),)
    for time, manager, nbytes in ((0, 1, 30), (1, 2, 50), (2, 1, 0), (2, 2, 60), (3, 2, 0)):
        made.in_use.append(BytesInUse(time, manager, "device", nbytes))
    (device,) = usages(made)
    assert (device.name, device.limit, device.peak) == ("device", 100, 80)
    assert device.samples == (Sample(0, 30), Sample(1, 80), Sample(2, 60), Sample(3, 0))


def test_a_peak_stands_beside_its_own_limit() -> None:
    """A peak is shown with its own limit. The last budget's limit was once shown beside the highest peak."""
    with profile() as recording:
        for room in (6, 3):
            with budget(device=room * CHUNK, devices={"cpu": simulated()}) as session:
                Driver(session.manager(), chunks(10)).run(swap=True)
    peaks = [peak for peak in summarize(recording).peaks if peak.limit is not None]
    assert [(peak.nbytes, peak.limit) for peak in peaks] == [(6 * CHUNK, 6 * CHUNK), (3 * CHUNK, 3 * CHUNK)]
    assert [peak.tier for peak in peaks] == ["device", "device"]
    limits = {"device (limit 960 bytes)": 960, "host": None, "device (limit 480 bytes)": 480}
    assert trace(recording)["otherData"]["limits"] == limits


def test_two_devices_have_two_curves() -> None:
    """Two devices have two curves. Their bytes were once drawn as one curve that jumped between them."""
    devices = {"cpu": simulated(), "moon": simulated("moon")}
    with profile() as recording, budget(device=8 * CHUNK, devices=devices) as session:
        held = session.manager("moon").reserve(7 * CHUNK, "scratch")
        Driver(session.manager("cpu"), chunks(2)).run(swap=True)
        held.release()
    found = {usage.name: usage.peak for usage in usages(recording)}
    assert (found["device of simulated"], found["device of moon"]) == (2 * CHUNK, 7 * CHUNK)
    counters = {event["name"] for event in trace(recording)["traceEvents"] if event["ph"] == "C"}
    assert counters >= {"device of simulated bytes", "device of moon bytes"}


def test_deviations_from_the_plan_are_recorded() -> None:
    device = simulated("simulated", Fault("fail", "in", 2))
    with profile() as recording, budget(device=3 * CHUNK, devices={"cpu": device}) as session:
        manager = session.manager()
        Driver(manager, chunks(10)).run()
        fallbacks = list(manager.stats.fallbacks)
    # Copies queued on the stream before the failure was seen fail with it, however often each was tried.
    copies = len(fallbacks) // 2
    assert len(set(fallbacks)) == 2 and len(fallbacks) == 2 * copies
    assert [fell.text for fell in recording.fell_back] == fallbacks
    text = str(recording)
    assert f"otherwise than planned\n  {f'{copies} times: ' if copies > 1 else ''}" in text
    assert "a copy failed: copy 2 on stream 'in'" in text and "computed again, its copy was lost" in text
    marks = [event for event in trace(recording)["traceEvents"] if event["ph"] == "i"]
    assert [mark["args"]["what"] for mark in marks] == fallbacks
