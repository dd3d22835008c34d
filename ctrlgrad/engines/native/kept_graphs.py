"""Optimised graphs on disk: a new process that meets a graph again does not run the passes over it.

An entry belongs to the fingerprint of the graph as it is before the passes, those that are left out, the bytes of a
chunk, and the modules' text (see `kept_plans`). It holds the graph that the passes made, and its fingerprint, by which
its plans are found. Where nodes come from in the user's code is kept as the node of the given graph that comes from
there, so that errors name the code as it is now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad.engines.native import kept_plans, kept_records
from ctrlgrad.engines.native.kept_plans import constants_of
from ctrlgrad.engines.native.kept_records import CannotRead, CannotWrite, Told, Vocabulary
from ctrlgrad.ir import OPS, Graph, Node, Value, walk
from ctrlgrad.ir.interning import fingerprint, is_known
from ctrlgrad.passes import optimise
from ctrlgrad.source import Source


def optimised(graph: Graph, without: frozenset[str], chunk_bytes: int) -> Graph:
    """As `passes.optimise`; from disk where it is kept."""
    key = kept_plans.key_of(graph, ("optimised", sorted(without), chunk_bytes))
    data = None if key is None else kept_plans.found(key)
    if key is not None and data is not None:
        try:
            return unpacked(data, graph)
        except CannotRead:
            kept_plans.refuse(key, "graph")
    made = optimise(graph, without, chunk_bytes)
    if key is not None:
        kept_plans.keep(key, lambda: packed(made, graph))
    return made


def packed(graph: Graph, given: Graph) -> bytes | None:
    """A graph that passes made of a given one, as bytes; None where they cannot tell it."""
    digest = fingerprint(graph)
    if digest is None:
        return None
    try:
        return kept_records.written((graph, digest), _of_graphs(given))
    except CannotWrite:  # a line of code that no node of the given graph stands for
        return None


def unpacked(data: bytes, given: Graph) -> Graph:
    """Return the optimised graph that `packed` made bytes of. Raises `CannotRead` if the given graph is not the packed
    one."""
    match kept_records.read(data, _of_graphs(given)):
        case Graph() as found, str(digest):
            is_known(found, digest)
            return found
    raise CannotRead("no graph")


def _of_graphs(given: Graph) -> Vocabulary:
    """Graphs and their parts; where a node comes from in the user's code as a node of the given graph that does too."""
    nodes = list(walk(given))
    places: dict[int, int] = {}
    for place, node in enumerate(nodes):
        places.setdefault(id(node.source), place)

    def told_source(source: Source) -> Told:
        if id(source) not in places:
            raise CannotWrite("a line of code that the given graph does not have")
        return "source of a node", (places[id(source)],)

    tell: dict[type, Callable[[Any], Told]] = {
        Graph: lambda one: ("graph", (one.inputs, one.nodes, one.outputs, one.name)),
        Node: lambda one: ("node", (one.op.name, one.operands, one.results, one.attrs, one.regions, one.source)),
        Value: lambda one: ("value", (one.type, one.hint)),
        Source: told_source,
    }
    make: dict[str, Callable[..., Any]] = {
        "graph": Graph,
        "node": lambda op, *parts: Node(OPS[op], *parts),
        "value": Value,
        "source of a node": lambda place: nodes[place].source,
    }
    return Vocabulary(tell, make) | constants_of(given)
