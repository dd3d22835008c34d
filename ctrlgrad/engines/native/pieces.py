"""Plans for parts of a graph that an interpreter runs: nodes `PART`.

Results are those of the reference engine within rounding, and errors name the same line. What looks in at every op
(`check_nans`, the debugger) sees them all: then the reference kernels run. So they do where no plan fits what a run
meets. Plans are made and compiled at the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.engines.block_kernels import IN_BLOCKS, Control
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.refusals import SizesDoNotFit
from ctrlgrad.engines.reference import Kernels, Run
from ctrlgrad.engines.reference.interpreter import compile_graph
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import Graph, Node, Op, Type
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.types import RegionType


def _part_types(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return regions[0].outputs


PART = Op("part", None, _part_types)
"""A node whose region is one plan. It stands in graphs for interpreters alone and is no op of the language."""


class Part:
    """A node `PART`: its region as a plan."""

    def __init__(self, node: Node) -> None:
        (self.region,) = node.regions

    def __call__(self, values: list[Any], run: Run) -> Any:
        """The results, one alone as it is; takes the list of operands over."""
        found = planned(self.region, values)
        if found is None:
            found = compile_graph(self.region, IN_BLOCKS)(values, run)
        return found[0] if len(found) == 1 else found


def planned(graph: Graph, values: list[Any]) -> list[Any] | None:
    """The outputs of a graph by its plan; None where none fits these values, or where it fails.

    Nothing has happened then, and who runs the graph step by step finds what is wrong. So it is for graphs without
    effects.
    """
    try:
        return engine.run(graph, values)
    except (ExecutionError, SizesDoNotFit):
        return None


_PARTS: dict[str, Control] = {PART.name: lambda node, _: Part(node)}
STAGES = Kernels("in parts", IN_BLOCKS.pure, IN_BLOCKS.in_place, {**IN_BLOCKS.control, **_PARTS})
"""Kernels for graphs whose plans have been cut out already."""
