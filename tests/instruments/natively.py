"""Runs of graphs by their plans, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from ctrlgrad import execution
from ctrlgrad.engines import current_without, optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.runtime import Program
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph


def compiled(graph: Graph) -> list[Program]:
    """The programs of a graph, of which there is one at least."""
    programs = list(engine.patterns_of(optimised_graph(graph), current_without()).programs.values())
    assert programs
    return programs


def run_natively(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a graph in machine code, nothing of which is left to the reference engine."""
    with mock.patch.object(execution, "_interpret", side_effect=AssertionError("the reference engine ran")):
        return run_on("native", graph, arguments)
