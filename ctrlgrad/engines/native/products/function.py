"""A routine of LLVM written line by line: the writer of plans with the arithmetic, tests and loops of routines.

Values are LLVM's operands as strings ("%3", "7"), each of one type that the writer knows. What changes in a loop is a
`Variable`, a slot on the stack that LLVM's first pass makes a register.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.records import record

Number = str | int


@record
class Variable:
    """A local variable: LLVM's type of its value and the slot that holds it."""

    type: str
    slot: str


def parameters(names: str) -> list[tuple[str, str]]:
    """Parameters as pairs of type and name: `a*` is a pointer, `more?` an i1, `n` an i64."""
    return [({"*": "ptr", "?": "i1"}.get(name[-1], "i64"), name.rstrip("*?")) for name in names.split()]


class Function(Writer):
    """One function: `parameters` are pairs of type and name; `result` is LLVM's type. `text()` is the whole."""

    def __init__(
        self, name: str, parameters: Sequence[tuple[str, str]], result: str = "void", prefix: str = ""
    ) -> None:
        super().__init__()
        shown = ", ".join(f"{kind} %{name}" for kind, name in parameters)
        self._signature = f"{prefix + ' ' if prefix else ''}{result} @{name}({shown})"

    def text(self) -> str:
        return self.function(self._signature)

    def leave(self, value: str | None = None) -> None:
        """End the block, and the function."""
        self.line("ret void" if value is None else f"ret {value}")

    # Memory.

    def variable(self, kind: str, first: Number) -> Variable:
        variable = Variable(kind, self.alloca(kind, 8))
        self.set(variable, first)
        return variable

    def get(self, variable: Variable) -> str:
        return self.op(f"load {variable.type}, ptr {variable.slot}")

    def set(self, variable: Variable, value: Number) -> None:
        self.line(f"store {variable.type} {value}, ptr {variable.slot}")

    def at(self, pointer: str, index: Number, kind: str) -> str:
        """The address of an element."""
        return pointer if index == 0 else self.op(f"getelementptr inbounds {kind}, ptr {pointer}, i64 {index}")

    def load(self, kind: str, address: str, align: int) -> str:
        return self.op(f"load {kind}, ptr {address}, align {align}")

    def store(self, kind: str, value: Number, address: str, align: int) -> None:
        self.line(f"store {kind} {value}, ptr {address}, align {align}")

    # i64: positions and sizes, which do not overflow.

    def add(self, a: Number, b: Number) -> str:
        return str(a) if b == 0 else self.op(f"add nsw i64 {a}, {b}")

    def sub(self, a: Number, b: Number) -> str:
        return self.op(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Number, b: Number) -> str:
        return str(a) if b == 1 else self.op(f"mul nsw i64 {a}, {b}")

    def div(self, a: Number, b: Number) -> str:
        """The quotient of numbers that are not negative."""
        return self.op(f"udiv i64 {a}, {b}")

    def rest(self, a: Number, b: Number) -> str:
        return self.op(f"urem i64 {a}, {b}")

    def smaller(self, a: Number, b: Number) -> str:
        return self.op(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def larger(self, a: Number, b: Number) -> str:
        return self.op(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def rounded_up(self, a: Number, unit: int) -> str:
        return self.mul(self.div(self.add(a, unit - 1), unit), unit)

    def test(self, relation: str, a: Number, b: Number) -> str:
        """A comparison: `relation` is LLVM's (eq, ne, slt, sle, sgt, sge)."""
        return self.op(f"icmp {relation} i64 {a}, {b}")

    def both(self, a: str, b: str) -> str:
        """The first and, where it holds, the second: neither may fail."""
        return self.op(f"and i1 {a}, {b}")

    def select(self, condition: str, kind: str, a: Number, b: Number) -> str:
        return self.op(f"select i1 {condition}, {kind} {a}, {kind} {b}")

    # Control.

    @contextlib.contextmanager
    def leaving_when(self, condition: str) -> Iterator[None]:
        """Context of code that runs where the condition holds; it must end with the function's return."""
        inside, after = self.new_label("then"), self.new_label("after")
        self.branch_if(condition, inside, after)
        self.label(inside)
        yield
        self.label(after)

    @contextlib.contextmanager
    def loop(self, first: Number, end: Number, step: Number = 1) -> Iterator[str]:
        """Loop over the indices from `first` below `end`."""
        with counted_loop(self, str(first), str(end), str(step)) as index:
            yield index

    @contextlib.contextmanager
    def repeat(self) -> Iterator[Repetition]:
        """Loop until the code in it leaves it."""
        repetition = Repetition(self, self.new_label("again"), self.new_label("exit"))
        self.branch(repetition.head)
        self.label(repetition.head)
        yield repetition
        self.branch(repetition.head)
        self.label(repetition.exit)

    @contextlib.contextmanager
    def loop_down(self, count: Number) -> Iterator[str]:
        """Loop over the indices from `count` - 1 down to 0."""
        with self.loop(0, count) as k:
            yield self.sub(self.sub(count, 1), k)


@record
class Repetition:
    """A loop that is being written, which its own code leaves."""

    f: Function
    head: str
    exit: str

    def leave_when(self, condition: str) -> None:
        self._jump(condition, self.exit)

    def again_when(self, condition: str) -> None:
        """Begin the next iteration where the condition holds."""
        self._jump(condition, self.head)

    def _jump(self, condition: str, to: str) -> None:
        rest = self.f.new_label("rest")
        self.f.branch_if(condition, to, rest)
        self.f.label(rest)
