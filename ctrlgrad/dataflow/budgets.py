"""Saved values of the dataflow engine under a budget: what a partition pushes, and which devices may.

A push or a pop hands its stack on at once; the copies of the blocks run beside the computation, see
`ctrlgrad.engines.row_blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import parse_device
from ctrlgrad.dataflow.partition import Partition
from ctrlgrad.dataflow.scopes import Frames, frames_of
from ctrlgrad.engines.pushes import RowPush, add_row_pushes
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Node, attributes


def row_pushes_in(partition: Partition) -> Mapping[Node, RowPush]:
    """All pushes of a partition, each with the loop that its frame is of."""
    frames = {name: frames_of(part.graph) for name, part in partition.parts.items()}
    # The device that owns a loop has its predicate; a frame has the same name on all devices.
    loops: dict[str, Node] = {}
    for name, part in partition.parts.items():
        for node in part.graph.nodes:
            if node.op == flat.LOOP_COND and "loop" in node.attrs:
                loops[frames[name].of_node[node]] = node.attrs["loop"]
    found: dict[Node, RowPush] = {}
    for name, part in partition.parts.items():
        for node in part.graph.nodes:
            if node.op == flat.CLUSTER:
                frame = frames[name].of_node[node]
                add_row_pushes(found, node.regions[0], loops.get(frame), _option(frame, frames[name], loops))
    return found


def _option(frame: str, frames: Frames, loops: Mapping[str, Node]) -> bool | None:
    """What `swap_memory` says in a frame: the nearest loop around that says something."""
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


__all__ = ["refuse_gpus", "row_pushes_in"]
