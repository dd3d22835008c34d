"""Pieces: what runs the ops of a cluster. The engine says by which kind of piece each device runs its clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad.engines.reference import Kernels, Run
from ctrlgrad.engines.reference.interpreter import compile_graph
from ctrlgrad.ir import Graph

# Takes a list of operands over, and what its device's run has as `context`: on the processor a `Run`.
Piece = Callable[[list[Any], Any], list[Any]]
# Makes the piece of a cluster's region.
PieceOf = Callable[[Graph], Piece]


def interpreted(kernels: Kernels) -> PieceOf:
    """Pieces that run node by node, by an interpreting engine's kernels.

    The arrays of constants are bound once and passed as operands, which is cheaper than making them in every iteration.
    """

    def piece_of(region: Graph) -> Piece:
        constants = [node for node in region.nodes if node.op.name == "constant"]
        arrays = [kernels.pure["constant"](node)() for node in constants]
        rest = tuple(node for node in region.nodes if node.op.name != "constant")
        inputs = (*region.inputs, *(node.result for node in constants))
        program = compile_graph(Graph(inputs, rest, region.outputs, region.name), kernels)
        if not arrays:
            return program

        def with_constants(values: list[Any], run: Run) -> list[Any]:
            values += arrays
            return program(values, run)

        return with_constants

    return piece_of


__all__ = ["Piece", "PieceOf", "interpreted"]
