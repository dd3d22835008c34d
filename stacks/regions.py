"""Saving in regions: the body of a loop, or a branch, where values are pushed and popped (see `saving`).

Some carries need no stack, since the number of the iteration determines them: an integer that a step is added to in
every iteration, or subtracted from, and a scalar that changes its sign, or its truth, in every iteration. Both are
exact: what is computed again has the bits of what was carried.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import INDEX, OPS, Builder, Node, StackType, TensorType, Trait, Value, attributes
from ctrlgrad.ir.control import Capture, Carry
from ctrlgrad.records import record
from ctrlgrad.stacks.choice import choose
from ctrlgrad.stacks.restoring import Restorable, Restoring, Stage, is_update, placed
from ctrlgrad.stacks.saving import Scope, Thread
from ctrlgrad.stacks.sizes import Size, is_as_long, origin

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


# Of ops that have none of these nothing is computed again.
_AGAIN = frozenset({Trait.CHEAP, Trait.MOVES})


@record(eq=False)
class Shift:
    """A value that is the next iteration's carry at `position`: `wanted` on the backward side, followed by `before`,
    what the carry was before it."""

    position: int
    wanted: Value
    before: Value


@record(eq=False, frozen=False)
class RegionScope(Scope):
    """The body of a loop or a branch.

    `captures` says which outer forward value stands behind an input of the region; `index` is the backward
    side's value of the iteration that is being reversed (loops only).
    """

    outer: Scope = None  # type: ignore[assignment]
    captures: dict[Value, Value] = field(default_factory=dict)
    closed_forms: dict[Value, ClosedForm] = field(default_factory=dict)
    restorable: Restorable = field(default_factory=Restorable)
    index: Value | None = None
    # The backward nodes before what is popped and computed again: they make `index`, and what it determines.
    opening: Builder = field(default_factory=Builder)
    determined: dict[Value, Value] = field(default_factory=dict)
    # Forward values that are needed, and the backward values that will stand for them.
    wanted: dict[Value, Value] = field(default_factory=dict)
    # Outer forward values that the backward region needs, with the backward region's input for each.
    needs: dict[Value | Size, Value] = field(default_factory=dict)
    # The carry of a loop: the first value of each, and what follows it.
    carry: dict[Value, tuple[Value, Value]] = field(default_factory=dict)

    def need(self, outer_value: Value | Size) -> Value:
        if outer_value not in self.needs:
            type, hint = (INDEX, "size") if isinstance(outer_value, Size) else (outer_value.type, outer_value.hint)
            self.needs[outer_value] = Value(type, hint)
        return self.needs[outer_value]

    def number(self, value: Value) -> np.ndarray | None:
        return self.outer.number(self.captures[value]) if value in self.captures else super().number(value)

    def _length_outside(self, stack: Value) -> int | None:
        """Number of rows of a capture, or of a carry whose length the body keeps, if known."""
        if stack in self.captures:
            return self.outer.length(self.captures[stack])
        if stack not in self.carry:
            return None
        first, following = self.carry[stack]
        return self.outer.length(first) if is_as_long(following, stack, self.producers, self.number) else None

    def _bring_size(self, size: Size) -> Value:
        outside = self._size_outside(size)
        return super()._bring_size(size) if outside is None else self.need(outside)

    def _size_outside(self, size: Size) -> Size | None:
        """The same size in the outer scope: of a capture, or of a carry whose shape the body keeps."""
        if size.value in self.captures:
            return Size(self.captures[size.value], size.axis)
        if size.value in self.carry:
            first, following = self.carry[size.value]
            if origin(self.producers, Size(following, size.axis)) == size:
                return Size(first, size.axis)
        return None

    def _bring(self, value: Value) -> Value:
        free = self._free(value, self.backward)
        if free is not None:
            return free
        # `settle` decides whether to save or to recompute it, once all wanted values are known.
        self.wanted[value] = Value(value.type, value.hint)
        return self.wanted[value]

    def _free(self, value: Value, builder: Builder) -> Value | None:
        """A value that is to be had without a stack: a capture, a constant, an induction variable, an outer size."""
        if value in self.captures:
            return self.need(self.captures[value])
        if value in self.closed_forms:
            return self._determined(value)
        node = self.producers.get(value)
        if node is not None and node.op.name == "constant":
            return builder.constant_again(attributes.Constant.of(node))
        outside = self._measured_outside(value)
        return None if outside is None else self.need(outside)

    def _is_free(self, value: Value) -> bool:
        is_at_hand = value in self.captures or value in self.closed_forms or self.number(value) is not None
        return is_at_hand or self._measured_outside(value) is not None

    def _measured_outside(self, value: Value) -> Size | None:
        """The size in the outer scope that a `dim` gives."""
        node = self.producers.get(value)
        if node is None or node.op.name != "dim":
            return None
        return self._size_outside(origin(self.producers, Size(node.operands[0], attributes.Axis.of(node).axis)))

    def _determined(self, value: Value) -> Value:
        """A carry that the number of the iteration determines, computed once."""
        if value not in self.determined:
            assert self.index is not None
            self.opening.source = self.backward.source
            self.determined[value] = self.closed_forms[value].at(self.index, self.opening, self._bring_to_opening)
        return self.determined[value]

    def _bring_to_opening(self, value: Value) -> Value:
        """A value from around this scope, or one that is free in it."""
        free = self._free(value, self.opening)
        if free is not None:
            return free
        number = self.outer.number(value)
        return self.need(value) if number is None else self.opening.constant_again(attributes.Constant(value=number))

    def _operands(self, value: Value) -> list[Value] | None:
        """Return the values, free ones left out, that restore or recompute a value; None if it must be saved."""
        node = self.producers.get(value)
        if self.restorable.is_saved(value):
            return None
        if value in self.restorable.members:
            return [v for v in self.restorable.members[value].needs if not self._is_free(v)]
        if node is None or node.regions or node.op.name == "dim" or len(node.results) != 1:
            return None
        if _AGAIN.isdisjoint(node.op.traits) and not self._updates_again(node):
            return None
        if any(isinstance(v.type, StackType) for v in (*node.operands, *node.results)):
            return None
        array = self.captures.get(node.operands[0]) if node.op.name == "getitem" or is_update(node) else None
        if array is not None and not self.outer.keeps(array):
            # Reading again needs the whole array, and so does updating: only if the scope around has it anyway.
            return None
        return [v for v in node.operands if not self._is_free(v)]

    def _updates_again(self, node: Node) -> bool:
        """True if a node is an update to recompute; not for a carry's next value, which comes with the carry."""
        return is_update(node) and all(node.results[0] is not following for _, following in self.carry.values())

    def keeps(self, value: Value) -> bool:
        if value in self.captures:
            return self.outer.keeps(self.captures[value])
        return self._is_free(value) or value in self.restorable.members

    def trip_count(self, carry: Sequence[Value]) -> int | None:
        """Index of the carry that already counts the iterations, from 0 up by 1."""
        forms = (self.closed_forms.get(value) for value in carry)
        return next((k for k, form in enumerate(forms) if form is not None and form.counts_iterations), None)

    def settle(self) -> list[Shift]:
        """Decide what is saved, push it, and put pops and what is computed again in front of the backward nodes.

        Returns the values that need no stack: the next value of a carry that is pushed itself, or restored.
        """
        saved = choose(self.wanted, self._operands)
        prologue = Builder()
        prologue.source = self.backward.source
        brought = {v: self.wanted.get(v) or Value(v.type, v.hint) for v in saved}
        needed, restorings = self._needed(brought)
        self._prepare([stage for restoring in restorings for stage in restoring.stages])
        shifts = []
        for value in saved:
            carry = next((c for c, (_, following) in self.carry.items() if following is value and c in brought), None)
            if carry is not None and carry.type == value.type:
                shifts.append(Shift(list(self.carry).index(carry), brought[value], brought[carry]))
            else:
                self._push(value, brought[value], prologue)
        again = [n for n in self.forward_nodes(self.graph.inputs) if not needed.isdisjoint(n.results)]
        following = self.restorable.following
        # First what no update waits for: what is computed from restored values may take any of them.
        self._compute_again([n for n in again if following.isdisjoint(n.results)], brought, prologue)
        undone = []
        for restoring in restorings:
            now, then = restoring.carry.in_body, restoring.carry.next
            brought.update({v: self.wanted.get(v) or Value(v.type, v.hint or now.hint) for v in restoring.members})
            brought.update({v: self._brought(v, brought, prologue) for v in restoring.needs})
            undone.append(restoring.undone(brought))
            shifts.append(Shift(list(self.carry).index(now), brought[then], brought[now]))
        self._compute_again([n for n in again if not following.isdisjoint(n.results)], brought, prologue)
        self.backward.nodes = [*self.opening.nodes, *placed([*prologue.nodes, *self.backward.nodes], undone)]
        return shifts

    def _needed(self, brought: Container[Value]) -> tuple[set[Value], list[Restoring]]:
        """Return the values to recompute, beside those that are brought, and the carries to restore for that."""
        needed, restorings, pending = set[Value](), dict[Restoring, None](), list(self.wanted)
        while pending:
            value = pending.pop()
            if value in needed or value in brought or self._is_free(value):
                continue
            restoring = self.restorable.members.get(value)
            if restoring is None:
                needed.add(value)
                pending += self.producers[value].operands
            elif restoring not in restorings:
                restorings[restoring] = None
                pending += restoring.needs
        return needed, list(restorings)

    def _prepare(self, stages: Iterable[Stage]) -> None:
        """Have the forward side make what is restored with."""
        for stage in stages:
            for node in stage.nodes:
                (current,) = self.instead.get(node, (node,))
                *reading, new = stage.prepared(current)
                self.before.setdefault(node, []).extend(reading)
                self.producers.update((v, made) for made in reading for v in made.results)
                self.replace(node, new)

    def _brought(self, value: Value, brought: Mapping[Value, Value], builder: Builder) -> Value:
        found = brought.get(value) or self._free(value, builder)
        assert found is not None
        return found

    def _compute_again(self, nodes: Iterable[Node], brought: dict[Value, Value], prologue: Builder) -> None:
        """Emit nodes of the forward side, in that order."""
        for node in nodes:
            operands = [self._brought(v, brought, prologue) for v in node.operands]
            result = self.wanted.get(node.result) or Value(node.result.type, node.result.hint)
            brought[node.result] = result
            source = node.source and node.source.recomputed
            prologue.nodes.append(Node(node.op, tuple(operands), (result,), node.attrs, (), source))

    def _push(self, value: Value, wanted: Value, prologue: Builder) -> None:
        assert isinstance(value.type, TensorType), "a stack is never saved on a stack"
        node = self.producers.get(value)
        hint = f"{value.hint or (node.op.name if node is not None else 'saved')}_stack"
        thread = self.thread(StackType(value.type), hint)
        thread.forward_out = self.append_after(value, "stack_push", [thread.forward_in, value], {}, hint)
        thread.backward_out = Value(thread.backward_in.type, hint)
        results = (thread.backward_out, wanted)
        prologue.nodes.append(Node(OPS["stack_pop"], (thread.backward_in,), results, source=prologue.source))

    def thread(self, type: StackType, hint: str | None) -> Thread:
        thread = Thread(Value(type, hint), Value(type, hint), self.outer.thread(type, hint))
        self.threads.append(thread)
        return thread
