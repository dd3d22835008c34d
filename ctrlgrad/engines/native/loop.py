"""A compiled loop: a plan for each set of operand shapes that it meets, and how a plan is run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.chunks import chunk_bytes, chunks_of
from ctrlgrad.engines.native.checked import CheckedFunction, is_checked
from ctrlgrad.engines.native.compiler import compiled, is_cached
from ctrlgrad.engines.native.emit import Emitter
from ctrlgrad.engines.native.execution import Execution
from ctrlgrad.engines.native.frames import Layout
from ctrlgrad.engines.native.layout import NotNative, product
from ctrlgrad.engines.native.operands import layout_of, shapes_of
from ctrlgrad.engines.native.outside import prepared
from ctrlgrad.engines.native.program import LoopProgram, StackUse
from ctrlgrad.engines.native.replay import PlanReplay, can_replay
from ctrlgrad.engines.native.shapes import Shapes, infer, size_captures
from ctrlgrad.engines.pushes import describe
from ctrlgrad.engines.reference.run import Run
from ctrlgrad.ir import Node
from ctrlgrad.passes import CHUNK_BYTES

# The least iterations that a chunk has where no budget asks for fewer, and the most.
LEAST_ITERATIONS, MOST_ITERATIONS = 16, 1 << 16
# How many sets of shapes a loop keeps plans for: those that it met last.
MOST_PLANS = 64

Key = tuple[Any, ...]


class NativeLoop:
    """One `while` node; a plan for each of the sets of operand shapes it met last."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sizes = size_captures(node)
        self.plans: dict[Key, Plan | str] = {}
        self._lock = threading.Lock()

    def plan(self, values: Sequence[Any]) -> Plan | str:
        """How to run for these operands, or why there is no native way."""
        shapes = shapes_of(values)
        known = {i: int(values[i]) for i in self.sizes}
        captures = self.node.attrs["captures"]
        layouts = tuple(layout_of(v) for v in values[:captures])
        nbytes = chunk_bytes()
        key = (shapes, tuple(known.values()), layouts, nbytes, is_checked())
        with self._lock:
            plan = self.plans.pop(key, None)
            if plan is None:
                try:
                    plan = Plan(self.node, infer(self.node, shapes, known), layouts, nbytes)
                except NotNative as reason:
                    plan = str(reason)
                while len(self.plans) >= MOST_PLANS:
                    del self.plans[next(iter(self.plans))]
            self.plans[key] = plan
            return plan


class Plan:
    """A loop compiled for some shapes, whose chunks push so many bytes."""

    def __init__(self, node: Node, shapes: Shapes, layouts: Sequence[Layout], nbytes: int) -> None:
        self.node = node
        self.shapes = shapes
        self.program: LoopProgram = Emitter(node, shapes, layouts).generate()
        self.captures: int = node.attrs["captures"]
        self.values = {name: found for found, name in shapes.dims.names.items()}
        self.calls = [prepared(call, self.size) for call in self.program.calls]
        self.bytes_per_iteration = sum(use.pushes * self.row_bytes(use) for use in self.program.stacks)
        # A loop over the iterations of one chunk is as long as it is.
        of_chunk: int | None = node.attrs.get("chunk")
        # How often loops inside push is not known; here it is taken to be once in every iteration.
        guess = self.bytes_per_iteration + sum(self.row_bytes(use) for use in self.program.stacks if use.inside)
        least = 1 if nbytes < CHUNK_BYTES else LEAST_ITERATIONS
        by_bytes = max(least, min(MOST_ITERATIONS, nbytes // max(guess, 1)))
        self.chunk_bytes = nbytes
        self.chunk = of_chunk or by_bytes
        # A loop inside may find a stack full in the middle of an iteration: then the chunk runs again.
        self.may_run_again = any(use.inside for use in self.program.stacks)
        self._lock = threading.Lock()
        self._temporaries: list[dict[int, np.ndarray]] = []
        self._labels: dict[int, str] = {}

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

    def label(self, use: StackUse) -> str:
        """What a stack holds, for people."""
        if use.is_local:
            return "a stack of one iteration"
        if use.position not in self._labels:
            self._labels[use.position] = describe(self.node, use.position).label
        return self._labels[use.position]

    def take_temporaries(self) -> dict[int, np.ndarray]:
        """Buffers of an earlier run, by their place in the table; none of them is used elsewhere."""
        with self._lock:
            return self._temporaries.pop() if self._temporaries else {}

    def give_back(self, temporaries: dict[int, np.ndarray]) -> None:
        with self._lock:
            self._temporaries.append(temporaries)

    def run(self, values: list[Any], run: Run, done: int = 0) -> Any:
        """Run from these operands, `done` iterations having been run elsewhere."""
        replay = PlanReplay(self, values[: self.captures]) if can_replay(self.program) else None
        modes = {use.mode for use in self.program.stacks if not use.is_local}
        chunks = chunks_of(self.node, replay, "backward" if "pop" in modes else "forward", "push" in modes)
        execution = Execution(self, values, chunks, run, done)
        if chunks.is_counted and replay is not None:
            replay.lengths = execution.lengths
        else:
            del replay
        try:
            results = execution.run()
        except BaseException:
            chunks.abandon()
            raise
        chunks.finish()
        return results


__all__ = ["NativeLoop", "Plan"]
