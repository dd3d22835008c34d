"""`ctrlgrad graph FILE.py:function`: the graph of a user's function, as text or DOT.

As it is traced, lowered to the dataflow primitives, split by device as the dataflow engine runs it, or as the plan that
the native engine makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.cli.target import load_target
from ctrlgrad.dataflow import Settings, lower
from ctrlgrad.dataflow.drawing import format_flat_dot, format_partition_dot
from ctrlgrad.dataflow.settings import partitioned
from ctrlgrad.errors import UserInputError
from ctrlgrad.execution import plan_text
from ctrlgrad.ir import Graph, format_graph
from ctrlgrad.ir.dot import format_dot


def stage_of(*, lowered: bool, partitioned: bool, plan: bool, sources: bool, drawn: bool) -> str:
    """Which form of the graph the options ask for; refuses options that exclude each other."""
    stages = {"lowered": lowered, "partitioned": partitioned, "plan": plan}
    asked = [f"--{name}" for name, is_set in [*stages.items(), ("sources", sources)] if is_set]
    if len(asked) > 1:
        raise UserInputError(
            "graph: options that exclude each other",
            expected="one of --lowered, --partitioned, --plan and --sources",
            got=" ".join(asked),
        )
    if plan and drawn:
        raise UserInputError(
            "graph: a plan is text", expected="--plan without --dot and --svg", got="--plan with one of them"
        )
    return next((name for name, is_set in stages.items() if is_set), "traced")


def graph_text(text: str, *, grad: bool, dot: bool, sources: bool, stage: str = "traced") -> str:
    """The text that the command prints; raises `UserInputError` for a target that cannot be used."""
    target = load_target("graph", text)
    arguments = target.example_args(", for their dtypes and shapes")
    graph = target.guarded(f"tracing {target.name}", lambda: _trace(target.fn, arguments, grad))
    if stage == "plan":
        return plan_text(graph, [np.asarray(x) for x in tree.leaves(arguments)])
    if stage == "lowered":
        flat = lower(graph)
        return format_flat_dot(flat) if dot else str(flat)
    if stage == "partitioned":
        split = partitioned(graph, Settings())
        if dot:
            return format_partition_dot(split)
        return "\n\n".join(f"{device}\n\n{part.graph}" for device, part in split.parts.items())
    return format_dot(graph, sources=sources) if dot else format_graph(graph, sources=sources)


def _trace(fn: Callable[..., Any], arguments: tuple[Any, ...], grad: bool) -> Graph:
    graph: Graph = cg.function(cg.grad(fn) if grad else fn).graph(*arguments)
    return graph
