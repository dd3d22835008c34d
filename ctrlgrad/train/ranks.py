"""One run on one process or on several: who takes which lines, and how the gradients come together.

Every step's batch is dealt out to the ranks. The loss is a mean over the characters of the whole batch; a rank's loss
is the part that its lines make of it, and the ranks' gradients add up to the one of one process, within rounding.

What runs beside what: the loops of several layers go layer by layer, so the backward pass completes the read-out's
gradient first, then the highest layer's, and so down. The sum of a gradient over the ranks begins in that moment, and
goes on beside the backward loops of the layers below. Of one layer, and within a memory budget, the model is one loop,
and all sums begin after it.

A pipelined run is split otherwise: every rank computes some layers, for all lines, and all get the whole gradient.

Rank 0 alone reads checkpoints, writes files and speaks.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.mpi.launch import Ending, Watch
from ctrlgrad.mpi.sums import Sums
from ctrlgrad.train.checkpoint import State
from ctrlgrad.train.model import OnGradient

if TYPE_CHECKING:
    from ctrlgrad.mpi.world import World

Lines = Sequence[np.ndarray]
# True if the run has been asked to stop.
Pressed = Callable[[], bool]


class Ranks:
    """The processes of a run, seen from one of them; here it is the only one, and everything is its own."""

    rank = 0
    size = 1
    # Part of each batch that this process takes, and in how many parts a batch is dealt out.
    part = 0
    parts = 1
    # Action on a gradient as soon as it is complete.
    on_gradient: OnGradient | None = None

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """Result of rank 0 on all ranks, which wait for it."""
        return make()

    def check_same(self, what: str, data: bytes) -> None:
        """Raises `ExecutionError` where this rank has other data than rank 0."""

    def from_first_leaves(self, structure: Any) -> Any:
        """A structure of arrays as rank 0 has it."""
        return structure

    def from_first_state(self, state: State) -> State:
        """The state that rank 0 has."""
        return state

    def begin_sum(self, bits: Any, grads: Any) -> Callable[[], tuple[float, Any]]:
        """Begin what has not begun of the sums over ranks of a loss and its gradient; what is returned waits for it."""
        return lambda: (float(bits), grads)

    def sum(self, number: float) -> float:
        """A number's sum over all ranks."""
        return number

    def by_layers(self) -> Ranks:
        """The same processes, each with some of the layers."""
        return self

    def advise(self, what: str) -> None:
        """Advice to the user after a rank has died."""

    @contextmanager
    def stopping(self, on_stop: Callable[[], Ending] | None) -> Iterator[Pressed]:
        """A block of code in which Ctrl-C stops the run.

        On one process the block asks whether it was pressed; pressed again, it raises KeyboardInterrupt at once. With
        several, rank 0 runs `on_stop` at once, beside the block, and all ranks end.
        """
        if threading.current_thread() is not threading.main_thread():
            yield lambda: False  # signals reach the main thread only
            return
        pressed = False

        def handle(number: int, frame: Any) -> None:
            nonlocal pressed
            if pressed:
                raise KeyboardInterrupt
            pressed = True

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield lambda: pressed
        finally:
            signal.signal(signal.SIGINT, before)


def share(ranks: Ranks, lines: Lines) -> Lines:
    """The lines that a rank takes: dealt out like cards, so that their numbers differ by one at most."""
    return lines[ranks.part :: ranks.parts]


def columns(ranks: Ranks, batch: int) -> int:
    """Number of lines of the largest share of a batch. All ranks compute with as many, some of them empty."""
    return -(-batch // ranks.parts)


class DataParallel(Ranks):
    """One of several processes that have a part of each batch; `watch` ends them together."""

    def __init__(self, world: World, watch: Watch) -> None:
        self.world = world
        self.watch = watch
        self._sums = Sums(world)
        self.rank, self.size = self.part, self.parts = world.rank, world.size
        self.on_gradient = self._sums.begin

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        return self.world.broadcast(make() if self.rank == 0 else None)

    def check_same(self, what: str, data: bytes) -> None:
        self.world.check_same(what, data)

    def from_first_leaves(self, structure: Any) -> Any:
        leaves, treedef = tree.flatten(structure)
        # Copies: the leaves may be shared, or read-only.
        leaves = [np.array(leaf, order="C") for leaf in leaves]
        for leaf in leaves:
            self.world.broadcast_into(leaf)
        return tree.unflatten(treedef, leaves)

    def from_first_state(self, state: State) -> State:
        names = [f.name for f in dataclasses.fields(State)]
        values = self.from_first_leaves([getattr(state, name) for name in names])
        # Back from arrays to the plain numbers that they were.
        values = [value.item() if isinstance(value, np.ndarray) else value for value in values]
        return State(**dict(zip(names, values, strict=True)))

    def begin_sum(self, bits: Any, grads: Any) -> Callable[[], tuple[float, Any]]:
        leaves, treedef = tree.flatten(grads)
        for number, leaf in enumerate(leaves):
            if not self._sums.has_begun(number):
                self._sums.begin(number, np.array(leaf, order="C"), is_beside=False)
        loss = len(leaves)
        self._sums.begin(loss, np.array(bits, np.float64), is_beside=False)

        def finish() -> tuple[float, Any]:
            sums = self._sums.finish()
            return float(sums.pop(loss)), tree.unflatten(treedef, [sums[number] for number in range(loss)])

        return finish

    def sum(self, number: float) -> float:
        total = np.array(number, np.float64)
        self.world.finish([self.world.start_sum(total)])
        return float(total)

    def by_layers(self) -> Ranks:
        return Pipelined(self.world, self.watch)

    def advise(self, what: str) -> None:
        self.watch.advice = what

    @contextmanager
    def stopping(self, on_stop: Callable[[], Ending] | None) -> Iterator[Pressed]:
        before = self.watch.on_interruption, self.watch.advice
        if on_stop is not None:
            self.watch.on_interruption = on_stop
        try:
            yield lambda: False
        finally:
            self.watch.on_interruption, self.watch.advice = before


class Pipelined(DataParallel):
    """One of several processes that have a part of the model each: every one has all lines, and all of the gradient."""

    begin_sum, sum = Ranks.begin_sum, Ranks.sum

    def __init__(self, world: World, watch: Watch) -> None:
        super().__init__(world, watch)
        self.part, self.parts, self.on_gradient = 0, 1, None


def places_of(layers: int, ranks: Ranks) -> tuple[str, ...]:
    """The device of each layer of a pipelined model: neighbours together, and as many on each rank as on another.

    On one process every layer has a device of its own.

    >>> places_of(2, Ranks())
    ('cpu:0', 'cpu:1')
    """
    if ranks.size == 1:
        return tuple(f"cpu:{layer}" for layer in range(layers))
    return tuple(f"/rank:{layer * ranks.size // layers}/cpu:0" for layer in range(layers))


__all__ = ["DataParallel", "Pipelined", "Pressed", "Ranks", "columns", "places_of", "share"]
