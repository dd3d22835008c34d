"""The native engine: loops in machine code, the rest as the reference engine runs it.

Outside of loops, and in loops that have no native form, nodes run one by one by the reference kernels. A loop that a
compiled loop cannot hold runs so itself, while the loops inside it may still be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad.engines.native.loop import NativeLoop
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run, interpret
from ctrlgrad.engines.reference.table import InPlace, Pure
from ctrlgrad.ir import Graph, Node
from ctrlgrad.stacks.blocks import BlockStack


def _as_lists(operands: Sequence[Any]) -> list[Any]:
    return [x.rows() if isinstance(x, BlockStack) else x for x in operands]


def _pure(table: Pure) -> Pure:
    def factory(node: Node) -> Callable[..., Any]:
        kernel = table(node)
        return lambda *operands: kernel(*_as_lists(operands))

    return factory


def _in_place(table: InPlace) -> InPlace:
    def factory(node: Node) -> Callable[[list[Any], Run], Any]:
        kernel = table(node)

        def run_kernel(operands: list[Any], run: Run) -> Any:
            for i, x in enumerate(operands):
                if isinstance(x, BlockStack):
                    operands[i] = x.rows()
                    del x
            return kernel(operands, run)

        return run_kernel

    return factory


def _length(node: Node) -> Callable[..., Any]:
    import numpy as np

    return lambda s: np.int64(len(s))


def _to_tensor(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_to_tensor"](node)

    def run_kernel(s: Any, *dims: Any) -> Any:
        return s.tensor() if isinstance(s, BlockStack) else kernel(s, *dims)

    return run_kernel


def _while(node: Node, kernels: Kernels) -> Callable[[list[Any], Run], Any]:
    loop = NativeLoop(node)
    reference = REFERENCE.control["while"](node, kernels)

    def kernel(values: list[Any], run: Run) -> Any:
        if run.is_watched:
            return reference(values, run)
        plan = loop.plan(values)
        return reference(values, run) if isinstance(plan, str) else plan.run(values, run)

    return kernel


def _kernels() -> Kernels:
    pure, in_place = dict(REFERENCE.pure), dict(REFERENCE.in_place)
    pure |= {name: _pure(table) for name, table in pure.items() if name.startswith("stack_")}
    in_place |= {name: _in_place(table) for name, table in in_place.items() if name.startswith("stack_")}
    pure |= {"stack_length": _length, "stack_to_tensor": _to_tensor}
    return Kernels("native", pure, in_place, {**REFERENCE.control, "while": _while})


NATIVE = _kernels()


def run_graph(graph: Graph, arguments: Sequence[Any], run: Run | None = None) -> list[Any]:
    """The outputs of a graph for the given arrays (and lists, for stacks)."""
    results = interpret(graph, arguments, run or Run(), NATIVE)
    return _as_lists(results)


__all__ = ["NATIVE", "run_graph"]
