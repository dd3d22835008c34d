"""Pieces: straight-line graphs with no loop around them, run as few calls of machine code.

A piece is a list of steps, as the reference engine's program of the same graph is; what can be fused is one step, a
part (`piece_parts`). Results are those of the reference engine within the native engine's rounding, errors name the
same line, and an operand is overwritten only where nobody else holds it. What looks in at every op (`check_nans`, the
debugger) sees them all: then the reference kernels run.

A part is compiled at its first call, and kept on disk like a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad.engines.native.piece_code import elements_are_found
from ctrlgrad.engines.native.piece_parts import PART, parted
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run
from ctrlgrad.engines.reference.interpreter import compile_graph
from ctrlgrad.ir import Graph, Node

Piece = Callable[[list[Any], Run], list[Any]]
Kernel = Callable[[list[Any], Run], Any]


def compile_piece(region: Graph, kernels: Kernels = REFERENCE) -> Piece | None:
    """A function that runs a graph on a list of operands, which it takes over; None where nothing would be gained.

    Args:
        region: any graph; loops and branches in it run by `kernels`.
        kernels: what runs the nodes that stay outside of machine code.

    >>> import numpy as np, ctrlgrad as cg
    >>> from ctrlgrad.engines.native.pieces import compile_piece
    >>> from ctrlgrad.engines.reference import Run
    >>> x = np.linspace(0.0, 1.0, 5000)
    >>> graph = cg.function(lambda x: (1 - x * x) * (x + 2) / (x * x + 1)).graph(x)
    >>> piece = compile_piece(graph)
    >>> piece([x], Run())[0].shape
    (5000,)
    """
    graph = parted(region)
    if graph is None or not elements_are_found():
        return None
    program = compile_graph(graph, with_parts(kernels))

    def piece(values: list[Any], run: Run) -> list[Any]:
        return (compile_graph(region, kernels) if run.is_watched else program)(values, run)

    return piece


def with_parts(kernels: Kernels) -> Kernels:
    """Kernels that can run parts too."""

    def part(node: Node, kernels: Kernels) -> Kernel:
        from ctrlgrad.engines.native.piece_run import Part  # loads LLVM, which a program without parts does without

        return Part(node)

    control: dict[str, Callable[[Node, Kernels], Kernel]] = {**kernels.control, PART.name: part}
    return Kernels(f"{kernels.name} in parts", kernels.pure, kernels.in_place, control)


__all__ = ["Piece", "compile_piece", "with_parts"]
