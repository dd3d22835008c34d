"""Expressions as LLVM text, for one element or for a vector of them.

What is the same for all lanes of a vector is computed once, as a scalar, and spread where a vector needs it. Half
floats and bfloat16 are computed as NumPy does: in float, rounded after each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, dtype_kind
from ctrlgrad.engines.native.text import Writer, constant, splat, type_of
from ctrlgrad.plan.expression import Expression, Instruction

Leaf = Callable[[Instruction, list[tuple[str, bool]]], tuple[str, bool]]
"""The value of a leaf, by its instruction and its arguments: of each its name, and whether it is a vector."""

Call = Callable[[Writer, str, np.dtype, list[str], list[np.dtype], int], str]
"""Writes a call of an elementary function: its name, the result's dtype, operands, their dtypes, the width."""

PURE = "nounwind willreturn memory(none)"
"""The attributes of functions without effects."""

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)

# Instructions by the kind of their operands' dtype.
_BINARY = {
    "add": {"f": "fadd", "i": "add", "u": "add"},
    "subtract": {"f": "fsub", "i": "sub", "u": "sub"},
    "multiply": {"f": "fmul", "i": "mul", "u": "mul"},
    "divide": {"f": "fdiv", "i": "sdiv", "u": "udiv"},
    "remainder": {"i": "srem", "u": "urem"},
    "less": {"f": "fcmp olt", "i": "icmp slt", "u": "icmp ult", "b": "icmp ult"},
    "less_equal": {"f": "fcmp ole", "i": "icmp sle", "u": "icmp ule", "b": "icmp ule"},
    "greater": {"f": "fcmp ogt", "i": "icmp sgt", "u": "icmp ugt", "b": "icmp ugt"},
    "greater_equal": {"f": "fcmp oge", "i": "icmp sge", "u": "icmp uge", "b": "icmp uge"},
    "equal": {"f": "fcmp oeq", "i": "icmp eq", "u": "icmp eq", "b": "icmp eq"},
    "not_equal": {"f": "fcmp une", "i": "icmp ne", "u": "icmp ne", "b": "icmp ne"},
    "and": {"i": "and", "u": "and", "b": "and"},
    "or": {"i": "or", "u": "or", "b": "or"},
    "xor": {"i": "xor", "u": "xor", "b": "xor"},
    "shift_left": {"i": "shl", "u": "shl"},
    "shift_right": {"i": "ashr", "u": "lshr"},
}
_COMPARISONS = frozenset(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
_INTRINSICS = {
    "fma": "fma",
    "sqrt": "sqrt",
    "abs": "fabs",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "rint": "rint",
    "copysign": "copysign",
}


class _Value(NamedTuple):
    """The result of an instruction: its name, whether it is a vector, and whether it is a constant."""

    text: str
    is_vector: bool
    is_constant: bool = False


def symbol(name: str, dtype: np.dtype, width: int = 1) -> str:
    """The name of an elementary function's code: for one element, or for a vector."""
    return f"cg_{name}_{dtype.name}" + (f"_v{width}" if width > 1 else "")


def emit_expression(
    writer: Writer,
    expression: Expression,
    leaf: Leaf,
    width: int,
    uniform: Collection[int] = (),
    call: Call | None = None,
    known: dict[str, str] | None = None,
) -> list[str]:
    """Write the expression; the names of its outputs, of `width` elements each, or one where all lanes are the same.

    `call` writes calls of elementary functions otherwise than `emit_call`. `known` are values by what computes them,
    all of them valid here: what is among them is not written again, and what is written is added.
    """
    printer = _Printer(writer, expression, leaf, width, call or emit_call, known)
    return printer.outputs(uniform)


def printed(writer: Writer, expression: Expression, leaf: Leaf, width: int) -> list[_Value]:
    """Write the expression; its outputs as they are: a vector, or a scalar where all lanes share it."""
    printer = _Printer(writer, expression, leaf, width, emit_call, None)
    return [printer.values[number] for number in expression.outputs]


class _Printer:
    def __init__(
        self, writer: Writer, expression: Expression, leaf: Leaf, width: int, call: Call, known: dict[str, str] | None
    ) -> None:
        self.writer = writer
        self.call, self.known = call, known
        self.expression = expression
        self.width = width
        self.leaf = leaf
        self.values: list[_Value] = []
        self.spread: dict[int, str] = {}
        for instruction in expression.instructions:
            self.values.append(self.value(instruction))

    def op(self, text: str) -> str:
        """Write an instruction, unless its value is known."""
        if self.known is None:
            return self.writer.op(text)
        if text not in self.known:
            self.known[text] = self.writer.op(text)
        return self.known[text]

    def outputs(self, uniform: Collection[int]) -> list[str]:
        numbers = self.expression.outputs
        return [self.operand(number, 1 if k in uniform else self.width) for k, number in enumerate(numbers)]

    def dtype(self, number: int) -> np.dtype:
        return self.expression.instructions[number].dtype

    def operand(self, number: int, width: int) -> str:
        """The name of an instruction's result as a vector of `width`, or as a scalar."""
        value = self.values[number]
        if width == 1 or value.is_vector:
            return value.text
        if number not in self.spread:
            dtype = self.dtype(number)
            if value.is_constant:
                self.spread[number] = splat(value.text, dtype, width)
            else:
                kind, one = type_of(dtype, width), type_of(dtype)
                first = self.op(f"insertelement {kind} poison, {one} {value.text}, i64 0")
                zeros = f"<{width} x i32> zeroinitializer"
                self.spread[number] = self.op(f"shufflevector {kind} {first}, {kind} poison, {zeros}")
        return self.spread[number]

    def value(self, instruction: Instruction) -> _Value:
        op = instruction.op
        if op == "constant":
            return _Value(constant(instruction.value, instruction.dtype), False, True)
        if op in ("load", "scalar", "index", "argument"):
            text, is_vector = self.leaf(instruction, [self.values[a][:2] for a in instruction.args])
            return _Value(text, is_vector, not text.startswith("%"))
        is_vector = any(self.values[a].is_vector for a in instruction.args)
        width = self.width if is_vector else 1
        if op == "select":
            return _Value(self.select(instruction, width), is_vector)
        names = [self.operand(a, width) for a in instruction.args]
        first = self.dtype(instruction.args[0])
        return _Value(self.operation(instruction, names, first, width), is_vector)

    def operation(self, instruction: Instruction, names: list[str], first: np.dtype, width: int) -> str:
        op, result = instruction.op, instruction.dtype
        if op == "convert":
            return convert(self.writer, names[0], first, result, width)
        if op == "bits":
            return self.op(f"bitcast {type_of(first, width)} {names[0]} to {type_of(result, width)}")
        if op == "call":
            return self.call(self.writer, instruction.value, result, names, [first] * len(names), width)
        if dtype_kind(first) == "f" and first.itemsize == 2:
            return self.half(op, names, first, width)
        return self.plain(op, names, first, width)

    def plain(self, op: str, names: list[str], dtype: np.dtype, width: int) -> str:
        """An operation on operands of a type that the processor has."""
        kind = type_of(dtype, width)
        if op in _BINARY:
            return self.op(f"{_BINARY[op][dtype_kind(dtype)]} {kind} {names[0]}, {names[1]}")
        if op == "negative":
            minus = "fneg" if dtype_kind(dtype) == "f" else "sub"
            return self.op(f"{minus} {kind} {'' if dtype_kind(dtype) == 'f' else 'zeroinitializer, '}{names[0]}")
        if op == "not":
            ones = constant(dtype_kind(dtype) == "b" or -1, dtype)
            return self.op(f"xor {kind} {names[0]}, {ones if width == 1 else splat(ones, dtype, width)}")
        if op == "abs" and dtype_kind(dtype) == "i":
            intrinsic = f"@llvm.abs.{_suffix(dtype, width)}"
            self.writer.declare(f"{kind} {intrinsic}({kind}, i1 immarg)")
            return self.op(f"call {kind} {intrinsic}({kind} {names[0]}, i1 false)")
        intrinsic = f"@llvm.{_INTRINSICS[op]}.{_suffix(dtype, width)}"
        self.writer.declare(f"{kind} {intrinsic}({', '.join([kind] * len(names))})")
        return self.op(f"call {kind} {intrinsic}({', '.join(f'{kind} {name}' for name in names)})")

    def half(self, op: str, names: list[str], dtype: np.dtype, width: int) -> str:
        """An operation on floats of 16 bits: in float, where one rounding more changes no result; `fma` in double."""
        # A double does not hold the sum of bfloat16, whose exponents lie further apart; no expression asks for it.
        assert op != "fma" or dtype != BFLOAT16
        wide = _FLOAT64 if op == "fma" else _FLOAT32
        result = self.plain(op, [convert(self.writer, name, dtype, wide, width) for name in names], wide, width)
        return result if op in _COMPARISONS else convert(self.writer, result, wide, dtype, width)

    def select(self, instruction: Instruction, width: int) -> str:
        """A condition that all lanes share stays one bit.

        A selected element of an array may be stored where it was loaded. LLVM 22 makes a masked store of that, which
        takes AMD's processors without AVX-512 twenty times as long as a blend (llvm-project, issue 213195). `freeze`
        prevents it.
        """
        condition, *args = instruction.args
        of_lanes = self.width if self.values[condition].is_vector else 1
        test = f"{'i1' if of_lanes == 1 else f'<{of_lanes} x i1>'} {self.operand(condition, of_lanes)}"
        kind = type_of(instruction.dtype, width)
        a, b = (
            self.op(f"freeze {kind} {name}") if width > 1 and self.expression.instructions[arg].op == "load" else name
            for arg, name in ((arg, self.operand(arg, width)) for arg in args)
        )
        return self.op(f"select {test}, {kind} {a}, {kind} {b}")


def _suffix(dtype: np.dtype, width: int) -> str:
    """Suffix of intrinsics' names: `f32`, `v8f64`, `i16`."""
    letter = "f" if dtype_kind(dtype) == "f" else "i"
    return f"{f'v{width}' if width > 1 else ''}{letter}{8 * dtype.itemsize}"


def emit_call(writer: Writer, name: str, result: np.dtype, names: list[str], dtypes: list[np.dtype], width: int) -> str:
    """Call an elementary function, which is named after the dtype of its operands."""
    code, kind = symbol(name, dtypes[0], width), type_of(result, width)
    kinds = [type_of(dtype, width) for dtype in dtypes]
    writer.declare(f"{kind} @{code}({', '.join(kinds)}) {PURE}")
    given = ", ".join(f"{k} {n}" for k, n in zip(kinds, names, strict=True))
    return writer.op(f"call {kind} @{code}({given})")


def convert(writer: Writer, name: str, source: np.dtype, target: np.dtype, width: int) -> str:
    """The same value as another dtype.

    Floats beyond an integer's range become the least or the largest one, and NaN becomes 0 (`dtypes.converted`).
    """
    if source == target:
        return name
    through = _between(source, target)
    if through is not None:
        name = convert(writer, name, source, through, width)
        return name if target == through else convert(writer, name, through, target, width)
    if source == BFLOAT16:
        return _widened(writer, name, width)
    if target == BFLOAT16:
        return _narrowed(writer, name, width)
    here, there = type_of(source, width), type_of(target, width)
    if dtype_kind(target) == "b":
        test = "fcmp une" if dtype_kind(source) == "f" else "icmp ne"
        return writer.op(f"{test} {here} {name}, zeroinitializer")
    if dtype_kind(source) == "f" and dtype_kind(target) == "f":
        if (source.itemsize, target.itemsize) == (8, 2):
            name, here = _rounded_to_odd(writer, name, width), type_of(_FLOAT32, width)
        return writer.op(f"{'fpext' if target.itemsize > source.itemsize else 'fptrunc'} {here} {name} to {there}")
    if dtype_kind(source) == "f":
        return _saturated(writer, name, source, target, width)
    if dtype_kind(target) == "f":
        return writer.op(f"{'sitofp' if dtype_kind(source) == 'i' else 'uitofp'} {here} {name} to {there}")
    if target.itemsize == source.itemsize and dtype_kind(source) != "b":
        return name
    if target.itemsize < source.itemsize:
        return writer.op(f"trunc {here} {name} to {there}")
    return writer.op(f"{'sext' if dtype_kind(source) == 'i' else 'zext'} {here} {name} to {there}")


def _between(source: np.dtype, target: np.dtype) -> np.dtype | None:
    """The dtype by way of which a conversion goes, as it does in C: half floats.

    Whatever becomes a bfloat16 is rounded to a float first, as in JAX.
    """
    if target == BFLOAT16:
        return None if source == _FLOAT32 else _FLOAT32
    if dtype_kind(source) == "f" and source.itemsize == 2:
        return None if target == _FLOAT32 else _FLOAT32
    if dtype_kind(target) == "f" and target.itemsize == 2:
        # Integers that a float rounds are beyond a half anyway.
        return None if dtype_kind(source) == "f" else _FLOAT32
    return None


def _saturated(writer: Writer, name: str, source: np.dtype, target: np.dtype, width: int) -> str:
    """A float or double as an integer: cut to the ends that are floats too, converted, and put at the other ends.

    LLVM has a word for it, `llvm.fptosi.sat`, which takes twice as long.
    """
    real, through = type_of(source, width), _through(source, target)
    limits, one = np.iinfo(target), source.type
    lanes = type_of(np.dtype(bool), width)

    def every(number: np.generic, dtype: np.dtype) -> str:
        text = constant(number, dtype)
        return text if width == 1 else splat(text, dtype, width)

    def chosen(test: str, kind: str, a: str, b: str) -> str:
        return writer.op(f"select {lanes} {test}, {kind} {a}, {kind} {b}")

    def compared(relation: str, a: str, bound: str) -> str:
        return writer.op(f"fcmp {relation} {real} {a}, {bound}")

    low, high = every(one(limits.min), source), every(one(limits.max), source)
    has_high = int(one(limits.max)) == limits.max
    # A NaN is below nothing, and becomes the least number here.
    cut = chosen(compared("ogt", name, low), real, name, low)
    if has_high:
        cut = chosen(compared("olt", cut, high), real, cut, high)
    whole = type_of(through, width)
    code = "fptosi" if dtype_kind(through) == "i" else "fptoui"
    found = writer.op(f"freeze {whole} {writer.op(f'{code} {real} {cut} to {whole}')}")
    if not has_high:
        found = chosen(compared("oge", name, high), whole, every(through.type(limits.max), through), found)
    if limits.min:
        zero = "0" if width == 1 else "zeroinitializer"
        found = chosen(compared("uno", name, name), whole, zero, found)
    return convert(writer, found, through, target, width)


def _through(source: np.dtype, target: np.dtype) -> np.dtype:
    """Intermediate integer dtype of a conversion from float, as processors provide it."""
    if target.itemsize < 4:
        return _INT32
    return _INT64 if target == np.uint32 else target


def _widened(writer: Writer, name: str, width: int) -> str:
    """A bfloat16 as the float whose upper half it is."""
    half, whole = type_of(BFLOAT16, width), type_of(_INT32, width)
    bits = writer.op(f"zext {half} {name} to {whole}")
    bits = writer.op(f"shl {whole} {bits}, {_every(16, width)}")
    return writer.op(f"bitcast {whole} {bits} to {type_of(_FLOAT32, width)}")


def _narrowed(writer: Writer, name: str, width: int) -> str:
    """A float as the nearest bfloat16, of two the even one: half a unit is added to the bits, and what goes over is
    carried. A NaN, whose bits might be carried too far, keeps its sign alone."""
    single, half, whole = (type_of(dtype, width) for dtype in (_FLOAT32, BFLOAT16, _INT32))
    bits = writer.op(f"bitcast {single} {name} to {whole}")
    upper = writer.op(f"lshr {whole} {bits}, {_every(16, width)}")
    odd = writer.op(f"and {whole} {upper}, {_every(1, width)}")
    more = writer.op(f"add {whole} {odd}, {_every(0x7FFF, width)}")
    rounded = writer.op(f"add {whole} {bits}, {more}")
    rounded = writer.op(f"lshr {whole} {rounded}, {_every(16, width)}")
    sign = writer.op(f"and {whole} {upper}, {_every(0x8000, width)}")
    nan = writer.op(f"or {whole} {sign}, {_every(0x7FC0, width)}")
    is_nan = writer.op(f"fcmp uno {single} {name}, {name}")
    found = writer.op(f"select {type_of(np.dtype(bool), width)} {is_nan}, {whole} {nan}, {whole} {rounded}")
    return writer.op(f"trunc {whole} {found} to {half}")


def _every(number: int, width: int) -> str:
    """An i32 in every lane."""
    return str(number) if width == 1 else splat(str(number), _INT32, width)


def _rounded_to_odd(writer: Writer, name: str, width: int) -> str:
    """A double as a float whose last bit says whether anything was rounded away, so that rounding on rounds right.

    Source: S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    """
    double, single, integer = (type_of(dtype, width) for dtype in (_FLOAT64, _FLOAT32, _INT32))
    fabs = f"@llvm.fabs.{_suffix(_FLOAT64, width)}"
    writer.declare(f"{double} {fabs}({double})")
    near = writer.op(f"fptrunc {double} {name} to {single}")
    back = writer.op(f"fpext {single} {near} to {double}")
    sizes = [writer.op(f"call {double} {fabs}({double} {x})") for x in (back, name)]
    above = writer.op(f"fcmp ogt {double} {sizes[0]}, {sizes[1]}")
    below = writer.op(f"sext {type_of(np.dtype(bool), width)} {above} to {integer}")
    bits = writer.op(f"bitcast {single} {near} to {integer}")
    cut = writer.op(f"add {integer} {bits}, {below}")
    inexact = writer.op(f"fcmp une {double} {back}, {name}")
    last = writer.op(f"zext {type_of(np.dtype(bool), width)} {inexact} to {integer}")
    odd = writer.op(f"or {integer} {cut}, {last}")
    return writer.op(f"bitcast {integer} {odd} to {single}")
