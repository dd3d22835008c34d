"""Which ways the chunks of a loop may take, from what its user says of it."""

from __future__ import annotations

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.chunk import LoopRecord
from ctrlgrad.memory.recompute import Recompute
from ctrlgrad.memory.states import States


def loop_record(
    number: int,
    label: str,
    swap: bool | None,
    checkpoint: bool | int | None,
    recompute: Recompute | None,
    *,
    tiers: int,
    is_limited: bool,
) -> LoopRecord:
    """The record of a loop that begins on a device with so many tiers, the first with a limit or without.

    Raises `ExecutionError` where chunks are to be run again and cannot be.
    """
    limit = checkpoint if isinstance(checkpoint, int) and not isinstance(checkpoint, bool) else None
    if limit is not None and limit < 1:
        raise ExecutionError(f"loop {label!r}: checkpoint={limit}", expected="at least one state")
    wants_recompute = checkpoint is not None and checkpoint is not False
    if wants_recompute and recompute is None:
        raise ExecutionError(f"loop {label!r}: checkpoint={checkpoint!r} for a loop that cannot be run again")
    is_free = checkpoint is None and swap is None
    may_recompute = recompute is not None and (wants_recompute or (is_free and is_limited))
    may_copy = tiers > 1 and swap is not False and not (wants_recompute and swap is None)
    return LoopRecord(
        number,
        label,
        may_copy,
        recompute if may_recompute else None,
        States(limit),
        is_mixed=may_copy and may_recompute and is_limited,
        drops_eagerly=wants_recompute and not is_limited,
    )


__all__ = ["loop_record"]
