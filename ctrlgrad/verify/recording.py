"""Recording of one run of a forward graph, for its translation into JAX.

JAX needs every size before it starts: the number of steps of a scan, the length of a slice, the capacity of a stack. A
run of the graph on the reference engine knows them all, and for given arguments they never change. `record` runs the
graph and keeps just these numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ctrlgrad.engines.reference import Counters, Run, run_graph
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.rules import emit_call, trace_rule
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf
from ctrlgrad.gradients.row_rules import PulledRows, PushedRows
from ctrlgrad.ir import (
    Call,
    Closed,
    Graph,
    Node,
    StackType,
    TensorType,
    Use,
    Value,
    attributes,
    is_branch,
    is_call,
    is_loop,
    walk,
)
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ir.flow import StackFlow, begins, reached
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.ops.arrays import fill
from ctrlgrad.passes.dead_code import inline_calls
from ctrlgrad.source import here
from ctrlgrad.transforms.vmap import vmap

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
    if not has_dynamic_slice(index.key):
        return None
    return _slice_lengths(index.key, operands[0].shape, _used_as(Use.INDEX, node, operands))


def is_dynamic(item: Any) -> bool:
    """True if an item of an index key is a slice with a bound among the operands."""
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
    near: defaultdict[Value, list[Value]] = defaultdict(list)

    def join(first: Value, *others: Value) -> None:
        for other in others:
            near[first].append(other)
            near[other].append(first)

    for old, following in StackFlow(graph).after.items():
        join(old, *following)
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


# JAX functions in a graph that is read for a judge: a call of a `from_jax` function stays whole and keeps it.
#
# A translation of what `from_jax` has read agrees with a derivative that the reader drops. So the judge calls the JAX
# function itself, wherever in a graph it is called: within a lambda, a loop, a branch or a `vmap`.


_KEPT: ContextVar[bool] = ContextVar("calls of from_jax functions stay whole", default=False)


@contextmanager
def originals_kept() -> Iterator[None]:
    """A block in which what is traced keeps the JAX functions that it calls."""
    token = _KEPT.set(True)
    try:
        yield
    finally:
        _KEPT.reset(token)


def keeps_originals() -> bool:
    """Return true within `originals_kept`."""
    return _KEPT.get()


class Original:
    """The JAX function of a call, as the rule of a `call` of the kind "custom_vmap", whose derivative its graph has.

    Args:
        function: takes and returns JAX's arrays.
        graph: what `from_jax` has read of it.
        x64: whether it was traced with JAX's 64-bit types.
    """

    def __init__(self, function: Callable[..., Sequence[Any]], graph: Graph, x64: bool) -> None:
        self.function, self.graph, self.x64 = function, graph, x64

    def __repr__(self) -> str:
        return "original"

    def call(self, operands: Sequence[Any]) -> list[Tensor]:
        """The results, recorded in the trace that goes on."""
        return emit_call("custom_vmap", Closed((), (self.graph,)), operands, here(), self)

    def rows(self, size: int | None, mapped: Positions) -> Answer:
        """The graph for rows, which keeps the function under `jax.vmap`."""
        axes = tuple(0 if i in mapped else None for i in range(len(self.graph.inputs)))
        types = [v.tensor for v in self.graph.inputs]
        inputs = [Leaf(TensorType(t.dtype, (size, *t.shape)) if i in mapped else t) for i, t in enumerate(types)]
        many = vmap(self._recorded, in_axes=axes, axis_size=size)
        graph = trace_rule("rows", lambda xs: many(*xs), inputs).finish()
        if size is not None and mapped:
            original = Original(jax.vmap(self.function, axes, axis_size=size), graph, self.x64)
            graph = trace_rule("rows", original.call, inputs).finish()
        return Answer(graph, mapped, tuple(range(len(graph.outputs))))

    def _recorded(self, *operands: Any) -> tuple[Tensor, ...]:
        builder = recorder()
        values = builder.inline(self.graph, [value_in(builder, x) for x in operands])
        return tuple(Tensor(builder, v) for v in values)


def original_of(call: Call) -> Original | None:
    """The JAX function that a call keeps: itself, its tangents by `jax.jvp`, or its cotangents by `jax.vjp`."""
    rule = call.rule
    if isinstance(rule, Original):
        return rule
    inner = original_of(rule.call) if isinstance(rule, PushedRows | PulledRows) else None
    if inner is None:
        return None
    derivative = _pushed(rule, inner) if isinstance(rule, PushedRows) else _pulled(rule, inner)
    return Original(derivative, call.function, inner.x64)


def _pushed(rule: PushedRows, inner: Original) -> Callable[..., Sequence[Any]]:
    count = len(rule.call.arguments)

    def pushed(*operands: Any) -> Sequence[Any]:
        function, point = _of(inner, operands[:count], rule.moving)
        results, tangents = jax.jvp(function, point, operands[count:])
        return [*results, *(t for v, t in zip(rule.call.results, tangents, strict=True) if v.type.is_differentiable)]

    return pushed


def _pulled(rule: PulledRows, inner: Original) -> Callable[..., Sequence[Any]]:
    count = len(rule.call.arguments)

    def pulled(*operands: Any) -> Sequence[Any]:
        function, point = _of(inner, operands[:count], rule.wanted)
        _, pull = jax.vjp(lambda *moving: [function(*moving)[i] for i in rule.seeded], *point)
        found: Sequence[Any] = pull(list(operands[count:]))
        return found

    return pulled


def _of(
    inner: Original, operands: Sequence[Any], moving: Sequence[int]
) -> tuple[Callable[..., Sequence[Any]], tuple[Any, ...]]:
    """A JAX function of the operands at some places, and those."""

    def function(*given: Any) -> Sequence[Any]:
        operands_ = list(operands)
        for i, x in zip(moving, given, strict=True):
            operands_[i] = x
        return inner.function(*operands_)

    return function, tuple(operands[i] for i in moving)


def originals(graph: Graph) -> list[Original]:
    """The JAX functions that a graph keeps."""
    found = (original_of(Call.of(node)) for node in walk(graph) if is_call(node))
    return [original for original in found if original is not None]


def without_other_calls(graph: Graph) -> Graph:
    """A graph without calls, but for those that keep a JAX function."""
    return inline_calls(graph, kept=lambda call: original_of(call) is not None)
