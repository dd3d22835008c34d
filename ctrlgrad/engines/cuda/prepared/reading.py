"""One reading of a loop's body: what the slots of its program hold in the middle of an iteration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.group_step import GroupStep
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.kernels.arrays import add_product
from ctrlgrad.engines.cuda.prepared.launches import INT64, Launches
from ctrlgrad.engines.cuda.prepared.model import (
    Affine,
    Buffer,
    CannotPrepare,
    Carried,
    Converted,
    Fixed,
    Given,
    Operand,
    Rows,
    Shape,
    View,
    contiguous,
)
from ctrlgrad.engines.cuda.program import NodeStep, Program, Step
from ctrlgrad.engines.cuda.texts import TextBuilder
from ctrlgrad.ir import Node
from ctrlgrad.plan.elementwise import Operand as Element


@dataclass(frozen=True)
class ArrayInput:
    """An array on the device that the body is given."""

    dtype: np.dtype
    shape: Shape
    strides: Shape


@dataclass(frozen=True)
class NumberInput:
    """A number on the host."""

    dtype: np.dtype


@dataclass(frozen=True)
class StackInput:
    """A stack, in blocks on the device or as a list."""

    is_blocks: bool


Input = ArrayInput | NumberInput | StackInput


@dataclass(frozen=True)
class StackValue:
    """A carried stack, with the rows that were pushed and popped so far."""

    position: int
    pushed: int = 0
    popped: int = 0


@dataclass(frozen=True)
class Unusable:
    """A value that no prepared launch can read, and why."""

    reason: str


@dataclass(frozen=True, eq=False)
class Computed:
    """A number that the host would compute: where it is read the card computes it, of numbers that go by steps."""

    node: Node
    operands: tuple[Operand | Computed, ...]


@dataclass
class Rates:
    """What an iteration adds to each carry: to an integer on the host, and rows to a stack. By the carry's position.

    Found in one reading, used in the next.
    """

    numbers: dict[int, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)


class Reading:
    """Values by slot, and the launches so far."""

    def __init__(self, program: Program, inputs: Sequence[Input], captures: int, rates: Rates) -> None:
        self.program, self.captures, self.rates = program, captures, rates
        self.launches = Launches()
        self.bounds: list[tuple[Affine, int]] = []
        self.pushes: list[tuple[Node, int]] = []
        self.pops: list[Node] = []
        self.row_types: dict[int, tuple[Shape, np.dtype]] = {}
        self._numbers: dict[Computed, View] = {}
        self.values: dict[int, Any] = {slot: self._input(slot, given) for slot, given in enumerate(inputs)}
        self.values.update((slot, _constant(slot, x)) for slot, x in program.constants.items())
        # The step that is read now, and where each slot is read last.
        self.position = 0
        self.last = dict.fromkeys(program.outputs, len(program.steps))
        for position in reversed(range(len(program.steps))):
            for slot in slots_read(program.steps[position]):
                self.last.setdefault(slot, position)

    def _input(self, slot: int, given: Input) -> Any:
        position = slot - self.captures
        if isinstance(given, ArrayInput):
            if position < 0:
                return View(Given(slot), given.dtype, given.shape, given.strides)
            return View(Carried(position), given.dtype, given.shape, contiguous(given.shape, given.dtype))
        if isinstance(given, NumberInput):
            if given.dtype == INT64:
                return Affine(0, ((slot, 1),), self.rates.numbers.get(position, 0))
            stays = position < 0 or self.program.outputs[position] == slot
            return (
                Fixed(given.dtype, slot=slot) if stays else Unusable(f"a number of {given.dtype} changes on the host")
            )
        if not given.is_blocks:
            return Unusable("a stack is a list of rows")
        return StackValue(position) if position >= 0 else Unusable("a stack of another loop is read")

    # Values.

    def value(self, slot: int) -> Any:
        found = self.values[slot]
        if isinstance(found, Unusable):
            raise CannotPrepare(found.reason)
        return found

    def operand(self, slot: int) -> Operand:
        """An array or a number."""
        found = self.value(slot)
        if isinstance(found, Computed):
            return self.computed(found)
        if not isinstance(found, View | Fixed | Affine | Converted):
            raise CannotPrepare("a stack is no operand of a kernel")
        return found

    def computed(self, number: Computed) -> View:
        """A buffer that one kernel writes a number to."""
        if number not in self._numbers:
            text, operands = _text_of(number)
            self._numbers[number] = self.launches.buffer((), number.node.result.tensor.dtype)
            self.launches.kernel(text, (), operands, [self._numbers[number]])
        return self._numbers[number]

    def view(self, slot: int) -> View:
        """An array; a number is written into one."""
        found = self.operand(slot)
        return found if isinstance(found, View) else self.launches.copy(found)

    # Stacks.

    def stack(self, slot: int) -> StackValue:
        found = self.value(slot)
        if not isinstance(found, StackValue):
            raise CannotPrepare("a stack is made inside")
        return found

    def row(self, stack: StackValue, number: int, shape: Shape, dtype: np.dtype) -> View:
        """A row by its number from where the iteration begins: below 0 for one that is popped."""
        if self.row_types.setdefault(stack.position, (shape, dtype)) != (shape, dtype):
            raise CannotPrepare("rows of one stack differ in shape")
        row = View(Rows(stack.position), dtype, shape, contiguous(shape, dtype))
        nbytes = row.size * dtype.itemsize
        step = self.rates.rows.get(stack.position, 1) * nbytes
        return View(row.source, dtype, shape, row.strides, number * nbytes, Affine(0, (), step))

    # Updates in place.

    def own(self, slot: int, operands: Sequence[int]) -> View:
        """The array in a slot as one that the step may overwrite, which has these other operands: itself, or a copy."""
        view = self.view(slot)
        if self.is_whole(view) and not self._is_read_later(view, operands):
            return view
        return self.launches.copy(view)

    def is_whole(self, view: View) -> bool:
        """Whether a view is all of some memory of the loop's own, in its order."""
        if isinstance(view.source, Buffer):
            shape, _ = self.launches.buffers[view.source.number]
        elif isinstance(view.source, Carried):
            shape = self.values[self.captures + view.source.position].shape
        else:
            return False
        return view.is_contiguous and not view.is_moving and not view.offset and math.prod(shape) == view.size

    def _is_read_later(self, view: View, operands: Sequence[int]) -> bool:
        sharing = {n for n, x in self.values.items() if isinstance(x, View) and x.source == view.source}
        return bool(sharing & set(operands)) or any(self.last.get(n, -1) > self.position for n in sharing)

    def is_updated(self, view: View) -> bool:
        """Whether some step from here on may overwrite a view's memory in place."""
        sharing = {n for n, x in self.values.items() if isinstance(x, View) and x.source == view.source}
        return any(n in sharing for n in self._updated(self.position))

    def _updated(self, position: int) -> Iterator[int]:
        for step in self.program.steps[position:]:
            if isinstance(step, NodeStep) and (step.kernel is add_product or step.node.op.updates):
                yield step.operands[0]


