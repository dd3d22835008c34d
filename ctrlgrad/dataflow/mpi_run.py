"""A graph over several ranks: every rank calls the same function, and each runs the devices that are its own.

The ranks do not send each other graphs. Each traces the function, and so has the same graph and the same partition; a
digest of both is in every message, so that ranks which call different functions, or the same with arguments of other
shapes, find out. Constants are in the digest, arguments only by dtype and shape: every rank passes the same ones, and
each device takes an argument from its own rank.

In a graph that names a rank, what was put on a device without one is on rank 0. A graph that names none is run by each
rank for itself. Every rank gets all outputs.

Calls over ranks go one at a time: a second thread waits for the first. All ranks make them in the same order.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ctrlgrad.dataflow.devices import parse_device
from ctrlgrad.dataflow.graph import FlatGraph
from ctrlgrad.dataflow.mpi_messages import IDENTITY
from ctrlgrad.dataflow.mpi_transport import FIRST_TAG, Run
from ctrlgrad.dataflow.partition import Part, Partition
from ctrlgrad.dataflow.plan import DevicePlan
from ctrlgrad.dataflow.printer import format_flat
from ctrlgrad.dataflow.settings import Settings
from ctrlgrad.dataflow.transport import StoppedError
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph
from ctrlgrad.ir.walk import walk
from ctrlgrad.mpi.launch import join, launched

if TYPE_CHECKING:
    from ctrlgrad.mpi.world import Arrived, World

# Runs the devices of this rank with the ends of a transport, and gives the outputs that they have.
RunLocal = Callable[[Run], Mapping[int, Any]]


class _Calls:
    """The calls over ranks of this process: how many there were, and what has come for the next one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.early: list[Arrived] = []


_CALLS = _Calls()


def names_ranks(devices: Iterable[str]) -> bool:
    """Whether a device is one of a rank."""
    return any(parse_device(name).rank is not None for name in devices)


def on_ranks(graph: FlatGraph) -> FlatGraph:
    """A placed graph in which every device has a rank, if any has; started alone, rank 0 is this process.

    Raises:
        UserInputError: a rank or a device does not exist.
    """
    if not names_ranks(str(node.device) for node in graph.nodes):
        return graph
    launch = launched()
    size = 1 if launch is None else launch.size
    nodes, missing = [], []
    for node in graph.nodes:
        name = parse_device(node.device, node.source)
        rank = name.rank or 0
        if rank >= size or name.kind != "cpu":
            missing.append(node)
        nodes.append(replace(node, device=str(replace(name, rank=rank if launch is not None else None))))
    if missing:
        # A copied constant does not say where the user wrote it.
        node = next((n for n in missing if n.source is not None), missing[0])
        ranks = max(size, (parse_device(node.device).rank or 0) + 1)
        raise UserInputError(
            f"the device {node.device} does not exist here",
            source=node.source,
            expected=f"/rank:R/cpu:N with R below {size}, the number of ranks",
            got=str(node.device),
            hint=f"start enough ranks, with mpirun -n {ranks} in front of the command, and use no other kind of device",
        )
    return FlatGraph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def identity_of(partition: Partition, window: int | None) -> bytes:
    """A digest of all that the ranks must agree on before they run."""
    digest = hashlib.sha256(repr(window).encode())
    for name, part in sorted(partition.parts.items()):
        digest.update(f"{name} {part.outputs}\n{format_flat(part.graph)}\n".encode())
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
                yield node.attrs["value"]


def run_over_ranks(
    partition: Partition,
    plans: dict[str, DevicePlan],
    settings: Settings,
    identity: bytes,
    arguments: Sequence[Any],
    run_local: RunLocal,
) -> dict[int, Any]:
    """Run this rank's part of a graph beside the others; all outputs, by their place.

    Raises:
        ExecutionError: an op has failed on some rank, or the ranks do not run the same; on all ranks.
    """
    if settings.latency or settings.delay is not None:
        raise UserInputError(
            "simulated latencies are for devices of one process", expected="no latency and no delay", got="one of both"
        )
    joined = join()
    _check_edges(partition, joined.world)
    with _CALLS.lock:
        _CALLS.count += 1
        run = Run(joined, _CALLS.count, _for_arguments(identity, arguments), partition.edges, plans)
        early, _CALLS.early = _CALLS.early, []
        outputs: dict[int, Any] = {}
        try:
            for arrived in early:
                run.take(arrived)
            if run.boxes:
                outputs = dict(run_local(run))
        except StoppedError:
            pass  # another rank has failed, or `take` has found something wrong; `end` says which
        except BaseException as error:  # told to all ranks, and raised by `end`
            run.fail(error)
        try:
            return run.end(outputs)
        finally:
            _CALLS.early = run.early


def _for_arguments(identity: bytes, arguments: Sequence[Any]) -> bytes:
    """The digest of a graph together with the arguments' dtypes and shapes."""
    said = [len(x) if isinstance(x, list) else (str(np.asarray(x).dtype), np.shape(x)) for x in arguments]
    return hashlib.sha256(identity + repr(said).encode()).digest()[:IDENTITY]


def _check_edges(partition: Partition, world: World) -> None:
    if FIRST_TAG + len(partition.edges) > world.largest_tag:
        raise UserInputError(
            "the graph has more edges between devices than MPI has tags",
            expected=f"at most {world.largest_tag - FIRST_TAG}",
            got=str(len(partition.edges)),
            hint="put larger parts of the graph on each device",
        )


__all__ = ["identity_of", "names_ranks", "on_ranks", "run_over_ranks"]
