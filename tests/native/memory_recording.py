"""Records what generated code does to memory (`memory_trace`): a code generator that notes each line it writes.

What is read and written is taken from the text of the code; which value that is, from whose turn it is: the operands
that a rule asked for, the outputs of a group, what is handed from region to region. Nothing is taken from what the
generator knows of who still reads what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from native.memory_text import accesses, expanded, structure
from native.memory_turns import Lines, Turn

from ctrlgrad.engines.native.emit import Emitter
from ctrlgrad.engines.native.expressions import has_expression
from ctrlgrad.engines.native.frames import Frame, Group, Item, StackState
from ctrlgrad.engines.native.layout import Ref, Splat
from ctrlgrad.engines.native.memory_trace import (
    Access,
    Branch,
    Disturbed,
    Enter,
    Event,
    Given,
    Joined,
    Kernel,
    Loop,
    Popped,
    Pushed,
    Rename,
    Slot,
)
from ctrlgrad.engines.native.program import LoopProgram
from ctrlgrad.ir import Graph, Node, StackType, Trait, Value

_DISTURBING = ("stack_write", "stack_add", "stack_clear", "stack_resize", "stack_new", "stack_from_tensor")


class Recording:
    """Mixed into a writer of code."""

    def record(self) -> LoopProgram:
        self._names: dict[Value, str] = {}
        self._lists: list[list[Any]] = [[]]
        self._turns = [Turn()]
        self._lines: Lines | None = None
        self._offsets: dict[str, str] = {}
        self._handles: set[str] = set()
        self._parts: dict[str, dict[tuple[Any, ...], tuple[int, ...]]] = {}
        self._outer_values: dict[Graph, list[str]] = {}
        self._cells: list[list[str]] = []
        self._expected: list[list[tuple[str, str]]] = []
        self._silent = False
        self._joined: set[Value] = set()
        # What groups read, by their numbers: kept with the groups, so that no number comes twice.
        self._read_of: dict[int, tuple[Group, dict[str, dict[Value, None]]]] = {}
        self._own_loop(self.node)
        program = self.generate()
        self.events = self._finished(self._lists[0])
        return program

    # Names.

    def named(self, value: Value) -> str:
        if value not in self._names:
            hint = f":{value.hint}" if value.hint else ""
            self._names[value] = f"%{len(self._names)}{hint}"
        return self._names[value]

    def _own_loop(self, node: Node) -> None:
        captures = node.attrs["captures"]
        cells = [f"carry {i} of {self.named(v)}" for i, v in enumerate(node.operands[captures:])]
        self._cells.append(cells)
        for region in node.regions:
            self._outer_values[region] = [*map(self.named, node.operands[:captures]), *cells]
        self._note(Rename(tuple(zip(cells, map(self.named, node.operands[captures:]), strict=True))))

    def _note(self, event: Any) -> None:
        self._lines = None
        self._lists[-1].append(event)

    # The generator's own steps.

    def region(self, graph: Graph, items: dict[Value, Item], targets: Any) -> Frame:
        frame: Frame = super().region(graph, items, targets)
        if len(self._outer) == 1 and graph is self.node.regions[0]:
            for v in graph.inputs:
                self._given(v, items[v])
        values = [*graph.inputs, *(v for node in graph.nodes for v in node.results)]
        self._note(Enter(tuple(map(self.named, values))))
        outside = self._outer_values[graph]
        self._note(Rename(tuple(zip(map(self.named, graph.inputs), outside, strict=True))))
        return frame

    def _given(self, value: Value, item: Item) -> None:
        """An operand of the whole loop is there from the start, a carry in its first array."""
        if isinstance(item, Ref):
            outside = self._outer_values[self.node.regions[0]][self.node.regions[0].inputs.index(value)]
            self._lists[0].insert(1, Given(item.base.replace("A", "a", 1), outside))

    def item(self, value: Value) -> Item:
        found: Item = super().item(value)
        turn = self._turns[-1]
        turn.last = value
        if isinstance(found, Ref):
            turn.wanted.setdefault(found.base, {})[value] = None
        return found

    def _argument(self, group: Group, value: Value) -> str:
        item = self.frame.items[value]
        if isinstance(item, Ref):
            _, reads = self._read_of.setdefault(id(group), (group, {}))
            reads.setdefault(item.base, {})[value] = None
        text: str = super()._argument(group, value)
        return text

    def close(self, group: Group) -> None:
        turn = Turn(group=group, wanted=self._read_of.get(id(group), (group, {}))[1])
        with self._turn(turn):
            super().close(group)
        turn.in_order = [v for v in group.names if isinstance(self.frame.items[v], Ref)]
        turn.parts = {v: self._part_of(self.frame.items[v]) for v in turn.in_order}

    def visit(self, node: Node) -> None:
        if node in self.done or (Trait.ELEMENTWISE in node.op.traits and has_expression(node)):
            super().visit(node)
            return
        if node.op.name == "while":
            self._own_loop(node)
        elif node.op.name == "cond":
            for region in node.regions:
                self._outer_values[region] = list(map(self.named, node.operands[1:]))
        before, turn = set(self.frame.items), Turn(node)
        with self._turn(turn):
            super().visit(node)
        if node.op.name == "while":
            self._note(Rename(tuple(zip(map(self.named, node.results), self._cells.pop(), strict=True))))
        elif node.op.name == "cond":
            self._note(Branch(tuple(turn.alternatives)))
        else:
            self._results(node, turn, before)

    @contextmanager
    def _turn(self, turn: Turn) -> Iterator[None]:
        self._lines = None
        self._turns.append(turn)
        yield
        self._turns.pop()
        self._lines = None

    def _results(self, node: Node, turn: Turn, before: set[Value]) -> None:
        """What an op's results are: what it wrote, another name for what it read, or something given."""
        name = node.op.name
        others = [v for v in self.frame.items if v not in before | self._joined and v not in node.results]
        for v in [*node.results, *others]:
            item = self.frame.items.get(v)
            if name == "concat" and v is node.result:
                parts = tuple(map(self.named, node.operands))
                self._note(Joined(item.base, self._expanded(item.offset), self._part_of(item), self.named(v), parts))
            elif isinstance(item, Ref) and item.base in turn.written:
                turn.results[item.base] = v
                turn.parts[v] = self._part_of(item)
            elif isinstance(item, Ref) and v in self.last_uses:
                self._handles.add(item.offset)
                self._note(Slot(item.offset, item.base, None))
            elif isinstance(item, Ref) and item.base in turn.wanted:
                operand = next(iter(turn.wanted[item.base]))
                self._note(Rename(((self.named(v), self.named(operand)),)))
            elif isinstance(item, Ref) and not self._stack_of(item.base):
                self._note(Given(item.base, self.named(v)))
        stack = next((s for v in (*node.operands, *node.results) if (s := self._state(v))), None)
        if stack is None:
            return
        if name == "stack_push":
            is_followed = bool(stack.use.element)
            turn.results[stack.base] = node.operands[1]
            self._note(Pushed(stack.base, self.named(node.operands[1]) if is_followed else None))
        elif name == "stack_pop" and not stack.use.element:
            self._note(Popped(stack.base, self.named(node.results[1])))
        elif name in _DISTURBING:
            self._note(Disturbed(stack.base))

    def _state(self, value: Value) -> StackState | None:
        item = self.frame.items.get(value) if isinstance(value.type, StackType) else None
        return item if isinstance(item, StackState) else None

    def _stack_of(self, base: str) -> bool:
        return any(base == state.base for state in self.stacks)

    # Concatenations.

    def joined(self, concat: Node) -> Ref:
        whole: Ref = super().joined(concat)
        path = self._part_of(whole)
        self._joined.add(concat.result)
        for position in range(len(concat.operands)):
            part = super().part(concat, whole, position)
            self._parts.setdefault(whole.base, {}).setdefault(self._spot(part), (*path, position))
        return whole

    @staticmethod
    def _spot(ref: Ref) -> tuple[Any, ...]:
        return (ref.offset, ref.shape, ref.strides)

    def _part_of(self, ref: Ref) -> tuple[int, ...]:
        return self._parts.get(ref.base, {}).get(self._spot(ref), ())

    # Copies from region to region.

    def copy(self, source: Ref | Splat, target: Ref) -> None:
        turn = self._turns[-1]
        if turn.node is not None and turn.node.op.name == "concat":
            path = self._part_of(target)
            value = turn.node.operands[path[-1]]
            own = Turn(wanted=turn.wanted, results={target.base: value}, parts={value: path})
            with self._turn(own):
                super().copy(source, target)
        elif turn.group is None and (turn.node is None or turn.node.regions) and turn.last is not None:
            own = Turn(results={target.base: turn.last}, parts={turn.last: self._part_of(target)})
            if isinstance(source, Ref):
                own.wanted = {source.base: {turn.last: None}}
            with self._turn(own):
                super().copy(source, target)
        else:
            super().copy(source, target)

    def _copy_state(self, i: int, value: Value, state: StackState, *, into_stack: bool) -> None:
        self._turns[-1].last = None
        super()._copy_state(i, value, state, into_stack=into_stack)
        if into_stack:
            cell = self._cells[0][i]
            self._note(Kernel((), (Access(state.base, self._last_handle, cell),)))

    def slot(self, state: StackState, index: str) -> Ref:
        ref: Ref = super().slot(state, index)
        self._handles.add(ref.offset)
        self._last_handle = ref.offset
        self._note(Slot(ref.offset, state.base, 0 if index == state.count else None))
        turn = self._turns[-1]
        if turn.node is not None and turn.node.op.name == "stack_pop":
            self._note(Popped(state.base, self.named(turn.node.results[1])))
            turn.wanted[state.base] = {turn.node.results[1]: None}
        return ref

    # Loops.

    def carried_region(
        self,
        body: Graph,
        items: Sequence[Item],
        captures: int,
        current: Sequence[str],
        *rest: Any,
    ) -> list[int]:
        swapped: list[int] = super().carried_region(body, items, captures, current, *rest)
        cells = self._cells[-1]
        self._note(Rename(tuple(zip(cells, map(self.named, body.outputs), strict=True))))
        arrays = [i for i, v in enumerate(body.inputs[captures:]) if isinstance(items[captures + i], Ref)]
        is_settled = self.settled if len(self._cells) == 1 else {}
        self._expected[-1] += [(current[i].replace("A", "a", 1), cells[i]) for i in arrays if i not in is_settled]
        return swapped

    def fail(self, *arguments: Any) -> None:
        self._silent = True
        super().fail(*arguments)
        self._silent = False

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        turn = self._turns[-1]
        is_loop = head == "while True:"
        is_branch = turn.node is not None and turn.node.op.name == "cond" and not self._silent
        if not is_loop and not is_branch:
            with super().block(head):
                yield
            return
        self._lines = None
        self._lists.append([])
        self._expected.append([])
        with super().block(head):
            yield
        self._lines = None
        events = self._lists.pop()
        expected = self._expected.pop()
        if is_branch:
            region = turn.node.regions[self._branch_number(turn.node, len(turn.alternatives))]
            pairs = zip(map(self.named, turn.node.results), map(self.named, region.outputs), strict=True)
            events.append(Rename(tuple(pairs)))
            turn.alternatives.append(self._finished(events))
            return
        events += [Kernel((Access(memory, "", value),), ()) for memory, value in expected]
        split = next((k for k, e in enumerate(events) if e == "break"), 0)
        finished = [
            tuple(self._finished([e for e in part if e != "break"])) for part in (events[:split], events[split:])
        ]
        self._note(Loop(*finished))

    @staticmethod
    def _branch_number(node: Node, position: int) -> int:
        return 1 - position if node.operands[0].tensor.dtype.kind == "b" and len(node.regions) == 2 else position

    # Lines.

    def line(self, text: str) -> None:
        super().line(text)
        if self._silent:
            return
        if self._structure(text):
            return
        if self._lines is not None:
            is_loop = text.startswith("for ")
            if self._lines.is_flat and is_loop and not (self._lines.reads or self._lines.writes):
                self._lines.is_flat, self._lines.depth = False, self.depth
            elif is_loop if self._lines.is_flat else self.depth <= self._lines.depth:
                self._lines = None
        reads, writes = ([(b, self._expanded(i)) for b, i in places] for places in accesses(text))
        is_nest = text.startswith("scopes(")
        if is_nest or (self._lines is None and (text.startswith("for ") or reads or writes)):
            # A nest that says its stores has no loop where all of its axes are of size 1.
            lines = Lines(self._turns[-1], self.depth, is_nest)
            self._note(lines)
            if is_nest or text.startswith("for "):
                self._lines = lines
        else:
            lines = self._lines
        if lines is None:
            return
        turn = lines.turn
        for buffer, index in reads:
            wanted = list(turn.wanted.get(buffer, ()))
            if (buffer in turn.written and turn.group is None) or not wanted:
                lines.reads.append(Access(buffer, index, None))
            lines.reads += [
                Access(buffer, index, self.named(v)) for v in wanted if buffer not in turn.written or turn.group
            ]
        for buffer, index in writes:
            if buffer not in turn.written and turn.group is None:
                lines.updated += [(buffer, v) for v in turn.wanted.get(buffer, ())]
            turn.written[buffer] = None
            lines.writes.append((buffer, index))

    def _structure(self, text: str) -> bool:
        """Lines about pointers, rows and the end of loops."""
        if text == "break":
            if "break" not in self._lists[-1] and not self._is_in_branch():
                self._note("break")
            return True
        if (event := structure(text)) is not None:
            self._note(event)
        elif found := re.fullmatch(r"(o\d+) = (.*)", text):
            self._offsets[found[1]] = found[2]
        else:
            return False
        return True

    def _is_in_branch(self) -> bool:
        return any(t.node is not None and t.node.op.name == "cond" for t in self._turns[-1:])

    def _expanded(self, index: str) -> str:
        """An index with the names of offsets written out, but for those of rows."""
        return expanded(index, lambda name: name if name in self._handles else self._offsets.get(name, name))

    # The end.

    def _finished(self, events: Sequence[Any]) -> tuple[Event, ...]:
        found: list[Event] = []
        for event in events:
            if not isinstance(event, Lines):
                found.append(event)
                continue
            turn = event.turn
            # In a group's loop the writes come in the order of its outputs.
            in_order = iter(turn.in_order)
            writes, updated = [], []
            for buffer, index in event.writes:
                v = next(in_order, None) if turn.group is not None else turn.results.get(buffer)
                named = None if v is None else self.named(v)
                writes.append(Access(buffer, index, named, turn.parts.get(v, ()) if v is not None else ()))
                if v is not None:
                    updated += [Access(buffer, index, self.named(x)) for b, x in event.updated if b == buffer]
            if event.reads or writes:
                found.append(Kernel((*event.reads, *dict.fromkeys(updated)), tuple(writes)))
        return tuple(found)


class RecordingEmitter(Recording, Emitter):
    """A code generator that notes what its code does to memory: `events`, once `record` has run."""


__all__ = ["RecordingEmitter"]
