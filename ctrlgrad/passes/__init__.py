"""Passes: each takes a graph and returns a graph that means the same."""

from ctrlgrad.ir import Graph
from ctrlgrad.passes.common import merge_common
from ctrlgrad.passes.dead_code import remove_dead_code
from ctrlgrad.passes.inline_calls import inline_calls
from ctrlgrad.passes.invariants import hoist_invariants


def simplify(graph: Graph) -> Graph:
    """What every graph goes through before it is differentiated and before it runs."""
    return remove_dead_code(merge_common(hoist_invariants(remove_dead_code(graph))))


__all__ = ["hoist_invariants", "inline_calls", "merge_common", "remove_dead_code", "simplify"]
