"""The reference engine: the definition of what every graph means, in NumPy.

The modules, in reading order:

    interpreter                     one node after the other
    run, finite                     state of a run, and the search for the first NaN or infinity
    table, kernels                  the tables of kernels, and their loading
    array_kernels, linalg_kernels   kernels of operations on arrays, factorisations and Fourier transforms
    control_kernels, stack_kernels  kernels of loops, branches, calls, callbacks and stacks
"""

from collections.abc import Sequence
from typing import Any

from ctrlgrad.engines.reference.control_kernels import CONTROL
from ctrlgrad.engines.reference.finite import FiniteCheck
from ctrlgrad.engines.reference.interpreter import Kernels, interpret
from ctrlgrad.engines.reference.kernels import IN_PLACE, PURE
from ctrlgrad.engines.reference.run import Counters, Run
from ctrlgrad.ir import Graph

REFERENCE = Kernels("reference", PURE, IN_PLACE, CONTROL)


def run_graph(graph: Graph, arguments: Sequence[Any], run: Run | None = None) -> list[Any]:
    """The outputs of a graph for the given arrays (and lists, for stacks)."""
    return interpret(graph, arguments, run or Run(), REFERENCE)


__all__ = ["REFERENCE", "Counters", "FiniteCheck", "Kernels", "Run", "interpret", "run_graph"]
