"""The arithmetic of a kernel: typed instructions in single assignment, without text of any target language.

An `Expression` is a list of `Instruction`s; an instruction's arguments are the numbers of earlier ones. Printers turn
it into LLVM (scalars or vectors) or CUDA C++; they need to know `PRIMITIVES` and nothing else, since every elementary
function (`exp`, `tanh`, ...) is itself an expression of primitives (`ctrlgrad.plan.elementary`), called by its name.

Numbers are real here: a complex number is a pair of them, its real part first. A bool is one bit; in memory a byte.

Invariants: arguments come before their uses; the dtypes of arguments and result obey `PRIMITIVES`; integers wrap;
floats follow IEEE 754 and nothing is reassociated or contracted but by an explicit `fma`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.records import record

BOOL = np.dtype(bool)

# Argument dtypes of each primitive: "f" floats, "i" signed and "u" unsigned integers, "b" bool; the result has the
# dtype of the arguments unless a line says otherwise.
PRIMITIVES: dict[str, str] = {
    # Leaves: `value` is a number, or which operand, scalar or axis is meant.
    "constant": "a number of the dtype",
    "load": "the element of operand `value` at this position",
    "scalar": "the scalar operand `value`",
    "index": "the position along axis `value` of the kernel's space, int64",
    "argument": "argument `value` of an elementary function",
    # Arithmetic.
    "add": "fiu",
    "subtract": "fiu",
    "multiply": "fiu",
    "divide": "f: IEEE; iu: towards zero, the divisor neither 0 nor (for i) -1",
    "remainder": "iu: of that division",
    "negative": "fi",
    "fma": "f: a * b + c, rounded once",
    "sqrt": "f",
    "abs": "fi",
    "floor": "f",
    "ceil": "f",
    "trunc": "f",
    "rint": "f: to the nearest, ties to even",
    "copysign": "f",
    # Comparisons, bool; floats ordered, but `not_equal`, which is true of NaN.
    "less": "fiub",
    "less_equal": "fiub",
    "greater": "fiub",
    "greater_equal": "fiub",
    "equal": "fiub",
    "not_equal": "fiub",
    "select": "a bool, then two of one dtype: the first where true",
    # Bits; of bools too, but for the shifts.
    "and": "iub",
    "or": "iub",
    "xor": "iub",
    "not": "iub",
    "shift_left": "iu: the count below the width",
    "shift_right": "iu: arithmetic for i, logical for u; the count below the width",
    # Changes of type.
    "convert": "any to any real dtype by value; from float to integer towards zero, bool is 0 or 1",
    "bits": "the same bits as the dtype of equal width",
    # An elementary function by its name, `value`.
    "call": "an elementary function",
}


@record
class Instruction:
    """One operation: `op` of `PRIMITIVES` on the results of earlier instructions, giving a number of `dtype`."""

    op: str
    args: tuple[int, ...]
    dtype: np.dtype
    value: Any = None


@record
class Expression:
    """Instructions and the numbers of those that are results."""

    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    def dtype_of(self, output: int) -> np.dtype:
        return self.instructions[self.outputs[output]].dtype

    def __str__(self) -> str:
        lines = []
        for number, instruction in enumerate(self.instructions):
            value = "" if instruction.value is None else f" {instruction.value}"
            args = "".join(f" %{a}" for a in instruction.args)
            lines.append(f"%{number} = {instruction.op}{value}{args} : {instruction.dtype.name}")
        return "\n".join([*lines, "yield " + ", ".join(f"%{o}" for o in self.outputs)])


class ExpressionBuilder:
    """Collects instructions; equal ones are one."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._known: dict[Any, int] = {}

    def emit(self, op: str, args: Sequence[Number], dtype: Any, value: Any = None) -> Number:
        """Append an instruction, or find it."""
        assert op in PRIMITIVES, op
        assert all(a.builder is self for a in args)
        instruction = Instruction(op, tuple(a.number for a in args), np.dtype(dtype), value)
        key = (op, instruction.args, instruction.dtype, _key(value))
        if key not in self._known:
            self._known[key] = len(self.instructions)
            self.instructions.append(instruction)
        return Number(self, self._known[key])

    def constant(self, value: Any, dtype: Any) -> Number:
        """A number of a dtype."""
        dtype = np.dtype(dtype)
        return self.emit("constant", (), dtype, dtype.type(value))

    def finish(self, *outputs: Number) -> Expression:
        return Expression(tuple(self.instructions), tuple(o.number for o in outputs))


