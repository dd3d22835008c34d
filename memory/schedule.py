"""Entry states to keep, and the cheapest way to run dropped chunks again from them.

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

With a limit on their number a loop's states are kept by these levels (`OnlineStates`). Without one they lie a number of
chunks apart, all chunks between two being computed again as one: the distance doubles whenever the states take more
bytes than the blocks of such a group, so both grow with the square root of the length, and every chunk is run again
once.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from ctrlgrad.memory.arena import Mark
from ctrlgrad.records import record


class OrderedNumbers:
    """Set of integers in rising order. It may change during an iteration.

    >>> numbers = OrderedNumbers()
    >>> for n in (7, 3, 5):
    ...     numbers.put(n, True)
    >>> list(numbers.rising()), numbers.last_before(5), numbers.first_from(6)
    ([3, 5, 7], 3, 7)
    """

    def __init__(self) -> None:
        self.sorted: list[int] = []

    def __len__(self) -> int:
        return len(self.sorted)

    def __iter__(self) -> Iterator[int]:
        return iter(self.sorted)

    def put(self, number: int, is_in: bool) -> None:
        """Add a number, or remove it."""
        numbers = self.sorted
        place = bisect_left(numbers, number)
        is_there = place < len(numbers) and numbers[place] == number
        if is_in and not is_there:
            numbers.insert(place, number)
        elif is_there and not is_in:
            del numbers[place]

    def last_before(self, number: int) -> int | None:
        """The largest number below a given one; None without one."""
        place = bisect_left(self.sorted, number)
        return self.sorted[place - 1] if place else None

    def first_from(self, number: int) -> int | None:
        """The smallest number that is not below a given one; None without one."""
        place = bisect_left(self.sorted, number)
        return self.sorted[place] if place < len(self.sorted) else None

    def rising(self) -> Iterator[int]:
        place = 0
        while place < len(self.sorted):
            number = self.sorted[place]
            yield number
            place = bisect_right(self.sorted, number)


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


@record
class Recovery:
    """Of `length` chunks from a kept state: the last `kept` keep their blocks; states are kept before `states`."""

    length: int
    kept: int
    states: tuple[int, ...]

    @property
    def first_kept(self) -> int:
        return self.length - self.kept


@functools.lru_cache(maxsize=4096)
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

    def groups_and_states(kept: int) -> tuple[int, int]:
        """Groups of so many chunks, and the states that have room beside one, the start's included."""
        room = length if places is None else min(length, places)
        if free_bytes is not None and state_bytes:
            room = min(room, max(0, free_bytes - kept * block_bytes) // state_bytes)
        return -(-length // kept), room + 1

    # Of the cheapest the one that keeps most. All at once cost least.
    candidates = [length] if fitting == length else range(fitting, 0, -1)
    kept = min(candidates, key=lambda kept: kept * fewest_runs(*groups_and_states(kept)))
    groups, count = groups_and_states(kept)
    # Groups are counted from the end: only the first one may be shorter.
    states = tuple(length - kept * (groups - place) for place in placed_states(groups, count))
    return Recovery(length, kept, tuple(s for s in states if s > 0))


@record(eq=False, frozen=False)
class Kept:
    """A state, the bytes that holding it costs, and a mark after the last computation that uses it."""

    state: Any
    nbytes: int
    last_use: Mark


def most_state_bytes(limit: int, fixed: int, state: int, chunk: int) -> int:
    """Bytes of a device budget that states may take before every second one goes; `fixed` bytes are of other kinds.

    Half of it, since the groups between dense states are small; but a run from one of them needs two more states, and
    blocks of a chunk beside those that are being read.
    """
    return max(limit // 8, min(limit // 2, limit - fixed - 2 * state - 2 * chunk))


@record(eq=False, frozen=False)
class States:
    """States by the index of the chunk that starts from them, which `indexes` has in order."""

    limit: int | None = None
    kept: dict[int, Kept] = field(default_factory=dict)
    indexes: OrderedNumbers = field(default_factory=OrderedNumbers)
    nbytes: int = 0
    # Without a limit: one state every so many chunks.
    distance: int = 1
    # A mark after the last run from one of the states.
    last_run: Mark | None = None
    # How many states have each number of bytes.
    _sizes: Counter[int] = field(default_factory=Counter)
    _online: OnlineStates | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            self._online = OnlineStates(self.limit)

    def put(self, index: int, kept: Kept) -> None:
        """Keep the state at a chunk's start."""
        self.kept[index] = kept
        self.indexes.put(index, True)
        self.nbytes += kept.nbytes
        self._sizes[kept.nbytes] += 1

    def pop(self, index: int) -> Kept:
        """Let a state go. Its `last_use` is after the runs that began from it."""
        kept = self.kept.pop(index)
        self.indexes.put(index, False)
        self.nbytes -= kept.nbytes
        self._sizes[kept.nbytes] -= 1
        if not self._sizes[kept.nbytes]:
            del self._sizes[kept.nbytes]
        if self.last_run is not None and self.last_run.number > kept.last_use.number:
            kept.last_use = self.last_run
        return kept

    @property
    def largest(self) -> int:
        """Bytes of the largest state; 0 where there is none."""
        return max(self._sizes, default=0)

    def wants(self, index: int) -> bool:
        """Return true if the state at a chunk's start is to be kept."""
        if self.limit is not None:
            return index == 0 or self.limit > 1
        return index % self.distance == 0

    def displaced_by(self, index: int) -> int | None:
        """State to drop before the one at a chunk's start is kept; None without one."""
        return None if self._online is None else self._online.reach(index)

    def thin(self, most_bytes: float) -> list[int]:
        """States to drop where they take more than a number of bytes: every second one, the distance doubles."""
        if self._online is not None or len(self.kept) < 2 or self.nbytes <= most_bytes:
            return []
        gone: list[int] = []
        while not gone:
            self.distance *= 2
            gone = [i for i in self.indexes if i % self.distance]
        return gone

    def nearest(self, index: int) -> int | None:
        """The last chunk up to `index` whose entry state is kept."""
        return self.indexes.last_before(index + 1)
