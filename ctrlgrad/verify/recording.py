"""Recording of one run of a forward graph, for its translation into JAX.

JAX needs every size before it starts: the number of steps of a scan, the length of a slice, the capacity of a stack. A
run of the graph on the reference engine knows them all, and for given arguments they never change. `record` runs the
graph and keeps just these numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.engines.reference import Counters, Run, run_graph
from ctrlgrad.ir import Graph, Node, StackType, Use, Value, attributes, is_branch, is_loop, walk
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ir.flow import StackFlow, begins, reached
from ctrlgrad.ops.arrays import fill

Sizes = tuple[int, ...]


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
        """Return true if all executions of a loop took the same number of iterations."""
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
            if begins(node) or (node.operands and isinstance(node.operands[0].type, StackType)):
                self.stack(node, operands)

    def stack(self, node: Node, operands: Sequence[Any]) -> None:
        rows, shape = _rows_and_shape(node, operands)
        if node.op.name == "stack_split":
            self.shapes.setdefault(node, set()).update(_shapes_of_parts(node, operands))
        self.rows[node] = max(rows, self.rows.get(node, 0))
        if shape is not None:
            self.shapes.setdefault(node, set()).add(shape)


def _rows_and_shape(node: Node, operands: Sequence[Any]) -> tuple[int, Sizes | None]:
    """Number of rows of a stack after an op, and the shape of an element if the op shows one."""
    name = node.op.name
    if name == "stack_new":
        return (int(operands[0]) if operands else 0), None
    if name == "stack_from_tensor":
        return operands[0].shape[0], operands[0].shape[1:]
    if name == "stack_split":
        return len(operands[1]), None
    rows, use = len(operands[0]), node.op.use(0)
    if use is Use.PUSH or use is Use.UPDATE:
        least = [rows + (use is Use.PUSH), *(int(x) + 1 for x in _used_as(Use.INDEX, node, operands))]
        least += [int(x) for x in _used_as(Use.SIZE, node, operands)]
        value = _used_as(Use.VALUE, node, operands)
        return max(least), np.shape(value[0]) if value else None
    declared = node.operands[0].type
    assert isinstance(declared, StackType)
    # Sizes of a slot that was never written, one for each that is not known.
    sizes = [x for x in _used_as(Use.SIZE, node, operands) if np.ndim(x) == 0]
    if not sizes or len(sizes) != declared.element.shape.count(None):
        return rows, None
    rest = iter(sizes)
    return rows, tuple(int(next(rest)) if d is None else d for d in declared.element.shape)


def _used_as(use: Use, node: Node, operands: Sequence[Any]) -> list[Any]:
    return [x for i, x in enumerate(operands) if node.op.use(i) is use]


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
    if any(isinstance(v.type, StackType) for v in (*node.operands, *node.results)):
        looks_at_all = node.op.use(0).observes and not node.op.has_use(Use.INDEX) and node.result.tensor.rank > 0
        return (len(operands[0]),) if looks_at_all else None
    index = attributes.Index.find(node)
    if index is None:
        dims = _used_as(Use.SIZE, node, operands)
        return tuple(map(int, dims)) if dims else None
    if not any(is_dynamic(item) for item in index.key):
        return None
    return _slice_lengths(index.key, operands[0].shape, _used_as(Use.INDEX, node, operands))


def is_dynamic(item: Any) -> bool:
    """True if an item of an index key is a slice with a bound among the operands."""
    return isinstance(item, slice) and any(part is DYNAMIC for part in (item.start, item.stop, item.step))


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
    """Give all versions of a stack, inside and outside of regions, the same capacity and element shape."""
    near: defaultdict[Value, list[Value]] = defaultdict(list)

    def join(first: Value, *others: Value) -> None:
        for other in others:
            near[first].append(other)
            near[other].append(first)

    for old, new in StackFlow(graph).steps():
        join(old, new)
    users: defaultdict[Value, list[Node]] = defaultdict(list)
    for node in walk(graph):
        stacks = [v for v in (*node.operands, *node.results) if isinstance(v.type, StackType)]
        if stacks and not node.regions:
            # An op on two stacks takes them as large as each other.
            join(*stacks)
            users[stacks[0]].append(node)
    for stack in [*near, *users]:
        if stack in recording.capacity:
            continue
        group = reached([stack], near)
        nodes = [node for v in group for node in users.get(v, ())]
        rows = max((observer.rows.get(node, 0) for node in nodes), default=0)
        shapes = {shape for node in nodes for shape in observer.shapes.get(node, ())}
        assert isinstance(stack.type, StackType)
        shape = _one_shape(stack.type, shapes)
        recording.capacity.update(dict.fromkeys(group, rows))
        recording.element_shape.update(dict.fromkeys(group, shape))


def _one_shape(stack: StackType, seen: set[Sizes]) -> Sizes | None:
    if stack.element.is_static:
        return tuple(d or 0 for d in stack.element.shape)
    if len(seen) > 1:
        return None
    # Neither written nor read: no op reads an element of the stack.
    return next(iter(seen), tuple(d or 0 for d in stack.element.shape))
