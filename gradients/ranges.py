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

import math
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.ir import Node, StackType, TensorType, Trait, Value, attributes
from ctrlgrad.ir.types import Type
from ctrlgrad.records import record

# Interval arithmetic: the range of an op's result by those of its operands; see `ranges`.


Range = tuple[float, float]
INF = math.inf
WILD: Range = (-INF, INF)


@record
class Limits:
    """The largest number of a dtype, the smallest positive one, and the relative error of a rounding."""

    most: float
    least: float
    rounding: float

    @property
    def all(self) -> Range:
        return (-self.most, self.most)


@cache
def limits_of(dtype: np.dtype) -> Limits:
    match dtype_kind(dtype):
        case "f" | "c":
            info = finfo(dtype)
            # Bounds are rounded as float64 is; a narrower number may be rounded past them.
            return Limits(float(info.max), float(info.smallest_subnormal), 0.0 if info.bits == 64 else float(info.eps))
        case "i" | "u":
            return Limits(float(np.iinfo(dtype).max), 1.0, 0.0)
        case _:
            return Limits(1.0, 1.0, 0.0)


def is_wild(found: Range) -> bool:
    return found[0] == -INF or found[1] == INF


def join(a: Range, b: Range) -> Range:
    return (min(a[0], b[0]), max(a[1], b[1]))


def _excludes_zero(x: Range) -> bool:
    return x[0] > 0.0 or x[1] < 0.0


# The range of an op's result, by those of its operands: `(limits, *operands)`.
Rule = Callable[..., Range]


def finite(of: Limits, x: Range) -> Range:
    return (max(x[0], -of.most), min(x[1], of.most))


def _plus(of: Limits, x: Range, y: Range) -> Range:
    found = (x[0] + y[0], x[1] + y[1])
    return found if is_wild(x) or is_wild(y) else finite(of, found)


def _times(of: Limits, x: Range, y: Range) -> Range:
    if is_wild(x) or is_wild(y):
        # Zero times infinity is NaN.
        has_sign = (x[0] > 0.0 and y[0] >= 0.0 and x[1] < INF) or (y[0] > 0.0 and x[0] >= 0.0 and y[1] < INF)
        return (0.0, INF) if has_sign or (x[0] > 0.0 and y[0] > 0.0) else WILD
    corners = (x[0] * y[0], x[0] * y[1], x[1] * y[0], x[1] * y[1])
    return finite(of, (min(corners), max(corners)))


def _abs(of: Limits, x: Range) -> Range:
    if x == WILD:
        return WILD
    least, most = sorted((abs(x[0]), abs(x[1])))
    return (least if _excludes_zero(x) else 0.0, most)


def square(of: Limits, x: Range) -> Range:
    low, high = _abs(of, x)
    return (min(low * low, of.most) if low > 0.0 else low, INF if high == INF else min(high * high, of.most))


def _has_inverse(of: Limits, x: Range) -> bool:
    return _excludes_zero(x) and 1.0 / min(abs(x[0]), abs(x[1])) <= of.most


def _over(of: Limits, x: Range, y: Range) -> Range:
    if is_wild(x) or is_wild(y) or not _has_inverse(of, y):
        return (0.0, INF) if x[0] > 0.0 and y[0] >= 0.0 and x[1] < INF else WILD
    return _times(of, x, (1.0 / y[1], 1.0 / y[0]))


def _roughly(x: Range) -> Range:
    """Bounds of a function that is not rounded correctly: the sign is right."""
    share = 2.0**-40
    return (x[0] - abs(x[0]) * share, x[1] + abs(x[1]) * share)


def _exp(of: Limits, x: Range) -> Range:
    if x == WILD:
        return WILD
    low = 0.0 if x[0] < -700.0 else math.exp(min(x[0], 700.0))
    return _roughly((low if low <= of.most else of.most, math.exp(x[1]) if x[1] < math.log(of.most) - 1.0 else INF))


def _log(of: Limits, x: Range) -> Range:
    if x[0] < 0.0:
        return WILD
    return _roughly((math.log(x[0]) if x[0] > 0.0 else -INF, math.log(x[1]) if 0.0 < x[1] < INF else INF))


def _is_few_products(of: Limits, x: Range, y: Range) -> bool:
    """Return true if a power is a product of a few factors, or does not overflow."""
    if max(abs(y[0]), abs(y[1])) <= 16.0:
        return True
    return x[0] > 0.0 and max(b * math.log(a) for a in x for b in y) < math.log(of.most) - 1.0


