"""A function of LLVM written line by line: names, arithmetic on i64, branches and loops.

Values are LLVM's operands as strings ("%v3", "7"), each of one type that the writer knows. What changes in a loop is a
`Variable`, a slot on the stack that LLVM's first pass makes a register.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Number = str | int


@dataclass(frozen=True)
class Variable:
    """A local variable: LLVM's type of its value and the slot that holds it."""

    type: str
    slot: str


class Function:
    """One function: `parameters` are pairs of type and name; `result` is LLVM's type.

    Lines are added in order; `text()` is the whole. The body starts in `entry`, where all variables are allocated.
    """

    def __init__(
        self, name: str, parameters: Sequence[tuple[str, str]], result: str = "void", prefix: str = ""
    ) -> None:
        shown = ", ".join(f"{kind} %{name}" for kind, name in parameters)
        self._head = f"define {prefix + ' ' if prefix else ''}{result} @{name}({shown}) nounwind {{"
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def text(self) -> str:
        return "\n".join([self._head, "entry:", *self._slots, *self._lines, "}", ""])

    def name(self, stem: str = "v") -> str:
        self._count += 1
        return f"{stem}{self._count}"

    # Lines.

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def let(self, text: str) -> str:
        """A value: what an instruction gives."""
        value = f"%{self.name()}"
        self.line(f"{value} = {text}")
        return value

    def label(self, name: str) -> None:
        """Begin a block; the one before must have ended by a jump."""
        self._lines.append(f"{name}:")

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: str, then: str, other: str) -> None:
        self.line(f"br i1 {condition}, label %{then}, label %{other}")

    def leave(self, value: str | None = None) -> None:
        self.line("ret void" if value is None else f"ret {value}")

    # Memory.

    def room(self, kind: str, align: int = 8) -> str:
        """A slot on the stack for a value of a type."""
        slot = f"%{self.name('s')}"
        self._slots.append(f"  {slot} = alloca {kind}, align {align}")
        return slot

    def variable(self, kind: str, first: Number) -> Variable:
        made = Variable(kind, self.room(kind))
        self.set(made, first)
        return made

    def get(self, variable: Variable) -> str:
        return self.let(f"load {variable.type}, ptr {variable.slot}")

    def set(self, variable: Variable, value: Number) -> None:
        self.line(f"store {variable.type} {value}, ptr {variable.slot}")

    def at(self, pointer: str, index: Number, kind: str) -> str:
        """The address of an element."""
        return pointer if index == 0 else self.let(f"getelementptr inbounds {kind}, ptr {pointer}, i64 {index}")

    def load(self, kind: str, address: str, align: int) -> str:
        return self.let(f"load {kind}, ptr {address}, align {align}")

    def store(self, kind: str, value: Number, address: str, align: int) -> None:
        self.line(f"store {kind} {value}, ptr {address}, align {align}")

    # i64.

    def add(self, a: Number, b: Number) -> str:
        return str(a) if b == 0 else self.let(f"add nsw i64 {a}, {b}")

    def sub(self, a: Number, b: Number) -> str:
        return self.let(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Number, b: Number) -> str:
        return str(a) if b == 1 else self.let(f"mul nsw i64 {a}, {b}")

    def div(self, a: Number, b: Number) -> str:
        """The quotient of numbers that are not negative."""
        return self.let(f"udiv i64 {a}, {b}")

    def rest(self, a: Number, b: Number) -> str:
        return self.let(f"urem i64 {a}, {b}")

    def smaller(self, a: Number, b: Number) -> str:
        return self.let(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def larger(self, a: Number, b: Number) -> str:
        return self.let(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def rounded_up(self, a: Number, unit: int) -> str:
        return self.mul(self.div(self.add(a, unit - 1), unit), unit)

    def test(self, relation: str, a: Number, b: Number) -> str:
        """A comparison: `relation` is LLVM's (eq, ne, slt, sle, sgt, sge)."""
        return self.let(f"icmp {relation} i64 {a}, {b}")

    def both(self, a: str, b: str) -> str:
        """The first and, where it holds, the second: neither may fail."""
        return self.let(f"and i1 {a}, {b}")

    def select(self, condition: str, kind: str, a: Number, b: Number) -> str:
        return self.let(f"select i1 {condition}, {kind} {a}, {kind} {b}")

    # Control.

    @contextlib.contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is written inside runs where the condition holds."""
        inside, after = self.name("then"), self.name("after")
        self.branch(condition, inside, after)
        self.label(inside)
        yield
        self.jump(after)
        self.label(after)

    @contextlib.contextmanager
    def leaving_when(self, condition: str) -> Iterator[None]:
        """What is written inside runs where the condition holds and ends with the function's return."""
        inside, after = self.name("then"), self.name("after")
        self.branch(condition, inside, after)
        self.label(inside)
        yield
        self.label(after)

    @contextlib.contextmanager
    def loop(self, first: Number, end: Number, step: Number = 1) -> Iterator[str]:
        """What is written inside runs for each index from `first` below `end`."""
        index = self.variable("i64", first)
        head, body, after = self.name("head"), self.name("body"), self.name("after")
        self.jump(head)
        self.label(head)
        now = self.get(index)
        self.branch(self.test("slt", now, end), body, after)
        self.label(body)
        yield now
        self.set(index, self.add(now, step))
        self.jump(head)
        self.label(after)

    @contextlib.contextmanager
    def loop_down(self, count: Number) -> Iterator[str]:
        """What is written inside runs for each index from `count` - 1 down to 0."""
        with self.loop(0, count) as k:
            yield self.sub(self.sub(count, 1), k)
