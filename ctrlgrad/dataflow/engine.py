"""The engine "dataflow": from a structured graph to a run on one or more devices of this process.

    lower -> place -> cluster -> partition -> plan      once per graph and settings, kept with the graph
    executors, one per device                           per call

With one device everything runs on the calling thread. With several each has a thread, and products are single-threaded.
A device that fails stops all others; so does Ctrl-C, and the next call starts afresh. On the processor a cluster runs
by the reference engine's kernels, or in machine code where a setting says so; on a GPU as a program of the CUDA engine.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad import memory
from ctrlgrad.dataflow.budgets import refuse_gpus, row_pushes_in
from ctrlgrad.dataflow.clusters import cluster
from ctrlgrad.dataflow.device_runs import DeviceRun, HostRun
from ctrlgrad.dataflow.devices import check_devices, parse_device
from ctrlgrad.dataflow.executor import Counts, Executor
from ctrlgrad.dataflow.graph import FlatGraph
from ctrlgrad.dataflow.lowering import lower
from ctrlgrad.dataflow.mpi_run import identity_of, names_ranks, on_ranks, run_over_ranks
from ctrlgrad.dataflow.mpi_transport import Run as RankRun
from ctrlgrad.dataflow.partition import Partition, partition
from ctrlgrad.dataflow.pieces import PieceOf, interpreted
from ctrlgrad.dataflow.placement import as_written, place
from ctrlgrad.dataflow.plan import DevicePlan, make_plan
from ctrlgrad.dataflow.settings import Settings, current_settings
from ctrlgrad.dataflow.together import delay_of, run_alone, run_together
from ctrlgrad.dataflow.transport import Exchange
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.dataflow.whole_loops import whole_loops
from ctrlgrad.engines import asks_for_memory, refuse_checkpoint, register_engine
from ctrlgrad.engines.block_kernels import IN_BLOCKS, as_lists
from ctrlgrad.engines.pushes import RowPush
from ctrlgrad.engines.reference import REFERENCE, FiniteCheck, Kernels, Run
from ctrlgrad.engines.row_blocks import rows_in_blocks
from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.ir import Graph, Node
from ctrlgrad.ir.caching import Cache
from ctrlgrad.source import here


@dataclass(frozen=True)
class Prepared:
    """A graph as it runs for some settings; `identity`, where it runs over ranks, is its digest."""

    partition: Partition
    plans: dict[str, DevicePlan]
    identity: bytes | None
    check_nans: bool
    # Its kernels count bytes, for a session.
    is_counted: bool

    @functools.cached_property
    def row_pushes(self) -> Mapping[Node, RowPush]:
        """What is pushed."""
        return row_pushes_in(self.partition)


@dataclass(frozen=True, eq=False)
class _Place:
    """The function that places ops, by identity: it need not be hashable."""

    function: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)


@dataclass(frozen=True)
class _Choices:
    """What the plans of a graph depend on."""

    clusters: str | None
    loops: str
    pieces: str
    window: int | None
    place: _Place
    check_nans: bool
    is_counted: bool


_PREPARED: Cache[_Choices, Prepared] = Cache(16)


@dataclass
class Outcome:
    """What a run gives beside its outputs: by device, counts, what the kernels counted, and what it computed with."""

    counts: dict[str, Counts] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    devices: dict[str, DeviceRun] = field(default_factory=dict)


def placed(graph: Graph | FlatGraph, settings: Settings) -> FlatGraph:
    """The flat graph with a device on every node; devices that do not exist here are refused."""
    choose = settings.place or as_written
    if isinstance(graph, Graph):
        graph = lower(graph, whole_loops(graph, choose) if settings.loops == "whole" else None)
    else:
        verify_flat(graph)
    found = place(graph, choose)
    found = on_ranks(found)
    if not names_ranks(str(node.device) for node in found.nodes):
        check_devices((str(node.device), node.source) for node in found.nodes)
    return found


def partitioned(graph: Graph | FlatGraph, settings: Settings) -> Partition:
    """The parts of a graph by device, their ops in clusters."""
    found = placed(graph, settings)
    several = len({node.device for node in found.nodes}) > 1
    return partition(cluster(found, settings.clusters or ("flowing" if several else "whole")))


def prepare(graph: Graph | FlatGraph, settings: Settings, check_nans: bool = False) -> Prepared:
    """The plans of a graph, made once for the settings that they depend on.

    With `check_nans` every node is looked at: then all devices compute on the host, as the CUDA engine does too. In a
    session of `ctrlgrad.memory` saved values go into its blocks.

    Raises:
        UserInputError: a device does not exist, or is a GPU in a session.
    """
    is_counted, window = memory.current() is not None, settings.parallel_iterations
    by = _Place(settings.place)
    choices = _Choices(settings.clusters, settings.loops, settings.pieces, window, by, check_nans, is_counted)
    return _PREPARED.get(graph, choices, lambda: _prepare(graph, settings, choices))


def _prepare(graph: Graph | FlatGraph, settings: Settings, choices: _Choices) -> Prepared:
    window, check_nans, is_counted = choices.window, choices.check_nans, choices.is_counted
    split = partitioned(graph, settings)
    if is_counted:
        refuse_gpus(split)
        _refuse_native_pieces(settings)
    plans = {d: make_plan(part, _pieces_of(d, settings, check_nans), window) for d, part in split.parts.items()}
    identity = identity_of(split, window) if names_ranks(plans) else None
    return Prepared(split, plans, identity, check_nans, is_counted)


def _pieces_of(device: str, settings: Settings, check_nans: bool) -> PieceOf:
    """By what a device runs its clusters."""
    if _is_cuda(device) and not check_nans:
        from ctrlgrad.dataflow.cuda_runs import cuda_piece  # the CUDA engine, loaded where it is asked for

        return cuda_piece
    kernels = _kernels(settings)
    if settings.pieces == "reference":
        return interpreted(kernels)
    from ctrlgrad.engines.native.pieces import compile_piece  # as above

    return lambda region: compile_piece(region, kernels) or interpreted(kernels)(region)


def _refuse_native_pieces(settings: Settings) -> None:
    if settings.pieces == "native":
        raise UserInputError(
            "memory: the buffers of native pieces are not counted",
            source=here(),
            expected="dataflow.settings(pieces='reference') in a budget or profile",
            got="pieces='native'",
            hint="leave the setting out, or use engine='native'",
        )


def _kernels(settings: Settings) -> Kernels:
    """The kernels of devices of the processor."""
    if settings.loops == "whole":
        from ctrlgrad.engines.native.pieces import PLANNED_LOOPS  # as above

        return PLANNED_LOOPS
    return REFERENCE if memory.current() is None else IN_BLOCKS


def _device_run(device: str, run: Run) -> DeviceRun:
    """What a device of this process computes with."""
    if not _is_cuda(device) or run.finite is not None:
        return HostRun(run)
    from ctrlgrad.dataflow.cuda_devices import library_of  # as above
    from ctrlgrad.dataflow.cuda_runs import CudaRun

    return CudaRun(library_of(parse_device(device).number), run)


def _is_cuda(device: str) -> bool:
    return parse_device(device).kind == "cuda"


def run_dataflow(graph: Graph, arguments: Sequence[Any], check_nans: bool = False) -> list[Any]:
    """The outputs of a structured graph, run as the current settings say."""
    if asks_for_memory(graph):
        refuse_checkpoint(graph, "engine='dataflow'")
        if memory.current() is None:
            with memory.budget():
                return run_dataflow(graph, arguments, check_nans)
    return run_prepared(prepare(graph, current_settings(), check_nans), arguments, current_settings())


def run_flat(graph: FlatGraph, arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a flat graph for the given arrays (and lists, for stacks), run as the current settings say.

    Raises:
        VerificationError: the graph breaks a rule of `ctrlgrad.dataflow.verifier`.
        UserInputError: a node is on a device that does not exist.
        ExecutionError: an op fails, an output is dead, or the run cannot go on; the error says where.

    >>> import numpy as np, ctrlgrad as cg
    >>> from ctrlgrad.dataflow import lower, run_flat
    >>> flat = lower(cg.function(lambda n: cg.while_loop(lambda i: i < n, lambda i: i + 3, 0)).graph(3))
    >>> print(run_flat(flat, [np.int64(7)])[0])
    9
    """
    return run_prepared(prepare(graph, current_settings()), arguments, current_settings())


