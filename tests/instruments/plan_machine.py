"""Checked execution: a machine that computes a placed plan in its places, one step after the other, with NumPy.

Every read is checked as `replay` does, by name and iteration; every index against the array that it goes into; memory
that has not been written holds NaN. Ops outside of plans are computed by a function that is given.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Node
from ctrlgrad.ir.attributes import Triangle
from ctrlgrad.ops.linalg import signed
from ctrlgrad.plan import model
from ctrlgrad.plan.checking.memory import Cell
from ctrlgrad.plan.chunks import LoopPlan, chunked_loop, loop_plan
from ctrlgrad.plan.columns import is_laid_out, matrix_of
from ctrlgrad.plan.expression import Instruction
from ctrlgrad.plan.model import Array, Factorise, Kernel, Loop, Plan, Register, Stack, Step, Value, View, Write
from ctrlgrad.plan.placement import place
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.reductions import EXTREMES, neutral_of
from ctrlgrad.plan.sharing import shared_axes
from ctrlgrad.plan.sizes import ONE
from instruments.plan_data import Data, Part

# Reference implementation of the step `Factorise` in NumPy.


def factorised(step: Factorise, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """The result for matrices and, of systems, right sides; None where there is none."""
    a = operands[0]
    if step.largest is not None and a.shape[-1] > step.largest:
        return None
    if step.how == "pivots":
        # Any numbers whose product is the determinant will do for what is computed from them.
        sign, size = np.linalg.slogdet(a)
        n = a.shape[-1]
        found = np.repeat(np.exp(size / max(n, 1))[..., None], n, -1)
        found[..., :1] *= sign[..., None]
        return np.where(np.isnan(a).any((-2, -1))[..., None], a.dtype.type(np.nan), found)
    if step.how in ("orthonormal", "eigh", "svd"):
        return _decomposed(step, a)
    try:
        if step.how == "lu":
            return _kept(step, a)
        if step.how == "lu_solved":
            n, dtype = operands[1].shape[-2], operands[1].dtype
            a = np.ascontiguousarray(a).view(dtype)[..., : n * n].reshape(*a.shape[:-1], n, n)
            a = np.swapaxes(a, -1, -2) if step.transposed else a
        if step.triangle is not None:
            a = _read(a, step.triangle)
        found = np.linalg.cholesky(a) if step.how == "cholesky" else np.linalg.solve(a, operands[1])
    except np.linalg.LinAlgError:
        return None
    return np.asarray(found)


def _kept(step: Factorise, a: np.ndarray) -> np.ndarray:
    """The matrices themselves in place of their factors, if they have an inverse."""
    np.linalg.inv(a)
    found = np.zeros(_shape(step, a), step.result.dtype)
    elements = np.ascontiguousarray(a).reshape(*a.shape[:-2], -1).view(found.dtype)
    found[..., : elements.shape[-1]] = elements
    return found


def _shape(step: Factorise, a: np.ndarray) -> list[int]:
    """Shape of the result of a batch of matrices: the number of matrices may be known at run time only."""
    batch = a.ndim - 2
    return [*a.shape[:batch], *(size.factor for size in step.result.shape[batch:])]


def _decomposed(step: Factorise, a: np.ndarray) -> np.ndarray:
    if step.how == "orthonormal":
        return np.asarray(np.linalg.qr(a)[0])
    if not np.isfinite(a).all():
        return np.full(_shape(step, a), np.nan, a.dtype)
    if step.how == "eigh":
        values, *vectors = np.linalg.eigh(a)
    else:
        u, values, vh = np.linalg.svd(a, full_matrices=False)
        vectors = list(signed(u, np.swapaxes(vh, -1, -2)))
    parts = [*vectors, values[..., None, :]] if step.result.shape[-2] != ONE else [values[..., None, :]]
    return np.concatenate(parts, -2)


def _read(a: np.ndarray, triangle: Triangle) -> np.ndarray:
    """The triangle of matrices that is read, zeros beside it."""
    part, inner = (np.tril, -1) if triangle.lower else (np.triu, 1)
    return part(a, inner) + np.eye(a.shape[-1], dtype=a.dtype) if triangle.unit_diagonal else part(a)


# Chunks of loops run again: from its entry state alone a chunk must give the same rows, and end in the same state.


# Results of a plan that is placed, for arguments.
Execute = Callable[[Plan, Sequence[Any]], list[Any]]
# Products in parts round in other ways.
ROUNDING = 1e-3


@dataclass
class _Running:
    """One run of a loop that can be repeated."""

    again: LoopPlan
    placed: Plan
    captured: list[Any]
    # Where the chunk began: the iteration, and what was carried; of stacks, how many rows they had.
    begun: int = 0
    carried: list[Any] = field(default_factory=list)


class Repeating:
    """Runs the chunks of the loops of a run again, as they end."""

    def __init__(self, data: Data, execute: Execute) -> None:
        self.data, self.execute = data, execute
        self.chunks = 0
        self._running: dict[int, _Running] = {}
        self._plans: dict[Loop, tuple[LoopPlan, Plan] | None] = {}

    def at_head(self, loop: Loop, iteration: int) -> None:
        """A chunk begins before an iteration, and the one before it is over."""
        if loop not in self._plans:
            can_repeat = chunked_loop(self.data.plan, loop).can_repeat
            found = loop_plan(self.data.plan, loop) if can_repeat else None
            self._plans[loop] = None if found is None else (found, place(found.plan))
        known = self._plans[loop]
        if known is None:
            return
        if iteration == 0:
            self._running[loop.number] = _Running(*known, [self.value(v) for v in known[0].captured])
        running = self._running[loop.number]
        if iteration > running.begun:
            self.repeat(loop, running, iteration - running.begun)
        running.begun = iteration
        running.carried = [
            len(self.data.stack(c.inside)) if isinstance(c.inside, Stack) else self.value(c.inside)
            for c in loop.carries
        ]

    def value(self, value: Value) -> Any:
        """A value as it is now."""
        data = self.data
        if isinstance(value, Register):
            return data.values[value.name]
        if isinstance(value, Array):
            return data.elements(data.read(value), value).reshape(data.shape(value.shape)).copy()
        return [data.row_of(value, cell) for cell in data.stack(value).cells()]

    def repeat(self, loop: Loop, running: _Running, iterations: int) -> None:
        """Run a chunk again, with stacks that hold nothing at first."""
        starts = [[] if isinstance(c.inside, Stack) else x for c, x in zip(loop.carries, running.carried, strict=True)]
        results = self.execute(running.placed, [np.int64(iterations), *running.captured, *starts])
        self.chunks += 1
        for carry, before, found in zip(loop.carries, running.carried, results, strict=True):
            now = self.value(carry.inside)
            expected = now[before:] if isinstance(carry.inside, Stack) else now
            if not _same(found, expected):
                self.data.fail(f"{carry.inside} is another one when a chunk of loop {loop.number} is run again")


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if found is None or expected is None:
        return found is expected
    if np.shape(found) != np.shape(expected):
        return False
    return bool(np.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True))


# Kernels computed by NumPy: all points at once, or part by part as several threads would.
#
# Parts run one after the other, in any order; that none reads or writes an element that another one writes is checked
# element by element, so what they give does not depend on when each runs.


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
    ended: dict[int, RunEndedError] = {}
    for part in drawn_parts(run.space[axis], draw):
        try:
            run.part(Part(axis, part.start, part.stop))
        except RunEndedError as error:
            ended[part.start] = error
    run.compare()
    if ended:
        raise ended[min(ended)]


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
        """Return true if a run has laid out the columns that a view shows."""
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
    """Targets and positions of the extremes: for each target that of the first extreme, a NaN being beyond all
    numbers."""
    found: dict[int, tuple[np.generic, np.generic]] = {}
    for where, value, position in zip(at.tolist(), values, positions, strict=True):
        if where in found:
            best = found[where][0]
            is_beyond = value > best if how == "max" else value < best
            if not (is_beyond or (value != value and best == best)):
                continue
        found[where] = value, position
    return np.array([*found], np.intp), np.array([position for _, position in found.values()], np.int64)


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

    def run_cumulate(self, step: model.Cumulate, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        x = self.gathered(step.view, reads[0])
        x = np.flip(x, 1) if step.reverse else x
        with np.errstate(all="ignore"):
            cumulate: Callable[..., np.ndarray] = np.cumsum if step.how == "sum" else np.cumprod
            found = cumulate(x, 1, step.total).astype(x.dtype)
        self.give(step.result, np.flip(found, 1) if step.reverse else found, writes[0])

    def run_transform(self, step: model.Transform, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        x = self.gathered(step.view, reads[0])
        with np.errstate(all="ignore"):
            if step.how == "rfft":
                found = np.fft.rfft(x, axis=1)
            elif step.how == "irfft":
                found = np.fft.irfft(x, step.n, axis=1, norm="forward")
            else:
                found = np.fft.fft(x, axis=1) if step.how == "fft" else np.fft.ifft(x, axis=1, norm="forward")
        self.give(step.result, found.astype(step.result.dtype), writes[0])

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
        is_cleared = isinstance(step, model.WriteRow) and step.how == "clear"
        target.data = None if is_cleared else np.frombuffer(np.ascontiguousarray(row).tobytes(), np.uint8).copy()

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
        """Number of rows, or elements, of a stack."""
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
