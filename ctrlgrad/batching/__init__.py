"""Batching: graphs for one example become graphs for many rows at once. A table of rules, and the batcher."""

from ctrlgrad.batching import arrays, collectives, control, stack_rules
from ctrlgrad.batching.batcher import BATCH, BatchedGraph, batch, batch_whole

__all__ = ["BATCH", "BatchedGraph", "arrays", "batch", "batch_whole", "collectives", "control", "stack_rules"]
