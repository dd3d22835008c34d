"""The CUDA device on a fake CuPy that enforces CuPy's rules, so that no card is needed.

`test_devices.py` runs the rules of every device on the fake, and `tests/gpu` runs them on a real card.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from instruments.fake_cupy import Card, install, module

from ctrlgrad.errors import BlockLostError, ExecutionError, TierRefusedError, UserInputError
from ctrlgrad.memory.devices.cuda import CudaDevice
from ctrlgrad.memory.devices.device import Piece
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.sizes import Budget

BYTES = np.dtype("u1")
KIB = 1024


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return install(monkeypatch)


def put(device: CudaDevice, piece: Piece, value: int) -> None:
    """Fill a piece on the compute stream."""
    array = device.array(piece, [piece.nbytes], BYTES)
    device.compute.raw.put(lambda: array.fill(value))


def contents(device: CudaDevice, piece: Piece) -> set[int]:
    device.compute.record().wait()
    return set(device.array(piece, [piece.nbytes], BYTES).tolist())


def hold(stream: object) -> threading.Event:
    """Stop a stream of the fake until the event is set."""
    gate = threading.Event()
    stream.put(lambda: (gate.wait(), None)[1])  # type: ignore[attr-defined]
    return gate


def test_without_cupy_or_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UserInputError, match="needs CuPy") as caught:
        CudaDevice()
    assert "pip install -e '.[cuda12]'" in str(caught.value)
    install(monkeypatch)
    with pytest.raises(UserInputError, match="no such CUDA device") as caught:
        CudaDevice(1)
    assert "a number below 1" in str(caught.value)
    runtime = sys.modules["cupy"].cuda.runtime

    def no_driver() -> int:
        raise runtime.CUDARuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(runtime, "getDeviceCount", no_driver)
    with pytest.raises(UserInputError, match="cannot be used on this machine"):
        CudaDevice()


def test_a_block_lives_until_its_copy_is_over_whoever_forgets_it(card: Card) -> None:
    """A block lives until its copy is over. Without the device's own reference the arena would reuse the block
    during the copy."""
    device = CudaDevice()
    block, backup = device.memory.allocate(4096), device.pinned.allocate(4096)
    put(device, block, 7)
    device.compute.record().wait()
    gate = hold(device.out.raw)
    device.copy(block, backup, 4096, device.out)
    copied = device.out.record()
    device.memory.free(block)
    device.memory.cache.clear()
    del block
    gc.collect()
    assert card.device_bytes == 4096
    gate.set()
    copied.wait()
    assert backup.handle.bytes(4096).tolist() == [7] * 4096
    # The next copy releases the memory of finished copies.
    other = device.memory.allocate(512)
    device.copy(other, backup, 512, device.out)
    device.out.record().wait()
    device.copy(other, backup, 512, device.out)
    device.out.record().wait()
    gc.collect()
    assert card.device_bytes == 512
    assert card.broken == []
    device.close()


def test_the_fake_sees_a_block_that_is_used_after_it_is_gone(card: Card) -> None:
    device = CudaDevice()
    block, backup = device.memory.allocate(4096), device.pinned.allocate(4096)
    gate = hold(device.out.raw)
    device.copy(block, backup, 4096, device.out)
    device._in_flight.clear()
    device.memory.free(block)
    device.memory.cache.clear()
    gc.collect()
    gate.set()
    device.out.record().wait()
    assert card.broken == ["read of 4096 bytes that do not live"]
    device.close()


def test_a_copy_into_a_freed_block_waits_for_the_computation_that_still_uses_it(card: Card) -> None:
    device = CudaDevice()
    block, backup = device.memory.allocate(4096), device.pinned.allocate(4096)
    backup.handle.bytes(4096)[:] = b"\x05" * 4096
    address = block.handle.pointer.ptr
    gate = hold(device.compute.raw)
    put(device, block, 9)
    seen = []
    array = device.array(block, [4096], BYTES)
    device.compute.raw.put(lambda: seen.append(set(array.tolist())))
    device.memory.free(block)
    landing = device.memory.allocate(4096)
    assert landing.handle.pointer.ptr == address
    device.copy(backup, landing, 4096, device.into)
    landed = device.into.record()
    assert not landed.is_done()
    gate.set()
    landed.wait()
    assert seen == [{9}]
    assert contents(device, landing) == {5}
    device.close()


def test_blocks_go_round(card: Card) -> None:
    device = CudaDevice()
    for _ in range(5):
        pieces = [device.memory.allocate(n) for n in (1000, 1024, 4096)]
        for piece in pieces:
            device.memory.free(piece)
    # Sizes are in CuPy's units of 512 bytes.
    assert card.allocated == [1024, 1024, 4096]
    device.close()
    gc.collect()
    assert card.device_bytes == 0


def test_one_slab_is_pinned_and_cut(card: Card) -> None:
    device = CudaDevice(slab_bytes=64 * KIB)
    pieces = [device.pinned.allocate(n) for n in (5000, 4096, 20_000)]
    assert card.pinned == [64 * KIB]
    addresses = [piece.handle.ptr for piece in pieces]
    assert addresses == [addresses[0], addresses[0] + 8192, addresses[0] + 12288]
    device.pinned.free(pieces[0])
    assert device.pinned.allocate(8192).handle.ptr == addresses[0]
    # A larger block gets a slab of its own size, rounded to pages.
    device.pinned.allocate(100_001)
    assert card.pinned == [64 * KIB, 100 * KIB]
    device.close()
    del pieces
    gc.collect()
    assert card.pinned_bytes == 0


def test_slabs_never_pass_the_host_budget(card: Card) -> None:
    """Slabs stay within the host budget. A whole second slab was once taken, whatever was left of the budget."""
    device = CudaDevice(slab_bytes=64 * KIB, host_bytes=100 * KIB)
    pieces = [device.pinned.allocate(60 * KIB)]
    pieces.append(device.pinned.allocate(30 * KIB))
    assert card.pinned == [64 * KIB, 36 * KIB]
    with pytest.raises(TierRefusedError, match="no free part that is large enough") as caught:
        device.pinned.allocate(8 * KIB)
    assert "102400 of 102400 bytes pinned, of which 8192 are free" in str(caught.value)
    # Both slabs are free and too small, so they are released for a larger one.
    device.pinned.free(pieces.pop())
    device.pinned.free(pieces.pop())
    del caught
    large = device.pinned.allocate(90 * KIB)
    gc.collect()
    assert card.pinned[2:] == [92 * KIB]
    assert card.pinned_bytes == device.pinned.nbytes == 92 * KIB
    device.pinned.free(large)
    device.close()


def test_a_loop_within_a_host_budget_that_is_no_number_of_slabs(card: Card, tmp_path: Path) -> None:
    """With a host budget that is no multiple of a slab, further blocks go to disk or raise a clear error."""
    device = CudaDevice(directory=tmp_path, slab_bytes=16 * KIB, host_bytes=40 * KIB)
    manager = Manager(device, Budget(device=24 * KIB, host=40 * KIB))
    loop = manager.loop("loop", swap=True)
    blocks = []
    for number in range(20):
        chunk = loop.begin()
        block = chunk.block((5000,), BYTES, "x")
        array = block.array
        device.compute.raw.put(lambda array=array, number=number: array.fill(number))
        chunk.seal(1e-3)
        blocks.append(block)
    loop.finish()
    found: list[set[int]] = []
    for block in reversed(blocks):
        array = block.open()
        device.compute.raw.put(lambda array=array: found.append(set(array.tolist())))
        block.close()
        block.free()
    device.compute.record().wait()
    assert found == [{number} for number in reversed(range(20))]
    assert sum(card.pinned) <= 40 * KIB
    assert manager.stats.copies_out > 20 and not manager.stats.fallbacks
    manager.close()


def test_pinned_memory_is_refused(card: Card) -> None:
    card.pinned_limit = 20 * KIB
    device = CudaDevice(slab_bytes=64 * KIB)
    # The system refuses a slab but grants the bytes that are needed.
    piece = device.pinned.allocate(16 * KIB)
    assert card.pinned == [16 * KIB]
    with pytest.raises(TierRefusedError, match="refused pinned host memory") as caught:
        device.pinned.allocate(8 * KIB)
    assert "8192 bytes" in str(caught.value)
    assert "16384 bytes are pinned" in str(caught.value)
    device.pinned.free(piece)
    device.pinned.free(device.pinned.allocate(16 * KIB))
    device.close()


def test_out_of_memory_empties_the_ring_once_and_then_says_so(card: Card) -> None:
    card.capacity = 8 * KIB
    device = CudaDevice()
    small = [device.memory.allocate(2 * KIB) for _ in range(4)]
    for piece in small[:3]:
        device.memory.free(piece)
    del piece
    # Another process takes memory of the card that the cache counts on.
    card.capacity = 6 * KIB
    large = device.memory.allocate(4 * KIB)
    assert card.device_bytes == 6 * KIB
    with pytest.raises(TierRefusedError, match="cuda:0 has no memory left, although the budget allows it") as caught:
        device.memory.allocate(1 * KIB)
    assert "1024 bytes" in str(caught.value)
    assert "0 free of 6144, 6144 bytes in use by blocks" in str(caught.value)
    device.memory.free(large)
    device.memory.free(device.memory.allocate(4 * KIB))
    device.close()


def test_a_failed_copy_is_an_error_of_the_library(card: Card) -> None:
    device = CudaDevice()
    block, backup = device.memory.allocate(512), device.pinned.allocate(512)
    card.failures = 1
    device.copy(block, backup, 512, device.out)
    with pytest.raises(ExecutionError, match=r"cuda:0: waiting for an event: cudaErrorUnknown"):
        device.out.record().wait()
    with pytest.raises(ExecutionError, match="cuda:0: closing"):
        device.close()
    # All memory is returned all the same.
    del block, backup
    gc.collect()
    assert (card.device_bytes, card.pinned_bytes) == (0, 0)


def test_the_disks_error_comes_through_the_streams(card: Card, tmp_path: Path) -> None:
    device = CudaDevice(directory=tmp_path)
    block, backup, far = (tier.allocate(512) for tier in device.tiers)
    put(device, block, 3)
    device.out.wait(device.compute.record())
    device.copy(block, backup, 512, device.out)
    device.disk.wait(device.out.record())
    device.copy(backup, far, 512, device.disk)
    device.disk.record().wait()
    assert device.spill is not None
    with open(str(device.spill.path), "r+b") as file:
        file.write(b"\x04")
    gate = threading.Event()
    device.disk.put(lambda: (gate.wait(), None)[1])
    device.copy(far, backup, 512, device.disk)
    device.into.wait(device.disk.record())
    device.copy(backup, block, 512, device.into)
    device.compute.wait(device.into.record())
    consumed = device.compute.record()
    # Nothing has blocked the host until here.
    assert not consumed.is_done()
    gate.set()
    with pytest.raises(BlockLostError, match="have changed"):
        consumed.wait()
    # The error was reported, so later events of the stream succeed.
    device.compute.record().wait()
    device.disk.wait(device.out.record())
    device.disk.record().wait()
    device.close()


def test_an_error_that_a_thread_waits_for_is_not_lost(card: Card, tmp_path: Path) -> None:
    device = CudaDevice(directory=tmp_path)

    def fail() -> None:
        raise OSError("on purpose")

    gate = threading.Event()
    device.disk.put(lambda: (gate.wait(), None)[1])
    device.disk.put(fail)
    device.into.wait(device.disk.record())
    event = device.into.record()
    device.disk.wait(event)
    gate.set()
    behind = device.disk.record()
    for failed in (behind, event):
        with pytest.raises(OSError, match="on purpose"):
            failed.wait()
    device.close()


def test_times_are_taken_only_where_asked(card: Card) -> None:
    untimed, timed = CudaDevice(), CudaDevice(timing=True)
    for device in (untimed, timed):
        event = device.compute.record()
        event.wait()
        assert event.raw.disable_timing is not device.timing
        time = event.time
        assert (time is None) == (device is untimed)
        if time is not None:
            assert -1e-3 <= device.now() - time < 60
        device.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clocks of the host and of the card, which only the test advances."""
    found = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: found[0])
    return found


