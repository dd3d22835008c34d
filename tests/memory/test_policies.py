"""Options of a loop, and the reason for its chunks' policy: one cause, not a list of possible ones."""

from __future__ import annotations

from typing import Any

import pytest
from instruments.simulated import SimulatedDevice
from memory_cases.driving import CHUNK, Driver, chunks

from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.planner import UNDECIDED
from ctrlgrad.memory.sizes import Budget


@pytest.mark.parametrize(
    ("options", "tiers", "limit", "policy", "reason"),
    [
        ({}, 2, 3 * CHUNK, "copy", UNDECIDED),
        ({}, 2, None, "keep", "no device budget"),
        ({"swap": True}, 2, 3 * CHUNK, "copy", "swap_memory=True"),
        ({"swap": True}, 2, None, "keep", "no device budget"),
        ({"checkpoint": True}, 2, 3 * CHUNK, "recompute", "checkpoint was asked for"),
        ({"checkpoint": 2}, 2, None, "recompute", "checkpoint was asked for"),
        ({"checkpoint": True, "swap": True}, 2, 3 * CHUNK, "copy", UNDECIDED),
        ({"checkpoint": False}, 2, 3 * CHUNK, "copy", "checkpoint=False"),
        ({"can_recompute": False}, 2, 3 * CHUNK, "copy", "the loop cannot be run again"),
        ({}, 1, 3 * CHUNK, "recompute", "there is no other tier"),
        ({"swap": False}, 2, 3 * CHUNK, "keep", "swap_memory=False, or only the chunk that pushes it reads it"),
        ({"can_recompute": False}, 1, 3 * CHUNK, "keep", "there is no other tier, and the loop cannot be run again"),
    ],
)
def test_the_policy_and_its_reason(
    options: dict[str, Any], tiers: int, limit: int | None, policy: str, reason: str
) -> None:
    device = SimulatedDevice({"device": 1 << 20, "host": 1 << 20} if tiers == 2 else {"device": 1 << 20})
    manager = Manager(device, Budget(device=limit))
    driver = Driver(manager, chunks(1))
    driver.start(**options)
    driver.forward()
    (chunk,) = manager.index.all()
    assert (chunk.policy, chunk.reason) == (policy, reason)
    driver.backward()
    manager.close()
