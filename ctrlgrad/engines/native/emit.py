"""Generates the function of a compiled loop: its table, the loop itself, and what it hands back to the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ctrlgrad.engines.native.frames import Item, StackState, makes_memory
from ctrlgrad.engines.native.layout import ONE, NotNative, Ref, Scalar, Splat, product, row_major, times
from ctrlgrad.engines.native.program import FIRST_ENTRY, Entry, LoopProgram, Status
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.stack_uses import stack_use
from ctrlgrad.ir import Graph, StackType, Value


class Emitter(RegionWriter):
    """Writes the function of one loop."""

    def generate(self) -> LoopProgram:
        cond, body = self.node.regions
        captures = self.node.attrs["captures"]
        carries = body.inputs[captures:]
        items: list[Item] = [self._operand(i, v) for i, v in enumerate(body.inputs[:captures])]
        states: list[Item] = [self._carry(captures + i, v) for i, v in enumerate(carries)]
        for text in ("trips = 0", "status = 0"):
            self.line(text)
        self._settle(body, states)
        with self.block("while True:"):
            for i, v in enumerate(carries):
                if i in self.settled:
                    self._point_into_stack(i)
                elif isinstance(states[i], Ref):
                    self.line(f"A{i} = pointer_{v.tensor.dtype.name}(a{i})")
                    self.line(f"B{i} = pointer_{v.tensor.dtype.name}(b{i})")
            self._head(cond, [*items, *states])
            self._body(body, items, states)
            self.line("trips += 1")
        self._tail(carries, states)
        names = {name: Entry("dim", found) for found, name in self.shapes.dims.names.items()}
        self.header = [f"{name} = {self.entry(entry)}" for name, entry in names.items()] + self.header
        source = "\n".join(
            ["def loop(t):", "    widest_vectors()", *("    " + text for text in self.header), *self.lines, ""]
        )
        shapes = [None if isinstance(v.type, StackType) else self.shapes.sizes(v) for v in carries]
        uses_of_stacks = [s.use for s in self.stacks]
        return LoopProgram(
            source,
            self.entries,
            uses_of_stacks,
            self.sites,
            self.shapes.dims,
            shapes,
            self.swapped,
            self.notes,
            self.calls,
        )

    def _settle(self, body: Graph, states: Sequence[Item]) -> None:
        """Let carries that are pushed as each iteration begins live in their stack.

        The next value is written into the slot after the one that holds the current value, where the next iteration
        finds it already pushed. The block has one row more for the last.
        """
        captures = self.node.attrs["captures"]
        counts = Counter(body.outputs)
        made = {v for node in body.nodes if makes_memory(node) for v in node.results}
        position = {v: i for i, v in enumerate(body.inputs[captures:])}
        by_stack = {body.inputs[s.number]: s for s in self.stacks if s.use.mode == "push" and s.use.pushes == 1}
        for node in body.nodes:
            if node.op.name != "stack_push" or node.operands[0] not in by_stack:
                continue
            i, state = position.get(node.operands[1]), by_stack[node.operands[0]]
            if i is None or i in self.settled or not isinstance(states[i], Ref) or state.use.inside:
                continue
            if body.outputs[i] in made and counts[body.outputs[i]] == 1:
                self.settled[i] = state
                self.in_slot.add(node)
                state.use.extra = 1
                self._copy_state(i, body.inputs[captures + i], state, into_stack=True)

    def _copy_state(self, i: int, value: Value, state: StackState, *, into_stack: bool) -> None:
        """Between the array of a carry and the slot above its stack's rows."""
        shape, dtype = self.shapes.sizes(value), value.tensor.dtype
        self.line(f"A{i} = pointer_{dtype.name}(a{i})")
        array = Ref(f"A{i}", "0", shape, row_major(shape), dtype)
        slot = self.slot(state, state.count)
        self.copy(*((array, slot) if into_stack else (slot, array)))

    def _point_into_stack(self, i: int) -> None:
        state = self.settled[i]
        size = product(state.use.element)
        self.line(f"A{i} = shifted({state.base}, {times(state.count, size)})")
        self.line(f"B{i} = shifted({state.base}, {times(f'{state.count} + 1', size)})")

    def _operand(self, position: int, value: Value) -> Item:
        if isinstance(value.type, StackType):
            return self._stack(position, value)
        shape, dtype = self.shapes.sizes(value), value.tensor.dtype
        layout = self.layouts[position]
        if shape and layout == "one":
            base = self.pointer(Entry("operand", position), dtype)
            name = self.fresh("v")
            self.header.append(f"{name} = {self.load(Ref(base, '0', (), (), dtype), '0')}")
            return Splat(Scalar(name, dtype), shape)
        if layout == "columns":
            strides = (ONE, shape[0])
            return Ref(self.pointer(Entry("operand", position), dtype), "0", shape, strides, dtype)
        if not shape:
            base = self.pointer(Entry("scalar", position), dtype)
            name = self.fresh("v")
            self.header.append(f"{name} = {self.load(Ref(base, '0', (), (), dtype), '0')}")
            return Scalar(name, dtype)
        return Ref(self.pointer(Entry("operand", position), dtype), "0", shape, row_major(shape), dtype)

    def _carry(self, position: int, value: Value) -> Item:
        i = position - self.node.attrs["captures"]
        if isinstance(value.type, StackType):
            return self._stack(position, value)
        shape, dtype = self.shapes.sizes(value), value.tensor.dtype
        if not shape:
            base = self.pointer(Entry("scalar", position), dtype)
            self.header.append(f"P{i} = {base}")
            self.header.append(f"s{i} = {self.load(Ref(base, '0', (), (), dtype), '0')}")
            return Scalar(f"s{i}", dtype)
        self.header.append(f"a{i} = {self.entry(Entry('state', position, dtype=dtype))}")
        self.header.append(f"b{i} = {self.entry(Entry('other', position, dtype=dtype))}")
        return Ref(f"A{i}", "0", shape, row_major(shape), dtype)

    def _stack(self, position: int, value: Value) -> StackState:
        use = stack_use(self.node, position, self.shapes.element(value))
        state = StackState(position, use, value)
        self.declare(state)
        return state

    def _head(self, cond: Graph, items: Sequence[Item]) -> None:
        """Leave the loop where the condition is false, the limit is reached or a stack has no room."""
        frame = self.region(cond, dict(zip(cond.inputs, self._frozen(cond.inputs, items), strict=True)), {})
        self.run(frame)
        test = self.number(cond.outputs[0])
        self.leave()
        self._leave_if(f"not {test}" if test.isidentifier() else f"not ({test})", Status.FINISHED)
        self._leave_if("trips == t[0]", Status.LIMIT)
        for state in self.stacks:
            if state.use.pushes:
                rows = state.use.pushes + state.use.extra
                self._leave_if(f"{state.count} + {rows} > {state.capacity}", Status.FULL, state)
            if state.use.pops and state.use.mode == "pop":
                self._leave_if(f"{state.count} < {state.use.pops}", Status.EMPTY, state)

    @staticmethod
    def _frozen(inputs: Sequence[Value], items: Sequence[Item]) -> list[Item]:
        """Stacks as another region sees them: under its own name for the value."""
        return [
            StackState(item.number, item.use, v) if isinstance(item, StackState) else item
            for v, item in zip(inputs, items, strict=True)
        ]

    def _leave_if(self, condition: str, status: Status, state: StackState | None = None) -> None:
        with self.block(f"if {condition}:"):
            self.line(f"status = {int(status)}")
            if state is not None:
                self.line(f"t[3] = {state.number}")
            self.line("break")

    def _body(self, body: Graph, items: Sequence[Item], states: Sequence[Item]) -> None:
        captures = len(items)
        for state, v in zip(states, body.inputs[captures:], strict=True):
            if isinstance(state, StackState):
                state.version = v
        swapped = self.carried_region(
            body,
            [*items, *states],
            captures,
            [f"A{i}" for i in range(len(states))],
            [f"B{i}" for i in range(len(states))],
            [f"s{i}" for i in range(len(states))],
            frozenset(self.settled),
        )
        if any(isinstance(x, StackState) and x.version is not v for x, v in zip(items, body.inputs, strict=False)):
            raise NotNative("a loop changes a stack that it does not carry")
        self.swapped = [i for i in swapped if i not in self.settled]
        for i in self.swapped:
            self.line(f"a{i}, b{i} = b{i}, a{i}")

    def _tail(self, carries: Sequence[Value], states: Sequence[Item]) -> None:
        """Write back what the driver reads."""
        self.line("t[1] = status")
        self.line("t[2] = trips")
        places = {(e.kind, e.position): FIRST_ENTRY + k for k, e in enumerate(self.entries)}
        captures = self.node.attrs["captures"]
        for i, (v, state) in enumerate(zip(carries, states, strict=True)):
            if isinstance(state, Scalar):
                self.line(f"put(P{i}, 0, {self.stored(state.text, v.tensor.dtype)})")
            elif isinstance(state, StackState):
                self.line(f"t[{places['length', captures + i]}] = {state.count}")
            else:
                if i in self.settled:
                    self._copy_state(i, v, self.settled[i], into_stack=False)
                self.line(f"t[{places['state', captures + i]}] = a{i}")
                self.line(f"t[{places['other', captures + i]}] = b{i}")


__all__ = ["Emitter"]