@pytest.mark.parametrize("hours", [0, 1, 24])
def test_times_are_as_fine_after_hours(card: Card, clock: list[float], hours: int) -> None:
    """Times keep their resolution for hours. As float32 milliseconds since the start they would be 0.25 ms apart
    after an hour."""
    device = CudaDevice(timing=True)
    clock[0] += 3600.0 * hours
    events = []
    for _ in range(3):
        events.append(device.compute.record())
        events[-1].wait()
        clock[0] += 25e-6
    found = [event.time for event in events]
    assert found == pytest.approx([3600.0 * hours + k * 25e-6 for k in range(3)], rel=0, abs=1e-6)
    device.close()


def test_an_event_that_is_done_long_after_it_was_recorded(card: Card, clock: list[float]) -> None:
    device = CudaDevice(timing=True)
    gate = hold(device.out.raw)
    late = device.out.record()
    for _ in range(4):
        clock[0] += 3600.0
        device.compute.record().wait()
    clock[0] += 25e-6
    gate.set()
    late.wait()
    assert late.time == pytest.approx(4 * 3600.0 + 25e-6, rel=0, abs=1e-6)
    device.close()


def test_a_copy_waits_for_the_release_of_its_own_memory(card: Card) -> None:
    """A copy into released memory waits for that memory's release only, so it overlaps with the work that runs now."""
    device = CudaDevice()
    blocks = [device.tiers[0].allocate(KIB) for _ in range(2)]
    source = device.tiers[1].allocate(KIB)
    device.tiers[0].free(blocks[0])
    device.compute.record().wait()
    gate = hold(device.compute.raw)
    device.tiers[0].free(blocks[1])
    target = device.tiers[0].allocate(KIB)
    device.copy(source, target, KIB, device.into)
    copied = device.into.record()
    assert copied.raw.reached.wait(10.0), "it waits for another block"
    gate.set()
    assert not card.broken
    device.close()


def test_foreign_events_and_ways_are_refused(card: Card) -> None:
    device = CudaDevice()
    with pytest.raises(ExecutionError, match="no event of this device"):
        device.out.wait(object())  # type: ignore[arg-type]
    block, backup = device.memory.allocate(8), device.pinned.allocate(8)
    with pytest.raises(ExecutionError, match="no copy from tier 'device' to 'host' on stream 'disk'"):
        device.copy(block, backup, 8, device.disk)
    device.close()


def test_cupy_has_what_the_fake_offers() -> None:
    """The real CuPy has every name that the fake offers, with a card or without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cupy = pytest.importorskip("cupy")
    fake = module(Card())
    for names, real in ((vars(fake.cuda), cupy.cuda), (vars(fake.cuda.runtime), cupy.cuda.runtime)):
        assert [name for name in names if not hasattr(real, name)] == []
    for kind in ("Event", "Stream", "Device", "PinnedMemory", "PinnedMemoryPointer"):
        offered = set(dir(getattr(cupy.cuda, kind))) | {"ptr", "mem"}
        used = {"record", "synchronize", "wait_event", "launch_host_func", "done", "__enter__", "__exit__"}
        assert used & set(vars(getattr(fake.cuda, kind))) <= offered
