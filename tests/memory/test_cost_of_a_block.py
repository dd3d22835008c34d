"""Python calls in the life of a block: their number does not depend on the number of blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from instruments.simulated import SimulatedDevice
from memory_cases.driving import CHUNK, Driver, chunks

import ctrlgrad.memory
from ctrlgrad.memory import residency
from ctrlgrad.memory.chunk import ChunkRecord
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.residency import ResidencyIndex
from ctrlgrad.memory.sizes import Budget

FOLDER = str(Path(ctrlgrad.memory.__file__).parent)
# Blocks of a chunk.
BLOCKS = 2
DEVICES = FOLDER + "/devices"


def calls_a_chunk(count: int, limit: int, tiers: tuple[str, ...], **ways: Any) -> float:
    """Calls of functions of the memory package, without its devices, for each run of a chunk."""
    device = SimulatedDevice(dict.fromkeys(tiers, 1 << 40), blocking=True)
    manager = Manager(device, Budget(device=limit))
    driver = Driver(manager, chunks(count))
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += (
            event == "call"
            and frame.f_code.co_filename.startswith(FOLDER)
            and not frame.f_code.co_filename.startswith(DEVICES)
        )

    sys.setprofile(note)
    try:
        driver.run(**ways)
    finally:
        sys.setprofile(None)
    runs = count + manager.stats.recomputed_chunks
    manager.close()
    return calls / runs


@pytest.mark.parametrize("number", [3, 4, 5])
def test_a_fetch_ahead_looks_at_so_many_chunks(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch ahead looks at a bounded number of chunks.

    Most of forty chunks are dropped, and none can be fetched; without a bound each reading would look at all.
    """
    looked, away = [], ResidencyIndex.away

    def counted(self: ResidencyIndex, newest: ChunkRecord) -> Iterator[ChunkRecord]:
        looked.append(0)
        for chunk in away(self, newest):
            looked[-1] += 1
            yield chunk

    monkeypatch.setattr(residency, "AHEAD", number)
    monkeypatch.setattr(ResidencyIndex, "has_copies", lambda *_: True)
    monkeypatch.setattr(ResidencyIndex, "away", counted)
    manager = Manager(SimulatedDevice({"device": 1 << 40}, blocking=True), Budget(device=6 * CHUNK))
    driver = Driver(manager, chunks(40))
    driver.run()
    manager.close()
    assert max(looked) == number


@pytest.mark.parametrize(("room", "count"), [(8, 2_000), (24, 10_000)])
@pytest.mark.parametrize(("way", "most"), [("copied", 140), ("computed again", 75)])
def test_the_calls_for_a_block_are_few_whatever_the_number_of_blocks(
    way: str, most: int, room: int, count: int
) -> None:
    """A block's life takes few calls of the manager, from its push to its pop, with 100 blocks and with thousands."""
    tiers, ways = (("device", "host"), {"swap": True}) if way == "copied" else (("device",), {})
    calls_a_chunk(8, room * CHUNK, tiers, **ways)  # the first run of a process imports modules
    few, many = (calls_a_chunk(n // BLOCKS, room * CHUNK, tiers, **ways) / BLOCKS for n in (100, count))
    assert few <= most and many <= most, (few, many)
