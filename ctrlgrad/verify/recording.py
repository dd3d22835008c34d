"""What one run of a forward graph tells its translation into JAX.

JAX needs every size before it starts: how many steps a scan has, how long a slice is, how many rows a stack
may hold. A run of the graph on the reference engine knows them all, and for given arguments they never
change. `record` runs the graph and keeps just these numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.engines.reference import Counters, Run, run_graph
from ctrlgrad.ir import Branch, Graph, Loop, Node, StackType, Value, attributes, is_branch, is_loop, view, walk
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ops.indexing import fill

Sizes = tuple[int, ...]

# Ops that make a shape from a template: the number of operands in front of the sizes.
_TEMPLATES = {"iota": 0, "reshape": 1, "broadcast_to": 1, "sum_to": 1}
# Indexing ops: the number of operands in front of the indices.
_INDEXING = {"getitem": 1, "setitem": 2, "additem": 2}


@dataclass
class Recording:
    """The numbers of one run. A node that never ran has no entry."""

    outputs: list[Any]
    counters: Counters
    # The sizes that each node took from its operands' values, see `sizes_of`; None where executions differed.
    sizes: dict[Node, Sizes | None] = field(default_factory=dict)
    branches: dict[Node, set[int]] = field(default_factory=dict)
    executions: Counter[Node] = field(default_factory=Counter)
    # Per stack: the most rows it held and its elements' shape; None where shapes differed.
    capacity: dict[Value, int] = field(default_factory=dict)
    element_shape: dict[Value, Sizes | None] = field(default_factory=dict)

    def trips(self, node: Node) -> int:
        """The most iterations that any one execution of a loop took."""
        return self.counters.trips.get(node, 0)

    def always_takes_all_trips(self, node: Node) -> bool:
        """Whether each execution of a loop took as many iterations as every other."""
        return self.counters.iterations[node] == self.trips(node) * self.executions[node]


def record(graph: Graph, arguments: Sequence[Any]) -> Recording:
    """Run a graph on the reference engine and keep the sizes it met."""
    observer = _Observer()
    run = Run(observer=observer)
    outputs = run_graph(graph, arguments, run)
    recording = Recording(outputs, run.counters, observer.sizes, observer.branches, observer.executions)
    _join_stacks(graph, observer, recording)
    return recording


class _Observer:
    """Sees every node before it runs."""

    def __init__(self) -> None:
        self.sizes: dict[Node, Sizes | None] = {}
        self.branches: dict[Node, set[int]] = {}
        self.executions: Counter[Node] = Counter()
        self.rows: dict[Node, int] = {}
        self.shapes: dict[Node, set[Sizes]] = {}

    def __call__(self, node: Node, operands: Sequence[Any]) -> None:
        if is_branch(node):
            self.branches.setdefault(node, set()).add(choice(node, operands[0]))
        elif is_loop(node):
            self.executions[node] += 1
        else:
            sizes = sizes_of(node, operands)
            if sizes is not None:
                self.sizes[node] = sizes if self.sizes.get(node, sizes) == sizes else None
            if node.op.name.startswith("stack_"):
                self.stack(node, operands)

    def stack(self, node: Node, operands: Sequence[Any]) -> None:
        rows, shape = _rows_and_shape(node, operands)
        if node.op.name == "stack_split":
            self.shapes.setdefault(node, set()).update(_shapes_of_parts(node, operands))
        self.rows[node] = max(rows, self.rows.get(node, 0))
        if shape is not None:
            self.shapes.setdefault(node, set()).add(shape)


# Stack ops that take the sizes of a slot never written: the number of operands in front of them.
_SLOT_SIZES = {"stack_pop": 1, "stack_read": 2, "stack_to_tensor": 1}


def _rows_and_shape(node: Node, operands: Sequence[Any]) -> tuple[int, Sizes | None]:
    """How many rows a stack has after an op, and the shape of an element where the op shows one."""
    name = node.op.name
    if name == "stack_new":
        return (int(operands[0]) if operands else 0), None
    if name == "stack_from_tensor":
        return operands[0].shape[0], operands[0].shape[1:]
    if name == "stack_split":
        return len(operands[1]), None
    stack = operands[0]
    if name == "stack_push":
        return len(stack) + 1, np.shape(operands[1])
    if name == "stack_write":
        return max(len(stack), int(operands[1]) + 1), np.shape(operands[2])
    if name == "stack_resize":
        return max(len(stack), int(operands[1])), None
    if name == "stack_add":
        return len(stack), np.shape(operands[2])
    sizes = operands[_SLOT_SIZES[name] :] if name in _SLOT_SIZES else ()
    if sizes:
        declared = node.operands[0].type
        assert isinstance(declared, StackType)
        rest = iter(sizes)
        return len(stack), tuple(int(next(rest)) if d is None else d for d in declared.element.shape)
    return len(stack), None


def _shapes_of_parts(node: Node, operands: Sequence[Any]) -> set[Sizes]:
    """The shapes of the elements that a `stack_split` makes."""
    whole, axis = operands[0].shape, attributes.Axis.of(node).axis
    return {(*whole[:axis], int(rows), *whole[axis + 1 :]) for rows in operands[1]}


def choice(node: Node, selector: Any) -> int:
    """The branch that a `cond` takes for a selector."""
    return min(max(int(selector), 0), len(node.regions) - 1)


def sizes_of(node: Node, operands: Sequence[Any]) -> Sizes | None:
    """The sizes that a node takes from the values of its operands, or None where it takes none.

    Of an op with a shape template, the unknown dimensions; of indexing, the length of each slice with a bound
    among the operands; of what looks at a whole stack, the number of its slots.
    """
    name = node.op.name
    if name in _TEMPLATES:
        dims = operands[_TEMPLATES[name] :]
        return tuple(int(d) for d in dims) if dims else None
    if name in _INDEXING:
        key: Key = attributes.Index.of(node).key
        if not has_dynamic_slice(key):
            return None
        return _slice_lengths(key, operands[0].shape, operands[_INDEXING[name] :])
    if name in ("stack_to_tensor", "stack_concat", "stack_rows"):
        return (len(operands[0]),)
    return None


def is_dynamic(item: Any) -> bool:
    """Whether an item of an index key is a slice with a bound among the operands."""
    return isinstance(item, slice) and any(part is DYNAMIC for part in (item.start, item.stop, item.step))


def has_dynamic_slice(key: Key) -> bool:
    return any(is_dynamic(item) for item in key)


def _slice_lengths(key: Key, shape: Sequence[int], indices: Sequence[Any]) -> Sizes:
    lengths = []
    axis = 0
    for item, filled in zip(key, fill(key, indices), strict=True):
        if is_dynamic(item):
            bounds = (None if part is None else int(part) for part in (filled.start, filled.stop, filled.step))
            lengths.append(len(range(*slice(*bounds).indices(shape[axis]))))
        axis += item is not None
    return tuple(lengths)


def _join_stacks(graph: Graph, observer: _Observer, recording: Recording) -> None:
    """Give all values that one stack goes through, in and out of regions, one capacity and one element shape."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        parent.setdefault(value, value)
        while parent[value] is not value:
            parent[value] = value = parent[parent[value]]
        return value

    nodes = list(walk(graph))
    for node in nodes:
        for group in _flows(node):
            stacks = [v for v in group if isinstance(v.type, StackType)]
            for stack in stacks:
                parent[root(stack)] = root(stacks[0])

    rows: dict[Value, int] = {}
    shapes: dict[Value, set[Sizes]] = {}
    for node in nodes:
        held = next((v for v in (*node.operands, *node.results) if isinstance(v.type, StackType)), None)
        if held is not None and not node.regions:
            rows[root(held)] = max(rows.get(root(held), 0), observer.rows.get(node, 0))
            shapes.setdefault(root(held), set()).update(observer.shapes.get(node, ()))
    for value in list(parent):
        assert isinstance(value.type, StackType)
        recording.capacity[value] = rows.get(root(value), 0)
        recording.element_shape[value] = _one_shape(value.type, shapes.get(root(value), set()))


def _one_shape(stack: StackType, seen: set[Sizes]) -> Sizes | None:
    if stack.element.is_static:
        return tuple(d or 0 for d in stack.element.shape)
    if len(seen) > 1:
        return None
    # Neither written nor read: a stack whose elements nobody sees.
    return next(iter(seen), tuple(d or 0 for d in stack.element.shape))


def _flows(node: Node) -> list[list[Value]]:
    """Groups of values that are the same stack before and after a node, inside and outside of its regions."""
    match view(node):
        case Loop() as loop:
            captures = [[c.outer, c.in_cond, c.in_body] for c in loop.captures]
            return captures + [[c.init, c.in_cond, c.in_body, c.next, c.result] for c in loop.carries]
        case Branch() as branch:
            into = zip(branch.operands, *(region.inputs for region in branch.branches), strict=True)
            out = zip(branch.results, *(region.outputs for region in branch.branches), strict=True)
            return [list(group) for group in (*into, *out)]
    return [[*node.operands, *node.results]]
