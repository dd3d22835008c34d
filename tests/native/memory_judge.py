"""The loops that a program meets, and a verdict on the code that is generated for them. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from native.memory_recording import RecordingEmitter

from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native.layout import NotNative
from ctrlgrad.engines.native.memory_check import check
from ctrlgrad.engines.native.operands import layout_of, shapes_of
from ctrlgrad.engines.native.shapes import infer, size_captures
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop
from ctrlgrad.engines.reference.interpreter import interpret
from ctrlgrad.ir import Graph, Node

_numbers = count()

# A loop with the shapes of its operands, the values of those that decide sizes, and how they lie in memory.
Met = tuple[Node, tuple[Any, ...], dict[int, int], tuple[Any, ...]]


def loops_of(graph: Graph, arguments: Sequence[Any]) -> list[Met]:
    """The loops that a run meets; it is interpreted."""
    found: dict[Any, Met] = {}

    def loop(node: Node, kernels: Kernels) -> Any:
        interpreted, sizes = InterpretedLoop(node, kernels), size_captures(node)

        def run_loop(values: list[Any], run: Run) -> Any:
            shapes, known = shapes_of(values), {i: int(values[i]) for i in sizes}
            layouts = tuple(layout_of(v) for v in values[: node.attrs["captures"]])
            found[node, shapes, tuple(known.items()), layouts] = (node, shapes, known, layouts)
            return interpreted(values, run)

        return run_loop

    kernels = Kernels(
        f"tracing {next(_numbers)}", REFERENCE.pure, REFERENCE.in_place, {**REFERENCE.control, "while": loop}
    )
    interpret(optimised_graph(graph), list(arguments), Run(), kernels)
    return list(found.values())


def judge(loops: Sequence[Met]) -> int:
    """Generate the code of loops and check it; how many have a native form."""
    judged = 0
    for node, shapes, known, layouts in loops:
        try:
            emitter = RecordingEmitter(node, infer(node, shapes, known), layouts)
            emitter.record()
        except NotNative:
            continue
        check(emitter.events)
        judged += 1
    return judged


__all__ = ["Met", "judge", "loops_of"]
