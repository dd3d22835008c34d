"""How a part runs: by the reference kernels until machine code pays, then as one call of a compiled function.

A call hands over addresses and takes back arrays that are its own. Buffers for what does not leave the part belong to a
frame, one for each call that runs at a time, so that several threads may be in a part at once. Python's lock is free
while the function runs.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.native.checked import CheckedFunction, is_checked
from ctrlgrad.engines.native.checked_memory import Buffer
from ctrlgrad.engines.native.compiler import blas_address, compiled, is_cached
from ctrlgrad.engines.native.failures import out_of_range
from ctrlgrad.engines.native.frames import Layout
from ctrlgrad.engines.native.layout import NotNative
from ctrlgrad.engines.native.operands import layout_of
from ctrlgrad.engines.native.piece_code import write_part
from ctrlgrad.engines.native.program import BOUND, FIRST_ENTRY, FOUND, PLACE, STATUS, Entry
from ctrlgrad.engines.native.shapes import size_values
from ctrlgrad.engines.ownership import POPPED_ALONE
from ctrlgrad.engines.reference import REFERENCE, Run
from ctrlgrad.engines.reference.interpreter import compile_graph
from ctrlgrad.ir import Node

# How many sets of sizes a part keeps plans for.
MOST_PLANS = 64
# After so many sets of sizes a part that has not run so often with each on average stays with the reference kernels.
TRIED, RUNS_EACH = 16, 4

Shapes = tuple[tuple[int, ...], ...]

_LOG = logging.getLogger("ctrlgrad")


class Part:
    """The kernel of a `PART` node, compiled at the first call."""

    def __init__(self, node: Node) -> None:
        self.node = node
        (self.graph,) = node.regions
        self.reference = compile_graph(self.graph, REFERENCE)
        wanted = size_values(self.graph)
        self.arrays = tuple(i for i, v in enumerate(self.graph.inputs) if v.tensor.rank)
        self.sizes = tuple(i for i, v in enumerate(self.graph.inputs) if not v.tensor.rank and v in wanted)
        # By shapes and strides; None where there is no native way.
        self.plans: dict[Any, Plan | None] = {}
        self.calls = self.planned = 0
        # Sizes change too often for plans to pay.
        self.has_given_up = False
        self._lock = threading.Lock()

    def __call__(self, operands: list[Any], run: Run) -> Any:
        """The outputs for a list of operands, which is taken over; one output as itself."""
        plan = None
        if not self.has_given_up:
            self.calls += 1
            key = self._key(operands)
            plan = self.plans.get(key)
            if plan is None and key not in self.plans:
                plan = self._plan(key, operands)
        found = self.reference(operands, run) if plan is None else plan.run(operands)
        return found if len(found) != 1 else found[0]

    def _key(self, operands: Sequence[Any]) -> Any:
        key: list[Any] = [is_checked()]
        for i in self.arrays:
            value = operands[i]
            key += (value.shape, value.strides)
        key += [int(operands[i]) for i in self.sizes]
        return tuple(key)

    def _plan(self, key: Any, operands: Sequence[Any]) -> Plan | None:
        with self._lock:
            if key in self.plans:
                return self.plans[key]
            if self.planned >= TRIED and self.calls < RUNS_EACH * self.planned:
                self.has_given_up = True
                return None
            plan = self.make_plan(operands)
            if plan is not None and not plan.is_ready:
                _LOG.info("compiling a piece at %s", self.node.source)
            self.planned += 1
            while len(self.plans) >= MOST_PLANS:
                del self.plans[next(iter(self.plans))]
            self.plans[key] = plan
            return plan

    def make_plan(self, operands: Sequence[Any]) -> Plan | None:
        """A plan; where one for the same sizes will do, with arrays that lie otherwise copied, by its function."""
        shapes = tuple(tuple(np.shape(x)) for x in operands)
        known = {i: int(operands[i]) for i in self.sizes}
        found = tuple(layout_of(x) for x in operands)
        usable = next((p.layouts for p in self.plans.values() if p is not None and p.fits(shapes, known, found)), found)
        try:
            copied = frozenset(i for i, a in enumerate(found) if usable[i] != a or _is_apart(operands[i], a))
            return Plan(self.node, shapes, known, usable, copied)
        except NotNative as reason:
            _LOG.info("a piece at %s stays with the reference kernels: %s", self.node.source, reason)
            return None


def _is_apart(value: Any, layout: Layout) -> bool:
    """Whether an array that counts as lying in rows does not."""
    return layout == "rows" and isinstance(value, np.ndarray) and not value.flags.c_contiguous


@dataclass(frozen=True)
class Frame:
    """The table of a call, and what it points to beside the call's own arrays, by place."""

    table: np.ndarray
    buffers: dict[int, np.ndarray]
    # Numbers, with their place among the operands and among the outputs.
    taken: tuple[tuple[int, np.ndarray], ...]
    given: dict[int, np.ndarray]
    # By operand: the copy of an array that is overwritten and does not leave.
    copies: dict[int, np.ndarray]


