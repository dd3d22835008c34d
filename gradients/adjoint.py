"""The reverse pass over one scope: cotangents, added up eagerly, node by node from the last to the first.

A cotangent that is zero is not there at all; zeros are emitted only where an op cannot do without. An op that reads
a part of its operand adds to the operand's cotangent (`reverse_into`), so reading a row costs a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.gradients.activity import Activity
from ctrlgrad.gradients.manner import current_manner
from ctrlgrad.gradients.strong_zeros import StrongZeros
from ctrlgrad.gradients.table import ELEMENTWISE, REVERSE, ReverseRule, refusal
from ctrlgrad.ir import Graph, Node, StackType, TensorType, Value, is_call, walk
from ctrlgrad.ir.attributes import NamedAxis
from ctrlgrad.ir.walk import dependent_outputs
from ctrlgrad.ops.control import COTANGENT
from ctrlgrad.ops.term import Term, constant, emit, ensure_sizes, sum_to, zeros
from ctrlgrad.records import record
from ctrlgrad.stacks.saving import Scope
from ctrlgrad.stacks.sizes import Size


class Primal(Term):
    """A forward value as seen by the backward side; it is brought over only when a rule uses it."""

    def __init__(self, scope: Scope, forward: Value) -> None:
        super().__init__(scope.backward, forward)
        self.scope = scope
        self.forward = forward

    @property
    def value(self) -> Value:
        return self.scope.resolve(self.forward)

    def dim(self, axis: int) -> int | Term:
        known = self.tensor.shape[axis]
        if known is not None:
            return known
        return Term(self.builder, self.scope.resolve(Size(self.forward, axis % self.rank)))

    def factor(self, op: str) -> Term:
        return Primal(self.scope, self.scope.observe(op, self.forward))

    def length(self) -> Term:
        """The number of slots of a stack."""
        known = self.scope.length(self.forward)
        if known is not None:
            return constant(self.builder, known, np.int64)
        return Term(self.builder, self.scope.resolve(self.scope.observe("stack_length", self.forward)))


@record
class Pullback:
    """The two halves of a derivative.

    `forward` maps the function's inputs to its outputs followed by residuals (saved values and stacks);
    `backward` maps residuals followed by one cotangent per entry of `seeded` to one cotangent per entry of `wrt`.
    """

    forward: Graph
    backward: Graph
    residuals: int
    seeded: tuple[int, ...]
    wrt: tuple[int, ...]

    @property
    def is_of_linear_map(self) -> bool:
        """True if the cotangents do not depend on the point at which the function is differentiated."""
        saved = range(len(self.forward.outputs) - self.residuals, len(self.forward.outputs))
        moving = [i - saved.start for i in dependent_outputs(self.forward, self.wrt) if i in saved]
        return not dependent_outputs(self.backward, moving)


@record
class Recursion:
    """Context that the rule of an op with regions needs to differentiate its regions."""

    # The rules of such ops by name.
    rules: Mapping[str, Callable[[Adjoint, Node], None]]
    # Reverse mode of a graph with respect to some inputs, given cotangents of some outputs; `linear=`: see there.
    reverse: Callable[..., Pullback]
    # See `gradients.calls.Batch`.
    batch: Callable[[Graph, Sequence[int], int | None, NamedAxis | None], Graph]
    # True if the graph is linear, and this transposes it.
    linear: bool = False
    # Analysis of the cotangents that are strong zeros; None if there are none.
    strong: StrongZeros | None = None


class Adjoint:
    """The cotangents of one scope's values while its nodes are reversed."""

    def __init__(self, scope: Scope, varied: set[Value], activity: Activity, recursion: Recursion) -> None:
        self.scope = scope
        self.varied = varied
        self.activity = activity
        self.recursion = recursion
        self.cotangents: dict[Value, Term] = {}
        self.producers = {v: node for node in scope.graph.nodes for v in node.results}

    @property
    def graph(self) -> Graph:
        return self.scope.graph

    def inside(self, scope: Scope, varied: set[Value]) -> Adjoint:
        """The reverse pass over a region."""
        return Adjoint(scope, varied, self.activity, self.recursion)

    def primal(self, value: Value) -> Primal:
        return Primal(self.scope, value)

    def add(self, value: Value, cotangent: Term) -> None:
        """Add to a value's cotangent; nothing where the value is not varied."""
        if value not in self.varied:
            return
        cotangent = _with_known_sizes(cotangent, value)
        if current_manner().marks_cotangents and isinstance(cotangent.type, TensorType):
            cotangent = emit("barrier", cotangent, name=COTANGENT)
        known = self.cotangents.get(value)
        if known is None:
            self.cotangents[value] = cotangent
        elif isinstance(cotangent.type, StackType):
            self.cotangents[value] = emit("stack_sum", known, cotangent)
        else:
            with self._at(value):
                self.cotangents[value] = known + cotangent

    @contextmanager
    def _at(self, value: Value) -> Iterator[None]:
        """Put what is emitted on the device of the value: that is where its whole cotangent is needed."""
        backward = self.scope.backward
        before, maker = backward.source, self.producers.get(value)
        if before is not None and maker is not None and maker.source is not None:
            backward.source = replace(before, device=maker.source.device)
        try:
            yield
        finally:
            backward.source = before

    def take(self, value: Value) -> Term | None:
        """The cotangent, which is then gone: every use of the value has been seen."""
        return self.cotangents.pop(value, None)

    def zeros_like(self, value: Value) -> Term:
        primal = self.primal(value)
        builder = self.scope.backward
        if isinstance(value.type, StackType):
            attrs = {"element": value.type.element}
            return Term(builder, builder.emit("stack_new", [primal.length().value], attrs))
        return zeros(builder, value.tensor.dtype, primal.dims)

    def run(self) -> None:
        """Reverse every node; what is left in `cotangents` belongs to the graph's inputs."""
        backward = self.scope.backward
        for node in reversed(self.graph.nodes):
            # The results of a rule replace those of its call, so the call is visited even without a cotangent.
            has_rules = is_call(node, "custom_jvp", "custom_vjp") or any(map(has_user_rules, node.regions))
            if not has_rules and not any(v in self.cotangents for v in node.results):
                continue
            backward.source = node.source and node.source.derivative_of(node.op.name)
            region_rule = self.recursion.rules.get(node.op.name)
            if region_rule is not None:
                region_rule(self, node)
            else:
                self._reverse(node)

    def _reverse(self, node: Node) -> None:
        rule = REVERSE.get(node.op.name)
        if rule is None:
            raise refusal(node, "reverse")
        cotangents = [self.take(v) for v in node.results]
        if len(node.results) == 1:
            (cotangent,) = cotangents
        else:
            cotangent = _Cotangents(self, node, cotangents)  # type: ignore[assignment]
        results = [self.primal(v) for v in node.results]
        result = results[0] if len(results) == 1 else results
        operands = [self.primal(v) for v in node.operands]
        attrs = node.attrs.given()
        first = node.operands[0]
        if rule.accumulate is not None and first in self.varied:
            accumulated = self.take(first)
            if accumulated is None:
                accumulated = self.zeros_like(first)
            self.cotangents[first] = rule.accumulate(accumulated, cotangent, result, *operands, **attrs)
        joint = None if rule.joint is None else rule.joint(cotangent, result, *operands, **attrs)
        for position, operand in enumerate(node.operands):
            if operand not in self.varied:
                continue
            if joint is not None:
                given = joint[position]
            else:
                given = self._pull(node, rule, position, cotangent, result, operands, attrs)
            if given is None:
                continue
            if rule.broadcasts:
                given = sum_to_operand(given, node, position, operands[position])
            self.add(operand, given)

    def _pull(
        self,
        node: Node,
        rule: ReverseRule,
        position: int,
        cotangent: Any,
        result: Any,
        operands: Sequence[Term],
        attrs: dict[str, Any],
    ) -> Term | None:
        if rule.variadic is not None:
            return rule.variadic(position, cotangent, result, *operands, **attrs)
        pullback = rule.pullbacks[position] if position < len(rule.pullbacks) else None
        if pullback is None:
            return None
        strong = self.recursion.strong
        if strong is None:
            return pullback(cotangent, result, *operands, **attrs)
        if node.op.name not in ELEMENTWISE:
            rule_of = lambda given: pullback(cotangent, result, *given, **attrs)
            return strong.cotangent_of_arrays(node, position, rule_of, cotangent, operands)
        return strong.cotangent(node, position, lambda ct: pullback(ct, result, *operands, **attrs), cotangent)


