"""The table of batching rules: what an op does to operands of which some have a row for each example.

`rule(batcher, node)` emits the batched form into the batcher's builder and returns a lane for each result. It is asked
only where an operand is not the same for all rows; other nodes are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ctrlgrad.batching.lanes import Lane

# Of a batcher and a node: the batcher looks rules up here.
Rule = Callable[..., Sequence[Lane]]
R = TypeVar("R", bound=Rule)

BATCH: dict[str, Rule] = {}


def batches(names: str) -> Callable[[R], R]:
    """Register a rule for ops by name."""

    def register(fn: R) -> R:
        for name in names.split():
            assert name not in BATCH, f"{name} has two batching rules"
            BATCH[name] = fn
        return fn

    return register