class Plan:
    """A part for some sizes, for operands that lie as `layouts` says when those in `copied` have been copied."""

    def __init__(
        self,
        node: Node,
        shapes: Shapes,
        known: dict[int, int],
        layouts: tuple[Layout, ...],
        copied: frozenset[int],
    ) -> None:
        self.shapes, self.known, self.layouts = shapes, known, layouts
        self.program, found = write_part(node, shapes, known, layouts)
        self.values = {name: size for size, name in found.dims.names.items()}
        (graph,) = node.regions
        self.inputs, self.outputs = graph.inputs, graph.outputs
        self.is_checked = is_checked()
        program = self.program
        # Which operands are overwritten, and whether they leave as results.
        leaving = set(program.replaced.values())
        self._overwritten = tuple((i, i in leaving) for i in sorted(program.overwritten))
        self._copied = tuple(sorted(copied - program.overwritten))
        # What each output is: a new array of a shape and dtype, or the operand of a number, or a number (None).
        self._results: list[tuple[tuple[int, ...], np.dtype] | int | None] = []
        for k, v in enumerate(self.outputs):
            made = (found.found[v], v.tensor.dtype) if v.tensor.rank else None
            self._results.append(program.replaced.get(k, made))
        self._arrays = tuple(i for i, v in enumerate(self.inputs) if v.tensor.rank)
        self._last = FIRST_ENTRY + len(self._arrays) + sum(v.tensor.rank > 0 for v in self.outputs)
        self._frames: list[Frame] = []

    def fits(self, shapes: Shapes, known: Mapping[int, int], layouts: Sequence[Layout]) -> bool:
        """Whether its function will do for operands of these sizes and layouts, some of which may have to be copied."""
        same = (self.shapes, self.known) == (shapes, known)
        return same and all(own in (other, "rows") for other, own in zip(layouts, self.layouts, strict=True))

    @property
    def is_ready(self) -> bool:
        """Whether machine code for it is at hand, in this process or on disk."""
        return self.is_checked or is_cached(self.program.source)

    @functools.cached_property
    def function(self) -> Any:
        """The function; compiled when it is first asked for."""
        return CheckedFunction(self.program.plain_source) if self.is_checked else compiled(self.program.source)

    def run(self, operands: list[Any]) -> list[Any]:
        """The outputs; takes the list of operands over."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._frame()
        for i, leaves in self._overwritten:
            value = operands[i]
            operands[i] = None
            if sys.getrefcount(value) != POPPED_ALONE or not _is_plain(value):
                value = np.array(value, order="C") if leaves else _copied_into(frame.copies[i], value)
            operands[i] = value
        for i in self._copied:
            operands[i] = np.ascontiguousarray(operands[i])
        for i, number in frame.taken:
            number[0] = operands[i]
        outputs: list[Any] = []
        objects = [id(operands[i]) for i in self._arrays]
        for k, what in enumerate(self._results):
            if what is None:
                outputs.append(frame.given[k])
                continue
            array = operands[what] if isinstance(what, int) else np.empty(*what)
            outputs.append(array)
            objects.append(id(array))
        frame.table[FIRST_ENTRY : self._last] = objects
        if self.is_checked:
            self._run_checked(frame, operands, outputs)
        else:
            self.function(frame.table)
        if frame.table[STATUS]:
            place, index, bound = (int(frame.table[i]) for i in (PLACE, FOUND, BOUND))
            raise out_of_range(self.program.sites[place], index, bound)
        for k, number in frame.given.items():
            outputs[k] = number[0]
        self._frames.append(frame)
        return outputs

    def _frame(self) -> Frame:
        program = self.program
        table = np.zeros(FIRST_ENTRY + len(program.entries), np.int64)
        buffers, taken, given = {}, [], {}
        for place, entry in enumerate(program.entries, FIRST_ENTRY):
            if place < self._last:
                continue
            if entry.kind == "dim":
                table[place] = self.values[entry.name]
            elif entry.kind == "routine":
                table[place] = blas_address(entry.name)
            else:
                buffers[place] = self._buffer(entry)
                table[place] = buffers[place].ctypes.data
                if entry.kind == "scalar":
                    taken.append((entry.position, buffers[place]))
                elif entry.kind == "result":
                    given[entry.position] = buffers[place]
        copies = {
            i: np.empty(self.shapes[i], self.inputs[i].tensor.dtype) for i, leaves in self._overwritten if not leaves
        }
        return Frame(table, buffers, tuple(taken), given, copies)

    def _buffer(self, entry: Entry) -> np.ndarray:
        if entry.kind == "constant":
            assert entry.array is not None
            return np.ascontiguousarray(entry.array)
        size = entry.size.factor if entry.size is not None else 1
        for name in entry.size.names if entry.size is not None else ():
            size *= self.values[name]
        return np.empty(max(size, 1), entry.dtype)

    def _run_checked(self, frame: Frame, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run in Python with every access checked."""
        buffers = {}
        writable = self.program.overwritten
        for place, i in enumerate(self._arrays, FIRST_ENTRY):
            buffers[place] = Buffer(f"operand {i}", operands[i], writable=i in writable, is_result=i in writable)
        place = FIRST_ENTRY + len(self._arrays)
        for k, v in enumerate(self.outputs):
            if v.tensor.rank:
                if k not in self.program.replaced:
                    buffers[place] = Buffer(f"result {k}", outputs[k], given=0, is_result=True)
                place += 1
        for place, array in frame.buffers.items():
            kind = self.program.entries[place - FIRST_ENTRY].kind
            is_made = kind in ("temporary", "result")
            given, is_result = 0 if is_made else None, kind == "result"
            buffers[place] = Buffer(f"the {kind} at place {place}", array, given, is_made, is_result)
        for place, buffer in buffers.items():
            frame.table[place] = buffer.address
        self.function.run(frame.table, buffers)


def _is_plain(value: np.ndarray) -> bool:
    """Whether an array has all of its memory to itself and lies in rows."""
    return value.base is None and value.flags.writeable and value.flags.c_contiguous


def _copied_into(copy: np.ndarray, value: Any) -> np.ndarray:
    copy[...] = value
    return copy


__all__ = ["Part", "Plan"]
