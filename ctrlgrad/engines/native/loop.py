"""Runs a compiled loop: chunk by chunk, with blocks for its stacks.

The driver is Python and runs once per chunk. It gives every stack that the loop pushes on a fresh block, calls the
compiled function for at most so many iterations, seals the blocks, and looks at why the function returned. Stacks that
the loop pops from lend it their last block, read in place. Ctrl-C is honoured between chunks.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.native.checked import CheckedFunction, buffers_of, is_checked
from ctrlgrad.engines.native.compiler import blas_address, compiled, is_cached
from ctrlgrad.engines.native.emit import Emitter
from ctrlgrad.engines.native.failures import failure
from ctrlgrad.engines.native.frames import Layout
from ctrlgrad.engines.native.layout import NotNative, product
from ctrlgrad.engines.native.outside import Outside, prepared
from ctrlgrad.engines.native.program import (
    FIRST_ENTRY,
    LIMIT,
    PLACE,
    STATUS,
    TRIPS,
    Entry,
    LoopProgram,
    StackUse,
    Status,
)
from ctrlgrad.engines.native.shapes import Shape, Shapes, infer, size_captures
from ctrlgrad.engines.reference.control_kernels import loop_name, too_many_iterations
from ctrlgrad.engines.reference.run import Run
from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.ir import Node, StackType
from ctrlgrad.memory.pool import POOL
from ctrlgrad.stacks.blocks import Block, BlockStack, from_rows

# Bytes that one chunk may push, and the least and most iterations it may have.
CHUNK_BYTES, LEAST_ITERATIONS, MOST_ITERATIONS = 16 << 20, 16, 1 << 16
# The first chunk is short: most loops are.
FIRST_ITERATIONS = 256

Key = tuple[Any, ...]


class NativeLoop:
    """One `while` node; a plan for each set of operand shapes it has met."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sizes = size_captures(node)
        self.plans: dict[Key, Plan | str] = {}
        self._lock = threading.Lock()

    def plan(self, values: Sequence[Any]) -> Plan | str:
        """How to run for these operands, or why there is no native way."""
        shapes = tuple(_shape(v) for v in values)
        known = {i: int(values[i]) for i in self.sizes}
        captures = self.node.attrs["captures"]
        layouts = tuple(_layout(v) for v in values[:captures])
        key = (shapes, tuple(known.values()), layouts, is_checked())
        with self._lock:
            if key not in self.plans:
                try:
                    self.plans[key] = Plan(self.node, infer(self.node, shapes, known), layouts)
                except NotNative as reason:
                    self.plans[key] = str(reason)
            return self.plans[key]


def _shape(value: Any) -> Shape | None:
    if isinstance(value, BlockStack):
        return value.shape
    if isinstance(value, list):
        return next((tuple(v.shape) for v in value if v is not None), None)
    return tuple(value.shape)


def _layout(value: Any) -> Layout:
    if not isinstance(value, np.ndarray) or value.ndim == 0 or value.flags.c_contiguous:
        return "rows"
    if value.size > 1 and not any(value.strides):
        return "one"
    if value.ndim == 2 and value.flags.f_contiguous:
        return "columns"
    return "rows"


@dataclass
class _Stack:
    """A stack during a run. `block` is the array that the loop works on, with `start` rows in it at first."""

    use: StackUse
    stack: BlockStack
    place: dict[str, int]
    block: np.ndarray | None = None
    start: int = 0
    # Rows of a fresh block, where loops inside push.
    room: int = 0


