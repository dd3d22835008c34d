"""Ranges of values: intervals that hold a graph's values whatever its inputs are, by interval arithmetic.

In: nodes, in their order. Out: a range for each real value, an interval (low, high). An infinite end says that the
value may be infinite there, since an op in front of it is singular; two infinite ends say that it may be NaN. Inputs
count as finite, as do sums and products of what is finite: their overflow is not looked for. So the range of an input
is that of the finite numbers of its dtype.

Ranges tell which partial derivatives stay finite: that of `x / y` if `y` is at least 1e-6, as in `y = x * x + 1e-6`,
that of `exp(x)` if x is at most 0. One relation of two values is followed as well, the one in softmax and logsumexp:
`x - max(x)` is at most 0, and is 0 somewhere, so that the sum of its exponentials is at least 1.

Source: R. Moore, Interval Analysis (1966); carries of loops are widened as in P. and R. Cousot, "Abstract
interpretation" (1977).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.gradients.intervals import (
    FINITE_WITH_ITS_SLOPE,
    INF,
    RULES,
    TAME,
    WILD,
    Limits,
    Range,
    finite,
    is_wild,
    join,
    limits_of,
    square,
)
from ctrlgrad.gradients.intervals import first as first_of
from ctrlgrad.ir import Node, StackType, TensorType, Trait, Value, attributes
from ctrlgrad.ir.types import Type

# Constants with more elements may be any finite numbers.
_MOST_LOOKED_AT = 4096


def _dtype(type: Type) -> np.dtype | None:
    if isinstance(type, StackType):
        type = type.element
    return type.dtype if isinstance(type, TensorType) else None


class Ranges:
    """The ranges of a graph's values, and of those of its regions. `shown`: values that count as finite (see there)."""

    def __init__(self, shown: frozenset[Value] = frozenset()) -> None:
        self.shown = shown
        self.found: dict[Value, Range] = {}
        # Values that are the largest element of another one along some axes, kept as axes of size 1.
        self._largest: dict[Value, tuple[Value, tuple[int, ...]]] = {}
        # Values x - max(x), and their exponentials, by the axes of the maximum.
        self._peaks: dict[Value, tuple[int, ...]] = {}
        self._tested: dict[Value, Value] = {}
        # A value, or the derivative of an op, may be infinite or NaN.
        self.some_are_wild = False

    def __getitem__(self, value: Value) -> Range:
        found = self.found.get(value)
        if found is None:
            dtype = _dtype(value.type)
            found = WILD if dtype is None else limits_of(dtype).all
        return found

    def is_wild(self, value: Value) -> bool:
        found = self.found.get(value)
        return found is not None and (found[0] == -INF or found[1] == INF)

    def is_tame(self, node: Node) -> bool:
        """Return true if the derivatives of a singular op are finite where the operands are in their ranges."""
        if node.op.name in FINITE_WITH_ITS_SLOPE:
            return not self.is_wild(node.results[0])
        rule, dtype = TAME.get(node.op.name), _dtype(node.results[0].type)
        if rule is None or dtype is None or dtype_kind(dtype) != "f":
            return False
        return rule(limits_of(dtype), *(self[v] for v in node.operands))

    def visit(self, node: Node) -> None:
        """Find the ranges of the results of a node that owns no regions."""
        for result in node.results:
            dtype = _dtype(result.type)
            if dtype is not None:
                found = self._of(node, dtype)
                if result in self.shown:
                    most = limits_of(dtype).most
                    found = (max(found[0], -most), min(found[1], most))
                self.found[result] = found
                self.some_are_wild |= is_wild(found)
        if Trait.SINGULAR in node.op.traits and not self.some_are_wild:
            self.some_are_wild = not self.is_tame(node)

    def _of(self, node: Node, dtype: np.dtype) -> Range:
        known = attributes.Constant.find(node)
        if known is not None:
            return _of_constant(known, dtype)
        name, traits, limits = node.op.name, node.op.traits, limits_of(dtype)
        operands = [self[v] for v in node.operands]
        rule = RULES.get(name)
        if rule is None and Trait.VIEW in traits:
            rule = first_of
        if (rule is None and attributes.Cast.find(node) is None) or dtype_kind(dtype) == "c":
            wild = Trait.SINGULAR in traits or any(self.is_wild(v) for v in node.operands)
            return WILD if wild else limits.all
        if rule is None:
            return _cast(limits, dtype, operands[0])
        if name == "multiply" and node.operands[0] is node.operands[1]:
            rule, operands = square, operands[:1]
        low, high = rule(limits, *operands)
        return self._related(node, _rounded(limits, low, high))

    def _related(self, node: Node, found: Range) -> Range:
        """Follow `x - max(x)`, its exponential and the sum of that."""
        name, operands, result = node.op.name, node.operands, node.results[0]
        if not operands:
            return found
        first = operands[0]
        if name == "max":
            reduction = attributes.Reduction.of(node)
            if reduction.keepdims and not self.is_wild(first):
                self._largest[result] = (first, reduction.axes)
        elif name == "isfinite":
            self._tested[result] = first
        elif name == "stop_gradient" and first in self._largest:
            self._largest[result] = self._largest[first]
        elif name == "where" and operands[1] in self._largest and self._tested.get(first) is operands[1]:
            self._largest[result] = self._largest[operands[1]]
        elif name == "subtract" and operands[1] in self._largest and self._largest[operands[1]][0] is first:
            self._peaks[result] = self._largest[operands[1]][1]
            return (found[0], 0.0)
        elif name == "exp" and first in self._peaks:
            self._peaks[result] = self._peaks[first]
        elif name == "sum" and self._peaks.get(first) == attributes.Reduction.of(node).axes and found[0] >= 0.0:
            return (1.0, found[1])
        return found

    def enter(self, pairs: Iterable[tuple[Value, Value]], widens: bool = False) -> bool:
        """Have the second of each pair be in the range of the first too; return true if one of them was not.

        `widens`: a bound that moves goes on to 0, then to the end of the dtype, so that a fixpoint is found soon.
        """
        moved = False
        for outer, inner in pairs:
            dtype = _dtype(inner.type)
            if dtype is None:
                continue
            new, old = self[outer], self.found.get(inner)
            if old is not None:
                new = join(old, new)
                if new == old:
                    continue
                if widens:
                    new = _widened(old, new, limits_of(dtype).most)
            self.found[inner] = new
            moved = True
        return moved


