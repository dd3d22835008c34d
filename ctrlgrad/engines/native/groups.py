"""Generates the code of elementwise nodes: those of one shape gather in groups, and a group becomes one loop nest.

A group is closed, that is written, when a value in it is first needed by something else. It writes each value where it
will be needed: see `place`. A carry's new value goes over the old one only if nothing but this group reads the old one
any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ctrlgrad.engines.native.elementary_table import KERNELS
from ctrlgrad.engines.native.expressions import expression
from ctrlgrad.engines.native.frames import Group, Item, Pending, Tensor, broadcast, uses_of
from ctrlgrad.engines.native.layout import Ref, Scalar, Splat
from ctrlgrad.engines.native.program import SCOPES
from ctrlgrad.engines.native.writer import Writer
from ctrlgrad.ir import Node, Value


class GroupWriter(Writer):
    """Writes elementwise nodes."""

    # Items.

    def item(self, value: Value) -> Item:
        """What stands for a value; computed, if a group still holds it."""
        item = self.frame.items[value]
        if isinstance(item, Pending):
            self.close(item.group)
            item = self.frame.items[value]
        return item

    def tensor(self, value: Value) -> Tensor:
        item = self.item(value)
        if isinstance(item, Scalar):
            return Splat(item, ())
        assert isinstance(item, Ref | Splat)
        return item

    def ref(self, value: Value) -> Ref:
        """A value in memory."""
        tensor = self.tensor(value)
        return tensor if isinstance(tensor, Ref) else self.copied(tensor)

    def number(self, value: Value) -> str:
        """A scalar's text."""
        item = self.item(value)
        assert isinstance(item, Scalar)
        return item.text

    # Groups.

    def elementwise(self, node: Node) -> None:
        result = node.result
        if result.tensor.rank == 0:
            args = [self.number(v) for v in node.operands]
            self.frame.items[result] = self.scalar(expression(node, args), result.tensor.dtype)
            self.has_read(node)
            return
        shape = self.shapes.sizes(result)
        group = next((g for g in self.frame.groups if g.shape == shape), None)
        for v in node.operands:
            item = self.frame.items[v]
            if isinstance(item, Pending) and item.group is not group:
                self.close(item.group)
        if group is None or group not in self.frame.groups:
            group = Group(shape)
            self.frame.groups.append(group)
        args = [self._argument(group, v) for v in node.operands]
        name = self.fresh("x")
        group.lines.append(f"{name} = {expression(node, args, in_array=True)}")
        kernel = KERNELS.get((node.op.name, node.operands[0].tensor.dtype.name))
        if kernel is not None and kernel.limit is not None:
            group.limits.append(f"abs({args[0]}) > {kernel.limit!r}")
            group.exact[kernel.name] = node.op.name
        group.nodes.append(node)
        group.names[result] = name
        self.frame.items[result] = Pending(group)

    def _argument(self, group: Group, value: Value) -> str:
        item = self.frame.items[value]
        if isinstance(item, Pending):
            return group.names[value]
        if isinstance(item, Scalar):
            return item.text
        if isinstance(item, Splat):
            return item.scalar.text
        assert isinstance(item, Ref)
        ref = broadcast(item, group.shape)
        if ref not in group.reads:
            group.reads[ref] = self.fresh("x")
        return group.reads[ref]

    def close(self, group: Group) -> None:
        """Write a group's loop."""
        self.frame.groups.remove(group)
        inside = Counter(v for node in group.nodes for v in node.operands)
        needed = [v for v in group.names if uses_of(self.frame.graph)[v] > inside[v]]
        outputs = [(v, self._place_in_group(v, group)) for v in needed]
        written = {ref.base for _, ref in outputs}
        if group.limits:
            far = self.fresh("v")
            self.line(f"{far} = 0")
            self._loop(group, outputs, written, [*group.lines, *(f"{far} += 1 if {c} else 0" for c in group.limits)])
            with self.block(f"if {far} > 0:"):
                self._loop(group, outputs, written, [_exactly(text, group.exact) for text in group.lines])
        else:
            self._loop(group, outputs, written, group.lines)
        for v, ref in outputs:
            self.frame.items[v] = ref
        for node in group.nodes:
            self.has_read(node)
        operations = Counter(node.op.name for node in group.nodes)
        if len(group.nodes) > 1:
            text = ", ".join(f"{n} {name}" if n > 1 else name for name, n in operations.items())
            self.notes.append(f"fused loop: {text}; {len(group.reads)} arrays in, {len(outputs)} out")

    def _loop(
        self, group: Group, outputs: Sequence[tuple[Value, Ref]], written: set[str], lines: Sequence[str]
    ) -> None:
        refs = [*group.reads, *(ref for _, ref in outputs)]
        with self.nest(group.shape, refs, min(len(outputs), SCOPES)) as (index, element):
            for k, (ref, name) in enumerate(group.reads.items()):
                text = element(k) if ref.base not in written else self.load(ref, index(k))
                self.line(f"{name} = {text}")
            for text in lines:
                self.line(text)
            for k, (v, ref) in enumerate(outputs):
                value = self.stored(group.names[v], ref.dtype)
                number = min(k, SCOPES - 1)
                self.line(f"store({ref.base}, {index(len(group.reads) + k)}, {value}, {self._loops}, {number})")

    def _place_in_group(self, value: Value, group: Group) -> Ref:
        """Where a group writes a value: over the carry that it replaces, if only this group still reads that."""
        former = self.frame.in_place.get(value)
        if former is not None and not group.limits:  # a loop that may run twice leaves what it reads
            ref = self.frame.items[former]
            inside = Counter(v for node in group.nodes for v in node.operands)
            mine = [r for r in group.reads if isinstance(ref, Ref) and r.base == ref.base]
            if (
                isinstance(ref, Ref)
                and former in inside
                and not self.others_read(ref.base, inside)
                and all(r == ref for r in mine)
                and ref.shape == group.shape
            ):
                return ref
        return self.place(value)

    def has_read(self, node: Node) -> None:
        """The code that reads a node's operands is written."""
        self.frame.remaining.subtract(node.operands)

    def others_read(self, base: str, mine: Counter[Value]) -> bool:
        """Whether code that is not written yet reads a buffer, beside the reads that count as mine."""
        return any(
            isinstance(item, Ref) and item.base == base and self.frame.remaining[v] > mine[v]
            for v, item in self.frame.items.items()
        )

    def flush(self) -> None:
        while self.frame.groups:
            self.close(self.frame.groups[0])

    def place(self, value: Value) -> Ref:
        """The memory for a value that is about to be computed."""
        target = self.frame.targets.pop(value, None)
        ref = target() if target is not None else None
        if ref is None:
            ref = self.temporary(self.shapes.sizes(value), value.tensor.dtype)
        if all(ref.base != state.base for state in self.stacks):  # a stack's row is read by who has the stack
            self.frame.own.add(value)
        return ref


def _exactly(text: str, exact: Mapping[str, str]) -> str:
    for kernel, function in exact.items():
        text = text.replace(f"{kernel}(", f"{function}(")
    return text
