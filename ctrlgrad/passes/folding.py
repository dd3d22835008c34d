"""Folding: what can be computed now is not computed at run time.

In: any graph. Out: in no region a total elementwise op that NumPy computes, whose operands are all small constants of
the same region; no product with or quotient by a scalar constant 1 of the result's type; no cast to the dtype that a
value has; no transpose that undoes another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ctrlgrad.dtypes import converted
from ctrlgrad.ir import Graph, Node, Rewriter, Trait, Value, attributes
from ctrlgrad.ops.arrays import is_total
from ctrlgrad.ops.elementwise import FACTS

# Constants with more elements are left to run time.
SMALL = 64


def fold(graph: Graph) -> Graph:
    """The graph with constants folded and identities left out, inside regions too."""
    return _Folding(graph).run()


class _Folding(Rewriter):
    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        self._producers: dict[Value, Node] = {}
        self._constants: dict[Value, np.ndarray] = {}

    def visit(self, node: Node) -> Sequence[Value] | None:
        if node.op.name == "constant":
            self._constants[node.result] = attributes.Constant.of(node).value
            return None
        array = _computed(node, self._constants)
        if array is not None:
            value = self.builder.constant(array)
            self._constants[value] = array
            return (value,)
        same = _identity(node, self._producers, self._constants)
        if same is not None:
            return (same,)
        self._producers.update((v, node) for v in node.results)
        return None


def _identity(node: Node, producers: dict[Value, Node], constants: dict[Value, np.ndarray]) -> Value | None:
    """The value that a node only repeats."""
    name = node.op.name
    if name == "cast" and node.operands[0].type == node.result.type:
        return node.operands[0]
    if name == "transpose":
        inner = producers.get(node.operands[0])
        if inner is not None and inner.op.name == "transpose":
            axes = [attributes.Axes.of(inner).axes[a] for a in attributes.Axes.of(node).axes]
            return inner.operands[0] if axes == sorted(axes) else None
    if name in ("multiply", "divide"):
        pairs = [(0, 1)] if name == "divide" else [(0, 1), (1, 0)]
        for kept, other in pairs:
            constant = constants.get(node.operands[other])
            if constant is not None and constant.ndim == 0 and constant == 1:
                value = node.operands[kept]
                return value if value.type == node.result.type else None
    return None


def _computed(node: Node, constants: dict[Value, np.ndarray]) -> np.ndarray | None:
    """The result of an elementwise op on constants."""
    if Trait.ELEMENTWISE not in node.op.traits or not is_total(node):
        return None
    operands = [constants.get(v) for v in node.operands]
    if any(x is None or x.size > SMALL for x in operands):
        return None
    cast = attributes.Cast.find(node)
    function = FACTS[node.op.name].numpy if cast is None else partial(converted, dtype=cast.dtype)
    with np.errstate(all="ignore"):
        result = np.asarray(function(*operands))
    declared = node.result.tensor
    return result if (result.dtype, result.shape) == (declared.dtype, declared.shape) else None
