"""Blocks that are pushed and read during the way back cause no second fetch of evicted blocks."""

from __future__ import annotations

import pytest
from instruments.sessions import check_actions
from instruments.simulated import SimulatedDevice
from memory_cases.driving import CHUNK, DOUBLE, WIDTH, Driver, chunks

from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.recorder import Statistics
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.sizes import Budget

ROWS = CHUNK // (8 * WIDTH)


def run(length: int, room: int, staying: int) -> Statistics:
    """Run a loop whose way back pushes blocks of `staying` chunks' bytes in an inner loop, and reads them at once."""
    device = SimulatedDevice({"device": 1 << 30, "host": 1 << 30}, blocking=True)
    recording = Recording()
    manager = Manager(device, Budget(device=room * CHUNK), recording)
    driver = Driver(manager, chunks(length))
    driver.start(swap=True)
    driver.forward()
    inner = manager.loop("inner", swap=False)
    for _ in range(length):
        chunk = inner.begin()
        block = chunk.block((staying * ROWS, WIDTH), DOUBLE, "y")
        block.array[:] = 1.0
        chunk.seal(1.0)
        driver.backward(1)
        block.free()
    inner.finish()
    driver.settle()
    manager.close()
    check_actions(recording, manager)
    return manager.stats


@pytest.mark.parametrize("room", [5, 6, 9])
@pytest.mark.parametrize("staying", [1, 2, 3])
def test_fetched_blocks_are_not_evicted_for_blocks_that_stay(room: int, staying: int) -> None:
    """A block fetched ahead is not evicted for a block that stays: such evictions once cost up to four times the
    bytes."""
    stats = run(24, room, staying)
    assert stats.copies_out > 20
    assert stats.copies_in <= stats.copies_out