def run_prepared(
    prepared: Prepared,
    arguments: Sequence[Any],
    settings: Settings,
    *,
    outcome: Outcome | None = None,
) -> list[Any]:
    """Run plans; `outcome` is filled with what was counted."""
    outcome = outcome or Outcome()
    devices = _Devices(prepared, list(arguments), settings, outcome)
    with _noted(prepared, settings):
        if prepared.identity is not None:
            over = (prepared.partition, prepared.plans, settings, prepared.identity)
            outputs = run_over_ranks(*over, arguments, lambda run: devices.run(sorted(run.boxes), run))
        else:
            names = sorted(prepared.plans)
            exchange = Exchange(names, prepared.partition.edges, delay_of(settings)) if len(names) > 1 else None
            outputs = devices.run(names, exchange)
        return as_lists([outputs[i] for i in range(len(outputs))])


@contextmanager
def _noted(prepared: Prepared, settings: Settings) -> Iterator[None]:
    """In a session: it records the run, and pushed rows go into its blocks; with `check_nans` they stay, and count."""
    session = memory.current()
    if session is None or not prepared.row_pushes:
        yield
        return
    rows = rows_in_blocks(lambda: prepared.row_pushes, keeps_axes=settings.loops != "whole")
    with session.manager().running("the dataflow graph"), nullcontext() if prepared.check_nans else rows:
        yield


@dataclass(frozen=True)
class _Devices:
    """The devices of this process in one call."""

    prepared: Prepared
    arguments: list[Any]
    settings: Settings
    outcome: Outcome

    def run(self, names: Sequence[str], exchange: Exchange | RankRun | None) -> dict[int, Any]:
        """Run devices to their end; the outputs that they have, by place."""
        settings, outcome = self.settings, self.outcome
        executors: dict[str, Executor] = {}
        for number, name in enumerate(names):
            run = Run(finite=FiniteCheck() if self.prepared.check_nans else None)
            order = None if settings.order is None else random.Random(settings.order + 1000 * number)
            transport = None if exchange is None else exchange.boxes[name]
            device = _device_run(name, run)
            executors[name] = Executor(self.prepared.plans[name], device, transport, order, settings.recorder)
            outcome.runs[name], outcome.counts[name], outcome.devices[name] = run, executors[name].counts, device
        if exchange is None:
            for executor in executors.values():
                run_alone(executor, self.arguments)
        else:
            run_together(executors, exchange, self.arguments)
        for name, executor in executors.items():
            left = {what: n for what, n in executor.left_behind().items() if n}
            if left:
                raise ExecutionError(f"the dataflow executor of {name} left something behind", got=str(left))
        return {place: value for executor in executors.values() for place, value in executor.outputs.items()}


register_engine("dataflow", run_dataflow)

__all__ = [
    "Outcome",
    "Prepared",
    "partitioned",
    "placed",
    "prepare",
    "run_dataflow",
    "run_flat",
    "run_prepared",
]
