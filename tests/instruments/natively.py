"""Runs of graphs by their plans, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.engines import current_without, optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.runtime import Program
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph


def compiled(graph: Graph) -> list[Program]:
    """The programs of a graph, none of which was left for the reference engine."""
    patterns = engine.patterns_of(optimised_graph(graph), current_without())
    assert patterns.assumed is None, patterns.assumed
    programs = patterns.programs.values()
    assert programs
    for program in programs:
        assert isinstance(program, Program), program
    return [program for program in programs if isinstance(program, Program)]


def run_natively(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a graph in machine code."""
    found = run_on("native", graph, arguments)
    compiled(graph)
    return found
