"""Typed control flow: the ops that own regions, as parts with names.

`view(node)` gives a `Loop`, `Branch` or `Call`; where each part of it stands among the node's operands, region inputs,
region outputs and results is known here alone. A view is made anew from changed parts, and its `node` is what stands in
a graph: captures and carries are added, dropped or put in another order by saying which there are.

    loop = Loop.of(node)
    loop.rebuilt(carries=[c for c in loop.carries if c.next is not c.in_body]).node

`emit_loop`, `emit_branch` and `emit_call` record a new node over closed regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import attributes
from ctrlgrad.ir.builder import Builder, Closed
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import OPS
from ctrlgrad.ir.rules import Batching, Derivative, Forward
from ctrlgrad.ir.types import INDEX, TensorType
from ctrlgrad.records import record
from ctrlgrad.source import Source

T = TypeVar("T")
PLAIN_LOOP = attributes.Loop()


def _blank(value: Value) -> Value:
    """Another value of the same type and name."""
    return Value(value.type, value.hint)


def loop_name(node: Node) -> str:
    """Name of a loop in errors, reports and profiles: the user's, and its line."""
    name = attributes.Loop.of(node).name or "while_loop"
    return f"{name} at {node.source}" if node.source else str(name)


@record
class Capture:
    """A value that every iteration of a loop sees alike."""

    outer: Value
    in_cond: Value
    in_body: Value

    @classmethod
    def new(cls, outer: Value, in_body: Value) -> Capture:
        """A capture that the cond does not use."""
        return cls(outer, _blank(in_body), in_body)


@record
class Carry:
    """A value that goes from one iteration of a loop to the next."""

    init: Value
    in_cond: Value
    in_body: Value
    next: Value
    result: Value

    @classmethod
    def new(cls, init: Value, in_body: Value, next: Value) -> Carry:
        """A carry that the cond does not use, with a result of its own."""
        return cls(init, _blank(in_body), in_body, next, _blank(in_body))