def _constant(slot: int, x: np.ndarray) -> Any:
    if x.ndim:
        return View(Given(slot), x.dtype, x.shape, contiguous(x.shape, x.dtype))
    return Affine(int(x)) if x.dtype == INT64 else Fixed(x.dtype, x[()])


def _text_of(number: Computed) -> tuple[KernelText, list[Operand]]:
    """The kernel that computes a number, with all that it is made of, and what it reads."""
    builder, operands = TextBuilder(), list[Operand]()
    found: dict[Computed, Element] = {}

    def element(x: Computed) -> Element:
        if x not in found:
            dtypes = [v.tensor.dtype for v in x.node.operands]
            read = [
                element(y) if isinstance(y, Computed) else leaf(y, dtype)
                for y, dtype in zip(x.operands, dtypes, strict=True)
            ]
            found[x] = builder.elementwise(x.node.op.name, read, dtypes, x.node.result.tensor.dtype)
        return found[x]

    def leaf(operand: Operand, dtype: np.dtype) -> Element:
        operands.append(operand)
        return builder.input(dtype)

    return builder.text(element(number), number.node.result.tensor.dtype), operands


def slots_read(step: Step) -> tuple[int, ...]:
    """The slots of a step's operands."""
    if isinstance(step, GroupStep):
        return (*step.reads, *(write.stack for write in step.writes if write.stack is not None))
    assert isinstance(step, NodeStep)
    return step.operands


__all__ = [
    "ArrayInput",
    "Computed",
    "Input",
    "NumberInput",
    "Rates",
    "Reading",
    "StackInput",
    "StackValue",
    "Unusable",
    "slots_read",
]
