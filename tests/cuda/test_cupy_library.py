"""Memory counts of CuPy's library, on the fake that checks CuPy's rules: the card's part is in `tests/gpu`."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from instruments.fake_cupy import Card, install_with_arrays

from ctrlgrad.engines.cuda.cupy_library import CupyLibrary
from ctrlgrad.engines.cuda.stacks import RunMemory
from ctrlgrad.errors import MemoryBudgetError, TierRefusedError, UserInputError
from ctrlgrad.memory.manager import LoopMemory, Manager
from ctrlgrad.memory.sizes import Budget

BYTE = np.dtype(np.uint8)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    return install_with_arrays(monkeypatch)


@pytest.fixture
def memory(card: Card) -> Iterator[RunMemory]:
    library = CupyLibrary(sys.modules["cupy"], 0)
    manager = Manager(library.device(Budget(device=10_240)), Budget(device=10_240))
    # The default stream is no stream of the fake's.
    sys.modules["cupy"].cuda.get_current_stream = lambda: manager.device.compute.raw  # type: ignore[attr-defined]
    found = RunMemory(manager, library)
    with library.running(found):
        yield found
    found.settle()
    manager.close()


def alloc(size: int) -> Any:
    return sys.modules["cupy"].cuda.alloc(size)


def test_every_allocation_counts_as_long_as_it_lives(card: Card, memory: RunMemory) -> None:
    """With what the pool rounds it up by."""
    account = memory.manager.accounts[0]
    first, second = alloc(1000), alloc(2048)
    assert account.used == 3072 and card.device_bytes == 3072
    with pytest.raises(MemoryBudgetError, match="a value of the computation"):
        alloc(7169)
    del first
    third = alloc(8000)
    assert account.used == account.peak == 10_240
    del second, third


def test_the_card_never_gives_more_than_the_budget(card: Card, memory: RunMemory) -> None:
    """Fragmented free memory counts as used: no other allocation can have it."""
    kept = []
    for size in (1024, 2048, 512, 3072, 1536, 4096, 512, 2048) * 3:
        kept = [*kept[-1:], alloc(size)]
        assert card.device_bytes <= 10_240
    assert len(card.allocated) > 8, "the pieces were never in the way"


def test_all_memory_of_the_budget_is_usable(card: Card, memory: RunMemory) -> None:
    """However arrays came and went: a small one that lives does not hold the rest of a large piece of memory."""
    kept = [alloc(4096)]
    for size in (512, 1024, 512):
        kept[0] = alloc(4096)
        kept[0] = None
        kept.append(alloc(size))
    account = memory.manager.accounts[0]
    whole = alloc(10_240 - account.used)
    assert account.used == card.device_bytes == 10_240
    del whole, kept


def test_blocks_count_with_what_they_are_rounded_up_by(card: Card, memory: RunMemory) -> None:
    """Else the budget had room for more small blocks than the pool has."""
    loop = memory.manager.loop("loop", swap=True)
    chunk = loop.begin()
    blocks = [chunk.block((8,), BYTE, "rows") for _ in range(20)]
    assert memory.manager.accounts[0].used == card.device_bytes == 10_240
    with pytest.raises(MemoryBudgetError):
        chunk.block((8,), BYTE, "rows")
    chunk.discard()
    del blocks


def test_buffers_that_blocks_had_serve_what_comes_next(card: Card, memory: RunMemory) -> None:
    """They are no longer counted: neither a value nor a block of another size finds the pool full."""
    for nbytes in (1024, 2048):
        chunk = memory.manager.loop("loop", swap=True).begin()
        blocks = [chunk.block((nbytes,), BYTE, "rows") for _ in range(10_240 // nbytes)]
        assert card.device_bytes == 10_240 // nbytes * nbytes
        chunk.discard()
        del blocks
    whole = alloc(10_240)
    assert memory.manager.accounts[0].used == card.device_bytes == 10_240 and not memory.manager.stats.evictions
    del whole


def test_memory_of_a_size_that_was_not_asked_for_longest_goes_first(card: Card, memory: RunMemory) -> None:
    for size in (1024, 2048, 3072, 1024):
        pointer = alloc(size)
        del pointer
    card.allocated.clear()
    kept = [alloc(6144), alloc(1024)]
    assert card.allocated == [6144] and card.device_bytes == 6144 + 1024 + 3072
    del kept


def without_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products compute nothing."""
    cuda = sys.modules["cupy"].cuda
    monkeypatch.setattr(cuda, "get_cublas_handle", lambda: 7, raising=False)
    monkeypatch.setattr(cuda, "cublas", SimpleNamespace(gemmStridedBatchedEx=lambda *_: None), raising=False)


def test_a_view_by_strides_holds_its_array(card: Card, library: CupyLibrary) -> None:
    with library.running():
        x = sys.modules["cupy"].ndarray((3, 4), np.float32, alloc(48))
        x[...] = np.arange(12).reshape(3, 4)
        before = sys.getrefcount(x)
        view = library.strided(x, (3, 3), (4, 16), 4)
        np.testing.assert_array_equal(view, np.arange(12).reshape(3, 4)[:, 1:].T)
        # So the array is not taken for one that nothing else sees; nor is the view.
        assert sys.getrefcount(x) > before and view.base is not None
        del view
        assert sys.getrefcount(x) == before


