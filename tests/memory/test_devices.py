"""Every device keeps the common rules; the CPU adds threads, the cache of buffers, and the process's own memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from instruments import device_rules
from instruments.device_rules import Machine
from instruments.fake_cupy import install
from instruments.simulated import SimulatedDevice

from ctrlgrad.errors import BlockLostError, ExecutionError, TierRefusedError
from ctrlgrad.memory.devices.cpu import SHORT_BYTES, CpuDevice
from ctrlgrad.memory.devices.cuda import CudaDevice
from ctrlgrad.memory.devices.streams import WorkerStream
from ctrlgrad.memory.pool import Pool

MIB = 1 << 20


def simulated(blocking: bool, seed: int) -> Machine:
    capacities = {"device": MIB, "host": MIB, "disk": MIB}
    device = SimulatedDevice(capacities, blocking=blocking, seed=seed, delay=0.002)
    return Machine(
        device,
        lambda array, values: device.run(1e-6, lambda: array.__setitem__(..., values)),
        lambda array, found: device.run(1e-6, lambda: found.append(array.copy())),
    )


def cpu(folder: Path) -> Machine:
    return Machine(
        CpuDevice(folder),
        lambda array, values: array.__setitem__(..., values),
        lambda array, found: found.append(array.copy()),
    )


def fake_cuda(folder: Path, timing: bool) -> Machine:
    device = CudaDevice(directory=folder, slab_bytes=MIB, timing=timing)
    return Machine(
        device,
        lambda array, values: device.compute.raw.put(lambda: array.__setitem__(..., values)),
        lambda array, found: device.compute.raw.put(lambda: found.append(array.copy())),
    )


KINDS = ("simulated", "simulated, blocking", "cpu", "cuda, fake", "cuda, fake, timing")


@pytest.fixture(params=KINDS)
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Machine]]:
    """Make machines of one kind and close them after the test; the fake card must have seen no broken rule."""
    made: list[Machine] = []
    card = install(monkeypatch)
    card.delay = 0.002

    def one() -> Machine:
        machine = {
            "simulated": lambda: simulated(False, len(made)),
            "simulated, blocking": lambda: simulated(True, len(made)),
            "cpu": lambda: cpu(tmp_path),
            "cuda, fake": lambda: fake_cuda(tmp_path, False),
            "cuda, fake, timing": lambda: fake_cuda(tmp_path, True),
        }[request.param]()
        made.append(machine)
        return machine

    yield one
    for machine in made:
        machine.device.close()
    assert card.broken == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rule", device_rules.RULES, ids=lambda rule: rule.__name__)
def test_rule(make: Callable[[], Machine], rule: Callable[[Machine], None]) -> None:
    rule(make())


@pytest.mark.parametrize("seed", range(3))
def test_blocks_in_a_ring_keep_their_bytes(make: Callable[[], Machine], seed: int) -> None:
    device_rules.blocks_in_a_ring_keep_their_bytes(make(), seed)


def test_two_do_not_disturb_each_other(make: Callable[[], Machine]) -> None:
    device_rules.two_do_not_disturb_each_other(make(), make())


# Streams.


def test_work_runs_in_order_and_not_on_the_host() -> None:
    stream, seen = WorkerStream("out"), []
    for number in range(100):
        stream.put(lambda number=number: seen.append((number, threading.current_thread())))
    stream.record().wait()
    assert [number for number, _ in seen] == list(range(100))
    assert {thread for _, thread in seen}.isdisjoint({threading.main_thread()})
    stream.close()


def test_short_work_runs_at_once_where_nothing_is_under_way() -> None:
    stream, gate, seen = WorkerStream("out"), threading.Event(), []
    note = lambda: seen.append(threading.current_thread())
    stream.put(note, is_short=True)
    assert seen == [threading.main_thread()]
    assert stream.record().is_done()
    stream.put(gate.wait)
    stream.put(note, is_short=True)
    waiting = stream.record()
    assert len(seen) == 1 and not waiting.is_done()
    gate.set()
    waiting.wait()
    assert len(seen) == 2 and seen[1] is not threading.main_thread()
    stream.close()


def test_an_error_of_short_work_is_raised_by_the_next_event() -> None:
    stream = WorkerStream("out")
    stream.put(lambda: int("short"), is_short=True)
    with pytest.raises(ValueError, match="short"):
        stream.record().wait()
    stream.record().wait()
    stream.close()


def test_a_stream_waits_for_an_event_of_another() -> None:
    one, two, gate, seen = WorkerStream("out"), WorkerStream("in"), threading.Event(), []
    one.put(lambda: (gate.wait(), seen.append("one"))[1])
    event = one.record()
    two.wait(event)
    two.put(lambda: seen.append("two"))
    last = two.record()
    assert not event.is_done()
    assert not last.is_done()
    assert (event.time, last.time) == (None, None)
    gate.set()
    last.wait()
    assert seen == ["one", "two"]
    assert event.time is not None
    assert last.time is not None
    assert event.time <= last.time
    one.close()
    two.close()


def test_close_runs_what_is_queued() -> None:
    stream, seen = WorkerStream("out"), []
    for number in range(50):
        stream.put(lambda number=number: seen.append(number))
    stream.close()
    stream.close()
    assert seen == list(range(50))
    with pytest.raises(ExecutionError, match="'out': it is closed"):
        stream.put(lambda: None)


def test_an_error_is_raised_by_every_event_after_it_until_the_host_has_seen_it() -> None:
    stream = WorkerStream("out")

    def fail(text: str) -> None:
        raise OSError(text)

    good = stream.record()
    stream.put(lambda: fail("first"))
    one = stream.record()
    stream.put(lambda: fail("second"))
    two = stream.record()
    good.wait()
    with pytest.raises(OSError, match="first"):
        two.wait()
    # Every event of the stream raises the error, whether it was recorded before or after the error was reported.
    with pytest.raises(OSError, match="first"):
        one.wait()
    stream.record().wait()
    stream.put(lambda: fail("third"))
    with pytest.raises(OSError, match="third"):
        stream.record().wait()
    stream.record().wait()
    stream.close()


def test_an_event_that_was_queued_when_the_host_saw_an_error_raises_it_too() -> None:
    """An event that was queued when the host saw an error raises it too. Found: it raised nothing if the worker
    reached it after the host had seen the error at an earlier event."""
    stream, go_on = WorkerStream("out"), threading.Event()
    stream.put(lambda: 1 // 0)
    first = stream.record()
    stream.put(lambda: go_on.wait(60) and None)
    second = stream.record()
    with pytest.raises(ZeroDivisionError):
        first.wait()
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        second.wait()
    stream.put(lambda: None)
    stream.record().wait()
    assert not stream.failures
    stream.close()


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt])
def test_a_dead_worker_hangs_nobody(death: type[BaseException]) -> None:
    stream, gate = WorkerStream("in"), threading.Event()

    def die() -> None:
        gate.wait()
        raise death("on purpose")

    stream.put(die)
    events = []
    for _ in range(3):
        stream.put(lambda: None)
        events.append(stream.record())
    gate.set()
    for event in events:
        with pytest.raises(ExecutionError, match=r"stream 'in': its worker thread died: .*on purpose"):
            event.wait()
    seen: list[int] = []
    stream.put(lambda: seen.append(1))
    stream.record().wait()
    assert seen == [1]
    stream.close()


def test_many_threads_use_one_stream() -> None:
    stream, seen = WorkerStream("out"), []

    def use(number: int) -> None:
        for _ in range(50):
            stream.put(lambda: seen.append(number))
            stream.record().wait()

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted([0, 1, 2, 3] * 50)
    stream.close()


# The CPU.


def test_buffers_go_round_and_are_aligned(tmp_path: Path) -> None:
    device = CpuDevice(tmp_path)
    tier = device.ram
    first = tier.allocate(10_000)
    address = device.array(first, [10], np.dtype("f8")).ctypes.data
    assert address % 4096 == 0
    tier.free(first)
    again = tier.allocate(9_000)
    assert device.array(again, [10], np.dtype("f8")).ctypes.data == address
    assert device.array(tier.allocate(9_000), [10], np.dtype("f8")).ctypes.data != address
    device.close()


def test_the_ring_holds_no_more_than_was_in_use() -> None:
    made: list[int] = []
    cache = Pool(lambda size: (made.append(size), bytearray(size))[1])
    for size in (100, 50, 25, 100, 50):
        buffers = [cache.take(size) for _ in range(100 // size)]
        assert cache.nbytes == cache.used == 100
        for buffer in buffers:
            cache.give(size, buffer)
    assert made == [100, 50, 50, 25, 25, 25, 25, 100, 50, 50]
    buffer = cache.take(50)
    assert (cache.used, cache.nbytes, len(made)) == (50, 100, 10)
    cache.give(50, buffer)
    cache.clear()
    assert (cache.used, cache.nbytes, cache.peak) == (0, 0, 0)


def test_no_ram_is_a_refusal(tmp_path: Path) -> None:
    device = CpuDevice(tmp_path)
    with pytest.raises(TierRefusedError, match="no RAM left"):
        device.ram.allocate(1 << 60)
    device.ram.free(device.ram.allocate(100))
    device.close()


def test_a_changed_byte_on_disk_reaches_the_computation_as_an_error(tmp_path: Path) -> None:
    device = CpuDevice(tmp_path)
    block, far = device.ram.allocate(100), device.tiers[1].allocate(100)
    device.array(block, [100], np.dtype("u1"))[:] = 5
    device.copy(block, far, 100, device.out)
    device.out.record().wait()
    with open(str(device.spill.path), "r+b") as file:
        file.write(b"\x06")
    device.copy(far, block, 100, device.into)
    with pytest.raises(BlockLostError, match="have changed"):
        device.compute.wait(device.into.record())
    # The next block works again.
    device.array(block, [100], np.dtype("u1"))[:] = 7
    device.copy(block, far, 100, device.out)
    device.into.wait(device.out.record())
    device.copy(far, block, 100, device.into)
    device.compute.wait(device.into.record())
    assert device.array(block, [100], np.dtype("u1")).tolist() == [7] * 100
    device.close()


def test_a_forgotten_device_leaves_no_thread_and_no_file(tmp_path: Path) -> None:
    device, size = CpuDevice(tmp_path), SHORT_BYTES + 1
    block, far = device.ram.allocate(size), device.tiers[1].allocate(size)
    device.array(block, [size], np.dtype("u1"))[:] = 5
    device.copy(block, far, size, device.out)
    before, gone = threading.active_count(), weakref.ref(device)
    del device
    gc.collect()
    assert gone() is None
    assert threading.active_count() == before - 1
    assert list(tmp_path.iterdir()) == []


GROWTH = """
import resource, sys
import numpy as np
from ctrlgrad.memory.devices.cpu import CpuDevice

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

