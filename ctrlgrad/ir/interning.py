"""One graph for all that say the same: what was compiled for the first is there for the others.

A loop that is called outside of a function is traced at each call. What differs from call to call are arrays and
numbers from outside: `lift_constants` makes inputs of them. Then `interned` finds the graph of an earlier call.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import numpy as np

from ctrlgrad import forks
from ctrlgrad.ir import attributes
from ctrlgrad.ir.graph import Graph, Value

# Graphs that are kept.
MOST = 256

_GRAPHS: OrderedDict[Hashable, Graph] = OrderedDict()
_LOCK = forks.lock()


def lift_constants(graph: Graph) -> tuple[Graph, list[np.ndarray]]:
    """The graph with its constants as further inputs (those in regions stay), and their values."""
    lifted = [node for node in graph.nodes if node.op.name == "constant"]
    nodes = tuple(node for node in graph.nodes if node.op.name != "constant")
    inputs = (*graph.inputs, *(node.result for node in lifted))
    return Graph(inputs, nodes, graph.outputs, graph.name), [attributes.Constant.of(node).value for node in lifted]


def interned(graph: Graph) -> Graph:
    """A graph that says the same, from the same places of the user's code: the first one that was asked for."""
    try:
        key = _key(graph, {})
        with _LOCK:
            found = _GRAPHS.setdefault(key, graph)
            _GRAPHS.move_to_end(key)
            while len(_GRAPHS) > MOST:
                _GRAPHS.popitem(last=False)
    except TypeError:
        # An attribute that cannot be a key.
        return graph
    return found


def _key(graph: Graph, numbers: dict[Value, int]) -> Hashable:
    for value in graph.inputs:
        numbers[value] = len(numbers)
    nodes = []
    for node in graph.nodes:
        for value in node.results:
            numbers[value] = len(numbers)
        nodes.append(
            (
                node.op.name,
                tuple(numbers[v] for v in node.operands),
                tuple((v.type, v.hint) for v in node.results),
                tuple((name, _attribute(value)) for name, value in node.attrs.given().items()),
                tuple(_key(region, numbers) for region in node.regions),
                node.source,
            )
        )
    inputs = tuple((v.type, v.hint) for v in graph.inputs)
    return graph.name, inputs, tuple(nodes), tuple(numbers[v] for v in graph.outputs)


def _attribute(value: Any) -> Hashable:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return array.dtype, array.shape, hashlib.blake2b(array.tobytes(), digest_size=16).digest()
    if isinstance(value, tuple | list):
        return tuple(map(_attribute, value))
    if isinstance(value, slice):
        return "slice", *map(_attribute, (value.start, value.stop, value.step))
    # 1, 1.0 and True are equal, and not the same.
    return type(value), value


__all__ = ["interned", "lift_constants"]
