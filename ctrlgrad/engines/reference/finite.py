"""Which op made the first NaN or Inf: the check behind `check_nans`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.errors import NonFiniteError
from ctrlgrad.ir import Node


@dataclass(frozen=True)
class Found:
    """What a set of arrays holds."""

    nan: bool
    inf: bool


class FiniteCheck:
    """Compares what an op makes with what it was given: the first op that adds a NaN or an Inf is the culprit."""

    def before(self, node: Node, operands: Sequence[Any]) -> Found:
        return look(operands)

    def after(self, node: Node, given: Found, results: Sequence[Any]) -> None:
        if node.regions or node.op.name == "constant":
            return
        made = look(results)
        nan = made.nan and not given.nan
        if nan or (made.inf and not given.inf and not given.nan):
            raise NonFiniteError(
                f"{node.op.name} makes {'a NaN' if nan else 'an Inf'}",
                source=node.source,
                expected="finite numbers from finite operands",
                got=", ".join(str(v.type) for v in node.operands) or "no operands",
                hint="keep the operand in the op's domain before it, for instance with numpy.where or numpy.maximum",
            )


def look(values: Sequence[Any]) -> Found:
    """Whether any float array among values, or in a stack's last slot, holds a NaN or an Inf."""
    nan = inf = False
    for value in values:
        if isinstance(value, list):
            value = value[-1] if value else None
        if value is None or value.dtype.kind not in "fc":
            continue
        if not np.isfinite(value).all():
            nan = nan or bool(np.isnan(value).any())
            inf = inf or bool(np.isinf(value).any())
    return Found(nan, inf)
