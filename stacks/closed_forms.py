"""Carries of a loop that the number of the iteration determines: the backward side has them without a stack.

These are an integer that a step is added to in every iteration, or subtracted from, and a scalar that changes its
sign, or its truth, in every iteration. Both are exact: what is computed again has the bits of what was carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import INDEX, Builder, Node, TensorType, Value, attributes
from ctrlgrad.ir.control import Capture, Carry
from ctrlgrad.records import record

# Function that brings a value of the loop, or from in front of it, to the backward side.
Bring = Callable[[Value], Value]


@record(eq=False)
class Induction:
    """A carry that is `first + iteration * step` at the start of an iteration (minus, if it counts `down`)."""

    first: Value  # in front of the loop
    step: Value | None  # of the body, a capture or a constant; None: it is 1
    down: bool
    from_zero: bool

    @property
    def counts_iterations(self) -> bool:
        return self.from_zero and self.step is None and not self.down and self.first.type == INDEX

    def at(self, iteration: Value, builder: Builder, bring: Bring) -> Value:
        """The carry at the start of an iteration."""
        distance = iteration
        if self.first.type != INDEX:
            distance = builder.emit("cast", [distance], {"dtype": self.first.tensor.dtype})
        if self.step is not None:
            distance = builder.emit("multiply", [distance, bring(self.step)])
        if self.from_zero and not self.down:
            return distance
        return builder.emit("subtract" if self.down else "add", [bring(self.first), distance], hint=self.first.hint)


@record(eq=False)
class Alternation:
    """A carry that is `first` in even iterations, and `opposite` of it in odd ones."""

    first: Value  # in front of the loop
    opposite: str

    counts_iterations = False

    def at(self, iteration: Value, builder: Builder, bring: Bring) -> Value:
        """The carry at the start of an iteration."""
        first = bring(self.first)
        odd = builder.emit("bitwise_and", [iteration, builder.constant(1, INDEX.dtype)])
        is_even = builder.emit("equal", [odd, builder.constant(0, INDEX.dtype)])
        return builder.emit("where", [is_even, first, builder.emit(self.opposite, [first])], hint=self.first.hint)


ClosedForm = Induction | Alternation


def closed_form(
    carry: Carry, captures: Sequence[Capture], inside: Mapping[Value, Node], outside: Mapping[Value, Node]
) -> ClosedForm | None:
    """Closed form of a carry, if it has one; `inside` and `outside` are the producers of the body and around it."""
    node, value = inside.get(carry.next), carry.in_body
    if node is None or value not in node.operands or not isinstance(value.type, TensorType) or value.type.rank:
        return None
    if carry.init.type != value.type:
        return None
    kind, name = dtype_kind(value.type.dtype), node.op.name
    if name in ("negative", "logical_not"):
        return Alternation(carry.init, name)
    if len(node.operands) != 2:
        return None
    step = node.operands[1] if node.operands[0] is value else node.operands[0]
    by = _number(inside, step)
    if name == "multiply" and kind in "if" and by == -1:
        return Alternation(carry.init, "negative")
    if kind not in "iu" or not (name == "add" or (name == "subtract" and node.operands[0] is value)):
        return None
    if by is None and all(c.in_body is not step for c in captures):
        return None
    return Induction(carry.init, None if by == 1 else step, name == "subtract", _number(outside, carry.init) == 0)


def _number(producers: Mapping[Value, Node], value: Value) -> int | float | None:
    """Number of a scalar constant; None for any other value."""
    node = producers.get(value)
    constant = None if node is None else attributes.Constant.find(node)
    return None if constant is None or constant.value.ndim else constant.value.item()
