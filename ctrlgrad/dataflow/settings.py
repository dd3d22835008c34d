"""Settings of the dataflow engine: the choices of a user, a test or a benchmark, and the graphs prepared for them.

    divide -> lower -> place -> cluster -> partition -> plan      once per graph and settings, kept with the graph

Of a graph on threads of this process, loops that are a pipeline of devices are divided into plans (`stages`). One
without such a loop needs no messages: it runs as one plan of the native engine (`is_one_plan`). A setting or
`check_nans` may ask for the executor alone. Then a cluster on the processor runs by the reference engine's kernels, and
one on a GPU as a program of the CUDA engine. In a session of `ctrlgrad.memory` pushes go into its blocks; a push or a
pop hands its stack on at once, and the copies of the blocks run beside the computation, see
`ctrlgrad.engines.block_kernels`.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from ctrlgrad import memory
from ctrlgrad.advice import check_choice
from ctrlgrad.blocks import block, holding
from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import PieceOf, check_devices, interpreted, parse_device
from ctrlgrad.dataflow.drawing import Recorder
from ctrlgrad.dataflow.frames import DevicePlan
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode, LoopCond
from ctrlgrad.dataflow.lowering import lower
from ctrlgrad.dataflow.partition import (
    Part,
    Partition,
    as_written,
    flat_node,
    names_ranks,
    on_ranks,
    partition,
    place,
)
from ctrlgrad.dataflow.plan import CUTS, cluster, plan_part
from ctrlgrad.dataflow.scopes import Frames, frames_of
from ctrlgrad.dataflow.stages import Staged, stage_loops
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.engines.block_kernels import IN_BLOCKS, RowPush, add_row_pushes
from ctrlgrad.engines.reference import REFERENCE
from ctrlgrad.errors import UserInputError
from ctrlgrad.forks import once
from ctrlgrad.ir import Graph, Node, attributes
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.walk import walk
from ctrlgrad.mpi.wire import IDENTITY
from ctrlgrad.records import record
from ctrlgrad.source import here

LOOPS = (None, "lowered")


def _check(name: str, value: object, is_usable: bool, expected: str) -> None:
    if not is_usable:
        raise UserInputError(f"the setting {name} is not usable", expected=expected, got=repr(value))


def _check_function(name: str, value: object, expected: str) -> None:
    _check(name, value, value is None or callable(value), f"{expected}, or None")


def _check_choice(name: str, value: object, known: tuple[str | None, ...]) -> None:
    _check(name, value, value in known, " or ".join(map(repr, known)))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@record
class Settings:
    """The settings in force.

    Attributes:
        parallel_iterations: the most iterations in flight of every loop; None: what each `while_loop` says. Where that
            says nothing either, a loop in stages has as many as pay, and a loop on the executor 32.
        clusters: "whole", "flowing" or "none", see `ctrlgrad.dataflow.plan`; None: "whole" on one device and
            "flowing" on several.
        loops: "lowered"; or None: where no setting but `parallel_iterations` and `place`
            says how a graph runs, and its devices are threads of this process, loops that are a pipeline of several
            devices are plans for chunks of iterations where that pays, and all other loops one plan; else "lowered".
        place: where an op goes, instead of where the user put it: takes a `FlatNode`, returns a device's name or None.
        order: a seed; what is ready fires in an order drawn by it, instead of first come, first served.
        latency: seconds that a message takes from or to a device `sim:N`.
        delay: seconds that a message takes in any case, drawn for each; for tests.
        recorder: notes every firing, see `ctrlgrad.dataflow.Recorder`.
    """

    parallel_iterations: int | None = None
    clusters: str | None = None
    loops: str | None = None
    place: Callable[[FlatNode], str | None] | None = None
    order: int | None = None
    latency: float = 0.0
    delay: Callable[[random.Random], float] | None = None
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        """Refuse settings that no run can satisfy."""
        window, order, latency = self.parallel_iterations, self.order, self.latency
        is_window = window is None or (_is_int(window) and window >= 1)
        _check("parallel_iterations", window, is_window, "an int of 1 or more, or None")
        _check_choice("clusters", self.clusters, (None, *CUTS))
        _check_choice("loops", self.loops, LOOPS)
        _check_function("place", self.place, "a function that takes a FlatNode and returns a device's name or None")
        _check("order", order, order is None or _is_int(order), "an int, or None")
        is_number = isinstance(latency, int | float) and not isinstance(latency, bool)
        _check("latency", latency, is_number and 0.0 <= latency < math.inf, "seconds, 0 or more")
        _check_function("delay", self.delay, "a function that takes a random.Random and returns seconds")
        is_recorder = self.recorder is None or isinstance(self.recorder, Recorder)
        _check("recorder", self.recorder, is_recorder, "a ctrlgrad.dataflow.Recorder, or None")


_SETTINGS: ContextVar[Settings] = ContextVar("dataflow settings", default=Settings())  # noqa: B039


def current_settings() -> Settings:
    return _SETTINGS.get()


@block("ctrlgrad.dataflow.settings")
def settings(**changes: Any) -> Iterator[Settings]:
    """Choose how the dataflow engine runs, for a block of code; the fields of `Settings`.

    >>> from ctrlgrad import dataflow
    >>> with dataflow.settings(parallel_iterations=1) as now:
    ...     now.parallel_iterations
    1
    """
    names = [f.name for f in fields(Settings)]
    for name in changes:
        check_choice("dataflow.settings", "setting", name, names)
    try:
        changed = replace(_SETTINGS.get(), **changes)
    except UserInputError as error:
        error.source = here()
        raise
    with holding(_SETTINGS, changed):
        yield changed


# Prepared graphs.


@record(frozen=False)
class OverRanks:
    """A graph that runs over ranks: its digest, and whether every rank has said that it has its devices."""

    identity: bytes
    has_agreed: bool = False


@dataclass(frozen=True)
class Prepared:
    """A graph as it runs for some settings."""

    partition: Partition
    plans: dict[str, DevicePlan]
    over_ranks: OverRanks | None
    check_nans: bool | Literal["gradients"]
    # Its kernels count bytes, for a session.
    is_counted: bool
    # The graph with its loops in stages, if it was divided.
    staged: Graph | None = None

    @once
    def row_pushes(self) -> Mapping[Node, RowPush]:
        """Descriptions of all pushes."""
        return row_pushes_in(self.partition)


@record(eq=False)
class _Place:
    """The function that places ops, by identity: it need not be hashable."""

    function: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)


@record
class _Choices:
    """Choices that the plans of a graph depend on."""

    clusters: str | None
    loops: str | None
    window: int | None
    place: _Place
    check_nans: bool | Literal["gradients"]
    is_counted: bool
    # True if loops may be divided into stages.
    may_divide: bool


_PREPARED: Cache[_Choices, Prepared] = Cache(16)


@record
class _Division:
    """Facts that the loops in stages depend on."""

    place: _Place
    window: int | None


_DIVIDED: Cache[_Division, tuple[Graph, Staged] | None] = Cache(4)


def is_one_plan(graph: Graph, settings: Settings) -> bool:
    """Return true if all ops of a graph go to threads of this process, and none of its loops is divided among them.

    >>> from ctrlgrad.dataflow.settings import is_one_plan
    >>> graph = cg.function(lambda x: np.sin(x)).graph(1.0)
    >>> is_one_plan(graph, Settings()), is_one_plan(graph, Settings(loops="lowered"))
    (True, False)
    """
    return _is_of_threads(graph, settings) and divided(graph, settings) is None


_OF_THREADS: Cache[_Place, bool] = Cache(4)


def _is_of_threads(graph: Graph, settings: Settings) -> bool:
    """Return true if all ops of a graph go to threads of this process, and the settings allow plans."""
    # Settings that choose how a graph runs, not only where its ops go and how many iterations are in flight.
    if replace(settings, parallel_iterations=None, place=None) != Settings():
        return False
    choose = settings.place or as_written

    def find() -> bool:
        homes = {home for node in walk(graph) if not node.regions and (home := choose(flat_node(node))) is not None}
        try:
            names = [parse_device(home) for home in homes]
        except UserInputError:
            return False  # `place` says it with the place of the op
        return all(name.kind == "cpu" and name.rank is None for name in names)

    return _OF_THREADS.get(graph, _Place(settings.place), find)


def divided(graph: Graph, settings: Settings) -> tuple[Graph, Staged] | None:
    """A graph on threads of this process with its loops in stages; None if none is, or in a session of memory."""
    if memory.current() is not None:
        return None
    choose, window = settings.place or as_written, settings.parallel_iterations
    found = _Division(_Place(settings.place), window)
    return _DIVIDED.get(graph, found, lambda: stage_loops(graph, choose, window))


def placed(graph: Graph, settings: Settings, keeps: Callable[[Node], str | None] | None = None) -> FlatGraph:
    """The flat graph with a device on every node; devices that do not exist here are refused.

    A node that `keeps` gives a device for stays one node there.
    """
    choose = settings.place or as_written
    if isinstance(graph, FlatGraph):
        verify_flat(graph)
    else:
        graph = lower(graph, keeps)
    found = place(graph, choose)
    found = on_ranks(found)
    if not names_ranks(str(node.device) for node in found.nodes):
        check_devices((str(node.device), node.source) for node in found.nodes)
    return found


def partitioned(graph: Graph, settings: Settings, keeps: Callable[[Node], str | None] | None = None) -> Partition:
    """The parts of a graph by device, their ops in clusters."""
    found = placed(graph, settings, keeps)
    several = len({node.device for node in found.nodes}) > 1
    return partition(cluster(found, settings.clusters or ("flowing" if several else "whole")))


def prepare(graph: Graph, settings: Settings, check_nans: bool | Literal["gradients"] = False) -> Prepared:
    """The plans of a graph, made once for the settings that they depend on.

    With `check_nans` every node is looked at: then all devices compute on the host, as the CUDA engine does too. In a
    session of `ctrlgrad.memory` saved values go into its blocks.

    Raises:
        UserInputError: a device does not exist, or is a GPU in a session.
    """
    is_counted, window = memory.current() is not None, settings.parallel_iterations
    by = _Place(settings.place)
    may_divide = not (check_nans or isinstance(graph, FlatGraph)) and _is_of_threads(graph, settings)
    choices = _Choices(settings.clusters, settings.loops, window, by, check_nans, is_counted, may_divide)
    return _PREPARED.get(graph, choices, lambda: _prepare(graph, settings, choices))


def _prepare(graph: Graph, settings: Settings, choices: _Choices) -> Prepared:
    window, check_nans, is_counted = choices.window, choices.check_nans, choices.is_counted
    staged = divided(graph, settings) if choices.may_divide else None
    if staged is not None:
        from ctrlgrad.engines.native.pieces import STAGES  # the native engine, loaded where it is asked for

        result, found = staged
        split = partitioned(result, settings, found.device.get)
        plans = {d: plan_part(part, interpreted(STAGES), None) for d, part in split.parts.items()}
        return Prepared(split, plans, None, check_nans, is_counted, result)
    split = partitioned(graph, settings)
    if is_counted:
        refuse_gpus(split)
    plans = {d: plan_part(part, _pieces_of(d, check_nans), window) for d, part in split.parts.items()}
    over_ranks = OverRanks(identity_of(split, window)) if names_ranks(plans) else None
    return Prepared(split, plans, over_ranks, check_nans, is_counted)


def identity_of(partition: Partition, window: int | None) -> bytes:
    """A digest of all that the ranks must agree on before they run."""
    digest = hashlib.sha256(repr(window).encode())
    for name, part in sorted(partition.parts.items()):
        digest.update(f"{name} {part.outputs}\n{part.graph}\n".encode())
        for array in _constants(part):
            digest.update(np.asarray(array, order="C").tobytes())
    for edge in partition.edges:
        digest.update(f"{edge.number} {edge.sender} {edge.receiver} {edge.frame} {edge.type}\n".encode())
    return digest.digest()[:IDENTITY]


def _constants(part: Part) -> Iterable[Any]:
    regions: list[Graph] = [region for node in part.graph.nodes for region in node.regions]
    for region in regions:
        for node in walk(region):
            if node.op.name == "constant":
                yield attributes.Constant.of(node).value


def _pieces_of(device: str, check_nans: bool | Literal["gradients"]) -> PieceOf:
    """Return the function that makes the pieces of a device."""
    if is_cuda(device) and not check_nans:
        from ctrlgrad.dataflow.cuda import cuda_piece  # the CUDA engine, loaded where it is asked for

        return cuda_piece
    return interpreted(REFERENCE if memory.current() is None else IN_BLOCKS)


def is_cuda(device: str) -> bool:
    return parse_device(device).kind == "cuda"


# Saved values under a budget.


def row_pushes_in(partition: Partition) -> Mapping[Node, RowPush]:
    """All pushes of a partition, each with the loop that its frame is of."""
    frames = {name: frames_of(part.graph) for name, part in partition.parts.items()}
    # The device that owns a loop has its predicate; a frame has the same name on all devices.
    loops: dict[str, Node] = {}
    for name, part in partition.parts.items():
        for node in part.graph.nodes:
            condition = LoopCond.find(node)
            if condition is not None and condition.loop is not None:
                loops[frames[name].of_node[node]] = condition.loop
    found: dict[Node, RowPush] = {}
    for name, part in partition.parts.items():
        for node in part.graph.nodes:
            if node.op is flat.CLUSTER:
                frame = frames[name].of_node[node]
                add_row_pushes(found, node.regions[0], loops.get(frame), _option(frame, frames[name], loops))
    return found


def _option(frame: str, frames: Frames, loops: Mapping[str, Node]) -> bool | None:
    """Option `swap_memory` for a frame, from the innermost loop around it that sets one."""
    options = [attributes.Loop.of(loops[name]).swap_memory for name in frames.path(frame) if name in loops]
    return next((option for option in reversed(options) if option is not None), None)


def refuse_gpus(partition: Partition) -> None:
    """Budgets are kept to by devices of the processor alone."""
    for name, part in partition.parts.items():
        if parse_device(name).kind == "cuda":
            raise UserInputError(
                "memory: budgets with the dataflow engine are for cpu devices",
                source=next((node.source for node in part.graph.nodes if node.source is not None), None),
                expected="cpu:N or sim:N in every ctrlgrad.device(...), or engine='cuda' for the whole function",
                got=name,
                hint="call outside of ctrlgrad.memory.budget and ctrlgrad.memory.profile, without swap_memory",
            )
