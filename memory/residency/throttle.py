"""Bound on the host's lead over the computation, and the events that the host has yet to see."""

from __future__ import annotations

from collections import deque

from ctrlgrad.memory.arena.order import Mark, Order
from ctrlgrad.memory.devices.device import Device
from ctrlgrad.memory.devices.failures import raised

# Chunks of computation that may be issued before the first of them is done.
WINDOW = 2


class Throttle:
    """Keeps the host near a device's computation. The manager's lock is held."""

    def __init__(self, device: Device, order: Order) -> None:
        self._device, self._order = device, order
        # Marks after the last chunks that were issued: the host stays near the computation, and sees what is done.
        self._issued: deque[Mark] = deque()
        # Fetches that computation was put behind before the host knew whether they would succeed.
        self._unconfirmed: list[Mark] = []

    def issued(self, mark: Mark) -> None:
        """A chunk's computation was issued: wait until all but the last `WINDOW` are done."""
        self._issued.append(mark)
        while len(self._issued) > WINDOW:
            first = self._issued.popleft()
            self._order.wait(first)
            if first.failure is not None:
                self.settle()
                raise raised(first.failure)

    def rely_on(self, fetched: Mark) -> None:
        """Computation was put behind a fetch that is not done."""
        self._unconfirmed.append(fetched)

    def confirm(self) -> None:
        """Raise the error of a copy that computation was put behind."""
        waiting, self._unconfirmed = self._unconfirmed, []
        for place, mark in enumerate(waiting):
            if not self._order.is_done(mark):
                self._unconfirmed.append(mark)
            elif mark.failure is not None:
                self._unconfirmed += waiting[place + 1 :]
                raise raised(mark.failure)

    def synchronize(self) -> None:
        """Wait for the copies that computation was put behind; raise the first error among them."""
        for mark in self._unconfirmed:
            self._order.wait(mark)
        self.confirm()

    def settle(self) -> None:
        """After a failure: let all streams come to rest, so that the next call finds none of its traces."""
        device = self._device
        self._order.settle((device.compute, device.out, device.into, device.disk))
        self._issued.clear()
        self._unconfirmed.clear()


__all__ = ["WINDOW", "Throttle"]
