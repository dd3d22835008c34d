"""A fault raises an error, returns all memory, and leaves the next call working; or the manager falls back to
another policy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.sessions import check_actions
from instruments.simulated import Fault, SimulatedDevice
from memory_cases.driving import CHUNK, Driver, chunks

from ctrlgrad.errors import BlockLostError, CtrlgradError, ExecutionError, MemoryBudgetError, TierRefusedError
from ctrlgrad.memory.devices.cpu import CpuDevice
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.sizes import Budget

HALF = CHUNK // 2
LENGTH = 10


class Trial:
    """A loop on a faulty device: first with the fault, then again without."""

    def __init__(self, *faults: Fault, tiers: int = 2, host: int | None = None, **options: Any) -> None:
        names = ("device", "host", "disk")[:tiers]
        settings = {"capacities": dict.fromkeys(names, 1 << 30), "blocking": True, "faults": faults, **options}
        self.device = SimulatedDevice(**settings)
        self.recording = Recording()
        self.manager = Manager(self.device, Budget(device=3 * CHUNK, host=host), self.recording)

    def fails(self, kind: type[BaseException], match: str = "", **ways: Any) -> BaseException:
        """Check that the loop fails, returns all memory, and runs when it is tried again."""
        driver = Driver(self.manager, chunks(LENGTH))
        with pytest.raises(kind, match=match) as caught:
            driver.run(**ways)
        assert driver.memory is not None
        driver.memory.abandon()
        self.runs(**ways)
        return caught.value

    def runs(self, **ways: Any) -> None:
        """Check that the loop runs and leaves no memory."""
        driver = Driver(self.manager, chunks(LENGTH))
        driver.run(**ways)
        manager = self.manager
        manager.close()
        assert not any(account.used for account in manager.accounts)
        assert not any(tier.used for tier in self.device.tiers)
        check_actions(self.recording, manager)


@pytest.mark.parametrize("blocking", [True, False], ids=["host computes", "asynchronous"])
@pytest.mark.parametrize("nth", [1, 4, 9])
def test_a_fetch_that_fails_reaches_the_caller(nth: int, blocking: bool) -> None:
    trial = Trial(Fault("fail", "in", nth), blocking=blocking)
    trial.fails(ExecutionError, f"copy {nth} on stream 'in'", swap=True)


@pytest.mark.parametrize("blocking", [True, False], ids=["host computes", "asynchronous"])
@pytest.mark.parametrize("nth", [1, 4, 9])
def test_a_block_whose_backup_failed_stays_and_another_one_leaves(nth: int, blocking: bool) -> None:
    trial = Trial(Fault("fail", "out", nth), blocking=blocking)
    trial.runs(swap=True)
    assert trial.manager.stats.failed_copies >= 1
    assert any(f"copy {nth} on stream 'out'" in text for text in trial.manager.stats.fallbacks)


def refused(trial: Trial, name: str, nth: int, error: BaseException) -> None:
    """The nth copy on a stream raises when it is asked for."""
    copy, asked = trial.device.copy, []

    def raising(source: Any, target: Any, nbytes: int, stream: Any) -> None:
        asked.append(stream.name)
        if stream.name == name and asked.count(name) == nth:
            raise error
        copy(source, target, nbytes, stream)

    trial.device.copy = raising  # type: ignore[method-assign]


@pytest.mark.parametrize("blocking", [True, False], ids=["host computes", "asynchronous"])
@pytest.mark.parametrize("nth", [1, 4, 9])
def test_a_copy_that_raises_at_once_is_one_that_fails(nth: int, blocking: bool) -> None:
    trial = Trial(blocking=blocking)
    refused(trial, "in", nth, ExecutionError("no copy today"))
    trial.fails(ExecutionError, "no copy today", swap=True)
    trial = Trial(blocking=blocking)
    refused(trial, "out", nth, ExecutionError("no copy today"))
    trial.runs(swap=True)
    assert trial.manager.stats.failed_copies == 1


@pytest.mark.parametrize("name", ["in", "out"])
def test_an_interrupt_of_a_copy_reaches_the_caller_at_once(name: str) -> None:
    trial = Trial()
    refused(trial, name, 2, KeyboardInterrupt())
    driver = Driver(trial.manager, chunks(LENGTH))
    with pytest.raises(KeyboardInterrupt):
        driver.run(swap=True)
    # A caller that has not abandoned the loop gets memory, or an error with the reason.
    with suppress(MemoryBudgetError):
        trial.manager.allocate((3 * CHUNK,), np.dtype(np.uint8), "an array")
    assert driver.memory is not None
    driver.memory.abandon()
    trial.runs(swap=True)


@pytest.mark.parametrize("at", ["copy", "mark"])
def test_a_block_is_read_again_after_an_interrupt_of_its_fetch(at: str) -> None:
    """The rows of a pullback outlive the call that is interrupted."""
    trial = Trial()
    manager = trial.manager
    loop = manager.loop("a loop", swap=True)
    blocks = []
    for _ in range(LENGTH):
        chunk = loop.begin(None, None)
        blocks.append(chunk.block((CHUNK,), np.dtype(np.uint8), "rows"))
        chunk.seal(0.0)
    loop.finish()
    error = KeyboardInterrupt()
    if at == "copy":
        refused(trial, "in", 1, error)
    else:
        mark, streams = manager.order.mark, []

        def interrupted(stream: Any) -> Any:
            if stream is trial.device.into and not streams:
                streams.append(stream)
                raise error
            return mark(stream)

        manager.order.mark = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt) as caught:
        blocks[0].open()
    assert caught.value is error
    for block in blocks:
        for failure in [s.written.failure for s in block._record.slots if s is not None and s.written is not None]:
            assert failure is None
    blocks[0].open()
    blocks[0].close()
    for block in blocks:
        block.free()
    manager.close()
    assert not any(account.used for account in manager.accounts)


def test_backups_that_all_fail_reach_the_caller() -> None:
    trial = Trial(*(Fault("fail", "out", nth) for nth in range(1, 13)))
    trial.fails(ExecutionError, "on stream 'out'", swap=True)


def test_backups_that_all_fail_are_no_matter_where_chunks_can_be_computed_again() -> None:
    trial = Trial(*(Fault("fail", "out", nth) for nth in range(1, 40)))
    trial.runs()
    assert trial.manager.stats.recomputed_chunks and trial.manager.stats.fallbacks


@pytest.mark.parametrize("nth", [2, 7])
def test_a_fetch_that_fails_is_computed_again_where_that_is_possible(nth: int) -> None:
    trial = Trial(Fault("fail", "in", nth))
    trial.runs()
    stats = trial.manager.stats
    assert stats.failed_copies >= 1 and stats.recomputed_chunks >= 1
    assert stats.fallbacks


def test_changed_bytes_on_disk() -> None:
    trial = Trial(Fault("corrupt", "disk", 2), tiers=3, host=2 * CHUNK)
    trial.fails(BlockLostError, "has changed", swap=True)


def test_changed_bytes_on_disk_are_computed_again() -> None:
    trial = Trial(Fault("corrupt", "disk", 2), tiers=3, host=2 * CHUNK)
    trial.runs()
    assert any("was lost" in text for text in trial.manager.stats.fallbacks)


@pytest.mark.parametrize("blocking", [True, False], ids=["host computes", "asynchronous"])
@pytest.mark.parametrize("nth", [1, 5])
@pytest.mark.parametrize("stream", ["out", "in", "disk"])
def test_a_worker_that_dies(stream: str, nth: int, blocking: bool) -> None:
    """After a worker's death the loop goes on or fails, depending on the threads' timing; then a new worker serves."""
    trial = Trial(Fault("kill", stream, nth), tiers=3, host=2 * CHUNK, blocking=blocking)
    driver = Driver(trial.manager, chunks(LENGTH))
    try:
        driver.run(swap=True)
    except CtrlgradError as error:
        assert "worker thread died" in str(error)
    else:
        assert stream != "in"
        assert any("worker thread died" in text for text in trial.manager.stats.fallbacks)
    assert driver.memory is not None
    driver.memory.abandon()
    trial.runs(swap=True)


def test_a_tier_that_is_full() -> None:
    trial = Trial(capacities={"device": 1 << 30, "host": 4 * CHUNK})
    driver = Driver(trial.manager, chunks(LENGTH))
    with pytest.raises(TierRefusedError, match=r"needs 80 bytes of tier 'host': tier 'host'.* is full") as caught:
        driver.run(swap=True)
    assert "free of 640, 640 used" in str(caught.value)
    assert "a smaller budget" in str(caught.value)
    assert driver.memory is not None
    driver.memory.abandon()
    Driver(trial.manager, chunks(6)).run(swap=True)
    trial.manager.close()


def test_a_tier_that_is_full_is_no_matter_where_chunks_can_be_computed_again() -> None:
    trial = Trial(capacities={"device": 1 << 30, "host": 2 * CHUNK})
    trial.runs()
    assert trial.manager.stats.recomputed_chunks


def test_a_device_budget_that_cannot_be_met_since_another_tier_is_full_says_so() -> None:
    trial = Trial(capacities={"device": 1 << 30, "host": CHUNK})
    driver = Driver(trial.manager, chunks(LENGTH))
    driver.start()
    driver.forward()
    for last in driver.blocks[-1]:
        last.open()
    with pytest.raises(MemoryBudgetError, match="of tier 'device', and no more can be freed") as caught:
        trial.manager.reserve(3 * CHUNK, "scratch")
    assert "tier 'host' of device 'simulated' is full" in str(caught.value)
    for last in driver.blocks[-1]:
        last.close()
    driver.backward()
    driver.settle()
    trial.manager.close()


def test_a_host_budget_that_is_full() -> None:
    trial = Trial(host=4 * CHUNK)
    driver = Driver(trial.manager, chunks(LENGTH))
    with pytest.raises(MemoryBudgetError, match=r"tier 'host'") as caught:
        driver.run(swap=True)
    assert "a larger host budget, a disk" in str(caught.value)
    trial.manager.close()


@pytest.mark.parametrize("nth", [3, 5, 8])
def test_device_memory_refused_though_the_budget_allows_it_is_asked_for_again(nth: int) -> None:
    """Device memory that is refused within the budget is asked for again after blocks have left: other processes may
    use the tier."""
    trial = Trial(Fault("refuse", "device", nth))
    trial.runs(swap=True)
    assert trial.device.tiers[0].allocations > 2 * LENGTH


def test_device_memory_that_is_really_gone_is_a_clear_error() -> None:
    trial = Trial(capacities={"device": CHUNK - 1, "host": 1 << 30})
    with pytest.raises(TierRefusedError, match="of tier 'device', although its budget has room: tier 'device'"):
        Driver(trial.manager, chunks(LENGTH)).run(swap=True)
    trial.manager.close()


def test_a_smaller_device_than_the_budget_is_used_to_its_end() -> None:
    trial = Trial(capacities={"device": 2 * CHUNK, "host": 1 << 30})
    trial.runs(swap=True)


def test_a_state_is_let_go_though_its_chunk_was_given_up() -> None:
    """A state is released though its chunk was discarded. It was once still counted after the manager had been
    closed."""
    trial = Trial()
    driver = Driver(trial.manager, chunks(1))
    driver.start(checkpoint=True)
    assert driver.memory is not None
    driver.memory.begin(lambda: (driver.state, 8), lambda: 8).discard()
    assert trial.manager.accounts[0].kinds["entry states"] == 8
    trial.manager.close()
    assert not any(account.used for account in trial.manager.accounts)
    check_actions(trial.recording, trial.manager)


@pytest.mark.parametrize("when", ["forward", "backward", "again"])
def test_an_exception_between_chunks(when: str) -> None:
    trial = Trial()
    driver = Driver(trial.manager, chunks(LENGTH))
    driver.start(checkpoint=True)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        if when == "forward":
            driver.forward(5)
            interrupt()
        driver.forward()
        if when == "again":
            driver.advance = interrupt  # type: ignore[method-assign, assignment]
            driver.backward()
        driver.backward(4)
        interrupt()
    assert driver.memory is not None
    driver.memory.abandon()
    driver.memory.abandon()
    used = trial.manager.accounts[0].used
    assert used == 0
    trial.runs(checkpoint=True)


def test_a_read_that_fails_leaves_nothing_under_way() -> None:
    trial = Trial(Fault("fail", "in", 4), blocking=False)
    with pytest.raises(ExecutionError):
        Driver(trial.manager, chunks(LENGTH)).run(swap=True)
    streams = (trial.device.compute, trial.device.out, trial.device.into)
    assert all(stream.record().is_done() for stream in streams)


def test_blocks_of_a_failed_run_are_freed_when_they_are_forgotten() -> None:
    trial = Trial()

    def attempt() -> None:
        driver = Driver(trial.manager, chunks(LENGTH))
        driver.start(swap=True)
        driver.forward()
        driver.backward(2)

    attempt()
    trial.runs(swap=True)


def test_the_disk_of_the_cpu_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice(tmp_path)

    def full(nbytes: int) -> Any:
        raise TierRefusedError("the disk is full")

    manager = Manager(device, Budget(device=3 * CHUNK))
    with monkeypatch.context() as patch:
        patch.setattr(device.tiers[1], "allocate", full)
        driver = Driver(manager, chunks(LENGTH))
        with pytest.raises(TierRefusedError, match="the disk is full"):
            driver.run(swap=True)
        assert driver.memory is not None
        driver.memory.abandon()
        # The fallback is possible: it is taken and reported.
        Driver(manager, chunks(LENGTH)).run()
        assert manager.stats.recomputed_chunks and manager.stats.fallbacks
    Driver(manager, chunks(LENGTH)).run(swap=True)
    manager.close()
    assert not any(account.used for account in manager.accounts) and not list(tmp_path.iterdir())
