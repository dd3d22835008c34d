"""Batching: graphs for one example become graphs for many rows at once. A table of rules, and the walk."""

from ctrlgrad.batching import (
    branches,
    calls,
    concat,
    elementwise,
    indexing,
    linalg,
    looking,
    loops,
    reduction,
    shape,
    sorting,
    stack_rules,
)
from ctrlgrad.batching.table import BATCH
from ctrlgrad.batching.walk import BatchedGraph, batch, batch_whole

__all__ = [
    "BATCH",
    "BatchedGraph",
    "batch",
    "batch_whole",
    "branches",
    "calls",
    "concat",
    "elementwise",
    "indexing",
    "linalg",
    "looking",
    "loops",
    "reduction",
    "shape",
    "sorting",
    "stack_rules",
]
