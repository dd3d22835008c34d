"""State of one run of a graph beside its values: counters, checks, and an optional observer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from ctrlgrad.engines.reference.finite import FiniteCheck
from ctrlgrad.ir import Node
from ctrlgrad.records import record


@record(frozen=False)
class Counters:
    """Counts of one run. Bytes are of array data; `peak_stack_bytes` is the most that all stacks held at once."""

    ops: int = 0
    pushes: int = 0
    pushed_bytes: int = 0
    pops: int = 0
    copied_bytes: int = 0
    # The most iterations that any one execution of a loop took, by its node, and all iterations together.
    trips: dict[Node, int] = field(default_factory=dict)
    iterations: Counter[Node] = field(default_factory=Counter)
    pushes_by_node: Counter[Node] = field(default_factory=Counter)

    def pushed(self, node: Node, value: Any) -> None:
        self.pushed_rows(node, value.nbytes, 1)

    def pushed_rows(self, node: Node, nbytes: int, count: int) -> None:
        """So many rows of so many bytes each."""
        self.pushes += count
        self.pushed_bytes += count * nbytes
        self.pushes_by_node[node] += count

    def popped(self, node: Node, count: int = 1) -> None:
        self.pops += count

    def looped(self, node: Node, trips: int) -> None:
        self.trips[node] = max(trips, self.trips.get(node, 0))
        self.iterations[node] += trips


@record(frozen=False)
class Run:
    """One execution of a graph."""

    counters: Counters = field(default_factory=Counters)
    # Check every result against its declared type: for tests, and to find where an op misbehaves.
    check_types: bool = False
    # Stop at the first op that makes a NaN or an Inf.
    finite: FiniteCheck | None = None
    # The number of the current iteration of each loop around the node that runs, the outermost first.
    iterations: list[int] = field(default_factory=list)
    # So many calls of callbacks are left out: in an earlier attempt at this run they were made already.
    silent_callbacks: float = 0
    # Called before each node with its operands' values; it must not keep them, or updates in place become copies.
    observer: Callable[[Node, Sequence[Any]], None] | None = None

    @property
    def is_watched(self) -> bool:
        """Return true if each node of the run is checked or observed."""
        return self.observer is not None or self.finite is not None or self.check_types
