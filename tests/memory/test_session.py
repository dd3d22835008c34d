"""Sizes, budgets, sessions and profiles."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from instruments.sessions import actions_of
from instruments.simulated import SimulatedDevice
from memory_cases.driving import CHUNK, Driver, chunks

from ctrlgrad.errors import UserInputError
from ctrlgrad.memory import Budget, budget, current, profile, register_device
from ctrlgrad.memory import session as sessions
from ctrlgrad.memory.profile.checker import check
from ctrlgrad.memory.sizes import parse_size, show_size


def simulated() -> SimulatedDevice:
    return SimulatedDevice({"device": 1 << 20, "host": 1 << 20}, blocking=True)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("64 MiB", 64 << 20),
        ("2GiB", 2 << 30),
        ("1.5 KiB", 1536),
        (" 10 kB ", 10_000),
        ("7", 7),
        ("3 b", 3),
        (0, 0),
        (None, None),
    ],
)
def test_sizes(text: str | int | None, nbytes: int | None) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("wrong", ["", "MiB", "12 parsecs", "-3", -3, 1.5, True, "1 2"])
def test_malformed_sizes_are_refused(wrong: object) -> None:
    with pytest.raises(UserInputError, match="not a size"):
        parse_size(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "size",
    ["9" * 400 + " TiB", "99999999999 TiB", "8388608TiB", 1 << 63, 10**5000],
    ids=["400 digits", "text", "just too much", "int", "5000 digits"],
)
def test_a_size_that_no_memory_has_is_refused(size: str | int) -> None:
    with pytest.raises(UserInputError, match="a size that no memory has") as caught, budget(device=size):
        pass
    assert "less than 8 EiB" in str(caught.value) and len(str(caught.value)) < 400
    with pytest.raises(UserInputError, match="not a size"):
        parse_size(-(10**5000))


def test_the_largest_sizes() -> None:
    assert parse_size((1 << 63) - 1) == (1 << 63) - 1
    assert parse_size("8388607 TiB") == 8388607 << 40


def test_sizes_are_shown() -> None:
    assert [show_size(n) for n in (0, 1023, 1024, 64 << 20, 3 << 30, None)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "64.0 MiB",
        "3.0 GiB",
        "no limit",
    ]


def test_the_inner_budget_rules_and_the_outer_one_returns() -> None:
    assert current() is None
    with budget(device=100) as outer:
        assert current() is outer
        with budget(device="1 KiB") as inner:
            assert current() is inner and inner.budget == Budget(device=1024)
        assert current() is outer
        with pytest.raises(KeyError), budget(device=5):
            raise KeyError
        assert current() is outer
    assert current() is None


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="cannot be used"), budget(disk=tmp_path / "nowhere"):
        pass
    assert current() is None


def test_devices_are_closed_with_the_session() -> None:
    device = simulated()
    with budget(device=4 * CHUNK, devices={"cpu": device}) as session:
        manager = session.manager()
        assert session.manager() is manager
        Driver(manager, chunks(8)).run(swap=True)
        assert not device.closed
    assert device.closed and manager.is_closed
    with pytest.raises(UserInputError, match="has ended"):
        session.manager()


def test_devices_are_closed_when_the_body_fails() -> None:
    device = simulated()
    with pytest.raises(ZeroDivisionError), budget(device=4 * CHUNK, devices={"cpu": device}) as session:
        driver = Driver(session.manager(), chunks(3))
        driver.start(swap=True)
        driver.forward()
        raise ZeroDivisionError
    assert device.closed
    assert not any(tier.used for tier in device.tiers)


def test_the_cpu_is_there_and_others_are_registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "_FACTORIES", dict(sessions._FACTORIES))
    with budget(device=3 * CHUNK, disk=tmp_path) as session:
        manager = session.manager()
        assert manager.device.name == "cpu"
        Driver(manager, chunks(10)).run(swap=True)
        assert manager.stats.copies_out and manager.stats.peak_bytes["device"] <= 3 * CHUNK
        with pytest.raises(UserInputError, match="no device is called 'moon'"):
            session.manager("moon")
        register_device("moon", lambda limits: simulated())
        assert session.manager("moon").budget is session.budget
    assert not list(tmp_path.iterdir())


def test_two_threads_have_two_sessions_and_many_may_share_one() -> None:
    found = {}

    def own(number: int) -> None:
        with budget(device=10 + number) as session:
            found[number] = (current() is session, session.budget.device)

    threads = [threading.Thread(target=own, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: (True, 10), 1: (True, 11)}


def test_a_profile_records_without_a_budget() -> None:
    with profile() as recording:
        session = current()
        assert session is not None and session.budget == Budget()
        manager = session.manager()
        Driver(manager, chunks(3)).run()
    assert current() is None
    assert {note.loop for note in recording.blocks} == {"loop"} and len(recording.blocks) == 6
    assert {note.reason for note in recording.blocks} == {"no device budget"}
    assert max(sample.nbytes for sample in recording.in_use) == 3 * CHUNK
    check(actions_of(recording, manager), [None, None])


def test_a_profile_inside_and_outside_a_budget() -> None:
    with profile() as outside, budget(device=3 * CHUNK, devices={"cpu": simulated()}) as session:
        Driver(session.manager(), chunks(6)).run(swap=True)
    assert outside.copied and outside.computed == []
    with budget(device=3 * CHUNK, devices={"cpu": simulated()}) as session:
        Driver(session.manager(), chunks(6)).run(swap=True)
        with profile() as inside:
            Driver(session.manager(), chunks(6)).run(swap=True)
        count = len(inside.actions)
        Driver(session.manager(), chunks(6)).run(swap=True)
    assert inside.copied and len(inside.actions) == count
    (limits,) = inside.tiers.values()
    assert limits == (("device", 3 * CHUNK), ("host", None))


def test_running_is_recorded() -> None:
    device = simulated()
    with (
        profile() as recording,
        budget(devices={"cpu": device}) as session,
        session.manager().recorder.running("step", phase="backward", loop="loop", chunk=2),
    ):
        device.run(1.5)
    (slice,) = recording.computed
    assert (slice.phase, slice.loop, slice.chunk, slice.start, slice.end) == ("backward", "loop", 2, 0.0, 1.5)


def test_two_budgets_in_one_profile_do_not_mix_their_blocks() -> None:
    with profile() as recording:
        for _ in range(2):
            with budget(device=3 * CHUNK) as session:
                Driver(session.manager(), chunks(10)).run(swap=True)
                out = session.manager().stats.bytes_out
    assert sum(value.out_bytes for value in recording.summary().values) == 2 * out > 0


def test_a_host_budget_is_refused_where_there_is_no_host_memory() -> None:
    with budget(device="1 MiB", host="1 MiB") as session, pytest.raises(UserInputError, match="no host memory"):
        session.manager()
