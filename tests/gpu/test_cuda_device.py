"""The CUDA device on a real card: the rules of every device, overlap of copies with computation, and the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments import device_rules
from instruments.device_rules import BYTES, Machine, pattern

from ctrlgrad.errors import TierRefusedError
from ctrlgrad.memory.devices.cuda import CudaDevice

MIB = 1 << 20


def machine(folder: Path, timing: bool) -> Machine:
    device = CudaDevice(directory=folder, slab_bytes=16 * MIB, timing=timing)
    cupy = device.cupy

    def assign(array: Any, values: np.ndarray) -> None:
        with device.current(), device.compute.raw:
            array[...] = cupy.asarray(values)

    def collect(array: Any, found: list[np.ndarray]) -> None:
        with device.current(), device.compute.raw:
            found.append(cupy.asnumpy(array, stream=device.compute.raw))

    return Machine(device, assign, collect)


@pytest.fixture(params=[False, True], ids=["untimed", "timed"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Machine]]:
    made: list[Machine] = []

    def one() -> Machine:
        made.append(machine(tmp_path, request.param))
        return made[-1]

    yield one
    for each in made:
        each.device.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rule", device_rules.RULES, ids=lambda rule: rule.__name__)
def test_rule(make: Callable[[], Machine], rule: Callable[[Machine], None]) -> None:
    rule(make())


@pytest.mark.parametrize("seed", range(5))
def test_blocks_in_a_ring_keep_their_bytes(make: Callable[[], Machine], seed: int) -> None:
    device_rules.blocks_in_a_ring_keep_their_bytes(make(), seed, rounds=200)


def test_two_do_not_disturb_each_other(make: Callable[[], Machine]) -> None:
    device_rules.two_do_not_disturb_each_other(make(), make())


def test_a_copy_into_a_freed_block_waits_for_the_computation(tmp_path: Path) -> None:
    """A long computation reads a block that is freed meanwhile, and whose memory the next block gets at once."""
    made = machine(tmp_path, False)
    device = made.device
    assert isinstance(device, CudaDevice)
    cupy, nbytes = device.cupy, 4 * MIB
    block, backup = device.memory.allocate(nbytes), device.pinned.allocate(nbytes)
    backup.handle.bytes(nbytes)[:] = pattern(1, nbytes).tobytes()
    made.assign(device.array(block, [nbytes], BYTES), np.full(nbytes, 3, np.uint8))
    address = block.handle.pointer.ptr
    with device.current(), device.compute.raw:
        work = cupy.ones((4096, 4096), np.float32)
        for _ in range(20):
            work = work @ work * 0
        total = device.array(block, [nbytes], BYTES).sum() + work.sum()
    device.memory.free(block)
    landing = device.memory.allocate(nbytes)
    assert landing.handle.pointer.ptr == address
    device.copy(backup, landing, nbytes, device.into)
    device.compute.wait(device.into.record())
    found: list[np.ndarray] = []
    made.collect(device.array(landing, [nbytes], BYTES), found)
    device.compute.record().wait()
    assert int(total) == 3 * nbytes
    np.testing.assert_array_equal(found[0], pattern(1, nbytes))
    device.close()


def test_copies_both_ways_run_beside_a_computation(tmp_path: Path) -> None:
    """By events: copies that wait for nothing are over while a computation that was issued earlier still runs."""
    device = CudaDevice(timing=True)
    cupy, nbytes = device.cupy, MIB
    one, two = (device.memory.allocate(nbytes) for _ in range(2))
    backups = [device.pinned.allocate(nbytes) for _ in range(2)]
    with device.current(), device.compute.raw:
        work = cupy.ones((4096, 4096), np.float32)
        work @ work
    device.compute.record().wait()
    with device.current(), device.compute.raw:
        for _ in range(50):
            work = work @ work * 0
    computed = device.compute.record()
    device.copy(one, backups[0], nbytes, device.out)
    device.copy(backups[1], two, nbytes, device.into)
    out, into = device.out.record(), device.into.record()
    for event in (out, into, computed):
        event.wait()
    assert out.time is not None
    assert into.time is not None
    assert computed.time is not None
    assert max(out.time, into.time) < computed.time
    device.close()


def test_device_memory_that_is_not_there_is_refused() -> None:
    device = CudaDevice()
    free, _ = device.memory_info()
    with pytest.raises(TierRefusedError, match="has no memory left, although the budget allows it"):
        device.memory.allocate(free + (64 << 30))
    device.memory.free(device.memory.allocate(MIB))
    device.close()