MIB = 1 << 20
device = CpuDevice(sys.argv[1])
slots = [device.ram.allocate(MIB) for _ in range(4)]
for slot in slots:
    device.array(slot, [MIB], np.dtype("u1"))[:] = 1
device.copy(slots[0], device.tiers[1].allocate(MIB), MIB, device.out)
device.out.record().wait()
before = resident()
spilled, copied = [], [None] * 4
for number in range(200):
    slot = slots[number % 4]
    if copied[number % 4]:
        copied[number % 4].wait()
    device.array(slot, [MIB], np.dtype("u1"))[:] = number
    far = device.tiers[1].allocate(MIB)
    device.copy(slot, far, MIB, device.out)
    copied[number % 4] = device.out.record()
    spilled.append(far)
device.out.record().wait()
for number, far in reversed(list(enumerate(spilled))):
    device.copy(far, slots[0], MIB, device.into)
    device.compute.wait(device.into.record())
    assert (device.array(slots[0], [MIB], np.dtype("u1")) == number).all()
    device.tiers[1].free(far)
print((resident() - before) / MIB)
device.close()
"""


def test_the_process_grows_with_what_is_used_and_not_with_what_is_spilled(tmp_path: Path) -> None:
    """200 MiB go through 4 MiB of slots: the process grows with the memory in use, not with the bytes spilled."""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("the system does not tell a process's memory")
    done = subprocess.run([sys.executable, "-c", GROWTH, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 20
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_is_closed_has_come_by_everything() -> None:
    """The collector may close a device before its manager, which then waits for the streams."""
    stream = WorkerStream("out")
    stream.put(lambda: None)
    stream.close()
    assert stream.record().is_done()
    with pytest.raises(ExecutionError, match="it is closed"):
        stream.put(lambda: None)
