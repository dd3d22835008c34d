"""The numbers and the elements that a machine computes with; every index is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.dtypes import converted, dtype_kind
from ctrlgrad.plan.checker import Replay
from ctrlgrad.plan.checking.memory import Cell, Content, RunningStack, Token
from ctrlgrad.plan.expression import Expression, Instruction
from ctrlgrad.plan.model import Array, Piece, Plan, Register, Stack, View
from ctrlgrad.plan.places import Buffer, Place
from ctrlgrad.plan.sizes import Size, Sizes

# Expressions computed by NumPy, at all points at once: the meaning of each primitive, checked for its dtype.


# The value of a leaf, by its instruction and its arguments.
Leaf = Callable[[Instruction, list[Any]], Any]


def evaluate(expression: Expression, leaf: Leaf) -> list[Any]:
    """The outputs of an expression. Raises TypeError where an instruction does not give the dtype that it says."""
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for number, instruction in enumerate(expression.instructions):
            args = [values[a] for a in instruction.args]
            if instruction.op == "constant":
                value = instruction.value
            elif instruction.op in ("load", "scalar", "index"):
                value = leaf(instruction, args)
            elif instruction.op == "call":
                value = _called(instruction.value)(*args)
            elif instruction.op in ("convert", "bits"):
                value = np.asarray(args[0])
                is_number = instruction.op == "convert"
                value = converted(value, instruction.dtype) if is_number else value.view(instruction.dtype)
            else:
                value = _PRIMITIVES[instruction.op](*args)
            if np.asarray(value).dtype != instruction.dtype:
                raise TypeError(f"%{number} is {np.asarray(value).dtype} in place of {instruction.dtype}")
            values.append(value)
    return [values[output] for output in expression.outputs]


def _divide(a: Any, b: Any) -> Any:
    if dtype_kind(np.asarray(a).dtype) == "f":
        return np.divide(a, b)
    return np.floor_divide(np.subtract(a, np.fmod(a, b)), b)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Rounded twice, the first time far below the dtype's precision."""
    dtype = np.asarray(a).dtype
    wide: Any = np.longdouble if dtype.itemsize == 8 else np.float64
    a, b, c = (np.asarray(x).astype(wide) for x in (a, b, c))
    return np.asarray(a * b + c).astype(dtype)


def _sigmoid(x: Any) -> Any:
    one = np.asarray(x).dtype.type(1)
    return np.where(np.less(x, 0), np.exp(x) / (one + np.exp(x)), one / (one + np.exp(np.negative(x))))


