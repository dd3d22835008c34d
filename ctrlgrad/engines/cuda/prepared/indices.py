"""Indices in a prepared body: numbers that go by steps, or as the card has them."""

from __future__ import annotations

from ctrlgrad.engines.cuda.prepared.model import CannotPrepare
from ctrlgrad.engines.cuda.prepared.operands import Affine, View
from ctrlgrad.engines.cuda.prepared.reading import Reading


def index_in(reading: Reading, slot: int) -> Affine | View:
    """Operand of an index: an `Affine` where it goes by whole steps; else a view on the card, where the kernel checks
    its bounds.

    Past the end of a masked loop an index may have any value, so an index that only the host computes is refused
    there.
    """
    index = reading.value(slot)
    if not isinstance(index, Affine | View) and reading.listing.is_masked:
        raise CannotPrepare("an index of the host does not go by whole steps")
    goes_by_steps = isinstance(index, Affine) and not reading.is_endless(index)
    return index if goes_by_steps else reading.view(slot)