def test_products_have_a_workspace_that_counts(
    card: Card, library: CupyLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a session, and not before the first product."""
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:2:16:8"
    without_products(monkeypatch)
    for limit, fits in ((9 << 20, True), (8 << 20, False)):
        manager = Manager(library.device(Budget(device=limit)), Budget(device=limit))
        memory = RunMemory(manager, library)
        with library.running(memory):
            assert manager.accounts[0].used == 0
            for _ in range(2):
                with nullcontext() if fits else pytest.raises(MemoryBudgetError):
                    library.multiply(())
                assert manager.accounts[0].used == (library.workspace_bytes if fits else 0)
            # The pool does not take what the workspace has, even where nothing counts it.
            with memory.uncounted(), nullcontext() if not fits else pytest.raises(MemoryBudgetError):
                alloc(limit - (1 << 20) + 512)
        manager.close()


def test_a_workspace_as_large_as_the_budget_leaves_nothing(
    card: Card, library: CupyLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To CuPy's pools a limit of no bytes is no limit."""
    without_products(monkeypatch)
    budget = Budget(device=library.workspace_bytes)
    manager = Manager(library.device(budget), budget)
    memory = RunMemory(manager, library)
    with library.running(memory):
        library.multiply(())
        with memory.uncounted(), pytest.raises(MemoryBudgetError):
            alloc(512)
    manager.close()


def test_sizes_that_nobody_has_any_more_are_forgotten(card: Card, library: CupyLibrary) -> None:
    for size in (512, 1024):
        device = library.device(Budget(device=1024))
        with device.current(), device.compute.raw:
            kept = alloc(size)
            assert [*device.pool._sized] == [size]
        del kept
        device.pool.free_all_blocks()
        device.close()


def test_a_session_has_the_streams_and_the_memory_of_those_before(card: Card, library: CupyLibrary) -> None:
    counts = []
    for _ in range(3):
        device = library.device(Budget(device=10_240))
        with device.current(), device.compute.raw:
            kept = [alloc(2048) for _ in range(3)]
        del kept
        device.close()
        counts.append((card.streams, len(card.allocated), card.device_bytes))
    # The clock of each has a stream on which nothing is ever put.
    made = [after - before for (before, *_), (after, *_) in itertools.pairwise(counts)]
    assert made == [1, 1]
    assert [c[1:] for c in counts] == [(3, 6144)] * 3
    device = library.device(Budget(device=4096))
    assert card.device_bytes == 0
    device.close()


def test_bytes_beside_pools(card: Card, library: CupyLibrary) -> None:
    """Memory left in the pools of sessions and of the default pool is not counted."""
    cupy = sys.modules["cupy"]
    default = cupy.cuda.MemoryPool()
    cupy.get_default_memory_pool = lambda: default  # type: ignore[attr-defined]
    with library.running():
        others, kept = alloc(3000), default.malloc(1024)
        device = library.device(Budget(device=10_240))
        with device.current():
            kept_too = alloc(2048)
        device.close()
        assert card.device_bytes == 3000 + 1024 + 2048 and library.bytes_beside_pools() == 3000
    del others, kept, kept_too


def test_results_are_not_pinned(card: Card, library: CupyLibrary) -> None:
    x = np.arange(1 << 14).astype(np.float64)
    array = sys.modules["cupy"].asarray(type("Lent", (), {"memory": x})())
    with library.running():
        (found,) = library.read([array])
    np.testing.assert_array_equal(found, x)
    assert card.pinned == []


def test_all_kernels_are_the_engines_own(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy compiles its own so that subnormal numbers count as zero."""
    cupy = sys.modules["cupy"]
    for name in ("ElementwiseKernel", "RawKernel"):
        monkeypatch.setattr(cupy, name, None, raising=False)
    CupyLibrary(cupy, 0)


def test_the_flag_of_indices_outlives_sessions_and_is_kept(card: Card, memory: RunMemory) -> None:
    """Its memory is no session's: it does not count, and is asked for once."""
    cupy = sys.modules["cupy"]

    def zeros(size: int, dtype: Any) -> Any:
        return cupy.ndarray((size,), dtype, cupy.cuda.alloc(8 * size))  # type: ignore[attr-defined]

    cupy.zeros = zeros  # type: ignore[attr-defined]
    account = memory.manager.accounts[0]
    flags = []
    for _ in range(2):
        flags.append(memory.library.take_flag())
        assert account.used == 0 and memory.manager.device.pool.total_bytes() == 0  # type: ignore[attr-defined]
        memory.library.give_back_flag(flags[-1])
    assert flags[0] is flags[1] and flags[0].dtype == np.int64
    # Runs at the same time have one each.
    assert memory.library.take_flag() is flags[0] and memory.library.take_flag() is not flags[0]


def test_uncounted_memory(memory: RunMemory) -> None:
    with memory.uncounted():
        kept = alloc(9000)
    assert memory.manager.accounts[0].used == 0
    del kept


def saved_block(memory: RunMemory, loop: LoopMemory) -> Any:
    chunk = loop.begin()
    block = chunk.block((1024,), BYTE, "rows")
    chunk.seal(1e-3)
    return block


def test_a_full_card_makes_blocks_leave(card: Card, memory: RunMemory) -> None:
    """The budget has room and the card has none, since other programs use it too."""
    loop = memory.manager.loop("loop", swap=True)
    blocks = [saved_block(memory, loop) for _ in range(4)]
    card.capacity = 6000
    pointer = alloc(3000)
    assert memory.manager.stats.copies_out >= 2 and card.device_bytes <= 6000
    assert memory.manager.accounts[0].kinds["temporary"] == 3072
    with pytest.raises(TierRefusedError, match="cuda:0 has no memory left"):
        alloc(6500)
    del pointer
    memory.settle()
    for block in blocks:
        assert block.open().shape == (1024,)
        block.close()
        block.free()


def test_a_borrowed_array_holds_its_owner(card: Card, memory: RunMemory) -> None:
    class Owner:
        gone = 0

        def __del__(self) -> None:
            Owner.gone += 1

    block = saved_block(memory, memory.manager.loop("loop", swap=True))
    rows = memory.library.borrowed(block.open(), Owner())
    assert rows.shape == (1024,) and not Owner.gone
    block.close()
    del rows
    assert Owner.gone == 1
    block.free()


def test_a_run_in_a_session_is_on_the_devices_stream(memory: RunMemory, card: Card) -> None:
    assert card.stream() is memory.manager.device.compute.raw  # type: ignore[attr-defined]
    assert memory.manager.device.timing  # type: ignore[attr-defined]


# Arrays lent by other libraries.


class Lent:
    """An array of another library on the card."""

    def __init__(self) -> None:
        self.memory = np.arange(3.0)


class LentByDLPack(Lent):
    def __init__(self) -> None:
        super().__init__()
        self.streams: list[Any] = []

    def __dlpack__(self, stream: Any) -> None:
        self.streams.append(stream)


class Refusing(Lent):
    def __dlpack__(self, stream: Any) -> None:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


@pytest.fixture
def library(card: Card) -> CupyLibrary:
    """With a stream of the caller's."""
    cuda = sys.modules["cupy"].cuda
    found = CupyLibrary(sys.modules["cupy"], 0)
    callers = cuda.Stream(non_blocking=True)
    cuda.get_current_stream = lambda: card.stream() or callers  # type: ignore[attr-defined]
    return found


def hold(stream: Any) -> threading.Event:
    """Stop a stream until the event is set."""
    gate = threading.Event()
    stream.put(lambda: (gate.wait(), None)[1])
    return gate


def test_a_producer_is_told_the_stream_that_is_to_wait(library: CupyLibrary) -> None:
    x = LentByDLPack()
    with library.running():
        assert library.lent(x).base is not None
    assert x.streams == [library._stream.ptr]


def test_a_tensor_that_has_a_gradient_is_refused(library: CupyLibrary) -> None:
    with library.running(), pytest.raises(UserInputError, match="cannot be lent") as error:
        library.lent(Refusing())
    assert "x.detach()" in str(error.value)


@pytest.mark.parametrize("make", [Lent, LentByDLPack])
def test_lent_arrays_are_held_until_their_work_is_done(library: CupyLibrary, make: Any) -> None:
    x = make()
    gone = weakref.ref(x)
    gate = hold(library._stream)
    with library.running():
        library.lent(x)
    del x
    with library.running():
        pass
    assert gone() is not None
    gate.set()
    library._stream.synchronize()
    with library.running():
        pass
    assert gone() is None


def test_the_callers_stream_goes_on_after_the_run(library: CupyLibrary) -> None:
    """The stream may release memory to another stream, and the caller reads results on it."""
    callers = sys.modules["cupy"].cuda.get_current_stream()
    gate = hold(library._stream)
    with library.running():
        pass
    event = callers.record()
    assert not event.done
    gate.set()
    event.synchronize()


def test_a_forked_process_is_told_that_it_cannot_use_the_card(library: CupyLibrary) -> None:
    """And the parent goes on."""
    with library.running():
        pass
    ways = {
        "running": lambda: library.running().__enter__(),
        "a session": lambda: library.device(Budget(device=10_240)),
        "copies": library.copier,
    }
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        said = []
        for name, way in ways.items():
            try:
                way()
            except UserInputError as error:
                said.append(f"{name}: {error}")
            except BaseException as error:
                said.append(f"{name}: {type(error)}")
        os.write(writes, "\n\n".join(said).encode())
        os._exit(0)
    os.close(writes)
    with open(reads, encoding="utf-8") as found:
        said = found.read().split("\n\n")
    os.waitpid(child, 0)
    assert [text.partition(": ")[0] for text in said] == list(ways)
    for text in said:
        assert "a process that was forked cannot use cuda:0, which its parent has used" in text
        assert f"forked from process {os.getpid()}" in text and "spawn" in text
    with library.running():
        pass
