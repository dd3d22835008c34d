"""Transport of forward values to the backward side.

A derivative is built as two mirrored scopes, one that runs forward and one that runs backward. The backward side asks
for a forward value by `resolve`; its source depends on the scope:

- in a function, it is a residual: an output of the forward graph and an input of the backward graph;
- in a region, a capture is asked of the scope around it; a constant is repeated; a counter or an alternating value
  follows from the number of the iteration. Of all other wanted values, `choice` finds the cheapest set to save from
  which the rest follows. A saved value is pushed, right where it is computed, on a stack of its own and popped at the
  start of the backward region. The next value of a carry that is itself pushed is not pushed again: it is the value
  that the backward loop popped one iteration before. A carry that is updated in part is restored from its next value
  (`restoring`).

A stack is created in the outermost scope and threaded through every region between there and its push; the pops go
through the mirrored regions in reverse. Every scope therefore holds, for each stack that passes through it, one
`Thread`: the forward value before and after, and the backward value before and after.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ctrlgrad.ir import INDEX, Builder, Graph, Node, StackType, Value, attributes
from ctrlgrad.records import record
from ctrlgrad.stacks.sizes import Size, constant_of, known_length, origin


@record(eq=False, frozen=False)
class Thread:
    """The path of one stack through a scope and its mirror image."""

    forward_in: Value
    backward_in: Value
    outer: Thread | None
    forward_out: Value | None = None
    backward_out: Value | None = None


@record(eq=False, frozen=False)
class Scope(ABC):
    """A graph and its mirror image; base of `FunctionScope` and of `regions.RegionScope`."""

    graph: Graph
    backward: Builder
    threads: list[Thread] = field(default_factory=list)
    resolved: dict[Value | Size, Value] = field(default_factory=dict)
    # Additions to the forward nodes: right after a value is defined, right before a node, in place of a node.
    after: dict[Value, list[Node]] = field(default_factory=dict)
    before: dict[Node, list[Node]] = field(default_factory=dict)
    instead: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    producers: dict[Value, Node] = field(default_factory=dict)
    # Nodes of the graph that a forward value is the only operand of.
    users: dict[Value, list[Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers = {v: node for node in self.graph.nodes for v in node.results}
        for node in self.graph.nodes:
            if len(node.operands) == 1:
                self.users.setdefault(node.operands[0], []).append(node)

    def resolve(self, value: Value | Size) -> Value:
        """The backward side's copy of a forward value, or of the size of one of its axes."""
        if isinstance(value, Size):
            value = origin(self.producers, value)
        if value not in self.resolved:
            self.resolved[value] = self._bring_size(value) if isinstance(value, Size) else self._bring(value)
        return self.resolved[value]

    def _bring_size(self, size: Size) -> Value:
        known = size.value.tensor.shape[size.axis]
        if known is not None:
            return self.backward.constant(known, INDEX.dtype)
        return self.resolve(self.observe("dim", size.value, {"axis": size.axis}))

    @abstractmethod
    def _bring(self, value: Value) -> Value: ...

    @abstractmethod
    def keeps(self, value: Value) -> bool:
        """True if a forward value is available on the backward side without a push."""

    @abstractmethod
    def thread(self, type: StackType, hint: str | None) -> Thread:
        """A new stack, empty before this scope's forward side and after its backward side."""

    def observe(self, op: str, value: Value, attrs: Mapping[str, Any] | None = None) -> Value:
        """Compute something of a forward value on the forward side, right where the value is defined, or take the
        result of a node that computes it already."""
        known: list[Node] = [*self.after.get(value, ()), *self.users.get(value, ())]
        for node in known:
            if node.op.name == op and node.attrs == node.op.attributes(attrs or {}) and node.operands == (value,):
                return node.result
        return self.append_after(value, op, [value], attrs or {}, f"{value.hint}_{op}" if value.hint else op)

    def append_after(
        self, anchor: Value, op: str, operands: Sequence[Value], attrs: Mapping[str, Any], hint: str
    ) -> Value:
        maker = Builder()
        source = self.producers[anchor].source if anchor in self.producers else self.backward.source
        maker.source = source
        result = maker.emit(op, operands, attrs, hint=hint)
        (node,) = maker.nodes
        self.after.setdefault(anchor, []).append(node)
        self.producers[result] = node
        return result

    def emit_before(self, node: Node, emit: Callable[[Builder], Value]) -> Value:
        """Emit nodes on the forward side, in front of a node or of its replacement, and return the value."""
        maker = Builder()
        maker.source = node.source
        value = emit(maker)
        self.before.setdefault(node, []).extend(maker.nodes)
        self.producers.update((v, made) for made in maker.nodes for v in made.results)
        return value

    def replace(self, node: Node, *new: Node) -> None:
        self.instead[node] = new
        self.producers.update((v, made) for made in new for v in made.results)

    def forward_nodes(self, inputs: Sequence[Value]) -> tuple[Node, ...]:
        """The forward side's nodes with all additions in their places."""
        nodes: list[Node] = []

        def put(node: Node) -> None:
            nodes.append(node)
            for value in node.results:
                follow(value)

        def follow(value: Value) -> None:
            for node in self.after.get(value, ()):
                put(node)

        for value in inputs:
            follow(value)
        for node in self.graph.nodes:
            for new in (*self.before.get(node, ()), *self.instead.get(node, (node,))):
                put(new)
        return tuple(nodes)

    def number(self, value: Value) -> np.ndarray | None:
        """The value of a constant."""
        return constant_of(self.producers, value)

    def length(self, stack: Value) -> int | None:
        """The number of rows of a stack, where constants say it."""
        return known_length(stack, self.producers, self.number, self._length_outside)

    def _length_outside(self, stack: Value) -> int | None:
        """Number of rows of a stack that is an input of the graph, if known."""
        return None


@record(eq=False, frozen=False)
class FunctionScope(Scope):
    """The outermost scope: forward values become residuals."""

    residuals: list[Value] = field(default_factory=list)
    new_stacks: list[Node] = field(default_factory=list)

    def _bring(self, value: Value) -> Value:
        if (number := self.number(value)) is not None:
            return self.backward.constant_again(attributes.Constant(value=number))
        self.residuals.append(value)
        return self.backward.input(value.type, value.hint)

    def keeps(self, value: Value) -> bool:
        return True

    def thread(self, type: StackType, hint: str | None) -> Thread:
        maker = Builder()
        start = maker.emit("stack_new", (), {"element": type.element, "paired": True}, hint=hint)
        self.new_stacks += maker.nodes
        thread = Thread(start, self.backward.input(type, hint), None)
        self.threads.append(thread)
        return thread
