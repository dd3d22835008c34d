"""Plans of functions and of graphs, for the sizes of given arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast, get_args

import numpy as np
from instruments.plan_machine import RunEndedError, execute

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native.engine import shapes_of
from ctrlgrad.engines.reference import REFERENCE, Run
from ctrlgrad.ir import Graph, Node
from ctrlgrad.plan import planning
from ctrlgrad.plan.model import Assumption, Plan
from ctrlgrad.plan.packing import Panels

PANELS = {np.dtype(d): Panels(16, 32) for d in ("float32", "float64")}


def unplaced(graph: Graph, arguments: Sequence[Any], without: Collection[str] = ()) -> Plan:
    return planning.unplaced(graph, shapes_of(graph, arguments), lambda: PANELS, without)


def placed(
    graph: Graph,
    arguments: Sequence[Any],
    without: Collection[str] = (),
    dropped: frozenset[Assumption] = frozenset(),
) -> Plan:
    """The plan of a graph, for any machine."""
    return planning.plan_of(graph, shapes_of(graph, arguments), lambda: PANELS, without, dropped)


def executed(graph: Graph, arguments: Sequence[Any], **settings: Any) -> list[Any]:
    """The outputs of a graph by checked execution of its plan.

    If a run breaks an assumption of the plan, the graph is planned and run again without this assumption.
    """
    dropped: frozenset[Assumption] = frozenset()
    while True:
        try:
            return execute(placed(graph, arguments, dropped=dropped), arguments, reference_kernel, **settings)
        except RunEndedError as ended:
            if ended.status not in get_args(Assumption):
                raise
            dropped |= {cast(Assumption, ended.status)}


def graph_of(fn: Any, *arguments: Any, order: int = 0, signature: Any = None) -> Graph:
    """The optimised graph of a function, or of its gradients by the first argument."""
    for _ in range(order):
        fn = _gradient(fn)
    return optimised_graph(cg.function(fn, signature=signature).graph(*arguments))


def _gradient(fn: Any) -> Any:
    def total(*args: Any) -> Any:
        return sum((np.sum(np.sin(x)) for x in tree.leaves(fn(*args)) if x.dtype.kind == "f"), 0.0)

    return cg.grad(total)


def plan_of(fn: Any, *arguments: Any, order: int = 0, signature: Any = None) -> Plan:
    return placed(graph_of(fn, *arguments, order=order, signature=signature), tree.leaves(arguments))


def reference_kernel(node: Node, operands: list[Any]) -> list[Any]:
    """An op outside of a plan, computed by the reference engine's kernel."""
    with np.errstate(all="ignore"):
        if node.op.name in REFERENCE.pure:
            found = REFERENCE.pure[node.op.name](node)(*operands)
        else:
            found = REFERENCE.effect(node)(operands, Run())
    return [found] if len(node.results) == 1 else list(found or ())
