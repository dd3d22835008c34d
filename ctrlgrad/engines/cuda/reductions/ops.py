"""The reductions of the graph: over which axes, of which shape, and when there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ctrlgrad.engines.cuda.reductions.combining import extreme_text, plain_text
from ctrlgrad.engines.cuda.reductions.model import ReductionText
from ctrlgrad.ir import Node, attributes

# The reductions of the plan's kernels, by op.
HOW: dict[str, Literal["sum", "product", "max", "min"]] = {
    "sum": "sum",
    "sum_to": "sum",
    "prod": "product",
    "max": "max",
    "min": "min",
    "any": "max",
    "all": "min",
}
# The scans likewise.
SCANS: dict[str, Literal["sum", "product"]] = {"cumsum": "sum", "cumprod": "product"}
_POSITIONS = {"argmax": "max", "argmin": "min"}
_EXTREMES = {"max": "maximum", "min": "minimum"}

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
"""The ops that name their axes."""

Shape = Sequence[int | None]


def node_text(node: Node) -> ReductionText:
    """The kernel of a reduction or scan alone."""
    name, dtype = node.op.name, node.operands[0].tensor.dtype
    return extreme_text(_POSITIONS[name], dtype) if name in _POSITIONS else plain_text((HOW | SCANS)[name], dtype)


def reduced_axes(node: Node) -> tuple[int, ...]:
    """The axes of the operand that are reduced."""
    if node.op.name != "sum_to":
        return attributes.Axes.of(node).axes
    return summed_axes(node.operands[0].tensor.shape, node.result.tensor.shape)


def summed_axes(shape: Shape, target: Shape) -> tuple[int, ...]:
    """The axes that are added up from a shape to one that broadcasts to it."""
    lead = len(shape) - len(target)
    return (*range(lead), *(lead + axis for axis, d in enumerate(target) if d == 1 != shape[lead + axis]))


def reduced_shape(node: Node, space: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what is reduced of an array, by an op that names its axes or to a known shape."""
    if node.op.name == "sum_to":
        return tuple(d for d in node.result.tensor.shape if d is not None)
    axes, keeps = attributes.Axes.of(node).axes, attributes.Reduction.of(node).keepdims
    return tuple(d if axis not in axes else 1 for axis, d in enumerate(space) if keeps or axis not in axes)


def check_elements(node: Node, shape: tuple[int, ...], axes: Sequence[int]) -> None:
    """Of no elements there is no extreme."""
    if 0 not in (shape[axis] for axis in axes):
        return
    if node.op.name in _POSITIONS:
        raise ValueError(f"attempt to get {node.op.name} of an empty sequence")
    if node.op.name in _EXTREMES and 0 not in (size for axis, size in enumerate(shape) if axis not in axes):
        raise ValueError(f"zero-size array to reduction operation {_EXTREMES[node.op.name]} which has no identity")