def _called(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = _CALLS[name] if name in _CALLS else getattr(np, name)
    return found


_PRIMITIVES: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "remainder": np.fmod,
    "negative": np.negative,
    "fma": _fma,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "copysign": np.copysign,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "select": np.where,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "sigmoid": _sigmoid,
    "integer_power": lambda x, y: np.power(x, np.maximum(y, 0)),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Of a kernel's space, what one thread does: positions along one axis."""

    axis: int
    start: int
    stop: int


class Data(Replay):
    """Values that a run has computed."""

    def __init__(self, plan: Plan, arguments: Sequence[Any]) -> None:
        super().__init__(plan)
        self.arguments = arguments
        self.values: dict[str, Any] = {}
        # Rows that a new stack begins with, and what an outside call gave.
        self.pending: list[Any] = []
        self.pending_results: list[Any] = []

    def evaluated(self, expression: Expression, leaf: Leaf) -> list[Any]:
        try:
            return evaluate(expression, leaf)
        except TypeError as error:
            self.fail(str(error))

    # Sizes and numbers.

    def size(self, size: Size) -> int:
        return size.factor * math.prod(int(self.values[name]) for name in size.names)

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(map(self.size, sizes))

    def assign(self, registers: Sequence[Register], value: Any) -> None:
        """A number to its registers: one, or two for a complex one."""
        parts = (value.real, value.imag) if len(registers) == 2 else (value,)
        for register, part in zip(registers, parts, strict=True):
            self.values[register.name] = register.dtype.type(part)

    def number(self, registers: Sequence[Register]) -> Any:
        parts = [self.values[register.name] for register in registers]
        if len(parts) == 1:
            return parts[0]
        return np.result_type(parts[0].dtype, np.complex64).type(complex(*parts))

    # Memory.

    def begin(self) -> None:
        plan = self.plan
        for argument, given in zip(plan.arguments, self.arguments, strict=True):
            if isinstance(argument, tuple):
                self.assign(argument, given)
        for register, number, axis in plan.sizes:
            given = self.arguments[number]
            row = given if isinstance(given, np.ndarray) else next((r for r in given if r is not None), None)
            self.values[register.name] = np.int64(0 if row is None else np.shape(row)[axis])
        super().begin()
        for buffer in plan.buffers:
            self._poison(buffer)

    def forget_local(self, piece: Piece) -> None:
        super().forget_local(piece)
        for number in (*piece.local, *self.plan.local):
            self._poison(self.plan.buffers[number])

    def _poison(self, buffer: Buffer) -> None:
        """Memory that is there before the run, with numbers that no program computes."""
        if buffer.is_known_at_entry:
            nbytes = self.size(buffer.count) * buffer.dtype.itemsize
            self.cells[Place("buffer", buffer.number)].data = poisoned(nbytes, buffer.dtype)

    def given(self, number: int, cell: Cell) -> None:
        cell.data = np.frombuffer(np.ascontiguousarray(self.arguments[number]).tobytes(), np.uint8)

    def given_constant(self, number: int, cell: Cell) -> None:
        cell.data = np.frombuffer(np.ascontiguousarray(self.plan.constants[number][1]).tobytes(), np.uint8)

    def given_rows(self, number: int, argument: Stack) -> Sequence[Content]:
        self.pending = list(self.arguments[number])
        return [Token(f"row {k} of {argument}") for k in range(len(self.pending))]

    def hold(self, stack: Stack, rows: Sequence[Content]) -> RunningStack:
        running = super().hold(stack, rows)
        for cell, row in zip(running.cells(), self.pending, strict=False):
            cell.data = self.row_data(stack, row)
        self.pending = []
        return running

    def row_data(self, stack: Stack, row: Any) -> Any:
        """A row as memory; as it is where rows differ in shape."""
        if row is None or self.plan.rows[stack] is None:
            return row
        return np.frombuffer(np.ascontiguousarray(row, stack.dtype).tobytes(), np.uint8)

    def row_of(self, stack: Stack, cell: Cell) -> Any:
        rows = self.plan.rows[stack]
        if cell.data is None or rows is None:
            return cell.data
        if stack.holds == "elements":
            return cell.data.view(stack.dtype).copy()
        shape = self.shape(rows)
        return cell.data[: math.prod(shape) * stack.dtype.itemsize].view(stack.dtype).reshape(shape).copy()

    def elements(self, cell: Cell, array: Array) -> np.ndarray:
        """The elements of the array that lies in a cell."""
        nbytes = self.size(array.count) * array.dtype.itemsize
        if cell.data is None or cell.data.nbytes < nbytes:
            self.fail(f"{array} has {nbytes} bytes, its memory {0 if cell.data is None else cell.data.nbytes}")
        found: np.ndarray = cell.data[:nbytes].view(array.dtype)
        return found

    def allocated(self, cell: Cell, array: Array) -> None:
        nbytes = self.size(array.count) * array.dtype.itemsize
        is_fixed = any(
            self.cells.get(Place("buffer", b.number)) is cell for b in self.plan.buffers if b.is_known_at_entry
        )
        if not is_fixed:
            cell.data = poisoned(nbytes, array.dtype)
            return
        if cell.data.nbytes < nbytes:
            self.fail(f"{array} has {nbytes} bytes, its buffer {cell.data.nbytes}")
        cell.data[:nbytes] = poisoned(nbytes, array.dtype)

    def copied(self, array: Array, source: Cell, target: Cell) -> None:
        elements = self.elements(source, array).copy()
        self.allocated(target, array)
        self.elements(target, array)[...] = elements

    def addresses(self, view: View, part: Part | None = None) -> np.ndarray:
        """Addresses of a view's elements in its array: of all, or of a part of them."""
        shape = self.shape(view.shape)
        total = np.asarray(sum(self.size(term) for term in view.offset), np.int64)
        for axis, stride in enumerate(view.strides):
            start, stop = (part.start, part.stop) if part is not None and part.axis == axis else (0, shape[axis])
            steps = np.arange(start, stop, dtype=np.int64) * self.size(stride)
            total = total[..., None] + steps
        return total

    def inside(self, addresses: np.ndarray, array: Array) -> np.ndarray:
        """Addresses that are all in an array."""
        if addresses.size and (addresses.min() < 0 or addresses.max() >= self.size(array.count)):
            self.fail(f"an element of {array} beyond its {self.size(array.count)} is touched")
        return addresses

    def gathered(self, view: View, cell: Cell) -> np.ndarray:
        """The elements of a view."""
        found: np.ndarray = self.elements(cell, view.array)[self.inside(self.addresses(view), view.array)]
        return found


def poisoned(nbytes: int, dtype: np.dtype) -> np.ndarray:
    """Unwritten memory, filled with NaNs, or with a pattern where the dtype has none."""
    return np.full(nbytes, 0xFF if dtype_kind(dtype) in "fc" else 0x5A, np.uint8)