@record(eq=False)
class Loop:
    """A `while`: the body runs as long as the cond yields true; both see the captures and the carries."""

    captures: tuple[Capture, ...]
    carries: tuple[Carry, ...]
    cond: Graph
    body: Graph
    attrs: attributes.Loop
    source: Source | None

    @classmethod
    def of(cls, node: Node) -> Loop:
        assert is_loop(node), f"{node} is not a loop"
        cond, body = node.regions
        attrs = attributes.Loop.of(node)
        captured, carried = attrs.split(list(zip(node.operands, cond.inputs, body.inputs, strict=True)))
        left = zip(body.outputs, node.results, strict=True)
        carries = tuple(Carry(*into, *out) for into, out in zip(carried, left, strict=True))
        captures = tuple(Capture(*into) for into in captured)
        return cls(captures, carries, cond, body, attrs, node.source)

    @classmethod
    def new(
        cls,
        captures: Iterable[Capture],
        carries: Iterable[Carry],
        cond: tuple[Iterable[Node], Value],
        body: Iterable[Node],
        attrs: attributes.Loop = PLAIN_LOOP,
        source: Source | None = None,
        names: tuple[str, str] = ("cond", "body"),
    ) -> Loop:
        """A loop of these parts; of the cond its nodes and the predicate, of the body its nodes."""
        captures, carries = tuple(captures), tuple(carries)
        nodes, predicate = cond
        entering: tuple[Capture | Carry, ...] = (*captures, *carries)
        in_cond = tuple(x.in_cond for x in entering)
        in_body = tuple(x.in_body for x in entering)
        return cls(
            captures,
            carries,
            Graph(in_cond, tuple(nodes), (predicate,), names[0]),
            Graph(in_body, tuple(body), tuple(c.next for c in carries), names[1]),
            attrs,
            source,
        )

    def rebuilt(
        self,
        *,
        captures: Iterable[Capture] | None = None,
        carries: Iterable[Carry] | None = None,
        cond: Iterable[Node] | None = None,
        body: Iterable[Node] | None = None,
        **attrs: Any,
    ) -> Loop:
        """The loop with other captures or carries, other nodes in its cond or body, other attributes."""
        return Loop.new(
            self.captures if captures is None else captures,
            self.carries if carries is None else carries,
            (self.cond.nodes if cond is None else cond, self.predicate),
            self.body.nodes if body is None else body,
            replace(self.attrs, **attrs),
            self.source,
            (self.cond.name, self.body.name),
        )

    @property
    def predicate(self) -> Value:
        """The scalar that the condition region yields."""
        (value,) = self.cond.outputs
        return value

    @property
    def operands(self) -> tuple[Value, ...]:
        return (*(c.outer for c in self.captures), *(c.init for c in self.carries))

    @property
    def results(self) -> tuple[Value, ...]:
        return tuple(c.result for c in self.carries)

    @property
    def shared(self) -> list[Value]:
        """The captures, as the body sees them."""
        return [c.in_body for c in self.captures]

    @property
    def carried(self) -> list[Value]:
        """The carries, as an iteration of the body starts with them."""
        return [c.in_body for c in self.carries]

    @property
    def counts_down(self) -> bool:
        """True if the first carry starts as the number of iterations, and is the number of those left."""
        return self.attrs.counts_down

    def split(self, operands: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
        """Split values that correspond to the operands, or to a region's inputs, into captures and carries."""
        return self.attrs.split(operands)

    @property
    def node(self) -> Node:
        """The loop as a node of a graph."""
        attrs = replace(self.attrs, captures=len(self.captures))
        return Node(OPS["while"], self.operands, self.results, attrs, (self.cond, self.body), self.source)


@record(eq=False)
class Branch:
    """A `cond`: the selector says which of the branches runs; all see the operands.

    Parts are exchanged by `dataclasses.replace`.
    """

    selector: Value
    operands: tuple[Value, ...]
    branches: tuple[Graph, ...]
    results: tuple[Value, ...]
    source: Source | None

    @classmethod
    def of(cls, node: Node) -> Branch:
        assert is_branch(node), f"{node} is not a branch"
        selector, *operands = node.operands
        return cls(selector, tuple(operands), node.regions, node.results, node.source)

    @property
    def node(self) -> Node:
        """The branch as a node of a graph."""
        operands = (self.selector, *self.operands)
        return Node(OPS["cond"], operands, self.results, attributes.Branch(), self.branches, self.source)


@record(eq=False)
class Call:
    """A `call`: a function kept whole, and further regions that say what its derivative is (see `ops.call`).

    Parts are exchanged by `dataclasses.replace`.
    """

    captures: tuple[Value, ...]
    arguments: tuple[Value, ...]
    regions: tuple[Graph, ...]
    results: tuple[Value, ...]
    attrs: attributes.Call
    source: Source | None

    @classmethod
    def of(cls, node: Node) -> Call:
        assert is_call(node), f"{node} is not a call"
        attrs = attributes.Call.of(node)
        captures, arguments = attrs.split(node.operands)
        return cls(tuple(captures), tuple(arguments), node.regions, node.results, attrs, node.source)

    @property
    def kind(self) -> str:
        """One of `ops.call.KINDS`."""
        return self.attrs.kind

    @property
    def function(self) -> Graph:
        """Region that computes the results from the operands."""
        return self.regions[0]

    @property
    def rule(self) -> Any:
        """Rule of a function that has one: an object of `ir.rules`."""
        return self.attrs.rule

    def captured_by(self, *graphs: Graph) -> list[Value]:
        """The captures that these graphs, which have them as their first inputs, compute with."""
        used = {v for graph in graphs for v in used_values(graph)}
        return [v for i, v in enumerate(self.captures) if any(graph.inputs[i] in used for graph in graphs)]

    @property
    def row(self) -> Graph:
        """Region that computes one row, for the kind "rows"."""
        return self.regions[1]

    @property
    def primal(self) -> Graph:
        """Function that is differentiated, for the kind "derivative"."""
        return self.regions[1]

    @property
    def passed(self) -> tuple[Value, ...]:
        """Arguments of that function: those of the call without its seeds."""
        return self.arguments[: len(self.primal.inputs) - len(self.captures)]

    @property
    def differentiated(self) -> tuple[Value, ...]:
        """Operands of that function."""
        return (*self.captures, *self.passed)

    @property
    def seeds(self) -> tuple[Value, ...]:
        """Tangents or cotangents, the last operands."""
        return self.operands[len(self.primal.inputs) :]

    @property
    def operands(self) -> tuple[Value, ...]:
        return (*self.captures, *self.arguments)

    @property
    def node(self) -> Node:
        """The call as a node of a graph."""
        attrs = replace(self.attrs, captures=len(self.captures))
        return Node(OPS["call"], self.operands, self.results, attrs, self.regions, self.source)


Control = Loop | Branch | Call


def is_loop(node: Node) -> bool:
    return node.op.name == "while"


def is_branch(node: Node) -> bool:
    return node.op.name == "cond"


def is_call(node: Node, *kinds: str) -> bool:
    """Return true if a node is a call, of one of these kinds if any are given."""
    return node.op.name == "call" and (not kinds or attributes.Call.of(node).kind in kinds)


_VIEWS: Mapping[str, Any] = {"while": Loop.of, "cond": Branch.of, "call": Call.of}
# The names of the ops that own regions.
REGION_OPS = frozenset(_VIEWS)


def view(node: Node) -> Control | None:
    """Return a node that owns regions as parts with names; None for any other node."""
    of = _VIEWS.get(node.op.name)
    found: Control | None = None if of is None else of(node)
    return found


def used_values(graph: Graph) -> set[Value]:
    """The values that a graph computes with: not what only the rule of a function in it may use one day."""
    used = set(graph.outputs)
    for node in graph.nodes:
        match view(node):
            case Loop() as loop:
                inside = used_values(loop.cond) | used_values(loop.body)
                used.update(c.init for c in loop.carries)
                used.update(c.outer for c in loop.captures if c.in_cond in inside or c.in_body in inside)
            case Branch() as branch:
                inside = {v for region in branch.branches for v in used_values(region)}
                inputs = zip(branch.operands, *(region.inputs for region in branch.branches), strict=True)
                used.add(branch.selector)
                used.update(v for v, *entered in inputs if inside.intersection(entered))
            case Call() as call:
                used.update((*call.arguments, *call.captured_by(call.function)))
            case _:
                used.update(node.operands)
    return used


def emit_loop(
    builder: Builder,
    regions: Closed,
    inits: Sequence[Value],
    attrs: attributes.Loop = PLAIN_LOOP,
    *,
    source: Source | None = None,
    hints: Sequence[str | None] | None = None,
) -> tuple[Value, ...]:
    """Append a loop of a cond and a body over the same captures; returns its results."""
    attrs = replace(attrs, captures=len(regions.captures))
    operands = [*regions.captures, *inits]
    return builder.emit_all("while", operands, attrs, regions=regions.regions, source=source, hints=hints)


def emit_branch(
    builder: Builder,
    selector: Value,
    branches: Closed,
    *,
    source: Source | None = None,
    hints: Sequence[str | None] | None = None,
) -> tuple[Value, ...]:
    """Append a branch over the captures of its regions, which have no other inputs; returns its results."""
    operands = [selector, *branches.captures]
    return builder.emit_all("cond", operands, regions=branches.regions, source=source, hints=hints)


def emit_call(
    builder: Builder,
    kind: str,
    regions: Closed,
    arguments: Sequence[Value] = (),
    *,
    mapped: tuple[int, ...] = (),
    rows: attributes.NamedAxis | None = None,
    policy: tuple[attributes.Saving, ...] = (),
    rule: Forward | Batching | Derivative | None = None,
    source: Source | None = None,
    hints: Sequence[str | None] | None = None,
) -> tuple[Value, ...]:
    """Append a call of the first of the regions; returns its results."""
    count = len(regions.captures)
    attrs = attributes.Call(kind=kind, captures=count, mapped=mapped, rows=rows, policy=policy, rule=rule)
    operands = [*regions.captures, *arguments]
    return builder.emit_all("call", operands, attrs, regions=regions.regions, source=source, hints=hints)


# Counted loops: loops whose trip count follows from values before the loop.
#
# Such a loop runs while an integer carry is below a loop-invariant bound, and adds 1 to the carry (or counts down by
# 1 while it is above). Its trip count and the counter's final value are then known without running it: nothing
# outside waits for them, and a gradient saves nothing for them. A step other than 1 is allowed if the values in front
# of the loop are known; otherwise the counter could pass the bound near the end of its dtype and overflow.


# Comparisons of counters that go up and down; 1 if the bound is inclusive.
_UP = {"less": 0, "less_equal": 1}
_DOWN = {"greater": 0, "greater_equal": 1}
TURNED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}

