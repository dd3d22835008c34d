"""How CuPy's library counts memory, on the fake that checks CuPy's rules: the card's part is in `tests/gpu`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from instruments.fake_cupy import Card, install_with_arrays

from ctrlgrad.engines.cuda.account import RunMemory
from ctrlgrad.engines.cuda.cupy_library import CupyLibrary
from ctrlgrad.errors import MemoryBudgetError, TierRefusedError
from ctrlgrad.memory.budget import Budget
from ctrlgrad.memory.loop import LoopMemory
from ctrlgrad.memory.manager import Manager

BYTE = np.dtype(np.uint8)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return install_with_arrays(monkeypatch)


@pytest.fixture
def memory(card: Card) -> Iterator[RunMemory]:
    library = CupyLibrary(sys.modules["cupy"], lambda *args: None, 0)
    manager = Manager(library.device(Budget(device=10_000)), Budget(device=10_000))
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
    account = memory.manager.accounts[0]
    first, second = alloc(1000), alloc(2000)
    assert account.used == 3000 and card.device_bytes == 3000
    with pytest.raises(MemoryBudgetError, match="a value of the computation"):
        alloc(7001)
    del first
    assert card.device_bytes == 2000
    third = alloc(8000)
    assert account.used == 10_000 and account.peak == 10_000
    del second, third


def test_blocks_count_once(card: Card, memory: RunMemory) -> None:
    allocation = memory.manager.allocate((1024,), BYTE, "a block")
    assert memory.manager.accounts[0].used == 1024 and card.allocated == [1024]
    allocation.release()


def test_uncounted_memory(memory: RunMemory) -> None:
    with memory.uncounted():
        kept = alloc(20_000)
    assert memory.manager.accounts[0].used == 0
    del kept


def saved_block(memory: RunMemory, loop: LoopMemory) -> Any:
    chunk = loop.begin()
    block = chunk.block((1024,), BYTE, "rows")
    chunk.seal(1e-3)
    return block


def test_a_full_card_makes_blocks_leave(card: Card, memory: RunMemory) -> None:
    """The budget has room, the card has not: others use it too."""
    loop = memory.manager.loop("loop", swap=True)
    blocks = [saved_block(memory, loop) for _ in range(4)]
    card.capacity = 6000
    pointer = alloc(3000)
    assert memory.manager.stats.copies_out >= 2 and card.device_bytes <= 6000
    assert memory.manager.accounts[0].kinds["temporary"] == 3000
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
