"""Ops that let the user look in while a graph runs.

`callback` hands its operands to its attribute `fn(values, iterations)`: arrays, and the number of the current iteration
of each loop around the node, the outermost first. `watch` is the identity; in reverse its cotangent goes to
such a callback.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, Use, declare
from ctrlgrad.ir.types import RegionType, Type


def _infer_callback(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return ()


def _infer_watch(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return (operands[0],)


declare("callback", None, _infer_callback, Trait.EFFECT, attributes=attributes.Hook)
declare("watch", 1, _infer_watch, Trait.VIEW, Trait.SHAPE_OF_FIRST, attributes=attributes.Hook, uses=(Use.PASS,))