def _power(of: Limits, x: Range, y: Range) -> Range:
    is_whole = y[0] == y[1] and y[0].is_integer()
    if is_wild(x) or is_wild(y) or (x[0] < 0.0 and not is_whole):
        return WILD
    if not _is_few_products(of, x, y) or (y[0] < 0.0 and not (x[0] > 0.0 and _has_inverse(of, x))):
        return (0.0, INF) if x[0] >= 0.0 else WILD
    return (0.0, of.most) if x[0] >= 0.0 or y[0] % 2 == 0 else of.all


def _scaled(rule: Rule, factor: float) -> Rule:
    def scaled(of: Limits, x: Range) -> Range:
        low, high = rule(of, x)
        return _roughly((low * factor, high * factor))

    return scaled


def _log1p(of: Limits, x: Range) -> Range:
    if x[0] < -1.0:
        return WILD
    return _roughly((math.log1p(x[0]) if x[0] > -1.0 else -INF, math.log1p(x[1]) if -1.0 < x[1] < INF else INF))


def _bounded(low: float, high: float) -> Rule:
    """Rule of a function that is finite at infinities, and NaN only of NaN."""
    return lambda of, x: WILD if x == WILD else _roughly((low, high))


def _of_finite(low: float, high: float) -> Rule:
    """Rule of a function that is NaN at infinities; an infinite bound stands for the end of the dtype."""
    return lambda of, *xs: WILD if any(map(is_wild, xs)) else finite(of, _roughly((low, high)))


def first(of: Limits, x: Range, *others: Range) -> Range:
    return x


def _joined(of: Limits, *xs: Range) -> Range:
    return (min(x[0] for x in xs), max(x[1] for x in xs))


def _matmul(of: Limits, x: Range, y: Range) -> Range:
    if is_wild(x) or is_wild(y):
        return WILD
    return (0.0, of.most) if x[0] >= 0.0 and y[0] >= 0.0 else of.all


def _sum(of: Limits, x: Range, *sizes: Range) -> Range:
    """A sum of no less than its elements, if none is below 0; of none it is 0."""
    return (0.0 if x[0] >= 0.0 else -of.most if x[0] > -INF else -INF, of.most if x[1] < INF else INF)


def _updated(of: Limits, x: Range, value: Range, *others: Range) -> Range:
    """Range of elements to which values have been added, any number of times."""
    added = _sum(of, join(value, (0.0, 0.0)))
    return join(x, _plus(of, x, added))