class _Cotangents:
    """The cotangents of a node with several results, zeros emitted on demand."""

    def __init__(self, adjoint: Adjoint, node: Node, given: Sequence[Term | None]) -> None:
        self.adjoint = adjoint
        self.node = node
        self.given = given

    def __getitem__(self, position: int) -> Term:
        term = self.given[position]
        return self.adjoint.zeros_like(self.node.results[position]) if term is None else term


def has_user_rules(graph: Graph) -> bool:
    """Return true if differentiation replaces results inside a graph by those of users' rules (`calls._returned`)."""
    return any(is_call(node, "custom_jvp", "custom_vjp") for node in walk(graph))


def _with_known_sizes(cotangent: Term, value: Value) -> Term:
    """A cotangent with the sizes that are known of its value: where a loop or a branch declares them unknown, and
    what it yields has them, the cotangent comes back with less than is known."""
    if not isinstance(value.type, TensorType) or value.type.accepts(cotangent.type):
        return cotangent
    return ensure_sizes(cotangent, {axis: d for axis, d in enumerate(value.type.shape) if d is not None})


def sum_to_operand(cotangent: Term, node: Node, position: int, operand: Term) -> Term:
    """Undo the broadcasting of one operand of an elementwise op."""
    others = [v.type for i, v in enumerate(node.operands) if i != position]
    t = operand.tensor
    if None in t.shape and t.rank == cotangent.rank:
        certain = all(
            d is not None or all(_has_no_more(other, axis - t.rank) for other in others)
            for axis, d in enumerate(t.shape)
        )
        if certain and all(d is None or d == c for d, c in zip(t.shape, cotangent.tensor.shape, strict=True)):
            return cotangent
    return sum_to(cotangent, operand.dims)


def _has_no_more(other: Any, axis: int) -> bool:
    """True if an operand cannot have broadcast another one along an axis counted from the end."""
    assert isinstance(other, TensorType)
    return -axis > other.rank or other.shape[axis] == 1


def one(scope: Scope, dtype: np.dtype) -> Term:
    return constant(scope.backward, 1, dtype)
