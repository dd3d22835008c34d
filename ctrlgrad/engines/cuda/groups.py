"""Which nodes of a region become one kernel.

Nodes are visited in order. An elementwise node joins the open group of its shape, or opens one; a group is closed, that
is put into the order of execution, as late as it can be: when a node that is no part of it reads one of its values,
or is about to update in place what it reads. So a group's operands are always at hand when it runs, and groups of
several shapes may be open at once.

A push does not close the group: the value is written straight into the stack's slot. A value that was there before is
copied into its slot by the same kernel. A concatenation of values of the group's shape is written part by part.

A product of matrices that is only added to something is added by BLAS (`sums`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ctrlgrad.engines.cuda.expressions import has_kernel_type, is_fusible
from ctrlgrad.engines.cuda.placement import DEVICE, Place
from ctrlgrad.engines.cuda.sums import ProductSum, product_sums
from ctrlgrad.ir import Graph, Node, Use, Value, uses
from ctrlgrad.ir.types import Shape

# Bounds that keep a kernel's arguments in its parameter space (4 KiB before CUDA 12.1, 32 KiB since).
MOST_INPUTS, MOST_OUTPUTS, MOST_NODES = 24, 24, 96


@dataclass(eq=False)
class Group:
    """Nodes of one shape, and where their values are written besides."""

    shape: Shape
    nodes: list[Node] = field(default_factory=list)
    pushes: list[Node] = field(default_factory=list)
    concats: list[Node] = field(default_factory=list)
    reads: dict[Value, None] = field(default_factory=dict)
    # What its nodes compute; a stack or a concatenation is there only after the kernel has run.
    defined: set[Value] = field(default_factory=set)

    @property
    def members(self) -> list[Node]:
        return [*self.nodes, *self.pushes, *self.concats]

    def add(self, node: Node, kind: str) -> None:
        """Make a node one of the `kind`: "nodes", "pushes" or "concats"."""
        getattr(self, kind).append(node)
        self.reads.update((v, None) for v in node.operands if v not in self.defined)
        if kind == "nodes":
            self.defined.add(node.result)

    def accepts(self, node: Node, kind: str, uses: Mapping[Value, int]) -> bool:
        """Whether the kernel keeps its bounds with a node more. `uses`: how often the region uses each value."""
        trial = Group(self.shape, [*self.nodes], [*self.pushes], [*self.concats], dict(self.reads), set(self.defined))
        trial.add(node, kind)
        within = len(trial.reads) <= MOST_INPUTS and len(trial.nodes) <= MOST_NODES
        return within and trial.outputs(uses) <= MOST_OUTPUTS

    def outputs(self, uses: Mapping[Value, int]) -> int:
        """The arrays that the kernel writes: slots, parts, and what it makes for others to read."""
        inside = Counter(v for node in self.members for v in node.operands)
        written = [push.operands[1] for push in self.pushes] + [v for c in self.concats for v in c.operands]
        return len(written) + sum(uses[v] > inside[v] for v in self.defined.difference(written))


Item = Node | Group | ProductSum


def schedule(graph: Graph, places: Mapping[Value, Place]) -> list[Item]:
    """A region's nodes in the order of execution, those that are one kernel as a group. Constants are left out."""
    return _Schedule(graph, places).run()


def updated_by(node: Node) -> tuple[Value, ...]:
    """The operands that a node may overwrite."""
    return node.operands if node.regions else node.operands[:1] if node.op.updates else ()


class _Schedule:
    def __init__(self, graph: Graph, places: Mapping[Value, Place]) -> None:
        self.graph, self.places = graph, places
        self.items: list[Item] = []
        self.open: dict[Shape, Group] = {}
        self.pending: dict[Value, Group] = {}
        self.uses = uses(graph)
        self.sums = product_sums(graph, places)
        self.added = {found.product for found in self.sums.values()}

    def run(self) -> list[Item]:
        for node in self.graph.nodes:
            if node.op.name == "constant" or node in self.added:
                continue
            if node in self.sums:
                self._emit(self.sums[node], self.sums[node].operands[:1])
            elif self._is_fused(node):
                self._join(node, "nodes", node.result.tensor.shape)
            elif self._is_fused_push(node):
                self._join(node, "pushes", node.operands[1].tensor.shape)
            elif self._is_fused_concat(node):
                self._join(node, "concats", node.operands[0].tensor.shape)
            else:
                self._emit(node, updated_by(node))
        for group in list(self.open.values()):
            self._close(group)
        return self.items

    def _is_fused(self, node: Node) -> bool:
        return all(self.places[v] is DEVICE for v in node.results) and is_fusible(node)

    def _is_fused_push(self, node: Node) -> bool:
        return (
            node.op.has_use(Use.PUSH)
            and self.places[node.result] is DEVICE
            and self.places[node.operands[0]] is DEVICE
            and has_kernel_type(node.operands[1])
        )

    def _is_fused_concat(self, node: Node) -> bool:
        if node.op.name != "concat" or len(node.operands) > MOST_OUTPUTS:
            return False
        shapes = {v.tensor.shape for v in node.operands}
        return (
            len(shapes) == 1
            and None not in next(iter(shapes))
            and has_kernel_type(node.result)
            and any(v in self.pending for v in node.operands)
        )

    def _join(self, node: Node, kind: str, shape: Shape) -> None:
        """Put a node into the open group of its shape; what it reads of other groups must be there first."""
        group = self.open.get(shape)
        for v in node.operands:
            other = self.pending.get(v)
            if other is not None and (other is not group or v not in other.defined):
                self._close(other)
        group = self.open.get(shape)
        if group is not None and not group.accepts(node, kind, self.uses):
            self._close(group)
            group = None
        if group is None:
            group = self.open[shape] = Group(shape)
        group.add(node, kind)
        self.pending[node.result] = group

    def _emit(self, item: Node | ProductSum, updated: Sequence[Value]) -> None:
        """Put something that is no part of a group, and may overwrite some of its operands, into the order."""
        for v in item.operands:
            if v in self.pending:
                self._close(self.pending[v])
        for group in list(self.open.values()):
            if any(v in group.reads for v in updated):
                self._close(group)
        self.items.append(item)

    def _close(self, group: Group) -> None:
        self.items.append(group)
        del self.open[group.shape]
        for node in group.members:
            del self.pending[node.result]


__all__ = ["Group", "Item", "schedule", "updated_by"]
