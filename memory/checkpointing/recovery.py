"""Schedule that computes dropped chunks again in the bytes that there are.

From the nearest kept state all chunks up to the one that is needed are run again. As many of the last ones as fit keep
their blocks, as one group; where not all fit, states are kept in between, by the binomial schedule over groups.
"""

from __future__ import annotations

from ctrlgrad.memory.checkpointing.binomial import fewest_runs, placed_states
from ctrlgrad.records import record


@record
class Recovery:
    """Of `length` chunks from a kept state: the last `kept` keep their blocks; states are kept before `states`."""

    length: int
    kept: int
    states: tuple[int, ...]

    @property
    def first_kept(self) -> int:
        return self.length - self.kept


def plan_recovery(
    length: int,
    block_bytes: int,
    state_bytes: int,
    free_bytes: int | None,
    places: int | None,
    most_kept: int | None = None,
) -> Recovery:
    """The cheapest recovery in `free_bytes`, with at most `places` further states and `most_kept` chunks' blocks.

    None is no limit.

    >>> plan_recovery(4, 10, 1, 40, None)
    Recovery(length=4, kept=4, states=())
    >>> plan_recovery(4, 10, 1, 12, None)
    Recovery(length=4, kept=1, states=(1, 2))
    """
    most = length if most_kept is None else min(length, most_kept)
    fitting = most if free_bytes is None else max(1, min(most, free_bytes // max(block_bytes, 1)))
    best: tuple[int, int] | None = None
    for kept in range(fitting, 0, -1):
        further = _places(length, kept, block_bytes, state_bytes, free_bytes, places)
        cost = kept * fewest_runs(-(-length // kept), further + 1)
        if best is None or cost < best[0]:
            best = (cost, kept)
        if kept == length:
            break
    assert best is not None
    kept = best[1]
    groups = -(-length // kept)
    further = _places(length, kept, block_bytes, state_bytes, free_bytes, places)
    # Groups are counted from the end: only the first one may be shorter.
    states = tuple(length - kept * (groups - place) for place in placed_states(groups, further + 1))
    return Recovery(length, kept, tuple(s for s in states if s > 0))


def _places(
    length: int, kept: int, block_bytes: int, state_bytes: int, free_bytes: int | None, places: int | None
) -> int:
    if free_bytes is None:
        return length if places is None else min(length, places)
    fitting = max(0, free_bytes - kept * block_bytes) // state_bytes if state_bytes else length
    return min(length, fitting if places is None else min(fitting, places))


__all__ = ["Recovery", "plan_recovery"]
