"""Check of a run's sizes by an op's type rule: misfits are refused as when a function is traced.

A node whose sizes were unknown was built unchecked, and its kernel fails in words of its own. The type rule,
applied again to the actual sizes, gives the error that tracing with these sizes gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Node, StackType, TensorType, Type, Use, attributes


def refused(node: Node, operands: Sequence[Any]) -> CtrlgradError | None:
    """The error of a node's type rule for the arrays that it is given; None where it has nothing against them."""
    if node.regions or len(operands) != len(node.operands):
        return None
    types, attrs = [_of_run(v.type, x) for v, x in zip(node.operands, operands, strict=True)], node.attrs
    if isinstance(attrs, attributes.Shape):
        sizes = iter([x for i, x in enumerate(operands) if node.op.use(i) is Use.SIZE])
        attrs = replace(attrs, shape=tuple(int(next(sizes)) if d is None else d for d in attrs.shape))
        types = [t for i, t in enumerate(types) if node.op.use(i) is not Use.SIZE]
    return refused_types(node, types, attrs)


def refused_types(node: Node, types: Sequence[Type], attrs: attributes.Attributes) -> CtrlgradError | None:
    try:
        node.op.infer(types, attrs, ())
    except CtrlgradError as error:
        if error.source is None:
            error.source = node.source
        return error
    return None


def require_types(node: Node, types: Sequence[Type]) -> None:
    """Raise the error of a node's type rule, if it has one for operands of these types."""
    misfit = refused_types(node, types, node.attrs)
    if misfit is not None:
        raise misfit from None


def _of_run(declared: Type, x: Any) -> Type:
    return declared if isinstance(declared, StackType) else TensorType(declared.dtype, np.shape(x))
