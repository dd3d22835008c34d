"""Interning of graphs: traces that differ in constants alone share one graph, and so its compiled code.

A transform that is applied to values, and a loop outside of a function, are traced at each call. Their graphs differ in
the arrays and numbers that the user's Python held at that time. `shared` finds the graph of an earlier call that
differs in constants alone, and turns constants into inputs: large ones at once, small ones once their values have
changed. So a rebound number compiles one more graph, and no further one; a literal stays a constant. If a transform
inlines such a graph into the trace around it, the values become constants that vary there, and then inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ctrlgrad import forks
from ctrlgrad.ir import attributes
from ctrlgrad.ir.caching import Recent
from ctrlgrad.ir.callables import FUNCTIONS, Alike
from ctrlgrad.ir.control import Branch, Capture, Loop, view
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.records import record

# Bytes of a constant that is compared with its former value; a larger one is an input from the first.
LARGEST = 4096
# Graphs that are kept, and their values together. A graph holds its compiled code: measured 0.12 MB for the gradient of
# 10 operations and 1.15 MB for 100, about 4 KB for each value, so all graphs hold at most about 0.5 GB. They are let go
# by age, not with the user's function: a function is often made anew at each call (a lambda in a loop), and is found by
# its code, which the code around it holds.
MOST, MOST_VALUES = 1024, 1 << 17


@record(frozen=False)
class _Family:
    """Graphs that differ in constants alone: the constants by their position, and the graph with some as inputs."""

    # Count of the graph's values, those of its regions included.
    values: int = 0
    constants: dict[int, bytes] = field(default_factory=dict)
    graph: Graph | None = None
    lock: Any = field(default_factory=forks.lock)


_FAMILIES: Recent[Hashable, _Family] = Recent(MOST, MOST_VALUES, lambda family: family.values)


def forget() -> None:
    """Let go of all graphs that later traces would find, and of what was compiled of them."""
    _FAMILIES.clear()


def lift_constants(graph: Graph) -> tuple[Graph, list[np.ndarray]]:
    """The graph with its constants as further inputs (those in regions stay), and their values."""
    lifted = [node for node in graph.nodes if node.op.name == "constant"]
    nodes = tuple(node for node in graph.nodes if node.op.name != "constant")
    inputs = (*graph.inputs, *(node.result for node in lifted))
    return Graph(inputs, nodes, graph.outputs, graph.name), [attributes.Constant.of(node).value for node in lifted]


def shared(graph: Graph) -> tuple[Graph, list[np.ndarray]]:
    """A graph that says the same, from the same lines of the user's code, and the values of its further inputs.

    The graph has no calls. The first call's graph serves later ones that differ in constants alone.
    """
    constants: list[attributes.Constant] = []
    numbers: dict[Value, int] = {}
    try:
        family = _FAMILIES.get(_key(graph, numbers, constants), lambda: _Family(len(numbers)))
    except TypeError:
        # An attribute that cannot be a key.
        return graph, []
    with family.lock:
        if family.graph is None:
            kept = (i for i, x in enumerate(constants) if x.value.nbytes <= LARGEST and not x.varies)
            family.constants = {i: constants[i].value.tobytes() for i in kept}
            family.graph = _lifted(graph, frozenset(range(len(constants))) - family.constants.keys())
        else:
            changed = [i for i, held in family.constants.items() if constants[i].value.tobytes() != held]
            if changed:
                for i in changed:
                    del family.constants[i]
                family.graph = _lifted(graph, frozenset(range(len(constants))) - family.constants.keys())
        return family.graph, [x.value for i, x in enumerate(constants) if i not in family.constants]


def _lifted(graph: Graph, positions: frozenset[int]) -> Graph:
    """The graph with the constants at these positions, counted in the order of `_key`, as its last inputs."""
    if not positions:
        return graph
    nodes, free = _without(graph, iter(range(1 << 62)), positions)
    return Graph((*graph.inputs, *(free[i] for i in sorted(free))), nodes, graph.outputs, graph.name)


def _without(
    graph: Graph, position: Iterator[int], positions: frozenset[int]
) -> tuple[tuple[Node, ...], dict[int, Value]]:
    """The nodes of a graph without those constants, and the values that are free in it then, by position."""
    nodes: list[Node] = []
    free: dict[int, Value] = {}
    for node in graph.nodes:
        if node.op.name == "constant" and (i := next(position)) in positions:
            free[i] = node.result
            continue
        if node.regions:
            inside = [_without(region, position, positions) for region in node.regions]
            outer = {i: Value(v.type, v.hint) for _, found in inside for i, v in found.items()}
            if outer:
                node = _capturing(node, inside, outer)
                free.update(outer)
        nodes.append(node)
    return tuple(nodes), free


def _capturing(
    node: Node, inside: Sequence[tuple[tuple[Node, ...], dict[int, Value]]], outer: Mapping[int, Value]
) -> Node:
    """A loop or a branch with these nodes in its regions, which capture the values of `outer`."""
    entering = [[found.get(i, Value(v.type, v.hint)) for i, v in outer.items()] for _, found in inside]
    match view(node):
        case Loop() as loop:
            added = [Capture(v, *inner) for v, *inner in zip(outer.values(), *entering, strict=True)]
            cond, body = (nodes for nodes, _ in inside)
            return loop.rebuilt(captures=(*loop.captures, *added), cond=cond, body=body).node
        case Branch() as branch:
            graphs = tuple(
                Graph((*old.inputs, *new), nodes, old.outputs, old.name)
                for old, new, (nodes, _) in zip(branch.branches, entering, inside, strict=True)
            )
            return replace(branch, operands=(*branch.operands, *outer.values()), branches=graphs).node
        case _:
            raise AssertionError(f"{node} owns regions, and is neither a loop nor a branch")


def _key(graph: Graph, numbers: dict[Value, int], constants: list[attributes.Constant]) -> Hashable:
    """Everything that a graph says but the values of its constants, which are appended to `constants`."""
    for value in graph.inputs:
        numbers[value] = len(numbers)
    nodes = []
    for node in graph.nodes:
        for value in node.results:
            numbers[value] = len(numbers)
        if isinstance(node.attrs, attributes.Constant):
            constants.append(node.attrs)
            given: Any = node.attrs.varies
        else:
            given = tuple((name, _attribute(value)) for name, value in node.attrs.given().items())
        nodes.append(
            (
                node.op.name,
                tuple(numbers[v] for v in node.operands),
                tuple((v.type, v.hint) for v in node.results),
                given,
                tuple(_key(region, numbers, constants) for region in node.regions),
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
    if isinstance(value, FUNCTIONS):
        return Alike(value)
    # 1, 1.0 and True are equal, and not the same.
    return type(value), value
