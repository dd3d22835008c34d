"""Search for the op that computed the first NaN or Inf: the check behind `check_nans`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import NonFiniteError
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ops.control import COTANGENT
from ctrlgrad.records import record


@record
class Found:
    """Kinds of non-finite elements in a set of arrays."""

    nan: bool
    inf: bool


@record
class Culprit:
    """Origin of a value that is not finite: the node, the iterations of the loops around, the element."""

    node: Node
    iterations: tuple[int, ...]
    element: tuple[int, ...]


class FiniteCheck:
    """Compares what an op makes with what it was given: the first op that adds a NaN or an Inf is the culprit."""

    def __init__(self, check: bool | Literal["gradients"] = True) -> None:
        self.culprit: Culprit | None = None
        self.only_cotangents = check == "gradients"

    def before(self, node: Node, operands: Sequence[Any]) -> Found:
        return Found(False, False) if self.only_cotangents else look(operands)

    def after(self, node: Node, given: Found, results: Sequence[Any], iterations: Sequence[int]) -> None:
        if node.regions or node.op.name == "constant":
            return
        if self.only_cotangents:
            barrier = attributes.Barrier.find(node)
            if barrier is None or barrier.name != COTANGENT:
                return
        after = look(results)
        nan = after.nan and not given.nan
        if nan or (after.inf and not given.inf and not given.nan):
            self.culprit = Culprit(node, tuple(iterations), _element(results))
            of = f": the derivative of {node.source.of[-1]}" if node.source is not None and node.source.of else ""
            what = "a cotangent" if self.only_cotangents else node.op.name
            raise NonFiniteError(
                f"{what} {'is' if self.only_cotangents else 'makes'} {'a NaN' if nan else 'an Inf'}{of}",
                source=node.source,
                expected="finite numbers from finite operands",
                got=", ".join(str(v.type) for v in node.operands) or "no operands",
                hint="keep the operand in the op's domain before it, for instance with numpy.where or numpy.maximum",
            )


def look(values: Sequence[Any]) -> Found:
    """Look for NaNs and Infs in all float arrays among values, and in the last slots of stacks."""
    nan = inf = False
    for value in _floats(values):
        if not np.isfinite(value).all():
            nan = nan or bool(np.isnan(value).any())
            inf = inf or bool(np.isinf(value).any())
    return Found(nan, inf)


def _floats(values: Sequence[Any]) -> list[Any]:
    last = [(value[-1] if value else None) if isinstance(value, list) else value for value in values]
    return [value for value in last if value is not None and dtype_kind(value.dtype) in "fc"]


def _element(values: Sequence[Any]) -> tuple[int, ...]:
    """The first element that is not finite."""
    bad = next(value for value in _floats(values) if not np.isfinite(value).all())
    return tuple(int(i) for i in np.unravel_index(int(np.argmin(np.isfinite(bad))), np.shape(bad)))
