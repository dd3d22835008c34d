"""Report of the engine's work on a graph, loop by loop, as a `Report`: kernels, places of other ops, and waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctrlgrad.engines.cuda.context import Context, Counts
from ctrlgrad.engines.cuda.engine import places_of, program_of, run_with
from ctrlgrad.engines.cuda.group_step import GroupStep
from ctrlgrad.engines.cuda.host_parts import HostPart
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.loops import Loop
from ctrlgrad.engines.cuda.program import NodeStep, Program, Regions
from ctrlgrad.engines.report import LoopReport, Report
from ctrlgrad.ir import Graph, view
from ctrlgrad.ir import Loop as LoopView
from ctrlgrad.ir.control import loop_name

_WHERE = {
    "device": "on the device",
    "host": "on the host",
    "through the host": "through the host, for want of a device kernel",
}


def explain_on(library: ArrayLibrary, graph: Graph, arguments: Sequence[Any]) -> Report:
    """Run an optimised graph and say what was done.

    Of a region with branches the ops of all of them are told.
    """
    context = Context(library)
    run_with(context, graph, arguments)
    program = program_of(library, graph, places_of(library, graph, arguments))
    outside = LoopReport(f"{graph.name}, outside of loops", "cuda")
    _tell(outside, program)
    loops, outside.inner = outside.inner, []
    return Report(loops, outside, _by_kind(context.counts))


def _by_kind(counts: Counts) -> Mapping[str, int]:
    return {
        "launches": counts.launches,
        "runs of prepared launches": counts.runs,
        "kernels": counts.kernels,
        "products": counts.products,
        "graphs": counts.graphs,
        "functions of the library": counts.calls,
        "copies to the device": counts.uploads,
        "reads of predicates": counts.predicate_reads,
        "other reads": counts.reads,
        "copies of results": counts.results,
    }


def _tell(report: LoopReport, *programs: Program, listed: bool = False) -> None:
    """Add what the steps of a region do, one iteration of it for a loop; `listed`: of one that is in a list."""
    for program in programs:
        for step in program.steps:
            if isinstance(step, GroupStep):
                report.kernels.append(f"a kernel: {step.text}")
            elif isinstance(step, NodeStep):
                _tell_node(report, step, listed)


def _tell_node(report: LoopReport, step: NodeStep, listed: bool) -> None:
    kernel: Any = step.kernel
    if isinstance(kernel, Loop):
        launching = ["from the list of the loop around it"] * listed + [kernel.body.launching] * bool(
            kernel.body.launching
        )
        loop = LoopReport(loop_name(step.node), "cuda", kernel.reason, kernel.mode, launching=", or ".join(launching))
        _tell(loop, kernel.cond, kernel.body.program, listed=listed or kernel.body.is_prepared)
        report.inner.append(loop)
    elif isinstance(kernel, Regions):
        _tell(report, *kernel.programs, listed=listed)
    elif isinstance(kernel, HostPart):
        if kernel.is_planned:
            report.inner += _native_loops(kernel.region)
        else:
            _tell(report, kernel.steps, listed=listed)
    else:
        report.ops.setdefault(_WHERE[step.where], []).append(step.node.op.name)


def _native_loops(region: Graph) -> list[LoopReport]:
    """The loops of a part in machine code, each with those inside."""
    found: list[LoopReport] = []
    for node in region.nodes:
        inner = [loop for inside in node.regions for loop in _native_loops(inside)]
        found += [LoopReport(loop_name(node), "native", inner=inner)] if isinstance(view(node), LoopView) else inner
    return found
