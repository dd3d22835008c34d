"""Batching: graphs for one example become graphs for many rows at once. A table of rules, and the batcher."""

from ctrlgrad.batching import (
    branches,
    calls,
    collectives,
    concat,
    debug,
    elementwise,
    indexing,
    linalg,
    loops,
    reduction,
    shape,
    sorting,
    stack_rules,
)
from ctrlgrad.batching.batcher import BatchedGraph, batch, batch_whole
from ctrlgrad.batching.table import BATCH

__all__ = [
    "BATCH",
    "BatchedGraph",
    "batch",
    "batch_whole",
    "branches",
    "calls",
    "collectives",
    "concat",
    "debug",
    "elementwise",
    "indexing",
    "linalg",
    "loops",
    "reduction",
    "shape",
    "sorting",
    "stack_rules",
]
