"""Report on a plan, loop by loop: fused kernels, products, pushed values, and ops that still run outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.block_kernels import Pushed, describe
from ctrlgrad.engines.native.engine import patterns_of
from ctrlgrad.engines.native.refusals import NeedsAnotherPlan
from ctrlgrad.engines.native.runtime import Frame, Program
from ctrlgrad.engines.report import LoopReport, Push, Report
from ctrlgrad.ir import Graph, attributes
from ctrlgrad.ir.control import loop_name
from ctrlgrad.plan import model
from ctrlgrad.plan.chunks import carried_stacks
from ctrlgrad.plan.model import Block, Branch, Factorise, Kernel, Loop, Outside, Product, Stack, Step
from ctrlgrad.plan.sizes import Size, Sizes


def explain(graph: Graph, arguments: Sequence[Any], without: frozenset[str] = frozenset()) -> Report:
    """Run an optimised graph on the native engine, `without` some passes over plans, and say what was done with it."""
    patterns = patterns_of(graph, without)
    callbacks = 0
    while True:
        program = patterns.program(arguments)
        frame = Frame(program)
        frame.silent_callbacks = callbacks
        try:
            frame.run(arguments)
        except NeedsAnotherPlan as found:
            patterns.drop(found)
            callbacks = found.callbacks
            continue
        return _Account(program, frame, arguments).report(graph)


@dataclass
class _Account:
    """One run of a plan, of which more is known than of the plan alone: run-time sizes."""

    program: Program
    frame: Frame
    arguments: Sequence[Any]

    def report(self, graph: Graph) -> Report:
        self.sizes: dict[str, int] = {
            register.name: int(np.shape(self.arguments[number])[axis])
            for register, number, axis in self.program.plan.sizes
            if isinstance(self.arguments[number], np.ndarray | np.generic)
        }
        outside = LoopReport(f"{graph.name}, outside of loops", "native")
        self.block(self.program.plan.body, outside, None)
        outside.inner, loops = [], outside.inner
        tells = outside.kernels or outside.products or outside.ops
        return Report(loops, outside if tells or not loops else None)

    def block(self, block: Block, report: LoopReport, around: Loop | None) -> None:
        for step in block.steps:
            self.step(step, report, around)

    def step(self, step: Step, report: LoopReport, around: Loop | None) -> None:
        if isinstance(step, Loop):
            report.inner.append(self.loop(step))
        elif isinstance(step, Branch):
            # Without regions, it has a call of the kernel for what machine code could not do.
            for inner in (inner for block in step.blocks for inner in block.steps):
                if not (isinstance(inner, Outside) and inner.node is step.node):
                    self.step(inner, report, around)
        elif isinstance(step, Kernel):
            ops = ", ".join(node.op.name for node in step.nodes) or "copy"
            report.kernels.append(f"kernel over {self.shape(step.space)}: {ops}")
        elif isinstance(step, Product):
            how = ", its right side laid out before the loops" if step.packed is not None else ""
            report.products.append(f"product {self.shape(step.a.shape)} @ {self.shape(step.b.shape)}{how}")
        elif isinstance(step, Factorise) and step.how != "lu_solved":
            report.products.append(f"{step.node.op.name} of {self.shape(step.a.shape)}")
        elif isinstance(step, model.Transform):
            report.products.append(f"{step.how} of {step.n} numbers in {self.shape(step.view.shape)}")
        elif isinstance(step, Outside):
            report.ops.setdefault(self.why_outside(step), []).append(step.node.op.name)
        elif isinstance(step, model.Push):
            self.push(step, report, around)

    def why_outside(self, step: Outside) -> str:
        if step.node.op.name == "callback":
            why = "they call Python"
        elif any(isinstance(x, Stack) and self.program.plan.rows[x] is None for x in (*step.operands, *step.results)):
            why = "their rows may differ in shape"
        elif step.node.op.name in ("fft", "rfft", "irfft"):
            why = "machine code transforms sizes without a prime factor above 5, up to a limit"
        else:
            why = "they have no form in machine code"
        return f"outside, by the reference engine's kernels, as {why}"

    def loop(self, loop: Loop) -> LoopReport:
        chunk = attributes.Loop.of(loop.node).chunks_of
        report = LoopReport(loop_name(loop.node), "native")
        if chunk is not None:
            report.reason = f"over chunks of {chunk} iterations"
        self.block(loop.condition, report, None)
        self.block(loop.body, report, loop)
        report.bytes_per_iteration = sum(
            self.row_bytes(step) or 0 for step in loop.body.steps if isinstance(step, model.Push)
        )
        return report

    def push(self, step: model.Push, report: LoopReport, around: Loop | None) -> None:
        if step.stack.holds == "sizes":
            return
        found = self.pushed(step, around)
        report.pushes.append(Push(found.name, self.row_bytes(step), found.reason, found.source))

    def pushed(self, step: model.Push, around: Loop | None) -> Pushed:
        """Description of a pushed value: the carry of the enclosing loop that holds its stack."""
        handles = self.program.plan.handles
        if around is not None:
            for number, stack in carried_stacks(around):
                if handles[stack] == handles[step.stack]:
                    return describe(around.node, number)
        source = f" (at {step.node.source})" if step.node.source is not None else ""
        return Pushed(step.node.operands[0].hint or "stack", "pushed in a branch or a loop inside", source)

    def row_bytes(self, step: model.Push) -> int | None:
        """Of a row that the run has pushed; 0 where its size is not known, since none was; None where rows differ."""
        if step.stack.holds == "elements":
            return None
        shape = self.program.plan.rows[step.stack]
        assert shape is not None
        if all(size.is_known or set(size.names) <= self.sizes.keys() for size in shape):
            sizes = [self.number(size) for size in shape]
        else:
            sizes = list(self.frame.row_shape(self.program.plan.handles[step.stack]))
        return int(np.prod(sizes, dtype=np.int64)) * step.stack.dtype.itemsize

    def number(self, size: Size) -> int:
        return size.factor * int(np.prod([self.sizes[name] for name in size.names], dtype=np.int64))

    def shape(self, sizes: Sizes) -> str:
        """Sizes as numbers, where the arguments say them."""
        known: Mapping[str, int] = self.sizes
        texts = [str(self.number(s)) if set(s.names) <= known.keys() else str(s) for s in sizes]
        return f"[{','.join(texts)}]"
