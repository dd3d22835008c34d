"""Policies that the chunks of a loop may have, the first one and its reason, from the user's options."""

from __future__ import annotations

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.checkpointing.states import States
from ctrlgrad.memory.chunk import LoopRecord, Recompute
from ctrlgrad.memory.residency.policy import UNDECIDED, Policy


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
    is_mixed = may_copy and may_recompute and is_limited
    policy: Policy
    if is_mixed:
        policy, reason = "copy", UNDECIDED
    elif wants_recompute:
        policy, reason = "recompute", "checkpoint was asked for"
    elif not is_limited:
        policy, reason = "keep", "no device budget"
    elif may_recompute:
        policy, reason = "recompute", "there is no other tier"
    elif may_copy and swap:
        policy, reason = "copy", "swap_memory=True"
    elif may_copy:
        policy, reason = "copy", "checkpoint=False" if checkpoint is False else "the loop cannot be run again"
    elif swap is False:
        policy, reason = "keep", "swap_memory=False, or only the chunk that pushes it reads it"
    else:
        policy, reason = "keep", "there is no other tier, and the loop cannot be run again"
    return LoopRecord(
        number,
        label,
        may_copy,
        recompute if may_recompute else None,
        States(limit),
        is_mixed=is_mixed,
        drops_eagerly=wants_recompute and not is_limited,
        policy=policy,
        reason=reason,
    )


__all__ = ["loop_record"]