class Plan:
    """A loop compiled for some shapes."""

    def __init__(self, node: Node, shapes: Shapes, layouts: Sequence[Layout]) -> None:
        self.node = node
        self.shapes = shapes
        self.program: LoopProgram = Emitter(node, shapes, layouts).generate()
        self.captures: int = node.attrs["captures"]
        self.values = {name: found for found, name in shapes.dims.names.items()}
        self._free: list[dict[int, np.ndarray]] = []
        self.calls = [prepared(call, self.size) for call in self.program.calls]
        self._lock = threading.Lock()
        per_iteration = sum(use.pushes * self.row_bytes(use) for use in self.program.stacks)
        self.bytes_per_iteration = per_iteration
        # A loop over the iterations of one chunk is as long as it is.
        of_chunk: int | None = node.attrs.get("chunk")
        by_bytes = max(LEAST_ITERATIONS, min(MOST_ITERATIONS, CHUNK_BYTES // max(per_iteration, 1)))
        self.chunk = of_chunk or by_bytes
        # A loop inside may find a stack full in the middle of an iteration: then the chunk runs again.
        self.may_run_again = any(use.inside for use in self.program.stacks)

    @functools.cached_property
    def function(self) -> CheckedFunction | Callable[[np.ndarray], None]:
        """The compiled loop; compiled when it is first asked for."""
        return CheckedFunction(self.program.source) if is_checked() else compiled(self.program.source)

    @property
    def is_ready(self) -> bool:
        """Whether machine code for it is at hand, in this process or on disk."""
        return is_cached(self.program.source)

    def row_bytes(self, use: StackUse) -> int:
        return use.dtype.itemsize * self.size(product(use.element))

    def size(self, size: Any) -> int:
        total: int = size.factor
        for name in size.names:
            total *= self.values[name]
        return total

    # One run.

    def run(self, values: list[Any], run: Run, done: int = 0) -> Any:
        """Run from these operands, `done` iterations having been run elsewhere."""
        with self._lock:
            temporaries = self._free.pop() if self._free else {}
        try:
            return _Execution(self, values, run, temporaries, done).run()
        finally:
            with self._lock:
                self._free.append(temporaries)


class _Execution:
    """One run of a plan."""

    def __init__(self, plan: Plan, values: list[Any], run: Run, temporaries: dict[int, np.ndarray], done: int) -> None:
        self.plan, self.run_state = plan, run
        self.program = plan.program
        self.table = np.zeros(FIRST_ENTRY + len(plan.program.entries), np.int64)
        self.temporaries = temporaries
        self.kept: dict[int, np.ndarray] = {}
        self.scalars: dict[int, np.ndarray] = {}
        self.states: dict[int, list[np.ndarray]] = {}
        self.stacks: dict[int, _Stack] = {}
        self.outside = Outside(plan.calls) if plan.calls else None
        uses = {use.position: use for use in plan.program.stacks}
        for place, entry in enumerate(plan.program.entries, FIRST_ENTRY):
            self._fill(place, entry, values, uses)
        first = values[plan.captures] if len(values) > plan.captures else None
        self.trips_at_first = int(first) if isinstance(first, np.integer | np.ndarray) and np.ndim(first) == 0 else None
        values.clear()
        self.done = self.before = done

    def _fill(self, place: int, entry: Entry, values: list[Any], uses: dict[int, StackUse]) -> None:
        kind, position = entry.kind, entry.position
        if kind == "dim":
            self.table[place] = position
        elif kind == "operand":
            self.table[place] = self._address(place, self._operand(values[position]))
        elif kind == "constant":
            assert entry.array is not None
            self.table[place] = self._address(place, np.ascontiguousarray(entry.array))
        elif kind == "temporary":
            if place not in self.temporaries:
                self.temporaries[place] = np.empty(max(self.plan.size(entry.size), 1), entry.dtype)
            self.table[place] = self.temporaries[place].ctypes.data
        elif kind == "routine":
            self.table[place] = blas_address(entry.name)
        elif kind == "outside":
            assert self.outside is not None
            self.table[place] = self.outside.address
        elif kind == "scalar":
            self.scalars[position] = np.array(values[position]).reshape(1)
            self.table[place] = self.scalars[position].ctypes.data
        elif kind == "state":
            value, values[position] = values[position], None
            state = value if _is_own(value) else _copied(value)
            del value
            self.states[position] = [state, POOL.empty(state.shape, state.dtype)]
            self.table[place] = state.ctypes.data
        elif kind == "other":
            self.table[place] = self.states[position][1].ctypes.data
        else:
            if position not in self.stacks:
                value, values[position] = values[position], None
                use = uses[position]
                if isinstance(value, BlockStack):
                    given = value if _is_sole(value) else value.copy()
                else:
                    given = from_rows(use.dtype, tuple(self.plan.size(d) for d in use.element), value)
                del value
                self.stacks[position] = _Stack(use, given, {})
            self.stacks[position].place[kind] = place

    def _operand(self, value: Any) -> np.ndarray:
        return value if _layout(value) != "rows" else np.ascontiguousarray(value)

    def _address(self, place: int, array: np.ndarray) -> int:
        self.kept[place] = array
        return array.ctypes.data

    def run(self) -> Any:
        plan, table = self.plan, self.table
        maximum = plan.node.attrs.get("maximum_iterations")
        limit = min(FIRST_ITERATIONS, plan.chunk)
        while True:
            table[LIMIT] = limit if maximum is None else min(limit, maximum - self.done)
            for stack in self.stacks.values():
                self._lend(stack, int(table[LIMIT]))
            saved = self._snapshot() if plan.may_run_again else None
            self._call()
            status = Status(int(table[STATUS]))
            if status in (Status.FULL_INSIDE, Status.EMPTY_INSIDE):
                assert saved is not None
                self._run_again(status, saved)
                continue
            if status > Status.EMPTY_INSIDE:
                raise self._failure(status)
            self.done += int(table[TRIPS])
            for stack in self.stacks.values():
                self._take_back(stack)
            if status is Status.FINISHED:
                break
            if status is Status.LIMIT and self.done == maximum:
                self._check_maximum(maximum)
                break
            if status is Status.EMPTY:
                use = self.program.stacks[self._stack_number()]
                self._join(use, use.pops)
            limit = min(2 * limit, plan.chunk)
        return self._results()

    def _call(self) -> None:
        function = self.plan.function
        if isinstance(function, CheckedFunction):
            function.run(self.table, buffers_of(self))
        else:
            function(self.table)

    def _stack_number(self) -> int:
        """Which of the stacks the function named."""
        number = int(self.table[PLACE])
        return next(k for k, use in enumerate(self.program.stacks) if use.position == number)

    # Stacks.

    def _lend(self, stack: _Stack, iterations: int) -> None:
        """Give the function an array of the stack's rows."""
        use, shape = stack.use, stack.stack.shape
        if use.mode == "push":
            room = max(use.pushes * iterations, stack.room, 1) + use.extra
            if use.inside:
                room = stack.room = max(stack.room, 4 * iterations)
            stack.block, stack.start = POOL.empty((room, *shape), use.dtype), 0
        elif use.mode == "read":
            stack.block = stack.stack.tensor()
            stack.start = len(stack.block)
        elif use.mode == "pop":
            # By whole blocks: a loop that pops as another pushed takes exactly what that pushed in a chunk.
            stack.block = stack.stack.top(1)
            stack.start = len(stack.block)
        else:
            stack.start = len(stack.stack)
            stack.room = max(stack.room, stack.start + use.pushes * iterations + (4 * iterations if use.inside else 0))
            stack.block = stack.stack.whole(max(stack.room, 1))
            if use.marks:
                self._lend_marks(stack)
        self.table[stack.place["rows"]] = stack.block.ctypes.data
        self.table[stack.place["length"]] = stack.start
        self.table[stack.place["capacity"]] = len(stack.block)

    def _lend_marks(self, stack: _Stack) -> None:
        assert stack.block is not None
        marks = np.zeros(len(stack.block), np.uint8)
        given = stack.stack.written
        marks[: stack.start] = 1 if given is None else given[: stack.start]
        stack.stack.written = marks
        self.table[stack.place["written"]] = marks.ctypes.data

    def _take_back(self, stack: _Stack) -> None:
        """Take the rows back as the function left them."""
        count = int(self.table[stack.place["length"]])
        block, counters = stack.block, self.run_state.counters
        assert block is not None
        if stack.use.mode == "push":
            if count * 2 < len(block):
                block = block[:count].copy()
            stack.stack.append(block, count)
        elif stack.use.mode == "pop":
            counters.pops += stack.start - count
            stack.stack.drop(stack.start - count)
        elif stack.use.mode == "whole":
            stack.stack.blocks = [Block(block, count)] if count else []
            if not stack.use.marks:
                stack.stack.written = None
        if count > stack.start:
            counters.pushes += count - stack.start
            counters.pushed_bytes += (count - stack.start) * self.plan.row_bytes(stack.use)

    def _join(self, use: StackUse, rows: int) -> None:
        """See to it that the last block of a stack has so many rows: an iteration may need rows of several."""
        stack = self.stacks[use.position].stack
        if len(stack) < rows:
            raise ExecutionError("stack: popped more values than were pushed", source=self.plan.node.source)
        stack.top(rows)

    def _snapshot(self) -> dict[str, Any]:
        """The state that the chunk starts from, for stacks that may turn out too small inside an iteration."""
        return {
            "scalars": {i: x.copy() for i, x in self.scalars.items()},
            "states": {i: pair[0].copy() for i, pair in self._current().items()},
            "wholes": {
                i: s.block[: s.start].copy()
                for i, s in self.stacks.items()
                if s.use.mode == "whole" and s.block is not None
            },
            "written": {i: s.stack.written.copy() for i, s in self.stacks.items() if s.stack.written is not None},
        }

    def _current(self) -> dict[int, list[np.ndarray]]:
        """Each carried array and its other one, as they lie now."""
        found = {}
        for place, entry in enumerate(self.program.entries, FIRST_ENTRY):
            if entry.kind == "state":
                pair = self.states[entry.position]
                if pair[0].ctypes.data != self.table[place]:
                    pair.reverse()
                found[entry.position] = pair
        return found

    def _run_again(self, status: Status, saved: dict[str, Any]) -> None:
        """Back to the state before the chunk, with more room or more rows."""
        use = self.program.stacks[self._stack_number()]
        stack = self.stacks[use.position]
        if status is Status.EMPTY_INSIDE:
            self._join(use, stack.start + 1)
        else:
            assert stack.block is not None
            stack.room = 2 * len(stack.block)
        for i, x in saved["scalars"].items():
            self.scalars[i][:] = x
        for i, pair in self._current().items():
            pair[0][...] = saved["states"][i]
        for i, rows in saved["wholes"].items():
            other = self.stacks[i]
            assert other.block is not None
            other.block[: len(rows)] = rows
        for i, marks in saved["written"].items():
            self.stacks[i].stack.written = marks

    # The end.

    def _results(self) -> Any:
        results: list[Any] = []
        states = self._current()
        for i, v in enumerate(self.plan.node.results):
            position = self.plan.captures + i
            if isinstance(v.type, StackType):
                results.append(self.stacks[position].stack)
            elif position in states:
                results.append(states[position][0])
            else:
                results.append(self.scalars[position][0])
        self.run_state.counters.looped(self.plan.node, self.done)
        return results if len(results) != 1 else results[0]

    def _failure(self, status: Status) -> CtrlgradError:
        node, sites = self.plan.node, self.program.sites
        raised = self.outside.error if self.outside is not None else None
        return failure(
            node, status, self.table, sites, self.done, self.before, self.trips_at_first, self.run_state, raised
        )

    def _check_maximum(self, maximum: int) -> None:
        """At the maximum the condition must be false."""
        self.table[LIMIT] = 0
        for stack in self.stacks.values():
            self._lend(stack, 1)
        self._call()
        if Status(int(self.table[STATUS])) is Status.FINISHED:
            return
        raise too_many_iterations(self.plan.node, maximum, maximum)


def _copied(value: np.ndarray) -> np.ndarray:
    copy = POOL.empty(value.shape, value.dtype)
    copy[...] = value
    return copy


def _is_sole(value: Any) -> bool:
    """Whether nobody else holds an object."""
    return sys.getrefcount(value) <= _OWN_COUNT


def _is_own(value: Any) -> bool:
    """Whether an array may be overwritten: nobody else holds it or its memory."""
    return (
        isinstance(value, np.ndarray)
        and sys.getrefcount(value) <= _OWN_COUNT
        and value.base is None
        and value.flags.writeable
        and value.flags.c_contiguous
    )


def _count(value: Any) -> int:
    return sys.getrefcount(value)


def _own_count() -> int:
    value = np.empty(1)
    return _count(value)


_OWN_COUNT = _own_count()
__all__ = ["NativeLoop", "Plan", "loop_name"]
