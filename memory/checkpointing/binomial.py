"""Number of repeated steps of a backward pass with few kept states, and the places of the states.

Going back needs each step run once more from the state at its start, the last one first. With `states` places for
states, the start's own included, a run of `length` steps goes back like this: advance `split` steps, keep the state
there, go back through what lies after it with one place less, then through what lies before it with all places again.
Griewank and Walther, "Algorithm 799: revolve" (ACM TOMS 26, 2000), give the fewest steps in closed form: where r is the
least number with C(states + r, states) >= length, the advances before each step's own run are
r * length - C(states + r, r - 1).

States of a run whose length is not known before it ends are kept by the levels of Wang, Moin and Iaccarino, "Minimal
repetition dynamic checkpointing algorithm for unsteady adjoint calculation" (SIAM J. Sci. Comput. 31, 2009). The step
that the run has come to always has its state kept, which leaves s = states - 1 places: then no step runs again more
than t times, its own run included, where t is the least number with C(s + t, s) >= length.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right


def repetitions(length: int, states: int) -> int:
    """The least r with C(states + r, states) >= length: no step need be advanced over more often.

    >>> [repetitions(n, 3) for n in (1, 4, 5, 10, 11)]
    [0, 1, 2, 2, 3]
    """
    r = 0
    while math.comb(states + r, states) < length:
        r += 1
    return r


def fewest_runs(length: int, states: int) -> int:
    """Runs of a step that going back through `length` steps takes at least, each step's own run included.

    >>> fewest_runs(5, 1), fewest_runs(5, 2), fewest_runs(5, 5)
    (15, 11, 9)
    """
    if length <= 1:
        return length
    if states >= length:
        # A state before every step: one sweep keeps them all, and each step then runs once from its own.
        return 2 * length - 1
    r = repetitions(length, states)
    return r * length - math.comb(states + r, r - 1) + length


@functools.lru_cache(maxsize=4096)
def first_split(length: int, states: int) -> int:
    """Number of steps before the next state is kept; 0 where there is no place for one.

    >>> first_split(5, 2), first_split(5, 1)
    (3, 0)
    """
    if length <= 1 or states <= 1:
        return 0

    def cost(split: int) -> int:
        return split + fewest_runs(length - split, states - 1) + fewest_runs(split, states)

    # The cost is convex: the last step that does not add to it.
    return bisect_right(range(2, length), 0, key=lambda split: cost(split) - cost(split - 1)) + 1


def placed_states(length: int, states: int) -> tuple[int, ...]:
    """Steps before which states are kept on one sweep to the end, the start itself not listed.

    >>> placed_states(10, 3)
    (4, 7)
    """
    places, start = [], 0
    while split := first_split(length - start, states):
        start, states = start + split, states - 1
        places.append(start)
    return tuple(places)


class OnlineStates:
    """States to keep, at most `limit`, in a run of unknown length.

    A kept state has a level; the first one's is infinite. A state is dispensable when a later one has a higher level.

    >>> states = OnlineStates(3)
    >>> [states.reach(step) for step in range(7)]
    [None, None, None, 2, 1, 4, 5]
    >>> sorted(states.levels.items())
    [(0, inf), (3, 1), (6, 2)]
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.levels: dict[int, float] = {}

    def reach(self, step: int) -> int | None:
        """The run has come to a step, one after the last. Keeps its state; answers which one to let go for it."""
        if not self.levels:
            self.levels[step] = math.inf
            return None
        if len(self.levels) < self.limit:
            self.levels[step] = 0
            return None
        if self.limit == 1:
            return step
        dispensable = self._dispensable()
        if dispensable is not None:
            del self.levels[dispensable]
            self.levels[step] = 0
            return dispensable
        last = max(self.levels)
        self.levels[step] = self.levels.pop(last) + 1
        return last

    def _dispensable(self) -> int | None:
        highest = -1.0
        for step in sorted(self.levels, reverse=True):
            if self.levels[step] < highest:
                return step
            highest = max(highest, self.levels[step])
        return None


__all__ = ["OnlineStates", "fewest_runs", "first_split", "placed_states", "repetitions"]
