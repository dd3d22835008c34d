"""A manager whose every action is checked at its end."""

from __future__ import annotations

from typing import Any

from instruments.sessions import actions_of
from instruments.simulated import SimulatedDevice

from ctrlgrad.memory.devices.device import Device
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.checker import check
from ctrlgrad.memory.profile.records import CopyOut, Evict, Fetch, Place, Recording
from ctrlgrad.memory.sizes import Budget


def simulated(tiers: int = 2, bandwidth: float = 1e9, **options: Any) -> SimulatedDevice:
    names = ("device", "host", "disk")[:tiers]
    rates = {"bandwidth_out": bandwidth, "bandwidth_in": bandwidth, "disk_bandwidth": bandwidth}
    return SimulatedDevice(dict.fromkeys(names, 1 << 30), **{"blocking": True, **rates, **options})


class Run:
    """A manager with a recording; closing it checks the trace and that all is given back."""

    def __init__(self, budget: Budget | None = None, device: Device | None = None) -> None:
        self.recording = Recording()
        self.device = device or simulated()
        self.manager = Manager(self.device, budget, self.recording)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.manager.close()
        if kind is None:
            check(self.actions, [account.limit for account in self.manager.accounts])
            assert not any(account.used for account in self.manager.accounts)

    @property
    def actions(self) -> list[Any]:
        return actions_of(self.recording, self.manager)

    def moves(self) -> list[tuple[str, int]]:
        """Copies and evictions from the device, by block from 1, in the host's order."""
        before = min(a.block for a in self.actions if type(a) is Place) - 1
        names = {CopyOut: "out", Fetch: "in", Evict: "leave"}
        return [
            (names[type(a)], a.block - before)
            for a in self.actions
            if type(a) in names and not (type(a) is Evict and a.level)
        ]
