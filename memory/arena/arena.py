"""Arena: counted bytes of one tier, and when their bytes may be used again.

A slot that is given back stays counted until no copy uses it any more: the host has seen the mark after every copy that
reads or writes it. Bytes of the device itself that only computation uses go back at once: what is allocated next is
first used by computation issued later, and a copy that lands in fresh device memory waits for `vacated`, the last
computation that used any bytes given back so far.
"""

from __future__ import annotations

import itertools
from dataclasses import field

from ctrlgrad.errors import TierRefusedError
from ctrlgrad.memory.arena.ledger import Account
from ctrlgrad.memory.arena.order import Mark, Order
from ctrlgrad.memory.devices.device import Device, Piece
from ctrlgrad.memory.profile.actions import Give, Logging, Take
from ctrlgrad.memory.sizes import rounded_up
from ctrlgrad.records import record


@record(eq=False, frozen=False)
class Slot:
    """Bytes of one tier. They hold what they are meant to hold after the mark `written`; None: nothing yet."""

    number: int
    level: int
    piece: Piece
    nbytes: int
    kind: str
    written: Mark | None = None
    # Marks after copies that read it or write it.
    users: list[Mark] = field(default_factory=list)
    # A mark after the last computation that uses it.
    last_use: Mark | None = None


class Arena:
    """Takes bytes from the tiers and gives them back."""

    def __init__(self, device: Device, accounts: list[Account], order: Order, logging: Logging) -> None:
        self.device = device
        self.accounts = accounts
        self.order = order
        self._logging = logging
        self._tiers = list(device.tiers)
        self._numbers = itertools.count(1)
        self.retired: list[list[Slot]] = [[] for _ in self._tiers]
        # All bytes of the device that were given back are unused after this mark of the compute stream.
        self.vacated: Mark | None = None

    def counted(self, level: int, nbytes: int) -> int:
        """Number of bytes that an allocation of a size takes and counts."""
        granule = self._tiers[level].granule
        return nbytes if granule == 1 or not nbytes else rounded_up(nbytes, granule)

    def take(self, level: int, nbytes: int, kind: str) -> Slot:
        """Bytes that the account has room for. Raises `TierRefusedError` where the tier itself has none."""
        account = self.accounts[level]
        if not account.fits(nbytes):
            raise TierRefusedError(f"tier {account.tier!r}: {nbytes} bytes do not fit the budget", got=account.show())
        piece = self._tiers[level].allocate(max(nbytes, 1))
        account.add(nbytes, kind)
        slot = Slot(next(self._numbers), level, piece, nbytes, kind)
        self._logging.log(Take, slot.number, level, nbytes, kind)
        return slot

    def retire(self, slot: Slot) -> None:
        """Give a slot back as soon as nothing uses it."""
        if not slot.users or self._is_idle(slot):
            self._give(slot)
        else:
            self.retired[slot.level].append(slot)

    def sweep(self, level: int) -> bool:
        """Give back the retired slots that nothing uses any more. Answers whether there were any."""
        if not self.retired[level]:
            return False
        idle = [slot for slot in self.retired[level] if self._is_idle(slot)]
        if idle:
            self.retired[level] = [slot for slot in self.retired[level] if slot not in idle]
            for slot in idle:
                self._give(slot)
        return bool(idle)

    def pending(self, slot: Slot) -> list[Mark]:
        """Marks of copies that may still use a slot. Failed copies use nothing."""
        if slot.users:
            slot.users = [mark for mark in slot.users if not (mark.seen or self.order.is_done(mark))]
        return slot.users

    def _is_idle(self, slot: Slot) -> bool:
        return not self.pending(slot)

    def vacate(self, mark: Mark | None) -> None:
        """Bytes of the device are given back that computation up to a mark uses."""
        if mark is not None and (self.vacated is None or mark.number > self.vacated.number):
            self.vacated = mark

    def _give(self, slot: Slot) -> None:
        if slot.level == 0:
            self.vacate(slot.last_use)
        self.accounts[slot.level].subtract(slot.nbytes, slot.kind)
        self._logging.log(Give, slot.number)
        self._tiers[slot.level].free(slot.piece)


__all__ = ["Arena", "Slot"]
