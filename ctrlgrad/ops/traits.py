"""Questions that passes ask of a node, answered from its op's traits and its types."""

from __future__ import annotations

from ctrlgrad.ir import attributes
from ctrlgrad.ir.graph import Node
from ctrlgrad.ir.op import Trait
from ctrlgrad.ir.types import TensorType
from ctrlgrad.ops.arrays import is_static


def is_total(node: Node) -> bool:
    """True if a node can never fail at run time, so that it may run even if the program would not have reached it."""
    traits = node.op.traits
    if Trait.TOTAL in traits:
        return True
    index = attributes.Index.find(node)
    if index is not None:
        return _is_static(node) and is_static(index.key)
    return Trait.TOTAL_IF_STATIC in traits and _is_static(node)


def _is_static(node: Node) -> bool:
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in (*node.operands, *node.results))
