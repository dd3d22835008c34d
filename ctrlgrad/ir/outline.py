"""A graph as people read it: loops and branches as blocks, and between them a few lines of formulas.

A value that is used once, at no more than a line's length, stands where it is used; constants always do. A loop says
with what it starts, how long it goes on, and what its carries are next; its results bear the names that they had in it.
All versions of a stack are one stack. What draws graphs (`ir.svg`, `ir.page`) draws this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ctrlgrad.ir import attributes
from ctrlgrad.ir.op import Trait, Use
from ctrlgrad.ir.printer import Graph, Node, Printer, Value, format_attrs, region_name
from ctrlgrad.ir.types import StackType
from ctrlgrad.records import record
from ctrlgrad.source import Source

# Longer formulas get a name and a line of their own.
LONGEST = 44
# Python's signs for ops, with how tightly they bind.
INFIX = {
    "logical_or": ("|", 1),
    "logical_xor": ("^", 2),
    "logical_and": ("&", 3),
    "less": ("<", 4),
    "less_equal": ("<=", 4),
    "greater": (">", 4),
    "greater_equal": (">=", 4),
    "equal": ("==", 4),
    "not_equal": ("!=", 4),
    "add": ("+", 5),
    "subtract": ("-", 5),
    "multiply": ("*", 6),
    "divide": ("/", 6),
    "power": ("**", 8),
}
PREFIX = {"negative": ("-", 7), "logical_not": ("~", 7)}
_ATOM = 9


@record
class Line:
    """A line of text. `role` is "", "start", "condition", "next", "result", "push" or "pop"; those two name a stack."""

    text: str
    role: str = ""
    stack: str | None = None
    source: Source | None = None


@record
class Block:
    """A loop, a branch or one of its sides, or a call; `order` says how often what it holds was differentiated."""

    title: str
    parts: tuple[Part, ...]
    source: Source | None = None
    order: int = 0
    # True if the block is drawn closed until the reader opens it: a function that was kept whole.
    is_folded: bool = False

    def lines(self) -> Iterator[Line]:
        """All lines in it, in order."""
        for part in self.parts:
            if isinstance(part, Line):
                yield part
            else:
                yield from part.lines()


Part = Line | Block


def outline(graph: Graph) -> Block:
    """A whole graph, as a block."""
    return _Outline().whole(graph)


def columns(whole: Block) -> list[list[Part]]:
    """The parts of a graph side by side: what pops stands to the right of what pushed, a gradient beside its loop."""
    found: list[list[Part]] = [[]]
    pushed: dict[str, int] = {}
    now, is_plain_seen = 0, False
    for part in whole.parts:
        if isinstance(part, Block):
            lines = list(part.lines())
            before = [pushed[x.stack] + 1 for x in lines if x.role == "pop" and x.stack in pushed]
            now = max([*before, 1 if part.order and is_plain_seen else 0])
            is_plain_seen |= not part.order
            pushed.update({x.stack: now for x in lines if x.role == "push" and x.stack})
        elif part.role == "result":
            now = len(found) - 1
        found += [[] for _ in range(now + 1 - len(found))]
        found[now].append(part)
    return found


class _Outline(Printer):
    """Gives values names, or the formulas that stand for them."""

    def __init__(self) -> None:
        super().__init__(sources=False)
        self.binds: dict[Value, int] = {}
        # Stacks have names of their own: one may be called as the value that lies on it.
        self.stacks: Counter[str] = Counter()

    def whole(self, graph: Graph) -> Block:
        inputs = ", ".join(f"{self.name(v)}: {v.type}" for v in graph.inputs)
        parts = [*self.parts(graph, 0), Line("return " + self.join(graph.outputs), "result")]
        return Block(f"{graph.name}({inputs})", tuple(parts))

    def parts(self, graph: Graph, order: int) -> list[Part]:
        uses = Counter(v for node in graph.nodes for v in node.operands)
        uses.update(graph.outputs)
        # Captured values get a name, since their regions refer to them.
        named = {v for node in graph.nodes if node.regions for v in _captured(node)}
        found: list[Part] = []
        for node in graph.nodes:
            found += self.part(node, uses, named, order)
        return found

    def part(self, node: Node, uses: Counter[Value], named: set[Value], order: int) -> Iterator[Part]:
        if node.regions:
            yield self.block(node, order)
        elif isinstance(node.attrs, attributes.Constant):
            self.stands_for(node.results[0], _number(node), _ATOM)
        elif Trait.STACK in node.op.traits:
            yield from self.on_stack(node)
        else:
            text, binds = self.formula(node)
            is_pure = Trait.EFFECT not in node.op.traits and len(node.results) == 1
            if is_pure and not uses[node.results[0]]:
                return
            if is_pure and uses[node.results[0]] == 1 and node.results[0] not in named and len(text) <= LONGEST:
                self.stands_for(node.results[0], text, binds)
            else:
                results = self.join(node.results)
                yield Line(f"{results} = {text}" if results else text, source=node.source)

    def stands_for(self, value: Value, text: str, binds: int) -> None:
        self.names[value], self.binds[value] = text, binds

    def formula(self, node: Node) -> tuple[str, int]:
        if isinstance(node.attrs, attributes.Index):
            return self.indexed(node), _ATOM
        infix, prefix = INFIX.get(node.op.name), PREFIX.get(node.op.name)
        if infix is not None:
            sign, binds = infix
            left, right = node.operands
            return f"{self.within(left, binds)} {sign} {self.within(right, binds + 1)}", binds
        if prefix is not None:
            sign, binds = prefix
            return sign + self.within(node.operands[0], binds), binds
        parts = [part for part in (self.join(node.operands), format_attrs(node)) if part]
        return f"{node.op.name}({', '.join(parts)})", _ATOM

    def indexed(self, node: Node) -> str:
        array = node.operands[0]
        self.stands_for(array, self.within(array, _ATOM), _ATOM)
        return super().indexed(node)

    def within(self, value: Value, binds: int) -> str:
        text = self.name(value)
        return f"({text})" if self.binds.get(value, _ATOM) < binds else text

    # Stacks.

    def on_stack(self, node: Node) -> Iterator[Line]:
        use = node.op.use(0) if node.operands else Use.VALUE
        if not use.goes_on:
            if isinstance(node.results[0].type, StackType):
                wish = (node.results[0].hint or "stack").removesuffix("_stack")
                self.stacks[wish] += 1
                self.names[node.results[0]] = wish if self.stacks[wish] == 1 else f"{wish}_{self.stacks[wish]}"
            else:
                self.stands_for(node.results[0], self.formula(node)[0], _ATOM)
            return
        stack = self.name(node.operands[0])
        self.names[node.results[0]] = stack
        if use is Use.PUSH:
            yield Line(f"push {self.join(node.operands[1:])}", "push", stack, node.source)
        elif use is Use.POP:
            yield Line(f"{self.join(node.results[1:])} = pop", "pop", stack, node.source)

    # Nodes that own regions.

    def block(self, node: Node, order: int) -> Block:
        order = max(order, node.source.order if node.source else order)
        if attributes.Loop.find(node) is not None:
            return self.loop(node, order)
        if attributes.Branch.find(node) is not None:
            return self.branch(node, order)
        return self.call(node, order)

    def loop(self, node: Node, order: int) -> Block:
        attrs = attributes.Loop.of(node)
        cond, body = node.regions
        for region in node.regions:
            self.shares(attrs.split(node.operands)[0], attrs.split(region.inputs)[0])
        carries = [attrs.split(values)[1] for values in (node.operands, cond.inputs, body.inputs)]
        starts = []
        for init, in_cond, in_body, result in zip(*carries, node.results, strict=True):
            start = self.name(init)
            if isinstance(init.type, StackType):
                name = start
            else:
                name = self.fresh(in_cond.hint or result.hint or "c")
                starts.append(f"{name} = {start}")
            self.names.update(dict.fromkeys((in_cond, in_body, result), name))
        parts: list[Part] = [Line(text, "start") for text in _in_lines(starts)]
        parts += self.parts(cond, order)
        parts.append(Line(f"as long as {self.name(cond.outputs[0])}", "condition"))
        parts += self.parts(body, order)
        for value, result in zip(body.outputs, node.results, strict=True):
            if not isinstance(value.type, StackType) and self.name(value) != self.names[result]:
                parts.append(Line(f"{self.names[result]} \N{LEFTWARDS ARROW} {self.name(value)}", "next"))
        return Block(str(attrs.shown().get("name") or "while"), tuple(parts), node.source, order)

    def branch(self, node: Node, order: int) -> Block:
        sides = []
        for region in node.regions:
            self.shares(node.operands[1:], region.inputs)
        for value in node.results:
            if not isinstance(value.type, StackType):
                self.name(value)
        for number, region in enumerate(node.regions):
            parts = self.parts(region, order)
            for value, result in zip(region.outputs, node.results, strict=True):
                if isinstance(value.type, StackType):
                    self.names[result] = self.name(value)
                else:
                    parts.append(Line(f"{self.names[result]} = {self.name(value)}", "result"))
            sides.append(Block(region_name(node, number), tuple(parts), None, order))
        return Block(f"cond {self.name(node.operands[0])}", tuple(sides), node.source, order)

    def call(self, node: Node, order: int) -> Block:
        attrs = attributes.Call.of(node)
        self.shares(node.operands, node.regions[0].inputs)
        parts = self.parts(node.regions[0], order)
        for value, result in zip(node.regions[0].outputs, node.results, strict=True):
            if isinstance(value.type, StackType):
                self.names[result] = self.name(value)
            else:
                parts.append(Line(f"{self.name(result)} = {self.name(value)}", "result"))
        return Block(attrs.kind, tuple(parts), node.source, order, is_folded=True)

    def shares(self, outer: Sequence[Value], inner: Sequence[Value]) -> None:
        """Have a region's inputs stand for what they are given."""
        for given, value in zip(outer, inner, strict=True):
            self.stands_for(value, self.name(given), self.binds.get(given, _ATOM))


def _captured(node: Node) -> Sequence[Value]:
    """The operands that the regions see under a name."""
    loop = attributes.Loop.find(node)
    if loop is not None:
        return loop.split(node.operands)[0]
    return node.operands[1:] if attributes.Branch.find(node) is not None else node.operands


def _in_lines(texts: Sequence[str]) -> list[str]:
    """Short texts side by side."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) <= LONGEST:
            lines[-1] += f",  {text}"
        else:
            lines.append(text)
    return lines


def _number(node: Node) -> str:
    value = np.asarray(attributes.Constant.of(node).value)
    return repr(value.item()) if value.ndim == 0 else format_attrs(node)
