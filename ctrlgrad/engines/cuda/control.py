"""Kernels of nodes with regions, and of callbacks: control is on the host. Loops are in `loops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad.engines.cuda.compile import Control, compile_region
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.host_parts import HostPart
from ctrlgrad.engines.cuda.loops import Loop
from ctrlgrad.engines.cuda.placement import Places, results_of
from ctrlgrad.engines.cuda.program import Program, Regions
from ctrlgrad.engines.native.parts import PART
from ctrlgrad.engines.reference import REFERENCE
from ctrlgrad.ir import Node, attributes


class Branches(Regions):
    """A `cond` node: a selector on the device is read."""

    def __init__(self, node: Node, given: Places) -> None:
        wanted = results_of(node, given)
        self.programs = [compile_region(region, given[1:], CONTROL, wanted) for region in node.regions]

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        selector = operands.pop(0)
        if context.library.is_array(selector):
            (selector,) = context.predicate(selector)
        chosen = min(max(int(selector), 0), len(self.programs) - 1)
        return _results(self.programs[chosen], context, operands)


class Call(Regions):
    """A `call` node: its first region."""

    def __init__(self, node: Node, given: Places) -> None:
        self.programs = [compile_region(node.regions[0], given, CONTROL)]

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        return _results(self.programs[0], context, operands)


def _results(program: Program, context: Context, operands: list[Any]) -> Any:
    arguments = list(operands)
    operands.clear()
    results = program(arguments, context)
    return results if len(results) != 1 else results[0]


def _callback(node: Node, given: Places) -> Callable[[Context, list[Any]], Any]:
    fn = attributes.Hook.of(node).fn

    def kernel(context: Context, operands: list[Any]) -> Any:
        fn(context.on_host(*operands), tuple(context.run.iterations))
        return ()

    return kernel


def _pure_callback(node: Node, given: Places) -> Callable[[Context, list[Any]], Any]:
    compute = REFERENCE.pure["pure_callback"](node)
    return lambda context, operands: compute(*context.on_host(*operands))


CONTROL: dict[str, Control] = {
    "while": lambda node, given: Loop(node, given, CONTROL),
    "cond": Branches,
    "call": Call,
    "callback": _callback,
    "pure_callback": _pure_callback,
    PART.name: lambda node, given: HostPart(node, given, CONTROL),
}
