"""Long kernels: a point as several functions of bounded text, since LLVM's time grows with the square of a function's.

The instructions of an expression are cut into sections, in their order. A value that a later section reads lies in a
table on the stack, where LLVM would spill it, too. The slots of the table are reused, and stay in the nearest memory.
All writes come after the sections, in functions of their own: each operand is read before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ctrlgrad.engines.native.elements import Elements
from ctrlgrad.engines.native.expressions import Leaf, printed
from ctrlgrad.engines.native.nest import Nest
from ctrlgrad.engines.native.text import Captures, Writer, splat, type_of
from ctrlgrad.plan.expression import Expression, Instruction
from ctrlgrad.plan.vectors import MEMORY_WEIGHT
from ctrlgrad.records import record

# The most weight of a section.
SECTION = 500


@record
class Section:
    """Instructions from `start` to `end`, the earlier ones whose values they read, and those that are read later."""

    start: int
    end: int
    before: tuple[int, ...]
    kept: tuple[int, ...]


def sections_of(expression: Expression) -> tuple[list[Section], dict[int, int]]:
    """The sections of an expression, and the slot of each value that outlives its own."""
    instructions = expression.instructions
    last = dict.fromkeys(expression.outputs, len(instructions))
    for number in reversed(range(len(instructions))):
        for argument in instructions[number].args:
            last.setdefault(argument, number)
    found: list[Section] = []
    slots: dict[int, int] = {}
    idle: list[int] = []
    start = weight = 0
    for number, instruction in enumerate(instructions):
        weight += MEMORY_WEIGHT if instruction.op == "load" else 1
        end = number + 1
        if weight < SECTION and end < len(instructions):
            continue
        before = sorted({a for i in instructions[start:end] for a in i.args if a < start})
        kept = tuple(n for n in range(start, end) if last.get(n, -1) >= end)
        found.append(Section(start, end, tuple(before), kept))
        idle += [slots[n] for n in before if last[n] < end]
        for n in kept:
            slots[n] = idle.pop() if idle else len(slots)
        start, weight = end, 0
    return found, slots


class Sections:
    """Writes the points of a long kernel, in functions `void @sectionK(ptr %table, captures)`."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.expression = nest, nest.kernel.expression
        self.sections, self.slots = sections_of(self.expression)
        # Room for vectors of the widest numbers.
        self.slot_bytes = 8 * nest.vectors.lanes
        count = max(self.slots.values(), default=0) + 1
        self.table = nest.w.alloca(f"[{count * self.slot_bytes} x i8]", 64)

    def point(self, leaf: Leaf, width: int, uniform: Collection[int]) -> Outputs:
        """Write the functions of the expression and their calls; its outputs, which are read where they are needed."""
        outputs = Outputs(self, width, uniform)
        for section in self.sections:
            self.section(section, outputs, leaf)
        return outputs

    def section(self, section: Section, values: Outputs, leaf: Leaf) -> None:
        instructions = self.expression.instructions
        numbers = {number: k for k, number in enumerate((*section.before, *range(section.start, section.end)))}
        inside = [Instruction("argument", (), instructions[number].dtype, number) for number in section.before]
        for i in instructions[section.start : section.end]:
            inside.append(Instruction(i.op, tuple(numbers[a] for a in i.args), i.dtype, i.value))

        def inner(instruction: Instruction, arguments: list[tuple[str, bool]]) -> tuple[str, bool]:
            if instruction.op == "argument":
                return values.read(instruction.value)
            return leaf(instruction, arguments)

        with self.function():
            expression = Expression(tuple(inside), tuple(numbers[number] for number in section.kept))
            found = printed(self.nest.w, expression, inner, values.width)
            for number, (text, is_vector, is_constant) in zip(section.kept, found, strict=True):
                values.keep(number, text, is_vector, is_constant)

    def write(self, writes: Sequence[int], write: Callable[[int], None]) -> None:
        """Have the kernel's writes of these numbers written, in functions of bounded text."""
        most = max(SECTION // MEMORY_WEIGHT, 1)
        for start in range(0, len(writes), most):
            with self.function():
                for k in writes[start : start + most]:
                    write(k)

    @contextmanager
    def function(self) -> Iterator[None]:
        """Context in which the nest writes a function of its own, which is called here."""
        nest, w = self.nest, self.nest.w
        given, inner = Captures(), Writer(w)
        number, size = nest.number, nest.size
        inside: dict[str, Any] = {
            "w": inner,
            "elements": Elements(inner),
            "number": lambda register: given.take(register, type_of(register.dtype), lambda: number(register)),
            "size": lambda wanted: given.take(wanted, "i64", lambda: size(wanted)),
            "captured": lambda text, kind: given.take(text, kind, lambda: text),
        }
        outside = {name: getattr(nest, name) for name in inside}
        nest.__dict__.update(inside)
        with nest.elements.turn():
            yield
        nest.__dict__.update(outside)
        w.call("section", inner, given, nest.vectors.nbytes)


class Outputs(Sequence[str]):
    """Outputs of a long kernel's point, and its other values that outlive a section: in the table, but for constants.

    The `uniform` outputs are one number for all lanes.
    """

    def __init__(self, sections: Sections, width: int, uniform: Collection[int]) -> None:
        self.sections, self.nest, self.width, self.uniform = sections, sections.nest, width, uniform
        self.known: dict[int, tuple[str, bool]] = {}

    def place(self, number: int) -> tuple[str, str]:
        """Base and position of a value's slot."""
        dtype = self.sections.expression.instructions[number].dtype
        at = self.sections.slots[number] * self.sections.slot_bytes // dtype.itemsize
        return self.nest.captured(self.sections.table, "ptr"), str(at)

    def keep(self, number: int, text: str, is_vector: bool, is_constant: bool) -> None:
        self.known[number] = text if is_constant else "", is_vector
        if not is_constant:
            dtype = self.sections.expression.instructions[number].dtype
            self.nest.elements.store_parts(*self.place(number), dtype, [text], self.width if is_vector else 1)

    def read(self, number: int) -> tuple[str, bool]:
        """A value, and whether it is a vector."""
        text, is_vector = self.known[number]
        if not text:
            dtype = self.sections.expression.instructions[number].dtype
            text = self.nest.elements.load(*self.place(number), dtype, 0, self.width if is_vector else 1)
        return text, is_vector

    def __len__(self) -> int:
        return len(self.sections.expression.outputs)

    def __getitem__(self, k: Any) -> Any:
        number = self.sections.expression.outputs[k]
        text, is_vector = self.read(number)
        if is_vector or self.width == 1 or k in self.uniform:
            return text
        dtype = self.sections.expression.instructions[number].dtype
        if not text.startswith("%"):
            return splat(text, dtype, self.width)
        return self.nest.w.in_all_lanes(text, type_of(dtype), self.width)
