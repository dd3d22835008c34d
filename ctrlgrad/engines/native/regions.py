"""Generates the code of a loop's regions.

Values of rank 0 are local variables. Elementwise nodes of one shape become one loop nest (`groups`). Views (slices,
transposes, broadcasts) are never computed: they are references with other strides. A value is written where it will be
needed: into its slot of a stack, into its part of a concatenation, into the array of the next carry; only what has no
such place gets a temporary array of its own.

Invariants: a reference stays valid to the end of its iteration (what may overwrite memory first closes the groups that
still have to read it); a carry's new value never overwrites the old one unless nothing reads the old one any more. A
node counts as a reader of its operands until the code that reads them is written, and not only until its turn comes: a
rule may close groups before it reads, and what those write must not go over what it has yet to read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ctrlgrad.engines.native.expressions import has_expression, type_name
from ctrlgrad.engines.native.frames import Frame, Item, Pending, StackState, makes_memory, uses_of
from ctrlgrad.engines.native.groups import GroupWriter
from ctrlgrad.engines.native.layout import NotNative, Ref, Scalar, Splat, plus, product, row_major, times
from ctrlgrad.engines.native.program import ITERATIONS, Site, Status
from ctrlgrad.engines.native.stack_uses import touched_later
from ctrlgrad.ir import Graph, Node, StackType, Trait, Value


class RegionWriter(GroupWriter):
    """Writes the nodes of regions."""

    # Regions.

    def region(self, graph: Graph, items: dict[Value, Item], targets: dict[Value, Callable[[], Ref | None]]) -> Frame:
        """Write a region's nodes; the caller reads its outputs from the frame that is returned, before `leave`."""
        self._outer.append(self.frame)
        self.frame = Frame(graph, items, Counter(uses_of(graph)), targets)
        self._plan_targets(graph)
        return self.frame

    def run(self, frame: Frame) -> None:
        for node in frame.graph.nodes:
            self.visit(node)
        self.flush()

    def leave(self) -> None:
        self.frame = self._outer.pop()

    def _plan_targets(self, graph: Graph) -> None:
        frame = self.frame
        made = {v for node in graph.nodes if makes_memory(node) for v in node.results}
        touched = touched_later(graph)
        for node in graph.nodes:
            name = node.op.name
            if name == "stack_push" and node.operands[1] in made and node.operands[1].tensor.rank:
                if node.result in touched:
                    continue
                if node.operands[1] not in frame.targets:
                    frame.targets[node.operands[1]] = self._slot_target(frame, node)
                    frame.slots[node.operands[1]] = node
            elif name == "concat":
                for position, v in enumerate(node.operands):
                    if v in made and node.operands.count(v) == 1:
                        frame.targets.setdefault(v, self._part_target(frame, node, position))

    def _slot_target(self, frame: Frame, push: Node) -> Callable[[], Ref | None]:
        def target() -> Ref | None:
            state = frame.items.get(push.operands[0])
            if not isinstance(state, StackState) or state.version is not push.operands[0] or self.frame is not frame:
                return None
            if self.in_loop or state.use.is_local:
                self.fail(f"{state.count} >= {state.capacity}", Status.FULL_INSIDE, str(state.number))
            self.in_slot.add(push)
            return self.slot(state, state.count)

        return target

    def _part_target(self, frame: Frame, concat: Node, position: int) -> Callable[[], Ref | None]:
        def target() -> Ref | None:
            if self.frame is not frame:
                return None
            whole = self.joined(concat)
            return self.part(concat, whole, position)

        return target

    def joined(self, concat: Node) -> Ref:
        """The array of a concatenation, made when its first part is."""
        known = self.frame.items.get(concat.result)
        if known is None:
            known = self.place(concat.result)
            self.frame.items[concat.result] = known
        assert isinstance(known, Ref)
        return known

    def part(self, concat: Node, whole: Ref, position: int) -> Ref:
        axis = concat.attrs["axis"]
        start = "0"
        for v in concat.operands[:position]:
            start = plus(start, times(self.shapes.sizes(v)[axis].text, whole.strides[axis]))
        shape = self.shapes.sizes(concat.operands[position])
        return Ref(whole.base, plus(whole.offset, start), shape, whole.strides, whole.dtype)

    def reserve(self, push: Node) -> bool:
        """Give a value that a group still has to compute the slot that it is pushed into; whether that can be."""
        frame, value = self.frame, push.operands[1]
        if not isinstance(frame.items[value], Pending) or frame.slots.get(value) is not push:
            return False
        target = frame.targets.get(value)
        ref = target() if target is not None else None
        if ref is None:
            return False
        frame.targets[value] = lambda: ref
        return True

    def slot(self, state: StackState, index: str) -> Ref:
        shape = state.use.element
        # Under a name of its own: the counter goes on.
        name = self.fresh("o")
        self.line(f"{name} = {times(index, product(shape))}")
        return Ref(state.base, name, shape, row_major(shape), state.use.dtype)

    # Nodes.

    def adder(self, product: Node) -> tuple[Node, Value] | None:
        """The sum that a product is only used in, and the other term, if that is at hand: then BLAS can add it."""
        result = product.result
        graph = self.frame.graph
        if result.tensor.dtype.kind not in "fc" or uses_of(graph)[result] != 1 or result in graph.outputs:
            return None
        node = next(n for n in graph.nodes if result in n.operands)
        if node.op.name != "add" or any(v.type != result.type for v in node.operands):
            return None
        (other,) = [v for v in node.operands if v is not result]
        return (node, other) if other in self.frame.items and node not in self.done else None

    def may_write(self, operand: Value) -> bool:
        """Whether a captured array may be written to: not where a chunk may have to run again."""
        position = self.node.regions[1].inputs.index(operand) if operand in self.node.regions[1].inputs else -1
        if position < 0 or any(state.use.inside for state in self.stacks):
            return False
        for place, entry in enumerate(self.entries):
            if entry.kind == "operand" and entry.position == position:
                self.entries[place] = replace(entry, is_writable=True)
        return True

    def start_sum(self, node: Node, other: Value) -> Ref:
        """The array of a sum, holding one term of it already."""
        self.done.add(node)
        term = self.tensor(other)
        is_last = other in self.last_uses and uses_of(self.frame.graph)[other] == 1
        if is_last and isinstance(term, Ref) and term.is_contiguous:
            self.flush()
            return term
        target = self.place(node.result)
        self.copy(term, target)
        return target

    def visit(self, node: Node) -> None:
        if node in self.done:
            self.has_read(node)
            return
        if Trait.ELEMENTWISE in node.op.traits and has_expression(node):
            self.elementwise(node)
            return
        from ctrlgrad.engines.native.rules import RULES  # the rules need this class first

        rule = RULES.get(node.op.name)
        if rule is None:
            raise NotNative(f"{node.op.name} has no native form")
        rule(self, node)
        self.has_read(node)

    def site(self, node: Node, axis: int = 0) -> int:
        self.sites.append(Site(node, axis, tuple(loop for loop, _ in self.inner)))
        return len(self.sites) - 1

    def fail(self, condition: str, status: Status, *details: str) -> None:
        """Return with a status where a condition holds."""
        with self.block(f"if {condition}:"):
            self.line(f"t[1] = {int(status)}")
            self.line("t[2] = trips")
            for place, (_, counter) in enumerate(self.inner, ITERATIONS):
                self.line(f"t[{place}] = {counter}")
            for place, text in enumerate(details, 3):
                self.line(f"t[{place}] = {text}")
            self.line("return")

    def checked_index(self, node: Node, axis: int, index: str, size: str) -> str:
        """An index as a position from the start, checked."""
        name = self.fresh("q")
        self.line(f"{name} = int64({index})")
        with self.block(f"if {name} < 0:"):
            self.line(f"{name} += {size}")
        self.fail(
            f"{name} < 0 or {name} >= {size}", Status.OUT_OF_RANGE, str(self.site(node, axis)), f"int64({index})", size
        )
        return name

    def carried_region(
        self,
        body: Graph,
        items: Sequence[Item],
        captures: int,
        current: Sequence[str],
        following: Sequence[str],
        scalars: Sequence[str],
        kept: frozenset[int] = frozenset(),
    ) -> list[int]:
        """Write a loop's body, its outputs in place of its carry; returns the carries that lie in their other array.

        Carries that are `kept` are not overwritten in place.
        """
        carries = body.inputs[captures:]
        targets: dict[Value, Callable[[], Ref | None]] = {}
        for i, out in enumerate(body.outputs):
            if not isinstance(out.type, StackType) and out.tensor.rank and out not in targets:
                shape = self.shapes.sizes(out)
                targets[out] = self._next_target(Ref(following[i], "0", shape, row_major(shape), out.tensor.dtype))
        frame = self.region(body, dict(zip(body.inputs, items, strict=True)), targets)
        counts = Counter(body.outputs)
        frame.in_place = {out: carries[i] for i, out in enumerate(body.outputs) if counts[out] == 1 and i not in kept}
        frame.own.update(v for i, v in enumerate(carries) if not isinstance(v.type, StackType) and i not in kept)
        self.run(frame)
        swapped, finals = [], []
        for i, (out, carry) in enumerate(zip(body.outputs, carries, strict=True)):
            item = self.item(out)
            if isinstance(item, StackState):
                start = frame.items[carry]
                if not isinstance(start, StackState) or item.number != start.number or item.version is not out:
                    raise NotNative("stacks change places in a loop")
            elif isinstance(item, Scalar):
                finals.append((scalars[i], item))
            else:
                shape, dtype = self.shapes.sizes(out), out.tensor.dtype
                if item == Ref(current[i], "0", shape, row_major(shape), dtype):
                    continue  # updated in place, or passed through
                assert isinstance(item, Ref | Splat)
                self.copy(item, Ref(following[i], "0", shape, row_major(shape), dtype))
                swapped.append(i)
        names = []
        for name, item in finals:
            if item.text != name:
                names.append((name, item))
        if names:
            values = [
                f"{type_name(item.dtype)}({item.text})" if item.dtype.kind in "iuf" else item.text for _, item in names
            ]
            self.line(f"{', '.join(n for n, _ in names)} = {', '.join(values)}")
        self.leave()
        return swapped

    @staticmethod
    def _next_target(ref: Ref) -> Callable[[], Ref | None]:
        return lambda: ref
