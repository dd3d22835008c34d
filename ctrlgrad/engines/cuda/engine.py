"""The engine: a graph and its arguments to results, on a device's array library; and the report of that work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.compile import GroupStep, compile_region
from ctrlgrad.engines.cuda.control import CONTROL, HostPart, Loop, with_host_parts
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, Place, Places
from ctrlgrad.engines.cuda.program import Context, Counts, NodeStep, Program, Regions, scalar, to_device
from ctrlgrad.engines.cuda.stacks import RunMemory
from ctrlgrad.engines.device_array import DeviceArray, lies_on_card
from ctrlgrad.engines.report import LoopReport, Report
from ctrlgrad.errors import forget_values
from ctrlgrad.ir import Graph, StackType, Value, view
from ctrlgrad.ir import Loop as LoopView
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.control import loop_name
from ctrlgrad.memory.session import current
from ctrlgrad.passes.dead_code import without_calls


@dataclass(frozen=True)
class Handover:
    """Ownership of arguments and results: which arguments the run may keep, and where the results stay.

    By `donated` positions the run gets `DeviceArray`s to keep: it may overwrite them. All other arguments are borrowed.
    """

    stays_on_card: bool = False
    donated: frozenset[int] = frozenset()


BORROWED = Handover()


def run_on_device(
    library: ArrayLibrary, graph: Graph, arguments: Sequence[Any], handover: Handover = BORROWED
) -> list[Any]:
    """The outputs of an optimised graph as NumPy arrays, or arrays on the card, and lists of NumPy arrays for stacks.

    Args:
        library: the device.
        graph: as `ctrlgrad.passes.optimise` leaves it.
        arguments: NumPy arrays, arrays on the device of any library, and lists of either for stacks.
    """
    return run_with(Context(library), graph, arguments, handover)


def run_with(context: Context, graph: Graph, arguments: Sequence[Any], handover: Handover = BORROWED) -> list[Any]:
    """As `run_on_device`, in a context that is read afterwards: its counts say what the run did."""
    library, session = context.library, current()
    if session is None:
        return _run(context, graph, arguments, handover)
    memory = context.memory = RunMemory(session.manager(library.name), library)
    try:
        found = _run(context, graph, arguments, handover)
        # Rows may have come from a copy that failed.
        memory.manager.synchronize()
        return found
    except BaseException as error:
        forget_values(error)
        raise
    finally:
        context.constants.clear()
        context.memory = context.flag = None
        memory.settle()


def _run(context: Context, graph: Graph, arguments: Sequence[Any], handover: Handover) -> list[Any]:
    library = context.library
    with library.running(context.memory), np.errstate(all="ignore"):
        places = places_of(library, graph, arguments)
        program = program_of(library, graph, places)
        values = [
            _given(context, v, x, p, n in handover.donated)
            for n, (v, x, p) in enumerate(zip(graph.inputs, arguments, places, strict=True))
        ]
        try:
            results = program(values, context)
        except BaseException:
            # Its graphs may go on for long, and what comes next is behind them.
            if context.in_flight:
                library.stop(context.run_number)
            raise
        # Nothing but the results holds them: they are their caller's.
        values.clear()
        return context.keep(results) if handover.stays_on_card else context.finish(results)


def read_arguments(library: ArrayLibrary, arguments: Sequence[Any]) -> list[Any]:
    """Arguments as NumPy arrays, wherever they lie, and lists of them for stacks."""

    def read(x: Any) -> Any:
        if isinstance(x, list):
            return [read(row) for row in x]
        if not lies_on_card(x) and not library.is_array(x):
            return x
        return np.asarray(x) if isinstance(x, DeviceArray) else library.read([library.lent(x)])[0]

    with library.running():
        return [read(x) for x in arguments]


def places_of(library: ArrayLibrary, graph: Graph, arguments: Sequence[Any]) -> Places:
    """Place of each argument of a run: scalars that come from the host stay there."""
    return tuple(_place(library, v, x) for v, x in zip(graph.inputs, arguments, strict=True))


_PROGRAMS: Cache[tuple[str, Places], Program] = Cache(16)


def program_of(library: ArrayLibrary, graph: Graph, places: Places) -> Program:
    """The program of a graph for a library, made once and kept with the graph."""
    make = lambda: compile_region(with_host_parts(without_calls(graph), places), places, CONTROL)
    return _PROGRAMS.get(graph, (library.name, places), make)


def _place(library: ArrayLibrary, value: Value, x: Any) -> Place:
    if isinstance(value.type, StackType):
        stays = value.type.element.rank == 0 and not any(_is_on_device(library, row) for row in x)
    else:
        stays = value.tensor.rank == 0 and not _is_on_device(library, x)
    return HOST if stays else DEVICE


def _is_on_device(library: ArrayLibrary, x: Any) -> bool:
    return library.is_array(x) or lies_on_card(x)


def _given(context: Context, value: Value, x: Any, its: Place, is_donated: bool) -> Any:
    library = context.library
    if isinstance(x, DeviceArray):
        return x.taken() if is_donated else library.lent(x.array)
    if not isinstance(x, list) and _is_on_device(library, x):
        return library.lent(x)
    if its is HOST:
        # A list is taken over by the run.
        return [scalar(row) for row in x] if isinstance(x, list) else scalar(np.asarray(x))
    if isinstance(x, list):
        x = [library.lent(row) if row is not None and _is_on_device(library, row) else row for row in x]
    return to_device(context, x, value.type)


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
        mode = "read" if kernel.is_asked else "counted"
        loop = LoopReport(loop_name(step.node), "cuda", mode=mode, launching=", or ".join(launching))
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
