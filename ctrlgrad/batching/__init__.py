"""Batching: graphs for one example become graphs for many rows at once.

The modules, in reading order:

    batcher              a graph for many rows, node by node, and the table of batching rules
    lanes                the forms in which a value of the unbatched graph is held
    arrays               rules of operations on arrays
    control              rules of branches, loops and calls
    stacks, stack_rules  stacks of many rows, and rules of stack ops
    ragged               a stack whose rows have lengths of their own
    collectives          communication between the rows
"""

from ctrlgrad.batching import arrays, collectives, control, stack_rules
from ctrlgrad.batching.batcher import BATCH, BatchedGraph, batch, batch_whole

__all__ = ["BATCH", "BatchedGraph", "arrays", "batch", "batch_whole", "collectives", "control", "stack_rules"]
