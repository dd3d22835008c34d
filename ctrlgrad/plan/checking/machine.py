"""Checked execution: a machine that computes a placed plan in its places, one step after the other, with NumPy.

Every read is checked as `replay` does, by name and iteration; every index against the array that it goes into; memory
that nobody has written holds NaN. Ops outside of plans are computed by a function that is given.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.ir import Node
from ctrlgrad.plan import model
from ctrlgrad.plan.checking.data import Data
from ctrlgrad.plan.checking.factors import factorised
from ctrlgrad.plan.checking.kernels import RunEndedError, drawn_parts, run_kernel
from ctrlgrad.plan.checking.memory import Cell
from ctrlgrad.plan.checking.repeating import Repeating
from ctrlgrad.plan.columns import is_laid_out
from ctrlgrad.plan.expression import Instruction
from ctrlgrad.plan.model import Array, Plan, Stack, Step, Value, View
from ctrlgrad.plan.places import Place

# Computes a node outside: arrays, numbers and lists of rows come and go.
OutsideCall = Callable[[Node, list[Any]], list[Any]]


def execute(
    plan: Plan,
    arguments: Sequence[Any],
    outside: OutsideCall,
    *,
    rows_per_block: int = 3,
    threads: random.Random | None = None,
    repeats: bool = False,
) -> list[Any]:
    """The results of a placed plan. Raises `PlanError` where it does not do what it says, and `RunEndedError`.

    With `threads`, kernels and products are cut into parts as that draws them, which run in the order that it draws;
    none may touch an element that another one writes. `repeats`: every chunk that can be run again is, and must give
    the same.
    """
    machine = _Machine(plan, arguments, outside, rows_per_block, threads)
    if repeats:
        machine.repeating = Repeating(machine, functools.partial(_executed, outside, rows_per_block))
    machine.run()
    return machine.results()


def _executed(outside: OutsideCall, rows_per_block: int, plan: Plan, arguments: Sequence[Any]) -> list[Any]:
    return execute(plan, arguments, outside, rows_per_block=rows_per_block)


class _Machine(Data):
    def __init__(
        self,
        plan: Plan,
        arguments: Sequence[Any],
        outside: OutsideCall,
        rows_per_block: int,
        draw: random.Random | None,
    ) -> None:
        super().__init__(plan, arguments)
        self.outside_call, self.rows_per_block, self.draw = outside, rows_per_block, draw
        self.heads = 0
        self.repeating: Repeating | None = None

    # Control.

    def capacity(self) -> int:
        return self.rows_per_block

    def chunk_ends(self) -> bool:
        # The first iteration begins a chunk.
        self.heads += 1
        return self.heads % 3 == 0 or self.iterations[-1][1] == 0

    def chunk_ended(self, step: model.Loop, iteration: int) -> None:
        if self.repeating is not None and step in self.in_chunks:
            self.repeating.at_head(step, iteration)

    def goes_on(self, step: model.Loop, iteration: int) -> bool:
        runs = bool(self.values[step.test.name])
        if runs and step.maximum is not None and iteration >= step.maximum:
            raise RunEndedError("iterations", step.number, iteration)
        return runs

    def counted(self, step: model.Loop, iteration: int) -> None:
        self.values[step.counter.name] = np.int64(iteration)

    def carried(self, sources: Sequence[Value], targets: Sequence[Value]) -> None:
        found = [self.values[source.name] for source in sources]
        self.values.update((target.name, value) for target, value in zip(targets, found, strict=True))

    def chosen(self, step: model.Branch) -> int:
        return min(max(int(self.values[step.selector.name]), 0), len(step.blocks) - 1)

    # Steps.

    def computed(self, step: Step, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        run = getattr(self, f"run_{step.kind}", None)
        if run is not None:
            run(step, reads, writes)

    def run_compute(self, step: model.Compute, *_: object) -> None:
        def leaf(instruction: Instruction, args: list[Any]) -> Any:
            return self.values[step.operands[instruction.value].name]

        for register, value in zip(step.results, self.evaluated(step.expression, leaf), strict=True):
            self.values[register.name] = np.asarray(value)[()]

    def run_load(self, step: model.Load, reads: Sequence[Cell], _: object) -> None:
        self.assign(step.results, self.gathered(step.view, reads[0])[()])

    def run_guard(self, step: model.Guard, *_: object) -> None:
        if not self.values[step.condition.name]:
            found = None if step.found is None else self.values[step.found.name]
            raise RunEndedError(step.status, step.site, found)

    def run_length(self, step: model.Length, *_: object) -> None:
        self.values[step.result.name] = np.int64(self.length(step.stack))

    def run_kernel(self, step: model.Kernel, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        run_kernel(self, step, reads, writes, self.draw)

    def run_pack(self, step: model.Pack, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        packed = self.gathered(step.view, reads[0]).ravel()
        self.elements(writes[0], step.result)[: packed.size] = packed

    def run_columns(self, step: model.Columns, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        columns = self.gathered(step.view, reads[0]).T
        terms, rows = columns.shape
        if is_laid_out(terms, rows, step.result.count.factor):
            self.elements(writes[0], step.result)[: columns.size] = columns.ravel()

    def run_product(self, step: model.Product, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        a, b = self.gathered(step.a, reads[0]), self.gathered(step.b, reads[1])
        if step.packed is not None:
            b = self.elements(reads[2], step.packed)[: b.size].reshape(b.shape)
        with np.errstate(all="ignore"):
            found = np.matmul(a, b) if self.draw is None else self.multiplied_in_parts(a, b, self.draw)
        self.give(step.result, found, writes[0], step.base is not None)

    def run_factorise(self, step: model.Factorise, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        views = [view for view in (step.a, step.b) if view is not None]
        found = factorised(step, [self.gathered(view, cell) for view, cell in zip(views, reads, strict=True)])
        self.values[step.done.name] = np.bool_(found is not None)
        if found is not None:
            self.give(step.result, found, writes[0])

    def give(self, result: Array, found: np.ndarray, cell: Cell, is_added: bool = False) -> None:
        """Write an array, or add to it."""
        elements = self.elements(cell, result)
        if found.dtype != elements.dtype or found.size != elements.size:
            self.fail(f"what is computed is {found.dtype}{found.shape}, {result} is not")
        elements[...] = elements + found.ravel() if is_added else found.ravel()

    def run_to_stack(self, step: model.ToStack, reads: Sequence[Cell], _: object) -> None:
        self.pending = list(self.gathered(step.rows, reads[0]))

    def multiplied_in_parts(self, a: np.ndarray, b: np.ndarray, draw: random.Random) -> np.ndarray:
        """A product whose rows, or columns, are cut: each part is a product of its own."""
        by_rows = draw.random() < 0.5
        parts = drawn_parts(a.shape[-2] if by_rows else b.shape[-1], draw)
        found = [np.matmul(a[..., p, :], b) if by_rows else np.matmul(a, b[..., p]) for p in parts]
        order = sorted(range(len(parts)), key=lambda k: parts[k].start)
        return np.concatenate([found[k] for k in order], axis=-2 if by_rows else -1)

    def run_outside(self, step: model.Outside, reads: Sequence[Cell], _: object) -> None:
        arrays = iter(reads)
        operands: list[Any] = []
        for position, item in enumerate(step.operands):
            if isinstance(item, View):
                operands.append(self.gathered(item, next(arrays)))
            elif isinstance(item, Stack):
                operands.append([self.row_of(item, cell) for cell in self.operands[position].cells()])
            else:
                operands.append(self.number(item))
        self.pending_results = self.outside_call(step.node, operands)
        for register, result, axis in step.sizes:
            self.values[register.name] = np.int64(np.shape(self.pending_results[result])[axis])
        for result_item, value in zip(step.results, self.pending_results, strict=True):
            if isinstance(result_item, tuple):
                self.assign(result_item, value)

    def new_rows(self, step: model.NewStack | model.ToStack | model.Outside, result: Stack) -> int:
        if isinstance(step, model.ToStack):
            return len(self.pending)
        if isinstance(step, model.NewStack):
            return 0 if step.size is None else int(self.values[step.size.name])
        position = next(k for k, item in enumerate(step.results) if item is result)
        self.pending = list(self.pending_results[position])
        return len(self.pending)

    def finished(self, step: model.Outside, targets: Sequence[Cell]) -> None:
        cells = iter(targets)
        for item, value in zip(step.results, self.pending_results, strict=True):
            if isinstance(item, Array):
                if np.shape(value) != self.shape(item.shape) or value.dtype != item.dtype:
                    self.fail(f"{step.node.op.name} gives {value.dtype}{np.shape(value)}, {item} is not")
                self.elements(next(cells), item)[...] = np.ravel(value)
        self.pending_results = []

    # Rows.

    def row_index(self, step: model.ReadRow | model.WriteRow, length: int) -> int | None:
        given = int(self.values[step.index.name])
        index = given + length if given < 0 else given
        grows = isinstance(step, model.WriteRow) and step.grow and given >= 0
        if not 0 <= index < length + grows:
            raise RunEndedError("index", step.site, given)
        return index

    def put_row(self, step: model.Push | model.WriteRow, source: Cell | None, target: Cell) -> None:
        stack = step.stack
        if isinstance(step.row, View):
            assert source is not None
            row = self.gathered(step.row, source).astype(stack.dtype, copy=False)
        else:
            row = np.asarray(self.number(step.row), stack.dtype)
        if isinstance(step, model.WriteRow):
            if step.once and target.data is not None:
                raise RunEndedError("twice", step.site)
            if step.how == "add" and target.data is not None:
                row = self.row_of(stack, target) + row
        target.data = np.frombuffer(np.ascontiguousarray(row).tobytes(), np.uint8).copy()

    def got_row(self, step: model.Pop | model.ReadRow, source: Cell, target: Cell | None) -> None:
        rows = self.plan.rows[step.stack]
        assert rows is not None
        if step.stack.holds == "elements":
            assert isinstance(step.row, Array)
            nbytes = self.size(step.row.count) * step.row.dtype.itemsize
            if source.data.nbytes != nbytes:
                self.fail(f"{source.data.nbytes} bytes were pushed on {step.stack}, {step.row} has {nbytes}")
        if target is source:
            if source.data is None:  # never written: it holds zeros, and belongs to no stack any more
                source.data = np.zeros(math.prod(self.shape(rows)) * step.stack.dtype.itemsize, np.uint8)
            return
        row = self.row_of(step.stack, source)
        if row is None:
            row = np.zeros(self.shape(rows), step.stack.dtype)
        if isinstance(step.row, Array):
            assert target is not None
            self.elements(target, step.row)[...] = row.ravel()
        else:
            self.assign(step.row, row[()])

    def got_rows(self, step: model.FromStack, sources: Sequence[Cell], target: Cell) -> None:
        shape = self.shape(step.result.shape)
        if step.stack.holds == "elements":
            count = self.length(step.stack)
            if count != math.prod(shape):
                self.fail(f"{step.stack} has {count} elements, {step.result} has not")
            runs = [self.row_of(step.stack, source) for source in sources]
            self.elements(target, step.result)[...] = np.concatenate(runs) if runs else ()
            return
        if len(sources) != shape[0]:
            self.fail(f"{step.stack} has {len(sources)} rows, {step.result} has not")
        rows = [self.row_of(step.stack, source) for source in sources]
        blank = np.zeros(shape[1:], step.stack.dtype)
        elements = self.elements(target, step.result).reshape(shape)
        for k, row in enumerate(rows):
            elements[k] = blank if row is None else row

    def length(self, stack: Stack) -> int:
        """How many rows, or elements, a stack has."""
        running = self.stack(stack)
        if stack.holds != "elements":
            return len(running)
        nbytes: int = sum(cell.data.nbytes for cell in running.cells())
        return nbytes // stack.dtype.itemsize

    def underflow(self, step: model.Pop) -> Cell:
        raise RunEndedError("empty", 0)

    # Results.

    def results(self) -> list[Any]:
        buffers = {b.result: Place("buffer", b.number) for b in self.plan.buffers if b.result is not None}
        found: list[Any] = []
        for number, result in enumerate(self.plan.results):
            if isinstance(result, Array):
                elements = self.elements(self.cells[buffers[number]], result)
                found.append(elements.reshape(self.shape(result.shape)).copy())
            elif isinstance(result, Stack):
                found.append([self.row_of(result, cell) for cell in self.stack(result).cells()])
            else:
                found.append(self.number(result))
        return found
