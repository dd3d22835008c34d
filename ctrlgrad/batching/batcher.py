"""Batching: a graph for one example becomes a graph for many at once, node by node.

In: a graph and which inputs have a row for each example, along axis 0. Out: a graph of the same ops whose outputs
have rows wherever they depend on such an input. Values that are the same for all rows stay as they are, so a
matrix shared by all rows is multiplied once and a loop whose predicate is shared stays one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ctrlgrad.batching.lanes import Batched, Fresh, Lane, Ragged, Rows, Same, Uniform, common, fit
from ctrlgrad.batching.stacks import plain
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import Builder, Graph, Node, StackType, TensorType, Value, attributes, copy_node, walk
from ctrlgrad.ir.attributes import NO_ATTRS, Given, NamedAxis
from ctrlgrad.ops.term import Term
from ctrlgrad.records import record


class Batcher:
    """The lanes of one region's values; a rule asks it for operands and emits through `builder`."""

    def __init__(self, builder: Builder, rows: Rows, lanes: Mapping[Value, Lane]) -> None:
        self.builder = builder
        self.rows = rows
        self.lanes: dict[Value, Lane] = dict(lanes)
        # The node that makes each value of the region.
        self.producers: dict[Value, Node] = {}
        # Functions of derivatives (`ir.rules.Derivative`), with rows, by the rule's name and the operands.
        self.differentiated: dict[Any, tuple[list[Value], list[Value], Graph]] = {}

    def run(self, graph: Graph) -> list[Lane]:
        """Batch every node; returns the lanes of the outputs."""
        self.producers.update((value, node) for node in graph.nodes for value in node.results)
        for node in graph.nodes:
            self.builder.source = node.source
            self._node(node)
        return [self.lanes[v] for v in graph.outputs]

    def _node(self, node: Node) -> None:
        if all(isinstance(self.lanes[v], Same | Fresh) for v in node.operands) and not self._meets_rows(node):
            if node.op.name == "stack_new":
                size = self.same(node.operands[0]).value if node.operands else None
                self.lanes[node.result] = Fresh(self.builder, size, attributes.NewStack.of(node))
                return
            copies = {v: plain(self.lanes[v]) for v in node.operands}
            copy_node(self.builder, node, copies)
            self.lanes.update((v, Same(self.builder, copies[v])) for v in node.results)
            return
        rule = BATCH.get(node.op.name)
        if rule is None:
            raise TypeMismatchError(
                f"vmap: {node.op.name} has no batching rule",
                source=node.source,
                hint="use ctrlgrad.map in place of vmap",
            )
        for value, lane in zip(node.results, rule(self, node), strict=True):
            self.lanes[value] = self._fitted(lane, value)

    def _meets_rows(self, node: Node) -> bool:
        """True if a node, or one inside its regions, is a collective over these rows, or may be one in its rule."""
        if not any(self.rows.names):
            return False
        call = attributes.Call.find(node)
        if call is not None and call.rule is not None:
            return True
        inside = (n for region in node.regions for n in walk(region))
        found = (attributes.Collective.find(n) for n in (node, *inside))
        return any(c is not None and c.rows in self.rows.names for c in found)

    def _fitted(self, lane: Lane, value: Value) -> Lane:
        """A rule may lose a known size on its way; here it comes back."""
        if not isinstance(lane, Batched) or lane.guard is not None:
            return lane
        term = Term(self.builder, lane.value)
        fitting = fit(term, self.rows.of(value.tensor))
        return lane if fitting is term else self.lane(fitting)

    # Interface for batching rules.

    def lane(self, x: Term) -> Batched:
        """A result with rows."""
        return Batched(self.builder, x.value)

    def lane_same(self, x: Term) -> Same:
        """A result that all rows share."""
        return Same(self.builder, x.value)

    def is_same(self, value: Value) -> bool:
        return isinstance(self.lanes[value], Same | Fresh)

    def term(self, value: Value) -> Term:
        """A tensor as it is: with rows, or without where they share it."""
        lane = self.lanes[value]
        assert isinstance(lane, Same | Batched)
        return Term(self.builder, lane.seen() if isinstance(lane, Batched) else lane.value)

    def aligned(self, value: Value, rank: int) -> Term:
        """A tensor as an operand beside tensors of up to `rank` axes besides the batch axis."""
        x = self.term(value)
        missing = rank - value.tensor.rank
        if self.is_same(value) or missing <= 0:
            return x
        return Term(self.builder, self.builder.emit("expand_dims", [x.value], {"axes": tuple(range(1, 1 + missing))}))

    def batched(self, value: Value) -> Term:
        """A tensor with rows, repeated where they share it."""
        x = self.term(value)
        return self.rows.spread(x) if self.is_same(value) else x

    def same(self, value: Value) -> Term:
        """A scalar that has to be the same for all rows, such as a size."""
        x = self.term(value)
        if self.is_same(value):
            return x
        self.rows.require_one_size()
        return common(x, "a size")

    def seen(self, lane: Lane, t: TensorType) -> Term:
        """A tensor lane as rows of type `t`."""
        assert isinstance(lane, Same | Batched)
        if isinstance(lane, Same):
            return self.rows.spread(Term(self.builder, lane.value))
        return fit(Term(self.builder, lane.seen()), self.rows.of(t))

    def emit(self, op: str, operands: Sequence[Term], attrs: Given = NO_ATTRS) -> Term:
        return Term(self.builder, self.builder.emit(op, [x.value for x in operands], attrs))


