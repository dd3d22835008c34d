"""What the engine does with a graph, as data and as text: kernels, products and waits, loop by loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad.engines.cuda.context import Context, Counts
from ctrlgrad.engines.cuda.control import FIRST_CHUNK, MOST_CHUNK, Loop
from ctrlgrad.engines.cuda.engine import places_of, program_of, run_with
from ctrlgrad.engines.cuda.group_step import GroupStep
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.program import NodeStep, Program
from ctrlgrad.engines.reference.control_kernels import loop_name
from ctrlgrad.ir import Graph

_MODES = {
    "counted": "its predicate is on the host",
    "masked": f"its predicate is read once a chunk of {FIRST_CHUNK} to {MOST_CHUNK} iterations",
    "read": "its predicate is read before each iteration",
}


@dataclass
class RegionReport:
    """What one run of a region does, in the order of its steps; for a loop, one iteration of its body."""

    name: str
    # "counted", "masked" or "read" for a loop, with the reason why it is not masked; empty for the graph itself.
    mode: str = ""
    reason: str = ""
    # The generated kernels, as text, and the names of other ops by where they run.
    kernels: list[str] = field(default_factory=list)
    on_device: list[str] = field(default_factory=list)
    on_host: list[str] = field(default_factory=list)
    through_host: list[str] = field(default_factory=list)
    inner: list[RegionReport] = field(default_factory=list)

    def lines(self, depth: int = 0) -> Iterator[str]:
        indent = "  " * depth
        mode = f": {_MODES[self.mode]}" if self.mode else ""
        yield f"{indent}{self.name}{mode}{f' ({self.reason})' if self.reason else ''}"
        for what, names in [
            ("on the device", self.on_device),
            ("on the host", self.on_host),
            ("through the host, for want of a device kernel", self.through_host),
        ]:
            if names:
                yield f"{indent}  {what}: {', '.join(names)}"
        for text in self.kernels:
            yield f"{indent}  a kernel:"
            yield from (f"{indent}    {line}" for line in text.split("\n"))
        for region in self.inner:
            yield from region.lines(depth + 1)


@dataclass
class CudaReport:
    """What `explain_on` found; prints as text."""

    region: RegionReport
    counts: Counts

    def __str__(self) -> str:
        counts = self.counts
        total = (
            f"{counts.launches} launches: {counts.kernels} kernels, {counts.products} products, "
            f"{counts.calls} functions of the library, {counts.uploads} copies to the device; "
            f"{counts.predicate_reads} reads of predicates, {counts.reads} other reads"
        )
        return "\n".join([total, *self.region.lines()])

    def loops(self) -> Iterator[RegionReport]:
        """Every loop, the outer before the inner."""
        pending = [self.region]
        while pending:
            region = pending.pop(0)
            if region.mode:
                yield region
            pending = region.inner + pending


def explain_on(library: ArrayLibrary, graph: Graph, arguments: Sequence[Any]) -> CudaReport:
    """Run an optimised graph and say what was done."""
    context = Context(library)
    run_with(context, graph, arguments)
    program = program_of(library, graph, places_of(library, graph, arguments))
    return CudaReport(_region(RegionReport(graph.name), program), context.counts)


def _region(report: RegionReport, *programs: Program) -> RegionReport:
    for program in programs:
        for step in program.steps:
            if isinstance(step, GroupStep):
                report.kernels.append(str(step.text))
            elif isinstance(step, NodeStep):
                _node(report, step)
    return report


def _node(report: RegionReport, step: NodeStep) -> None:
    kernel: Any = step.kernel
    if isinstance(kernel, Loop):
        loop = RegionReport(loop_name(step.node), kernel.mode, kernel.reason)
        report.inner.append(_region(loop, kernel.cond, kernel.body))
    elif hasattr(kernel, "programs"):
        for number, program in enumerate(kernel.programs):
            report.inner.append(_region(RegionReport(f"{step.node.op.name}, region {number}"), program))
    else:
        names = {"device": report.on_device, "host": report.on_host, "through the host": report.through_host}
        names.get(step.where, report.on_host).append(step.node.op.name)


__all__ = ["CudaReport", "RegionReport", "explain_on"]
