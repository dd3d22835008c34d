"""A region as a list of steps over numbered slots, and how they run.

As in the reference engine a slot is cleared at its value's last use, so memory goes back as early as it can, and what
nothing else holds is updated in place. Constants lie in their slots from the start; those on the device were sent there
once, or in a session once a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.engines.sizes_of_a_run import refused
from ctrlgrad.ir import Node, StackType, Type, Value

Values = list[Any]
# Where a node runs, for the report.
Where = Literal["device", "host", "through the host"]


class Step(Protocol):
    """One thing that is done: a node, or a group of nodes."""

    @property
    def node(self) -> Node:
        """The node that an error names."""

    @property
    def reads(self) -> tuple[int, ...]:
        """Slots of the operands."""

    @property
    def updates(self) -> tuple[int, ...]:
        """Slots of the operands that it may overwrite."""

    def __call__(self, values: Values, context: Context) -> None:
        """Read operands from their slots, clear those that die, write results to theirs."""


@dataclass(slots=True)
class NodeStep:
    """One node: `kernel(context, operands)` gives its result, or a sequence of results."""

    node: Node
    kernel: Callable[[Context, list[Any]], Any]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    dead: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()
    where: Where = "device"
    updates: tuple[int, ...] = ()
    # True if a product is added to the first operand.
    is_sum: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        return self.operands

    def __call__(self, values: Values, context: Context) -> None:
        operands = [values[slot] for slot in self.operands]
        for slot in self.dead:
            values[slot] = None
        try:
            result = self.kernel(context, operands)
        except ValueError as error:
            misfit = refused(self.node, operands)
            if misfit is None:
                raise
            raise misfit from error
        if len(self.results) == 1:
            values[self.results[0]] = result
        else:
            for slot, value in zip(self.results, result, strict=True):
                values[slot] = value
        for slot in self.unused:
            values[slot] = None


@dataclass
class Slots:
    """The slots of a region's values."""

    numbers: dict[Value, int] = field(default_factory=dict)

    def of(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def all_of(self, values: Iterable[Value]) -> tuple[int, ...]:
        return tuple(self.of(v) for v in values)


@dataclass(eq=False)
class Program:
    """A region, ready to run. The inputs are the first slots."""

    inputs: int
    unused_inputs: tuple[int, ...]
    # Constants by slot: host scalars, and host arrays that are sent to the device at the first run.
    constants: dict[int, Any]
    size: int
    steps: list[Step]
    outputs: tuple[int, ...]
    # Outputs that are on the host and are wanted on the device: their types by position.
    uploads: Mapping[int, Type]
    template: list[Any] | None = None

    def __call__(self, values: Values, context: Context) -> Values:
        """Run on input values. Takes the list over: it is emptied as its values die."""
        values += self._rest(context)
        for slot in self.unused_inputs:
            values[slot] = None
        step = None
        try:
            for step in self.steps:
                step(values, context)
        except Exception as error:
            assert step is not None
            found = explained(error, step.node)
            if found is error:
                raise
            raise found from error
        outputs = [values[slot] for slot in self.outputs]
        for position, its in self.uploads.items():
            outputs[position] = to_device(context, outputs[position], its)
        return outputs

    def held(self, context: Context) -> dict[int, Any]:
        """The constants by slot, as a run has them."""
        rest = self._rest(context)
        return {slot: rest[slot - self.inputs] for slot in self.constants}

    def _rest(self, context: Context) -> list[Any]:
        """The slots above the inputs, constants in theirs."""
        if context.memory is None:
            if self.template is None:
                self.template = self._sent(context)
            return self.template
        # In a session they count, and go with the run.
        if self not in context.constants:
            context.constants[self] = self._sent(context)
        return context.constants[self]

    def _sent(self, context: Context) -> list[Any]:
        sent: list[Any] = [None] * (self.size - self.inputs)
        for slot, x in self.constants.items():
            sent[slot - self.inputs] = scalar(x) if x.ndim == 0 else context.on_device(x)
        return sent


class Regions:
    """Base of the kernels of branches: one program for each region, of which one runs."""

    programs: list[Program]


def scalar(x: Any) -> Any:
    """A host value, never an array of rank 0: kernels take scalars by value."""
    return x[()] if isinstance(x, np.ndarray) and x.ndim == 0 else x


def to_device(context: Context, value: Any, its: Type) -> Any:
    """A value or a stack of either side on the device."""
    return context.stack_on_device(value, its.element.dtype) if isinstance(its, StackType) else context.on_device(value)