@record
class BatchedGraph:
    """The graph, and which of its outputs have rows (along axis 0)."""

    graph: Graph
    mapped: tuple[bool, ...]

    @property
    def has_buffers(self) -> bool:
        """True if it holds stacks with a length for each row, whose capacity all rows share."""
        return any((r := attributes.Reduction.find(node)) is not None and r.all_rows for node in walk(self.graph))


def batch(
    graph: Graph,
    mapped: Sequence[int],
    size: int | None,
    name: NamedAxis | None = None,
    *,
    all_outputs: bool = False,
    shared: int = 0,
) -> BatchedGraph:
    """Batch a graph over the inputs at the positions `mapped`, which get the rows as a new axis 0.

    Args:
        size: the number of rows, or None where it is known at run time alone.
        name: what the collectives in it call the rows.
        all_outputs: whether outputs that are the same for all rows get rows too, but for the first `shared`.

    Raises:
        TypeMismatchError: an output is a TensorArray, or an op cannot be batched as it is used.
    """
    builder = Builder(name=f"{graph.name}_rows")
    inputs = []
    for position, v in enumerate(graph.inputs):
        t = v.type
        if position in mapped:
            assert isinstance(t, TensorType), "a stack has no batch axis"
            t = TensorType(t.dtype, (size, *t.shape))
        inputs.append(builder.input(t, v.hint))
    count: int | Value = builder.emit("dim", [inputs[mapped[0]]], {"axis": 0}) if size is None else size
    lanes: dict[Value, Lane] = {
        v: Batched(builder, new) if position in mapped else Same(builder, new)
        for position, (v, new) in enumerate(zip(graph.inputs, inputs, strict=True))
    }
    outputs, flags = [], []
    walked = Batcher(builder, Rows(count, names=(name,)), lanes)
    for place, (v, lane) in enumerate(zip(graph.outputs, walked.run(graph), strict=True)):
        if isinstance(lane, Uniform | Ragged | Fresh) or isinstance(lane.value.type, StackType):
            raise TypeMismatchError(
                "vmap: the function returns a TensorArray",
                expected="arrays",
                got="a TensorArray with rows of its own for each example",
                hint="return array.stack()",
                source=None,
            )
        has_rows = (all_outputs and place >= shared) or isinstance(lane, Batched)
        outputs.append(walked.seen(lane, v.tensor).value if has_rows else lane.value)
        flags.append(has_rows)
    return BatchedGraph(builder.finish(outputs), tuple(flags))


def batch_whole(
    graph: Graph, mapped: Sequence[int], size: int | None, name: NamedAxis | None = None, shared: int = 0
) -> Graph:
    """As `batch`, with rows in all outputs but the first `shared`, which do not depend on what is mapped."""
    return batch(graph, mapped, size, name, all_outputs=True, shared=shared).graph


# The table of batching rules: what an op does to operands of which some have a row for each example.
#
# `rule(batcher, node)` emits the batched form into the batcher's builder and returns a lane for each result. It is
# asked only where an operand is not the same for all rows; other nodes are copied.


# Of a batcher and a node: the batcher looks rules up here.
Rule = Callable[..., Sequence[Lane]]
R = TypeVar("R", bound=Rule)

BATCH: dict[str, Rule] = {}


def batches(names: str) -> Callable[[R], R]:
    """Register a rule for ops by name."""

    def register(fn: R) -> R:
        for name in names.split():
            assert name not in BATCH, f"{name} has two batching rules"
            BATCH[name] = fn
        return fn

    return register
