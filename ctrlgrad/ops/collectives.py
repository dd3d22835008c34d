"""Collectives: what rows of a mapped function that has given its axis a name tell each other.

Each is what one row has of it. They are there in graphs that are being mapped alone: batching
(`batching/collectives.py`) puts sums, transposes and gathers over the batch axis in their place. With x_i the operand
and y_i the result in row i:

    psum          y_i = sum over j of x_j
    all_gather    y_i[j] = x_j
    psum_scatter  y_i = sum over j of x_j[i]       the transpose of all_gather
    all_to_all    y_i[j] = x_j[i]                  its own transpose
    ppermute      y_i = x_j, where j sends to i    its transpose sends back
    axis_index    y_i = i
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.errors import ShapeError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, declare
from ctrlgrad.ir.types import INDEX, RegionType, TensorType, Type
from ctrlgrad.ops.checks import axes, tensors


def _infer_same(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return tensors("a collective", operands)


def _infer_index(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return (INDEX,)


def _infer_gather(
    operands: Sequence[Type], attrs: attributes.CollectiveAlong, regions: Sequence[RegionType]
) -> Sequence[Type]:
    (x,) = tensors("all_gather", operands)
    (axis,) = axes("all_gather", (attrs.axis,), x.rank + 1)
    return (TensorType(x.dtype, (*x.shape[:axis], attrs.size, *x.shape[axis:])),)


def _per_row(op: str, operands: Sequence[Type], attrs: attributes.CollectiveAlong) -> tuple[TensorType, int]:
    """The operand, whose axis has an element for each row, and that axis."""
    (x,) = tensors(op, operands)
    (axis,) = axes(op, (attrs.axis,), x.rank)
    if None not in (attrs.size, x.shape[axis]) and x.shape[axis] != attrs.size:
        raise ShapeError(
            f"{op}: the axis has not as many elements as there are rows",
            expected=f"{attrs.size} elements on axis {axis}",
            got=str(x),
            hint="reshape it so that one axis has an element for each row",
        )
    return x, axis


def _infer_scatter(
    operands: Sequence[Type], attrs: attributes.CollectiveAlong, regions: Sequence[RegionType]
) -> Sequence[Type]:
    x, axis = _per_row("psum_scatter", operands, attrs)
    return (TensorType(x.dtype, (*x.shape[:axis], *x.shape[axis + 1 :])),)


def _infer_exchange(
    operands: Sequence[Type], attrs: attributes.CollectiveAlong, regions: Sequence[RegionType]
) -> Sequence[Type]:
    return (_per_row("all_to_all", operands, attrs)[0],)


_SAME = (Trait.MAPPED, Trait.TOTAL)
declare("psum", 1, _infer_same, *_SAME, attributes=attributes.Collective)
declare("ppermute", 1, _infer_same, *_SAME, attributes=attributes.Permutation)
declare("all_to_all", 1, _infer_exchange, *_SAME, attributes=attributes.CollectiveAlong)
declare("all_gather", 1, _infer_gather, Trait.MAPPED, Trait.TOTAL, attributes=attributes.CollectiveAlong)
declare("psum_scatter", 1, _infer_scatter, Trait.MAPPED, Trait.TOTAL, attributes=attributes.CollectiveAlong)
declare("axis_index", 0, _infer_index, Trait.MAPPED, Trait.TOTAL, attributes=attributes.Collective)
