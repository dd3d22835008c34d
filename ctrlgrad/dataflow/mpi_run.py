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

from ctrlgrad.dataflow.devices import check_devices, parse_device
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode
from ctrlgrad.dataflow.messages import IDENTITY, StoppedError
from ctrlgrad.dataflow.mpi_transport import FIRST_TAG, Run
from ctrlgrad.dataflow.partition import Edge, Part, Partition
from ctrlgrad.dataflow.plan import DevicePlan
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph, attributes
from ctrlgrad.ir.walk import walk
from ctrlgrad.mpi.launch import join, launched, number_of_ranks
from ctrlgrad.source import Source

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

    All ranks call this with the same graph. Each looks whether it has the GPUs that are its own.

    Raises:
        UserInputError: a rank does not exist, a rank has no such device, or a device is simulated; on all ranks.
    """
    if not names_ranks(str(node.device) for node in graph.nodes):
        return graph
    launch = launched()
    size = number_of_ranks()
    nodes: list[FlatNode] = []
    own: dict[str, Source | None] = {}
    for node in graph.nodes:
        name = parse_device(node.device, node.source)
        rank = name.rank or 0
        if rank >= size or name.kind == "sim":
            # A copied constant does not say where the user wrote it.
            like = (n for n in graph.nodes if n.device == node.device and n.source is not None)
            raise _refused(next(like, node), rank, size)
        if launch is not None and rank == launch.rank and name.kind != "cpu":
            local = str(replace(name, rank=None))
            own[local] = own.get(local) or node.source
        nodes.append(replace(node, device=str(replace(name, rank=rank if launch is not None else None))))
    found = FlatGraph(graph.inputs, tuple(nodes), graph.outputs, graph.name)
    devices = sorted({str(node.device) for node in nodes})
    if launch is not None and any(parse_device(name).kind != "cpu" for name in devices):
        _agree_on_devices(devices, own)
    return found


def _refused(node: FlatNode, rank: int, size: int) -> UserInputError:
    if rank >= size:
        return UserInputError(
            f"the device {node.device} does not exist here",
            source=node.source,
            expected=f"/rank:R/cpu:N or /rank:R/cuda:N with R below {size}, the number of ranks",
            got=str(node.device),
            hint=f"start enough ranks, with mpirun -n {rank + 1} in front of the command",
        )
    return UserInputError(
        f"the device {node.device} cannot be used over ranks: its latency is simulated inside of one process",
        source=node.source,
        expected="/rank:R/cpu:N or /rank:R/cuda:N in a graph that names ranks",
        got=str(node.device),
        hint="give it a device cpu:N, or leave /rank:R/ out of all names",
    )


def _agree_on_devices(names: Sequence[str], own: Mapping[str, Source | None]) -> None:
    """Find out whether each rank has the devices that are its own; a call of all ranks, which one that lacks any fails.

    Raises:
        UserInputError: a rank lacks a device; on all ranks.
    """

    def check(run: Run) -> Mapping[int, Any]:
        for name, source in own.items():
            try:
                check_devices([(name, source)])
            except UserInputError as error:
                raise UserInputError(
                    f"rank {run.rank} has no device {name}",
                    source=source,
                    expected=error.expected,
                    got=error.got,
                    hint=error.hint,
                ) from None
        return {}

    _call(hashlib.sha256(repr(names).encode()).digest()[:IDENTITY], (), {}, check)


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


def run_over_ranks(
    partition: Partition,
    plans: dict[str, DevicePlan],
    identity: bytes,
    arguments: Sequence[Any],
    run_local: RunLocal,
) -> dict[int, Any]:
    """Run this rank's part of a graph beside the others; all outputs, by their place.

    Raises:
        ExecutionError: an op has failed on some rank, or the ranks do not run the same; on all ranks.
    """
    _check_edges(partition, join().world)

    def run_own(run: Run) -> Mapping[int, Any]:
        return run_local(run) if run.boxes else {}

    return _call(_for_arguments(identity, arguments), partition.edges, plans, run_own)


def _call(identity: bytes, edges: Sequence[Edge], plans: dict[str, DevicePlan], run_local: RunLocal) -> dict[int, Any]:
    """Run this rank's part of a call that all ranks make; all outputs, by their place."""
    joined = join()
    with _CALLS.lock:
        _CALLS.count += 1
        run = Run(joined, _CALLS.count, identity, edges, plans)
        early, _CALLS.early = _CALLS.early, []
        outputs: dict[int, Any] = {}
        try:
            for arrived in early:
                run.take(arrived)
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
