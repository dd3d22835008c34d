"""Kernels computed by NumPy: all points at once, or part by part as several threads would.

Parts run one after the other, in any order; that none reads or writes an element that another one writes is checked
element by element, so what they give does not depend on when each runs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.plan.checking.data import Data, Part
from ctrlgrad.plan.checking.memory import Cell
from ctrlgrad.plan.columns import is_laid_out, matrix_of
from ctrlgrad.plan.expression import Instruction
from ctrlgrad.plan.model import Array, Kernel, View, Write
from ctrlgrad.plan.reductions import EXTREMES, neutral_of
from ctrlgrad.plan.sharing import shared_axes

_REDUCTIONS = {"sum": np.add, "product": np.multiply, "max": np.maximum, "min": np.minimum}
# Parts of what is shared, at most.
MOST_PARTS = 4


class RunEndedError(Exception):
    """The plan ended the run: a guard or check does not hold; `status` as that of a `Guard`."""

    def __init__(self, status: str, site: int, found: object = None) -> None:
        super().__init__(f"{status} at site {site}, found {found}")
        self.status, self.site, self.found = status, site, found


def run_kernel(
    data: Data, step: Kernel, reads: Sequence[Cell], writes: Sequence[Cell], draw: random.Random | None
) -> None:
    """Compute a kernel whose operands and results lie in these cells; in parts, if there is someone to draw them."""
    run = _KernelRun(data, step, reads, writes)
    axes = shared_axes(step) if draw is not None else ()
    if draw is None or not axes:
        run.part(None)
        return
    axis = draw.choice(axes)
    for part in drawn_parts(run.space[axis], draw):
        run.part(Part(axis, part.start, part.stop))
    run.compare()


def drawn_parts(length: int, draw: random.Random) -> list[slice]:
    """Parts of 0, 1, ... below `length`, in the order in which they run."""
    cuts = sorted(draw.sample(range(1, length), min(draw.randint(0, MOST_PARTS - 1), length - 1))) if length > 1 else []
    found = [slice(start, stop) for start, stop in zip([0, *cuts], [*cuts, length], strict=True)]
    draw.shuffle(found)
    return found


class _KernelRun:
    def __init__(self, data: Data, step: Kernel, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        self.data, self.step, self.reads, self.writes = data, step, reads, writes
        self.space = data.shape(step.space)
        self.has_begun = False
        # For each part the elements that it reads and writes, with their cells.
        self.touched: list[tuple[list[tuple[Cell, np.ndarray]], list[tuple[Cell, np.ndarray]]]] = []

    def part(self, part: Part | None) -> None:
        """Compute all points, or those of a part."""
        data, step = self.data, self.step
        self.touched.append(([], []))
        shape = [*self.space]
        if part is not None:
            shape[part.axis] = part.stop - part.start
        beyond: list[Array] = []

        def leaf(instruction: Instruction, args: list[Any]) -> Any:
            if instruction.op == "scalar":
                return data.values[step.numbers[instruction.value].name]
            if instruction.op == "index":
                axis = instruction.value
                start = part.start if part is not None and part.axis == axis else 0
                steps = np.arange(start, start + shape[axis], dtype=np.int64)
                return steps.reshape((-1,) + (1,) * (len(shape) - axis - 1))
            return self.loaded(instruction, args, part, beyond)

        outputs = data.evaluated(step.expression, leaf)
        for check in step.checks:
            holds = np.broadcast_to(outputs[check.output], shape)
            if not holds.all():
                found = np.broadcast_to(outputs[check.found], shape)[~holds][0]
                raise RunEndedError(check.status, check.site, found)
        if beyond:
            data.fail(f"an element beyond {beyond[0]} is read")
        if not self.has_begun:
            self.begin(part)
        for write, cell in zip(step.writes, self.writes, strict=True):
            self.store(write, cell, tuple(shape), outputs, part)

    def loaded(self, instruction: Instruction, args: list[Any], part: Part | None, beyond: list[Array]) -> np.ndarray:
        data, (number, which) = self.data, instruction.value
        operand, cell = self.step.operands[number], self.reads[number]
        view = operand.view
        if operand.columns is not None and self.has_columns(operand.columns):
            # Beside the operands' cells are those of the columns.
            before = sum(other.columns is not None for other in self.step.operands[:number])
            view, cell = operand.columns, self.reads[len(self.step.operands) + before]
        addresses = data.addresses(view, part)
        for at, stride in zip(args, operand.gathered, strict=True):
            addresses = addresses + np.asarray(at, np.int64) * data.size(stride)
        elements = data.elements(cell, view.array)
        if addresses.size and (addresses.min() < 0 or addresses.max() >= elements.size):
            beyond.append(view.array)
            elements, addresses = np.zeros(1, elements.dtype), np.zeros_like(addresses)
        self.touched[-1][0].append((cell, addresses))
        found: np.ndarray = elements[addresses]
        return (found.real, found.imag)[which] if dtype_kind(found.dtype) == "c" else found

    def has_columns(self, view: View) -> bool:
        """Whether a run has laid out the columns that a view shows."""
        rows, terms = (self.data.size(n) for n in matrix_of(view))
        return is_laid_out(terms, rows, view.array.count.factor)

    def begin(self, part: Part | None) -> None:
        """Before the first element is written: what was never written is told by its value."""
        self.has_begun = True
        for write, cell in zip(self.step.writes, self.writes, strict=True):
            if write.base is not None:
                continue
            array = write.view.array
            # Other parts may still read what lies there.
            if part is None or not any(cell is other for other in self.reads):
                self.data.allocated(cell, array)
            if write.how != "store":
                self.data.elements(cell, array)[...] = neutral_of(write.how, array.dtype)

    def store(
        self, write: Write, cell: Cell, shape: tuple[int, ...], outputs: Sequence[Any], part: Part | None
    ) -> None:
        data, array = self.data, write.view.array
        elements = data.elements(cell, array)
        addresses = data.addresses(write.view, part)
        for output, stride in zip(write.indices, write.scattered, strict=True):
            addresses = addresses + np.asarray(outputs[output], np.int64) * data.size(stride)
        at = data.inside(np.broadcast_to(addresses, shape), array).ravel()
        self.touched[-1][1].append((cell, at))
        parts = [np.broadcast_to(outputs[o], shape).ravel() for o in write.outputs]
        how = write.how
        with np.errstate(all="ignore"):
            if how == "dot":
                how, parts = "sum", [parts[0] * parts[1]]
            elif how in EXTREMES:
                at, position = _first_extremes(EXTREMES[how], at, *parts)
                how, parts = "store", [position]
        targets = [elements.real, elements.imag] if dtype_kind(array.dtype) == "c" else [elements]
        for target, values in zip(targets, parts, strict=True):
            if values.dtype != target.dtype:
                data.fail(f"{values.dtype} is written to {array}, of {array.dtype}")
            if how == "store":
                target[at] = values
            else:
                with np.errstate(all="ignore"):
                    _REDUCTIONS[how].at(target, at, values)

    def compare(self) -> None:
        """No part touches what another one writes."""
        for k, (_, written) in enumerate(self.touched):
            for other, (read, also_written) in enumerate(self.touched):
                if other == k:
                    continue
                for cell, elements in written:
                    for whose, its in (*read, *also_written):
                        if whose is cell and np.isin(its, elements).any():
                            self.data.fail("two parts that may run at the same time touch one element")


def _first_extremes(
    how: str, at: np.ndarray, values: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where positions go, and which: for each place that of the first extreme, a NaN being beyond all numbers."""
    found: dict[int, tuple[np.generic, np.generic]] = {}
    for place, value, position in zip(at.tolist(), values, positions, strict=True):
        if place in found:
            best = found[place][0]
            is_beyond = value > best if how == "max" else value < best
            if not (is_beyond or (value != value and best == best)):
                continue
        found[place] = value, position
    return np.array([*found], np.intp), np.array([position for _, position in found.values()], np.int64)
