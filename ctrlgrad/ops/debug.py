"""Ops that let the user look in while a graph runs.

`callback` hands its operands to `attrs["fn"](values, iterations)`: arrays, and the number of the current iteration
of each loop around the node, the outermost first. `watch` is the identity; in reverse its cotangent goes to
such a callback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctrlgrad.ir.graph import Graph
from ctrlgrad.ir.op import Trait, declare
from ctrlgrad.ir.types import Type


def _infer_callback(operands: Sequence[Type], attrs: Mapping[str, Any], regions: Sequence[Graph]) -> Sequence[Type]:
    return ()


def _infer_watch(operands: Sequence[Type], attrs: Mapping[str, Any], regions: Sequence[Graph]) -> Sequence[Type]:
    return (operands[0],)


declare("callback", None, _infer_callback, Trait.EFFECT)
declare("watch", 1, _infer_watch, Trait.VIEW)