def _rounded(limits: Limits, low: float, high: float) -> Range:
    """Bounds after rounding, where overflow of what is finite is not looked for."""
    if limits.rounding:
        low, high = low - abs(low) * limits.rounding, high + abs(high) * limits.rounding
    low, high = low if low == -INF else max(low, -limits.most), high if high == INF else min(high, limits.most)
    if 0.0 < low < limits.least:
        low = 0.0
    if -limits.least < high < 0.0:
        high = 0.0
    return (low, high)


def _widened(old: Range, new: Range, most: float) -> Range:
    low, high = new
    if -INF < low < old[0]:
        low = 0.0 if low >= 0.0 else -most
    if INF > high > old[1]:
        high = 0.0 if high <= 0.0 else most
    return (low, high)


def _of_constant(known: attributes.Constant, dtype: np.dtype) -> Range:
    value, limits = known.value, limits_of(dtype)
    if known.varies or not 0 < value.size <= _MOST_LOOKED_AT or dtype_kind(dtype) == "c":
        return limits.all
    low, high = float(value.min()), float(value.max())
    if low != low or low == INF:
        return WILD
    return (low, -limits.most if high == -INF else high)


def _cast(limits: Limits, dtype: np.dtype, x: Range) -> Range:
    if dtype_kind(dtype) == "f":
        return x if is_wild(x) else finite(limits, x)
    return limits.all if is_wild(x) or dtype_kind(dtype) == "b" else finite(limits, (x[0] - 1.0, x[1] + 1.0))