Number = Callable[[Value], np.ndarray | None]


@record(eq=False)
class Counting:
    """Counter of a loop: `carry` changes by `step` until it is `beyond` past `bound`, or further for long steps."""

    carry: Carry
    bound: Value | np.ndarray  # in front of the loop
    step: int  # below 0 for a counter that goes down
    beyond: int

    @classmethod
    def of(cls, loop: Loop, number: Number) -> Counting | None:
        """Return the counter of a loop, None if it has none; `number` knows the constants in front of the loop."""
        return cls._by(_producer(loop.cond, loop.predicate), loop, number)

    @classmethod
    def each(cls, loop: Loop, number: Number) -> tuple[Counting, ...]:
        """Return the counters of a loop whose condition is a conjunction of tests; empty if any test has none."""
        found: list[Counting] = []
        pending = [loop.predicate]
        while pending:
            test = _producer(loop.cond, pending.pop())
            if test is not None and test.op.name == "logical_and":
                pending += test.operands
                continue
            counting = cls._by(test, loop, number)
            if counting is None:
                return ()
            found.append(counting)
        return tuple(found)

    @classmethod
    def _by(cls, test: Node | None, loop: Loop, number: Number) -> Counting | None:
        if test is None or test.op.name not in TURNED:
            return None
        for carry in loop.carries:
            if carry.in_cond in test.operands:
                at = test.operands.index(carry.in_cond)
                name = test.op.name if at == 0 else TURNED[test.op.name]
                end = test.operands[1 - at]
                bound, step, down = _in_front(loop, loop.cond, end), step_of(loop, carry, number), name in _DOWN
                if bound is None or not step or (step < 0) != down or carry.init.type != end.type:
                    return None
                found = cls(carry, bound, step, (_DOWN if down else _UP)[name])
                return found if abs(step) == 1 or found.count(number) is not None else None
        return None

    def count(self, number: Number) -> int | None:
        """The number of iterations, where start and bound are constants, and the counter never leaves its dtype."""
        start = number(self.carry.init)
        bound = self.bound if isinstance(self.bound, np.ndarray) else number(self.bound)
        if start is None or bound is None:
            return None
        distance = (int(bound) - int(start)) * (1 if self.step > 0 else -1) + self.beyond
        trips = max(0, -(-distance // abs(self.step)))
        limits = np.iinfo(self.carry.init.tensor.dtype)
        return trips if limits.min <= int(start) + trips * self.step <= limits.max else None

    def last(self, builder: Builder, number: Number) -> Value:
        """The counter after the loop."""
        dtype, down = self.carry.init.tensor.dtype, self.step < 0
        start, trips = number(self.carry.init), self.count(number)
        if start is not None and trips is not None:
            return builder.constant(int(start) + trips * self.step, dtype)
        end = builder.constant(self.bound) if isinstance(self.bound, np.ndarray) else self.bound
        if self.beyond:
            end = builder.emit("subtract" if down else "add", [end, builder.constant(1, dtype)])
        return builder.emit("minimum" if down else "maximum", [self.carry.init, end], hint=self.carry.result.hint)

    def trips(self, builder: Builder, number: Number) -> Value:
        """The number of iterations."""
        count = self.count(number)
        if count is not None:
            return builder.constant(count, INDEX.dtype)
        last, start = self.last(builder, number), self.carry.init
        first = number(start)
        if first is not None and first == 0 and self.step > 0 and last.type == INDEX:
            return last
        ends = [_as_index(builder, v) for v in ((start, last) if self.step < 0 else (last, start))]
        return builder.emit("subtract", ends, hint="trips")


def step_of(loop: Loop, carry: Carry, number: Number) -> int | None:
    """Return the constant that each iteration adds to an integer carry, 0 if the carry is unchanged; else None."""
    value = carry.in_body
    if (
        not isinstance(value.type, TensorType)
        or dtype_kind(value.type.dtype) not in "iu"
        or carry.init.type != value.type
    ):
        return None
    if carry.next is value:
        return 0
    node = _producer(loop.body, carry.next)
    if node is None or node.op.name not in ("add", "subtract") or value not in node.operands:
        return None
    a, b = node.operands
    if node.op.name == "subtract" and a is not value:
        return None
    step = _in_front(loop, loop.body, b if a is value else a)
    step = number(step) if isinstance(step, Value) else step
    if step is None or step.ndim:
        return None
    return -int(step) if node.op.name == "subtract" else int(step)


def _producer(region: Graph, value: Value) -> Node | None:
    return next((n for n in region.nodes if value in n.results), None)


def _in_front(loop: Loop, region: Graph, value: Value) -> Value | np.ndarray | None:
    """Loop-invariant value of a region, as a value before the loop; None if iterations may see different ones."""
    node = _producer(region, value)
    if node is not None:
        constant = attributes.Constant.find(node)
        return None if constant is None else constant.value
    return next((c.outer for c in loop.captures if value in (c.in_cond, c.in_body)), None)


def _as_index(builder: Builder, value: Value) -> Value:
    return value if value.type == INDEX else builder.emit("cast", [value], {"dtype": INDEX.dtype})
