"""Random loops, budgets and links on the simulated device: no lost bytes, no budget exceeded, all memory freed."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from instruments.sessions import check_actions
from instruments.simulated import Fault, SimulatedDevice
from memory_cases.driving import WIDTH, Driver

from ctrlgrad.errors import CtrlgradError, MemoryBudgetError
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.sizes import Budget

ROW = WIDTH * 8
BYTES = np.dtype(np.uint8)


@dataclass(frozen=True)
class LoopCase:
    """One loop: the rows of its chunks' blocks, its policies, and how it is driven."""

    rows: tuple[tuple[int, ...], ...]
    swap: bool | None
    checkpoint: bool | int | None
    state_bytes: int
    shrink: bool
    join: int

    @property
    def chunk_bytes(self) -> int:
        return max((sum(rows) * ROW for rows in self.rows), default=0)


@dataclass(frozen=True)
class Case:
    """Loops, run forward in turns and backward in the mirrored order, and a device."""

    loops: tuple[LoopCase, ...]
    # Pairs of a loop and a number of chunks that run in sequence.
    turns: tuple[tuple[int, int], ...]
    device: int | None
    host: int | None
    tiers: int
    blocking: bool
    bandwidth: float
    latency: float
    temporary: int
    seed: int


ways = st.sampled_from(
    [(None, None), (True, None), (True, False), (None, True), (None, 1), (None, 2), (None, 3), (False, None)]
)
blocks = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)
loops = st.builds(
    lambda rows, way, *rest: LoopCase(tuple(rows), way[0], way[1], *rest),
    st.lists(blocks, max_size=9),
    ways,
    st.sampled_from([0, 1, 8, 100]),
    st.booleans(),
    st.integers(1, 3),
)
cases = st.builds(
    Case,
    st.lists(loops, min_size=1, max_size=3).map(tuple),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=5).map(tuple),
    st.none() | st.integers(100, 3000),
    st.none() | st.integers(200, 3000),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([20.0, 200.0, 1e4, 1e9]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0, 64, 300]),
    st.integers(0, 3),
)


def simulated(case: Case, faults: tuple[Fault, ...] = ()) -> SimulatedDevice:
    return SimulatedDevice(
        dict.fromkeys(("device", "host", "disk")[: case.tiers], 1 << 20),
        bandwidth_out=case.bandwidth,
        bandwidth_in=case.bandwidth * 2,
        disk_bandwidth=case.bandwidth,
        latency=case.latency,
        blocking=case.blocking,
        seed=case.seed or None,
        delay=1e-4,
        faults=faults,
    )


class Temporary:
    """Bytes in use while a chunk runs."""

    def __init__(self, manager: Manager, nbytes: int) -> None:
        self.allocation = manager.allocate((nbytes,), BYTES, "temporary")

    def close(self) -> None:
        self.allocation.release()


def drive(case: Case, manager: Manager, drivers: list[Driver]) -> None:
    for number, loop in enumerate(case.loops):
        driver = Driver(manager, loop.rows, 1.0, 2.0, loop.state_bytes, f"loop{number}", loop.shrink)
        drivers.append(driver)
        driver.start(swap=loop.swap, checkpoint=loop.checkpoint)
    done = []
    for number, count in [*case.turns, *((n, 99) for n in range(len(drivers)))]:
        if number < len(drivers):
            driver = drivers[number]
            count = min(count, len(driver.rows) - len(driver.blocks))
            with contextlib.closing(Temporary(manager, case.temporary)):
                driver.forward(count)
            done.append((driver, count, case.loops[number].join))
    for driver, count, join in reversed(done):
        while count:
            with contextlib.closing(Temporary(manager, case.temporary)):
                driver.backward(1, join=min(join, count))
            count -= min(join, count)
    for driver in drivers:
        driver.settle()


def is_enough(case: Case) -> bool:
    """Return true if a budget must suffice: it holds the bytes needed at once, with all other bytes elsewhere."""
    if case.device is None:
        return True
    can_copy = (case.tiers > 2 and case.host is None) or (case.tiers == 2 and case.host is None)
    if not can_copy or any(loop.swap is not True and loop.rows for loop in case.loops):
        return False
    need = max(max(1, loop.join) * loop.chunk_bytes for loop in case.loops)
    return case.device >= need + case.temporary


faults = st.lists(
    st.builds(
        Fault, st.sampled_from(["fail", "corrupt", "kill"]), st.sampled_from(["out", "in", "disk"]), st.integers(1, 12)
    )
    | st.builds(Fault, st.just("refuse"), st.sampled_from(["device", "host", "disk"]), st.integers(1, 12)),
    min_size=1,
    max_size=3,
).map(tuple)


def is_judged(fault: Fault) -> bool:
    """Return true if a check can detect the fault: bytes corrupted between device and host have no checksum."""
    return fault.kind != "corrupt" or fault.place == "disk"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases, faults)
def test_random_faults(case: Case, faults: tuple[Fault, ...]) -> None:
    """Random faults give right values or a library error; afterwards nothing is held, and the manager works again."""
    faults = tuple(fault for fault in faults if is_judged(fault))
    device = simulated(case, faults)
    recording = Recording()
    manager = Manager(device, Budget(case.device, case.host), recording)
    drivers: list[Driver] = []
    try:
        drive(case, manager, drivers)
        event("no harm")
    except CtrlgradError as error:
        event(type(error).__name__)
    for driver in drivers:
        assert driver.memory is not None
        driver.memory.abandon()
    del driver, drivers
    gc.collect()
    # Up to three faults may follow; after them the manager works.
    for _ in range(5):
        again = Driver(manager, [[1]] * 3)
        try:
            again.run()
            break
        except CtrlgradError:
            assert again.memory is not None
            again.memory.abandon()
    else:
        assert case.device is not None and case.device < 1000
    manager.close()
    assert not any(account.used for account in manager.accounts)
    assert not any(tier.used for tier in device.tiers)
    check_actions(recording, manager)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases)
def test_random_loops(case: Case) -> None:
    device = simulated(case)
    recording = Recording()
    manager = Manager(device, Budget(case.device, case.host), recording)
    try:
        drive(case, manager, [])
        event("enough")
        # Checked before the manager is closed, which would release forgotten blocks.
        assert not manager.index
        assert not manager.accounts[0].kinds["entry states"] and not manager.accounts[0].kinds["running state"]
    except MemoryBudgetError as error:
        assert not is_enough(case), error
        assert "limit" in str(error)
        event("not enough")
    finally:
        manager.close()
    assert not any(account.used for account in manager.accounts)
    assert not any(tier.used for tier in device.tiers)
    check_actions(recording, manager)