RULES: dict[str, Rule] = {
    "add": _plus,
    "subtract": lambda of, x, y: _plus(of, x, (-y[1], -y[0])),
    "multiply": _times,
    "strong_multiply": lambda of, x, y: join(_times(of, x, y), (0.0, 0.0)),
    "negative": lambda of, x: (-x[1], -x[0]),
    "square": square,
    "abs": _abs,
    "divide": _over,
    "reciprocal": lambda of, x: _over(of, (1.0, 1.0), x),
    "sqrt": lambda of, x: WILD if x[0] < 0.0 else (math.sqrt(x[0]), math.sqrt(x[1])),
    "exp": _exp,
    "exp2": lambda of, x: _exp(of, (x[0] * math.log(2.0), x[1] * math.log(2.0))),
    "expm1": lambda of, x: join((-1.0, 0.0), _exp(of, x)),
    "sinh": lambda of, x: (-_exp(of, (-x[1], -x[0]))[1], _exp(of, x)[1]),
    "cosh": lambda of, x: join((0.5, 1.0), _exp(of, _abs(of, x))),
    "log": _log,
    "log1p": _log1p,
    "log2": _scaled(_log, 1.0 / math.log(2.0)),
    "log10": _scaled(_log, 1.0 / math.log(10.0)),
    "power": _power,
    "maximum": lambda of, x, y: WILD if WILD in (x, y) else (max(x[0], y[0]), max(x[1], y[1])),
    "minimum": lambda of, x, y: WILD if WILD in (x, y) else (min(x[0], y[0]), min(x[1], y[1])),
    "equal": lambda of, x, y: (0.0, 0.0 if x[1] < y[0] or y[1] < x[0] else 1.0),
    "where": lambda of, condition, x, y: y if condition == (0.0, 0.0) else join(x, y),
    "sign": _bounded(-1.0, 1.0),
    "sin": _of_finite(-1.0, 1.0),
    "cos": _of_finite(-1.0, 1.0),
    "tanh": _bounded(-1.0, 1.0),
    "sigmoid": _bounded(0.0, 1.0),
    "arctan": _bounded(-math.pi / 2, math.pi / 2),
    "arctan2": _of_finite(-math.pi, math.pi),
    "arcsin": lambda of, x: _roughly((-math.pi / 2, math.pi / 2)) if x[0] >= -1.0 and x[1] <= 1.0 else WILD,
    "arccos": lambda of, x: _roughly((0.0, math.pi)) if x[0] >= -1.0 and x[1] <= 1.0 else WILD,
    "arccosh": lambda of, x: (0.0, of.most) if x[0] >= 1.0 and x[1] < INF else WILD,
    "arctanh": lambda of, x: of.all if x[0] > -1.0 and x[1] < 1.0 else WILD,
    "erfinv": lambda of, x: of.all if x[0] > -1.0 and x[1] < 1.0 else WILD,
    "hypot": _of_finite(0.0, INF),
    "remainder": lambda of, x, y: join(y, (0.0, 0.0)) if _excludes_zero(y) and not is_wild(x) else WILD,
    "isfinite": lambda of, x: (0.0, 1.0),
    "iota": lambda of, *xs: (0.0, of.most),
    "sum": _sum,
    "sum_to": _sum,
    "cumsum": _sum,
    "matmul": _matmul,
    "max": first,
    "min": first,
    "getitem": first,
    "stack_pop": first,
    "stack_read": first,
    "stack_to_tensor": first,
    "stack_from_tensor": first,
    "setitem": lambda of, x, value, *others: join(x, value),
    "stack_write": lambda of, x, index, value: join(x, value),
    "stack_push": _joined,
    "concat": _joined,
    "additem": _updated,
    "stack_add": lambda of, x, index, value: _updated(of, x, value),
    "stack_new": lambda of, *sizes: (0.0, 0.0),
}
# Singular ops: the operands for which their value and their derivatives are finite.
TAME: dict[str, Callable[..., bool]] = {
    "divide": lambda of, x, y: _has_inverse(of, y),
    "reciprocal": _has_inverse,
    "remainder": lambda of, x, y: _excludes_zero(y),
    "sqrt": lambda of, x: x[0] > 0.0,
    **dict.fromkeys(("log", "log2", "log10"), lambda of, x: x[0] > 0.0 and _has_inverse(of, x)),
    "log1p": lambda of, x: x[0] > -1.0,
    **dict.fromkeys(("arcsin", "arccos", "arctanh", "erfinv"), lambda of, x: x[0] > -1.0 and x[1] < 1.0),
    "arccosh": lambda of, x: x[0] > 1.0,
    # The sum of their squares is not 0.
    "arctan2": lambda of, y, x: any(_excludes_zero(v) and min(abs(v[0]), abs(v[1])) > 1e-3 for v in (x, y)),
    "power": lambda of, x, y: (
        _is_few_products(of, x, y)
        and (
            (x[0] > 0.0 and _has_inverse(of, x))
            or (y[0] >= 1.0 and (x[0] >= 0.0 or (y[0] == y[1] and y[0].is_integer())))
        )
    ),
}
# Singular ops whose value is finite only where their derivatives are.
FINITE_WITH_ITS_SLOPE = ("exp", "exp2", "expm1", "sinh", "cosh")

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
            value, limits = known.value, limits_of(dtype)
            if known.varies or not 0 < value.size <= _MOST_LOOKED_AT or dtype_kind(dtype) == "c":
                return limits.all
            low, high = float(value.min()), float(value.max())
            if low != low or low == INF:
                return WILD
            return (low, -limits.most if high == -INF else high)
        name, traits, limits = node.op.name, node.op.traits, limits_of(dtype)
        operands = [self[v] for v in node.operands]
        rule = RULES.get(name)
        if rule is None and Trait.VIEW in traits:
            rule = first
        if (rule is None and attributes.Cast.find(node) is None) or dtype_kind(dtype) == "c":
            wild = Trait.SINGULAR in traits or any(self.is_wild(v) for v in node.operands)
            return WILD if wild else limits.all
        if rule is None:
            x = operands[0]
            if dtype_kind(dtype) == "f":
                return x if is_wild(x) else finite(limits, x)
            return limits.all if is_wild(x) or dtype_kind(dtype) == "b" else finite(limits, (x[0] - 1.0, x[1] + 1.0))
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
                    most = limits_of(dtype).most
                    # An end that moves goes to 0, or as far as finite numbers go.
                    low, high = new
                    if -INF < low < old[0]:
                        low = 0.0 if low >= 0.0 else -most
                    if INF > high > old[1]:
                        high = 0.0 if high <= 0.0 else most
                    new = (low, high)
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
