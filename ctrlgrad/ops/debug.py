"""Ops that call the user's Python while a graph runs.

`callback` hands its operands to its attribute `fn(values, iterations)`: arrays, and the number of the current iteration
of each loop around the node, the outermost first. `watch` is the identity; in reverse its cotangent goes to
such a callback. `pure_callback` computes its results by a function of the user, which has no effects: it may be called
more often than its place is reached, or not at all where nothing uses them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, Use, declare
from ctrlgrad.ir.types import RegionType, Type


def _infer_callback(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return ()


def _infer_pure_callback(
    operands: Sequence[Type], attrs: attributes.HostCall, regions: Sequence[RegionType]
) -> Sequence[Type]:
    return attrs.results


def _infer_watch(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return (operands[0],)


declare("callback", None, _infer_callback, Trait.EFFECT, attributes=attributes.Hook)
declare("pure_callback", None, _infer_pure_callback, attributes=attributes.HostCall)
declare("watch", 1, _infer_watch, Trait.VIEW, Trait.SHAPE_OF_FIRST, attributes=attributes.Hook, uses=(Use.PASS,))
