"""Optimised graphs on disk: a new process that meets a graph again does not run the passes over it.

An entry belongs to the fingerprint of the graph as it is before the passes, those that are left out, the bytes of a
chunk, and the modules' text (see `kept_plans`). It holds the graph that the passes made, and its fingerprint, by which
its plans are found. Where nodes come from in the user's code is kept as the node of the given graph that comes from
there, so that errors name the code as it is now.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Hashable
from typing import Any

from ctrlgrad.engines.native import kept_plans, objects
from ctrlgrad.engines.native.kept_plans import MOST_BYTES, Reader, Writer
from ctrlgrad.engines.native.objects import ObjectCode
from ctrlgrad.ir import OPS, Graph, Node, Value, attributes, walk
from ctrlgrad.ir.fingerprint import fingerprint, is_known
from ctrlgrad.passes import optimise
from ctrlgrad.records import record

_LOG = logging.getLogger("ctrlgrad")


def optimised(graph: Graph, without: frozenset[str], chunk_bytes: int) -> Graph:
    """As `passes.optimise`; from disk where it is kept."""
    key = kept_plans.key_of(graph, ("optimised", sorted(without), chunk_bytes))
    disk = None if key is None else objects.open_cache()
    if key is None or disk is None:
        return optimise(graph, without, chunk_bytes)
    entry = disk.read(key)
    if entry is not None:
        try:
            return unpacked(entry.code, graph)
        except Exception:  # whatever bytes are that nobody has written here
            _LOG.info("the graph %s does not load: making it again", disk.file(key))
            disk.remove(key)
    made = optimise(graph, without, chunk_bytes)
    found = packed(made, graph)
    if found is not None and len(found) <= MOST_BYTES:
        disk.write(key, ObjectCode((), found))
    return made


@record
class _Numbers:
    """Graphs in numbers: of values, types, attributes and sources each is told by its place in a list."""

    types: list[Any]
    values: list[tuple[int, str | None]]
    said: list[Any]
    # Of each source the place of a node that has it, among all nodes of the given graph; -1: there is none.
    sources: list[int]
    graph: tuple[Any, ...]
    digest: str


class _Table:
    """What has been met, by a key that is the same for what may be one."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._places: dict[Hashable, int] = {}

    def place(self, key: Hashable, item: Any) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.found)
            self.found.append(item)
        return place


def packed(graph: Graph, given: Graph) -> bytes | None:
    """A graph that passes made of a given one, as bytes; None where they cannot tell it."""
    digest = fingerprint(graph)
    if digest is None:
        return None
    places = {id(None): -1}
    for place, node in enumerate(walk(given)):
        places.setdefault(id(node.source), place)
    types, values, attrs, sources = _Table(), _Table(), _Table(), _Table()

    def number(value: Value) -> int:
        return values.place(value, (types.place(value.type, value.type), value.hint))

    def told(node: Node) -> tuple[Any, ...]:
        return (
            node.op.name,
            tuple(map(number, node.operands)),
            tuple(map(number, node.results)),
            attrs.place(id(node.attrs), node.attrs),
            tuple(map(parts, node.regions)),
            sources.place(id(node.source), places[id(node.source)]),
        )

    def parts(graph: Graph) -> tuple[Any, ...]:
        inputs = tuple(map(number, graph.inputs))
        return graph.name, inputs, tuple(map(told, graph.nodes)), tuple(map(number, graph.outputs))

    file = io.BytesIO()
    try:
        whole = parts(graph)
        Writer(file, given).dump(_Numbers(types.found, values.found, attrs.found, sources.found, whole, digest))
    except (KeyError, pickle.PicklingError):  # a line of code that no node of the given graph stands for
        return None
    return file.getvalue()


def unpacked(data: bytes, given: Graph) -> Graph:
    """The graph that `packed` made bytes of, where the given graph is as it was. Fails on other bytes."""
    reader = Reader(io.BytesIO(data), given)
    numbers = reader.load()
    assert isinstance(numbers, _Numbers)
    for one in numbers.said:
        if isinstance(one, attributes.Constant):
            one.value.flags.writeable = False
    nodes = reader.found["node"]
    values = [Value(numbers.types[type], hint) for type, hint in numbers.values]
    sources = [None if place < 0 else nodes[place].source for place in numbers.sources]

    def made(told: tuple[Any, ...]) -> Node:
        name, operands, results, place, regions, source = told
        return Node(
            OPS[name],
            tuple([values[k] for k in operands]),
            tuple([values[k] for k in results]),
            numbers.said[place],
            tuple(map(whole, regions)),
            sources[source],
        )

    def whole(parts: tuple[Any, ...]) -> Graph:
        name, inputs, nodes, outputs = parts
        return Graph(
            tuple([values[k] for k in inputs]), tuple(map(made, nodes)), tuple([values[k] for k in outputs]), name
        )

    found = whole(numbers.graph)
    is_known(found, numbers.digest)
    return found


__all__ = ["optimised", "packed", "unpacked"]