def _key(value: Any) -> Any:
    """Constants are equal where their bits are: 0.0 and -0.0 differ, a NaN equals itself."""
    return (value.dtype, value.tobytes()) if isinstance(value, np.generic) else value


@record
class Number:
    """An instruction's result while an expression is built; Python's operators make instructions.

    Python's numbers take the dtype of the number beside them.
    """

    builder: ExpressionBuilder
    number: int

    @property
    def dtype(self) -> np.dtype:
        return self.builder.instructions[self.number].dtype

    def _binary(self, op: str, other: Any, dtype: Any = None, *, swapped: bool = False) -> Number:
        right = other if isinstance(other, Number) else self.builder.constant(other, self.dtype)
        a, b = (right, self) if swapped else (self, right)
        assert a.dtype == b.dtype, f"{op} of {a.dtype} and {b.dtype}"
        return self.builder.emit(op, (a, b), dtype or self.dtype)

    def unary(self, op: str, dtype: Any = None, value: Any = None) -> Number:
        """An operation on this number alone."""
        return self.builder.emit(op, (self,), dtype or self.dtype, value)

    def binary(self, op: str, other: Any) -> Number:
        """An operation on this number and another of its dtype."""
        return self._binary(op, other)

    def __add__(self, other: Any) -> Number:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Number:
        return self._binary("add", other, swapped=True)

    def __sub__(self, other: Any) -> Number:
        return self._binary("subtract", other)

    def __rsub__(self, other: Any) -> Number:
        return self._binary("subtract", other, swapped=True)

    def __mul__(self, other: Any) -> Number:
        return self._binary("multiply", other)

    def __rmul__(self, other: Any) -> Number:
        return self._binary("multiply", other, swapped=True)

    def __truediv__(self, other: Any) -> Number:
        return self._binary("divide", other)

    def __rtruediv__(self, other: Any) -> Number:
        return self._binary("divide", other, swapped=True)

    def __neg__(self) -> Number:
        return self.unary("negative")

    def __lt__(self, other: Any) -> Number:
        return self._binary("less", other, BOOL)

    def __le__(self, other: Any) -> Number:
        return self._binary("less_equal", other, BOOL)

    def __gt__(self, other: Any) -> Number:
        return self._binary("greater", other, BOOL)

    def __ge__(self, other: Any) -> Number:
        return self._binary("greater_equal", other, BOOL)

    def equals(self, other: Any) -> Number:
        return self._binary("equal", other, BOOL)

    def differs(self, other: Any) -> Number:
        return self._binary("not_equal", other, BOOL)

    def __and__(self, other: Any) -> Number:
        return self._binary("and", other)

    def __or__(self, other: Any) -> Number:
        return self._binary("or", other)

    def __xor__(self, other: Any) -> Number:
        return self._binary("xor", other)

    def __invert__(self) -> Number:
        return self.unary("not")

    def __lshift__(self, other: Any) -> Number:
        return self._binary("shift_left", other)

    def __rshift__(self, other: Any) -> Number:
        return self._binary("shift_right", other)

    def convert(self, dtype: Any) -> Number:
        """The same value as another dtype."""
        return self if self.dtype == np.dtype(dtype) else self.unary("convert", dtype)

    def bits(self, dtype: Any) -> Number:
        """The same bits as another dtype."""
        return self if self.dtype == np.dtype(dtype) else self.unary("bits", dtype)


def select(condition: Number, a: Any, b: Any) -> Number:
    """`a` where the condition holds, else `b`."""
    builder = condition.builder
    known = a if isinstance(a, Number) else b
    assert isinstance(known, Number)
    a, b = (x if isinstance(x, Number) else builder.constant(x, known.dtype) for x in (a, b))
    assert a.dtype == b.dtype
    return builder.emit("select", (condition, a, b), a.dtype)


def fma(a: Number, b: Any, c: Any) -> Number:
    """a * b + c, rounded once."""
    b, c = (x if isinstance(x, Number) else a.builder.constant(x, a.dtype) for x in (b, c))
    return a.builder.emit("fma", (a, b, c), a.dtype)


def call(name: str, dtype: Any, *args: Number) -> Number:
    """An elementary function of its arguments, by name."""
    return args[0].builder.emit("call", args, dtype, name)
