"""One run on one process or on several: who takes which lines, and how the gradients come together.

Every step's batch is dealt out to the ranks. The loss is a mean over the characters of the whole batch, and the ranks'
lines hold different numbers of them: a rank's gradient, a mean over its own characters, counts with its share of all
characters. The sum over ranks is then the gradient that one process finds for the whole batch, within rounding.

What runs beside what: the backward pass of the model is one loop, and each parameter's gradient is complete only after
the loop's last iteration; nothing is left of the backward pass that a reduction could run beside. The reductions are
begun one by one, each as soon as its gradient is weighted, and run beside the weighting of the next ones and beside the
making of the next batch.

A pipelined run is split otherwise: every rank computes some layers, for all lines, and all get the whole gradient.

Rank 0 alone reads checkpoints, writes files and speaks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ctrlgrad import tree
from ctrlgrad.mpi.watch import Ending, Watch

if TYPE_CHECKING:
    from ctrlgrad.mpi.world import World

Lines = Sequence[np.ndarray]
# Whether the run has been asked to stop.
Pressed = Callable[[], bool]


class Ranks(Protocol):
    """The processes of a run, seen from one of them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def part(self) -> int:
        """Which part of each batch this process takes."""

    @property
    def parts(self) -> int:
        """In how many parts a batch is dealt out."""

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """What rank 0 makes, on all ranks; the others wait for it."""

    def check_same(self, what: str, data: bytes) -> None:
        """Raises `ExecutionError` where this rank has other data than rank 0."""

    def from_first_leaves(self, structure: Any) -> Any:
        """A structure of arrays as rank 0 has it."""

    def begin_mean(self, bits: Any, grads: Any, weight: float) -> Callable[[], tuple[Any, Any]]:
        """Begin the weighted sum of a loss and its gradient over ranks; what is returned waits for it."""

    def sum(self, number: float) -> float:
        """A number's sum over all ranks."""

    def stopping(self, on_stop: Callable[[], Ending] | None) -> AbstractContextManager[Pressed]:
        """A block of code in which Ctrl-C stops the run.

        On one process the block asks whether it was pressed. With several, rank 0 runs `on_stop` at once, beside the
        block, and all ranks end.
        """


def share(ranks: Ranks, lines: Lines) -> Lines:
    """The lines that a rank takes: dealt out like cards, so that their numbers differ by one at most."""
    return lines[ranks.part :: ranks.parts]


def columns(ranks: Ranks, batch: int) -> int:
    """How many lines the largest share of a batch has. All ranks compute with as many, some of them empty."""
    return -(-batch // ranks.parts)


class Alone:
    """One process: everything is its own."""

    rank = part = 0
    size = parts = 1

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        return make()

    def check_same(self, what: str, data: bytes) -> None:
        pass

    def from_first_leaves(self, structure: Any) -> Any:
        return structure

    def begin_mean(self, bits: Any, grads: Any, weight: float) -> Callable[[], tuple[Any, Any]]:
        return lambda: (bits, grads)

    def sum(self, number: float) -> float:
        return number

    @contextmanager
    def stopping(self, on_stop: Callable[[], Ending] | None) -> Iterator[Pressed]:
        """Pressed once, the block is told; pressed again, it raises KeyboardInterrupt at once."""
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


@dataclass(frozen=True)
class Together:
    """One of several processes; `watch` ends them together."""

    world: World
    watch: Watch

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        return self.world.size

    @property
    def part(self) -> int:
        return self.rank

    @property
    def parts(self) -> int:
        return self.size

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

    def begin_mean(self, bits: Any, grads: Any, weight: float) -> Callable[[], tuple[Any, Any]]:
        leaves, treedef = tree.flatten(grads)
        sums = [np.array(float(bits) * weight)]
        requests = [self.world.start_sum(sums[0])]
        for leaf in leaves:
            weighted = np.array(leaf * leaf.dtype.type(weight), order="C")
            sums.append(weighted)
            requests.append(self.world.start_sum(weighted))

        def finish() -> tuple[Any, Any]:
            self.world.finish(requests)
            return float(sums[0]), tree.unflatten(treedef, sums[1:])

        return finish

    def sum(self, number: float) -> float:
        total = np.array(number, np.float64)
        self.world.finish([self.world.start_sum(total)])
        return float(total)

    @contextmanager
    def stopping(self, on_stop: Callable[[], Ending] | None) -> Iterator[Pressed]:
        before = self.watch.on_interruption
        if on_stop is not None:
            self.watch.on_interruption = on_stop
        try:
            yield lambda: False
        finally:
            self.watch.on_interruption = before


class Pipelined(Together):
    """One of several processes that have a part of the model each: every one has all lines, and all of the gradient."""

    @property
    def part(self) -> int:
        return 0

    @property
    def parts(self) -> int:
        return 1

    def begin_mean(self, bits: Any, grads: Any, weight: float) -> Callable[[], tuple[Any, Any]]:
        return lambda: (bits, grads)

    def sum(self, number: float) -> float:
        return number


def places_of(layers: int, ranks: Ranks) -> tuple[str, ...]:
    """The device of each layer of a pipelined model: neighbours together, and as many on each rank as on another.

    On one process every layer has a device of its own.

    >>> places_of(2, Alone())
    ('cpu:0', 'cpu:1')
    """
    if ranks.size == 1:
        return tuple(f"cpu:{layer}" for layer in range(layers))
    return tuple(f"/rank:{layer * ranks.size // layers}/cpu:0" for layer in range(layers))


__all__ = ["Alone", "Pipelined", "Pressed", "Ranks", "Together", "columns", "places_of", "share"]
