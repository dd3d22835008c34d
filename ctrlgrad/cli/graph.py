"""`ctrlgrad graph FILE.py:function`: the graph of a user's function, as text or DOT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ctrlgrad as cg
from ctrlgrad.cli.target import load_target
from ctrlgrad.ir import Graph, format_graph
from ctrlgrad.ir.dot import format_dot


def graph_text(text: str, *, grad: bool, dot: bool, sources: bool) -> str:
    """The text that the command prints; raises `UserInputError` for a target that cannot be used."""
    target = load_target("graph", text)
    arguments = target.example_args(", for their dtypes and shapes")
    graph = target.guarded(f"tracing {target.name}", lambda: _trace(target.fn, arguments, grad))
    return format_dot(graph, sources=sources) if dot else format_graph(graph, sources=sources)


def _trace(fn: Callable[..., Any], arguments: tuple[Any, ...], grad: bool) -> Graph:
    graph: Graph = cg.function(cg.grad(fn) if grad else fn).graph(*arguments)
    return graph
