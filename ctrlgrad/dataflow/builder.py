"""The one way to build a flat graph, by the lowering and by hand.

A loop's Merge is emitted before the NextIteration that closes it: `merge(initial)` leaves its second operand open, and
`next_iteration(value, into=merged)` fills it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import Enter, FlatGraph, FlatNode
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.errors import VerificationError, locate
from ctrlgrad.ir import BOOL, OPS, Graph, Op, TensorType, Type, Value, join
from ctrlgrad.ir.attributes import NO_ATTRS, Given
from ctrlgrad.source import Source, here


def _op_of(name: str) -> Op:
    op = flat.PRIMITIVES.get(name) or OPS.get(name)
    if op is None:
        raise VerificationError(
            f"there is no op {name!r}", source=here(), expected="an op of ctrlgrad.ops, or a primitive", got=repr(name)
        )
    return op


class FlatBuilder:
    """Collects the nodes of a flat graph.

    >>> from ctrlgrad.dataflow import FlatBuilder, run_flat
    >>> from ctrlgrad.ir import INDEX
    >>> b = FlatBuilder("count")
    >>> limit = b.enter(b.input(INDEX, "n"), "loop", constant=True)
    >>> i = b.merge(b.enter(b.constant(np.int64(0)), "loop"))
    >>> goes_on = b.loop_cond(b.op("less", [i, limit]))
    >>> last, current = b.switch(goes_on, i)
    >>> one = b.constant(np.int64(1), controls=[current])
    >>> b.next_iteration(b.op("add", [current, one]), into=i)
    >>> print(run_flat(b.finish([b.exit(last)]), [np.int64(5)])[0])
    5
    """

    def __init__(self, name: str = "graph", *, by_hand: bool = True) -> None:
        self.name = name
        # True if a node without a source gets the line of the user's call.
        self.by_hand = by_hand
        self.inputs: list[Value] = []
        self.nodes: list[FlatNode] = []
        # A loop's Merge that waits for its NextIteration: its result, and the operand that is to be defined.
        self._open: dict[Value, Value] = {}

    def input(self, type: Type, hint: str | None = None) -> Value:
        """An input of the graph."""
        value = Value(type, hint)
        self.inputs.append(value)
        return value

    def add(
        self,
        op: Op | str,
        operands: Sequence[Value],
        results: Sequence[Value],
        attrs: Given = NO_ATTRS,
        *,
        controls: Sequence[Value] = (),
        orders: Sequence[Value] = (),
        regions: Sequence[Graph] = (),
        source: Source | None = None,
        device: str | None = None,
    ) -> FlatNode:
        """Append a node as it is; the methods below say what each kind of node is."""
        op = _op_of(op) if isinstance(op, str) else op
        source = source or (here() if self.by_hand else None)
        try:
            given = op.attributes(attrs)
        except VerificationError as error:
            locate(error, op.name, source)
            raise
        node = FlatNode(
            op,
            tuple(operands),
            tuple(results),
            given,
            tuple(regions),
            source,
            controls=tuple(controls),
            orders=tuple(orders),
            device=device,
        )
        self.nodes.append(node)
        return node

    def ops(self, op: str, operands: Sequence[Value], attrs: Given = NO_ATTRS, **more: Any) -> Any:
        """An ordinary op of `ctrlgrad.ops`, its result types by its own rule; all its results."""
        declared = _op_of(op)
        attrs = declared.attributes(attrs)
        types = declared.infer([v.type for v in operands], attrs, ())
        return self.add(declared, operands, [Value(t) for t in types], attrs, **more).results

    def op(self, op: str, operands: Sequence[Value], attrs: Given = NO_ATTRS, **more: Any) -> Value:
        """An ordinary op with one result."""
        (value,) = self.ops(op, operands, attrs, **more)
        result: Value = value
        return result

    def constant(self, array: Any, **more: Any) -> Value:
        """A constant array. Inside a frame it needs `controls`: a value of the iteration that it fires in."""
        array = np.array(array)
        array.flags.writeable = False
        value = Value(TensorType(array.dtype, array.shape))
        return self.add("constant", (), (value,), {"value": array}, **more).result

    def switch(self, predicate: Value, data: Value, sides: int = 2, **more: Any) -> tuple[Value, ...]:
        """The sides of a Switch: (false, true) for a bool predicate; an integer chooses among `sides`, clamped."""
        values = [Value(data.type, data.hint) for _ in range(sides)]
        return self.add(flat.SWITCH, (predicate, data), values, **more).results

    def merge(self, *operands: Value, **more: Any) -> Value:
        """A Merge. With one operand it is the head of a loop's carry: `next_iteration(.., into=it)` gives the other."""
        joined: Type | None = operands[0].type
        for operand in operands[1:]:
            joined = None if joined is None else join(joined, operand.type)
        if joined is None:
            got = ", ".join(str(v.type) for v in operands)
            raise VerificationError("Merge: operands of different types", source=here(), expected="one type", got=got)
        result = Value(joined, operands[0].hint)
        if len(operands) == 1:
            back = Value(joined, operands[0].hint)
            self._open[result] = back
            operands = (*operands, back)
        return self.add(flat.MERGE, operands, (result,), **more).result

    def enter(
        self,
        data: Value,
        frame: str,
        *,
        constant: bool = False,
        parallel_iterations: int = flat.PARALLEL_ITERATIONS,
        type: Type | None = None,
        **more: Any,
    ) -> Value:
        """`data` in iteration 0 of the frame, or in every iteration where it is `constant`.

        `type` is that of the carry, where later iterations have other sizes.
        """
        attrs = Enter(frame=frame, constant=constant, parallel_iterations=parallel_iterations)
        return self.add(flat.ENTER, (data,), (Value(type or data.type, data.hint),), attrs, **more).result

    def exit(self, data: Value, **more: Any) -> Value:
        """`data`, the false side of a loop's Switch, in the parent frame."""
        return self.add(flat.EXIT, (data,), (Value(data.type, data.hint),), **more).result

    def loop_cond(self, predicate: Value, **more: Any) -> Value:
        """The predicate of the frame: whether another iteration follows."""
        return self.add(flat.LOOP_COND, (predicate,), (Value(BOOL, predicate.hint),), **more).result

    def next_iteration(self, data: Value, into: Value, **more: Any) -> None:
        """Hand `data` to the next iteration of the loop's Merge `into`."""
        if into not in self._open:
            raise VerificationError(
                "NextIteration: there is no Merge that waits for it",
                source=here(),
                expected="the result of merge(initial), once",
                got=repr(into),
            )
        self.add(flat.NEXT_ITERATION, (data,), (self._open.pop(into),), **more)

    def finish(self, outputs: Iterable[Value]) -> FlatGraph:
        """The graph. Refused by `verify_flat` where it breaks a rule."""
        for merged in self._open:
            node = next(n for n in self.nodes if merged in n.results)
            raise VerificationError(
                f"the Merge {merged.hint or merged!r} has no NextIteration",
                source=node.source,
                expected="next_iteration(value, into=merged) for every merge of one operand",
                got="a loop that nothing closes",
            )
        graph = FlatGraph(tuple(self.inputs), tuple(self.nodes), tuple(outputs), self.name)
        verify_flat(graph)
        return graph


# The rules.
