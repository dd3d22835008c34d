"""Expressions as formulas: a line for each output, and one for what is needed more than once or would be too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir.types import dtype_name
from ctrlgrad.plan.expression import Expression, Instruction

# The text of a leaf, by its instruction and the texts of its arguments.
Leaf = Callable[[Instruction, Sequence[str]], str]
# Longer formulas are cut.
WIDEST = 72

# Operators and how tightly they bind.
_LOGIC = {"or": ("or", 1), "xor": ("xor", 2), "and": ("and", 3)}
_INFIX = {"less": ("<", 4), "less_equal": ("<=", 4), "greater": (">", 4), "greater_equal": (">=", 4)}
_INFIX |= {"equal": ("==", 4), "not_equal": ("!=", 4), "add": ("+", 6), "subtract": ("-", 6)}
_INFIX |= {"multiply": ("*", 7), "divide": ("/", 7)}
_ATOM = 9


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    binds: int = _ATOM

    def within(self, tightness: int) -> str:
        return self.text if self.binds >= tightness else f"({self.text})"


def formulas(expression: Expression, leaf: Leaf, used: Sequence[int]) -> tuple[list[str], list[str]]:
    """Lines that name what is shared, and the formulas of the outputs; `used` are the outputs that are shown."""
    written = _Formulas(expression, leaf, used)
    return list(written.lines()), [written.texts[output].text for output in expression.outputs]


class _Formulas:
    def __init__(self, expression: Expression, leaf: Leaf, used: Sequence[int]) -> None:
        self.expression, self.leaf = expression, leaf
        self.uses = Counter(a for instruction in expression.instructions for a in instruction.args)
        self.uses.update(expression.outputs[output] for output in used)
        self.texts: list[_Text] = []

    def lines(self) -> Iterator[str]:
        named = 0
        for number, instruction in enumerate(self.expression.instructions):
            text = self.text(instruction)
            is_leaf = instruction.op in ("constant", "scalar", "index") or (
                instruction.op == "load" and not instruction.args
            )
            if not is_leaf and (self.uses[number] > 1 or len(text.text) > WIDEST):
                name = f"%{named}"
                named += 1
                yield f"{name}: {dtype_name(instruction.dtype)} = {text.text}"
                text = _Text(name)
            self.texts.append(text)

    def text(self, instruction: Instruction) -> _Text:
        op = instruction.op
        args = [self.texts[a] for a in instruction.args]
        if op == "constant":
            value = instruction.value.item()
            return _Text(
                str(value) if dtype_kind(instruction.dtype) == "b" else repr(value), 8 if str(value)[0] == "-" else 9
            )
        if op in ("load", "scalar", "index"):
            return _Text(self.leaf(instruction, [a.text for a in args]))
        # Of integers, "and" is one of bits, and "divide" goes towards zero.
        infix = (_INFIX | _LOGIC) if dtype_kind(instruction.dtype) == "b" else _INFIX
        if op in infix and not (op == "divide" and dtype_kind(instruction.dtype) in "iu"):
            sign, binds = infix[op]
            # What is not associative, as all floats are not, keeps its parentheses on the right.
            return _Text(f"{args[0].within(binds)} {sign} {args[1].within(binds + 1)}", binds)
        if op == "negative":
            return _Text(f"-{args[0].within(8)}", 8)
        name = dtype_name(instruction.dtype) if op == "convert" else instruction.value if op == "call" else op
        return _Text(f"{name}({', '.join(a.text for a in args)})")
