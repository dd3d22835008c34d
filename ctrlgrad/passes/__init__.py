"""Passes: each takes a graph and returns a graph that means the same. `OPTIMISATIONS` has their order.

The modules, in reading order:

    dead_code     simplifications: dead code, common subexpressions, loop invariants
    reads         cheaper reads and writes of slices
    recurrence    values outside of a loop's recurrence
    distribution  products that leave a loop, a chunk of iterations at a time
    heavy         the rate of products in a loop and out of it: which of them may leave
    products      products in loops split where a part of them depends on the recurrence
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from ctrlgrad.ir import Graph
from ctrlgrad.passes.dead_code import (
    count_outside,
    forward_results,
    hoist_invariants,
    inline_calls,
    know_counts,
    merge_common,
    remove_dead_code,
)
from ctrlgrad.passes.distribution import CHUNK_BYTES, distribute
from ctrlgrad.passes.heavy import weighing
from ctrlgrad.passes.products import split_products
from ctrlgrad.passes.reads import join_updates, read_first, sink_slices

Pass = Callable[[Graph], Graph]

# Passes for every graph, before it is differentiated and before it runs, in this order.
SIMPLIFICATIONS: tuple[tuple[str, Pass], ...] = (
    ("count_outside", count_outside),
    ("remove_dead_code", remove_dead_code),
    ("forward_results", forward_results),
    ("know_counts", know_counts),
    ("read_first", read_first),
    ("hoist_invariants", hoist_invariants),
    ("merge_common", merge_common),
    ("remove_dead_code", remove_dead_code),
)

# Passes that a graph goes through before a compiling engine runs it, in this order; a repeated name is run again.
OPTIMISATIONS: tuple[tuple[str, Pass], ...] = (
    ("join_updates", join_updates),
    ("sink_slices", sink_slices),
    ("sink_slices", sink_slices),
    ("hoist_invariants", hoist_invariants),
    ("split_products", split_products),
    ("hoist_invariants", hoist_invariants),
    ("distribute", distribute),
    ("sink_slices", sink_slices),
    ("hoist_invariants", hoist_invariants),
    ("merge_common", merge_common),
    ("remove_dead_code", remove_dead_code),
)

# Decision of `split_products` and `distribute` by a model of a processor's caches.
WEIGH = "weigh_products"


def simplify(graph: Graph) -> Graph:
    """The graph after the passes for every graph. Values stay the same to the bit."""
    for _, run in SIMPLIFICATIONS:
        graph = run(graph)
    return graph


def optimise(graph: Graph, without: Collection[str] = (), chunk_bytes: int = CHUNK_BYTES) -> Graph:
    """Passes before a compiling engine runs the graph. Values may change within rounding.

    `without` names passes to leave out, and `WEIGH` where every heavy product is to leave its loop. `chunk_bytes` is
    what a chunk of a distributed loop may collect and produce: the same bytes give the same graph.
    """
    with weighing(WEIGH not in without):
        for name, run in OPTIMISATIONS:
            if name == "distribute":
                run = partial(distribute, chunk_bytes=chunk_bytes)
            if name not in without:
                graph = run(graph)
    return graph
