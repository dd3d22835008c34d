"""`ctrlgrad graph FILE.py:function`: the graph of a user's function, as text or DOT.

As it is traced, lowered to the dataflow primitives, or split by device as the dataflow engine runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ctrlgrad as cg
from ctrlgrad.cli.target import load_target
from ctrlgrad.dataflow import Settings, lower
from ctrlgrad.dataflow.dot import format_flat_dot, format_partition_dot
from ctrlgrad.dataflow.engine import partitioned
from ctrlgrad.dataflow.printer import format_flat
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph, format_graph
from ctrlgrad.ir.dot import format_dot


def stage_of(*, lowered: bool, partitioned: bool, sources: bool) -> str:
    """Which form of the graph the options ask for; refuses options that exclude each other."""
    if lowered + partitioned + sources > 1:
        raise UserInputError(
            "graph: options that exclude each other",
            expected="one of --lowered, --partitioned and --sources",
            got=" ".join(
                name
                for name, is_set in (("--lowered", lowered), ("--partitioned", partitioned), ("--sources", sources))
                if is_set
            ),
        )
    return "lowered" if lowered else "partitioned" if partitioned else "traced"


def graph_text(text: str, *, grad: bool, dot: bool, sources: bool, stage: str = "traced") -> str:
    """The text that the command prints; raises `UserInputError` for a target that cannot be used."""
    target = load_target("graph", text)
    arguments = target.example_args(", for their dtypes and shapes")
    graph = target.guarded(f"tracing {target.name}", lambda: _trace(target.fn, arguments, grad))
    if stage == "lowered":
        flat = lower(graph)
        return format_flat_dot(flat) if dot else format_flat(flat)
    if stage == "partitioned":
        split = partitioned(graph, Settings())
        if dot:
            return format_partition_dot(split)
        return "\n\n".join(f"{device}\n\n{part.graph}" for device, part in split.parts.items())
    return format_dot(graph, sources=sources) if dot else format_graph(graph, sources=sources)


def _trace(fn: Callable[..., Any], arguments: tuple[Any, ...], grad: bool) -> Graph:
    graph: Graph = cg.function(cg.grad(fn) if grad else fn).graph(*arguments)
    return graph
