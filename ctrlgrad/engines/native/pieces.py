"""Plans for parts of a graph that an interpreter runs: straight-line pieces, and single loops.

A piece is a list of steps, as the reference engine's program of the same graph is; what a plan can hold of it is one
step, a part (`parts`). Results are those of the reference engine within rounding, and errors name the same line. What
looks in at every op (`check_nans`, the debugger) sees them all: then the reference kernels run. So they do where no
plan fits what a run meets. Plans are made and compiled at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad.engines.block_kernels import IN_BLOCKS, Control, with_blocks
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.parts import PART, parted
from ctrlgrad.engines.native.refusals import SizesDoNotFit
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop
from ctrlgrad.engines.reference.interpreter import compile_graph
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import Graph, Node

Piece = Callable[[list[Any], Run], list[Any]]


class Part:
    """A node `PART`: its region as a plan."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        (self.region,) = node.regions
        self.kernels = kernels

    def __call__(self, values: list[Any], run: Run) -> Any:
        """The results, one alone as it is; takes the list of operands over."""
        found = self.planned(values)
        if found is None:
            found = compile_graph(self.region, self.kernels)(values, run)
        return found[0] if len(found) == 1 else found

    def planned(self, values: list[Any]) -> list[Any] | None:
        """The results by the plan, or None (see `planned`)."""
        return planned(self.region, values)


class PlannedLoop:
    """A `while` node as a plan of its own."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        # An operand may stand in several places.
        self.places = [node.operands.index(v) for v in dict.fromkeys(node.operands)]
        self.graph = Graph(tuple(dict.fromkeys(node.operands)), (node,), node.results, "loop")
        self.interpreted = InterpretedLoop(node, kernels)

    def __call__(self, values: list[Any], run: Run) -> Any:
        if run.is_watched:
            return self.interpreted(values, run)
        found = _fitting(self.graph, [values[place] for place in self.places])
        if found is None:
            return self.interpreted(values, run)
        return found[0] if len(found) == 1 else found


def planned(graph: Graph, values: list[Any]) -> list[Any] | None:
    """The outputs of a graph by its plan; None where none fits these values, or where it fails.

    Nothing has happened then, and who runs the graph step by step finds what is wrong. So it is for graphs without
    effects.
    """
    try:
        return _fitting(graph, values)
    except ExecutionError:
        return None


def _fitting(graph: Graph, values: list[Any]) -> list[Any] | None:
    """The outputs of a graph by its plan; None where none fits these values."""
    try:
        return engine.run(graph, values)
    except SizesDoNotFit:
        return None


PLANNED_LOOPS = with_blocks("planned loops", PlannedLoop)
"""Kernels whose loops are plans."""


def with_parts(kernels: Kernels) -> Kernels:
    """Kernels that can run parts too."""
    parts: dict[str, Control] = {PART.name: lambda node, _: Part(node, kernels)}
    control = {**kernels.control, **parts}
    return Kernels(f"{kernels.name} in parts", kernels.pure, kernels.in_place, control)


STAGES = with_parts(IN_BLOCKS)
"""Kernels for graphs whose plans have been cut out already."""


def compile_piece(region: Graph, kernels: Kernels = REFERENCE) -> Piece | None:
    """A function that runs a graph on a list of operands, which it takes over; None where nothing would be gained.

    Args:
        region: any graph; loops and branches in it run by `kernels`.
        kernels: what runs the nodes that stay outside of machine code.

    >>> from ctrlgrad.engines.native.pieces import compile_piece
    >>> from ctrlgrad.engines.reference import Run
    >>> x = np.linspace(0.0, 1.0, 50000)
    >>> graph = cg.function(lambda x: (1 - x * x) * (x + 2) / (x * x + 1)).graph(x)
    >>> piece = compile_piece(graph)
    >>> piece([x], Run())[0].shape
    (50000,)
    """
    graph = parted(region)
    if graph is None:
        return None
    program = compile_graph(graph, with_parts(kernels))

    def piece(values: list[Any], run: Run) -> list[Any]:
        return (compile_graph(region, kernels) if run.is_watched else program)(values, run)

    return piece
