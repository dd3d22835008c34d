"""What the code generator knows while it writes: what stands for each value, and which loops are still open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ctrlgrad.engines.native.layout import ONE, ZERO, Ref, Scalar, Size, Sizes, Splat
from ctrlgrad.engines.native.program import StackUse
from ctrlgrad.ir import Graph, Node, StackType, Value, uses

Tensor = Ref | Splat
# In rows, in columns (a transposed matrix), or one element seen as many.
Layout = Literal["rows", "columns", "one"]


@dataclass
class StackState:
    """A stack while code is generated: which value of the graph it is now.

    `number` is its position among the loop's operands.
    """

    number: int
    use: StackUse
    version: Value

    @property
    def count(self) -> str:
        return f"n{self.number}"

    @property
    def base(self) -> str:
        return f"S{self.number}"

    @property
    def capacity(self) -> str:
        return f"c{self.number}"


@dataclass
class Group:
    """Elementwise nodes of one shape whose loop is not written yet."""

    shape: Sizes
    nodes: list[Node] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    # What the loop reads: name by reference (broadcast to the shape).
    reads: dict[Ref, str] = field(default_factory=dict)
    names: dict[Value, str] = field(default_factory=dict)
    # Conditions under which a kernel does not hold, and the functions of the C library that do, by the kernels' names.
    limits: list[str] = field(default_factory=list)
    exact: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pending:
    """A value that a group will compute."""

    group: Group


Item = Scalar | Ref | Splat | StackState | Pending


@dataclass
class Frame:
    """One region while its code is generated."""

    graph: Graph
    items: dict[Value, Item]
    # How often each value will still be read by code that is not written yet; as an output of the region, too.
    remaining: Counter[Value]
    # Where a value of the region goes: asked when the value is made.
    targets: dict[Value, Callable[[], Ref | None]]
    # The carry that each output may replace in place: the input and its reference.
    in_place: dict[Value, Value] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    # Values whose place is a slot of a stack, and the push.
    slots: dict[Value, Node] = field(default_factory=dict)
    # Values whose memory this region may overwrite once nothing reads it: carries and what was made here.
    own: set[Value] = field(default_factory=set)
    # Stacks from outside that nothing takes after this region.
    used_up: set[Value] = field(default_factory=set)
    # Stacks that are made here and leave with the region: they have their memory already.
    leaving: dict[Value, StackState] = field(default_factory=dict)


def merged(shape: Sizes, strides: Sequence[Sizes]) -> tuple[list[Size], list[list[Size]]]:
    """Axes that all references run through alike, put together; axes of size 1 left out."""
    sizes: list[Size] = []
    columns: list[list[Size]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == ONE:
            continue
        if sizes and all(c[-1] == size * s[axis] for c, s in zip(columns, strides, strict=True)):
            sizes[-1] = sizes[-1] * size
            for c, s in zip(columns, strides, strict=True):
                c[-1] = s[axis]
        else:
            sizes.append(size)
            for c, s in zip(columns, strides, strict=True):
                c.append(s[axis])
    return sizes, columns


def broadcast(ref: Ref, shape: Sizes) -> Ref:
    """A reference seen in a larger shape."""
    if ref.shape == shape:
        return ref
    lead = len(shape) - len(ref.shape)
    strides = [ZERO] * lead + [
        ZERO if mine == ONE and its != ONE else s
        for mine, its, s in zip(ref.shape, shape[lead:], ref.strides, strict=True)
    ]
    return Ref(ref.base, ref.offset, shape, tuple(strides), ref.dtype)


def uses_of(graph: Graph) -> Counter[Value]:
    """How often each value of a graph is used, counted once."""
    if "uses" not in graph.compiled:
        graph.compiled["uses"] = uses(graph)
    found: Counter[Value] = graph.compiled["uses"]
    return found


_VIEWS = frozenset(
    [
        "getitem",
        "transpose",
        "expand_dims",
        "squeeze",
        "reshape",
        "broadcast_to",
        "flip",
        "stop_gradient",
        "barrier",
        "forget_sizes",
        "watch",
    ]
)


def makes_memory(node: Node) -> bool:
    """Whether a node's result is computed into memory of its own, which may then be chosen."""
    if node.op.name in ("constant", "while", "cond", "dim") or node.op.name in _VIEWS:
        return False
    return not any(isinstance(v.type, StackType) for v in node.results)
