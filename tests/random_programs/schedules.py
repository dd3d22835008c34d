"""Graphs on the real device of the memory manager over the fake CuPy, in less and less memory: each run is recorded.

When the host sees that copies are done is chance. A judge who knows nothing of the engine says whether the run waited
where it must (`instruments.order`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from instruments.order import Judge
from instruments.recorded import recorded_run
from instruments.stand_in_sessions import FREE, RECOMPUTE, SWAP, force

from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir import Graph

# Runs of a graph: without a limit, and with less and less.
RUNS = 3


def judged_runs(
    graph: Graph, arguments: Sequence[Any], draw: random.Random, compare: Callable[[Sequence[Any]], None]
) -> int:
    """Number of runs within their budgets. `compare` raises where results are wrong."""
    limit: int | None = None
    for number in range(RUNS):
        with pytest.MonkeyPatch.context() as patch:
            force(patch, draw.choice((SWAP, RECOMPUTE, FREE)))
            try:
                results, entries, stats = recorded_run(patch, graph, arguments, limit, draw.choice((0.0, 0.3, 0.9)))
            except MemoryBudgetError:
                return number
        compare(results)
        Judge().judge(entries)
        limit = stats.peak_bytes["device"] * 3 // 4
    return RUNS


__all__ = ["judged_runs"]
