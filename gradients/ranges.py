"""Ranges of real values by interval arithmetic: what a graph's values may be, whatever its inputs are.

In: nodes, in their order. Out: a range (low, high) for each value. An infinite end means that the value may be infinite
there, since an op in front of it is singular; two infinite ends mean that it may be NaN. Inputs count as finite, as do
sums and products of what is finite: the analysis does not look for their overflow. So the range of an input is that of
the finite numbers of its dtype.

Ranges tell which partial derivatives stay finite: that of `x / y` for `y = x * x + 1e-6`, that of `exp(x)` if x is at
most 0, those of a solver whose steps never vanish.

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
from ctrlgrad.records import record

Range = tuple[float, float]
INF = math.inf
WILD: Range = (-INF, INF)
# Constants with more elements, and complex ones, may be any finite numbers.
MOST_KNOWN = 4096


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
            # Bounds are computed in float64; a narrower number may be rounded beyond them.
            return Limits(float(info.max), float(info.smallest_subnormal), 0.0 if info.bits == 64 else float(info.eps))
        case "i" | "u":
            return Limits(float(np.iinfo(dtype).max), 1.0, 0.0)
        case _:
            return Limits(1.0, 1.0, 0.0)


def is_wild(x: Range) -> bool:
    return x[0] == -INF or x[1] == INF


def join(a: Range, b: Range) -> Range:
    return (min(a[0], b[0]), max(a[1], b[1]))


def _excludes_zero(x: Range) -> bool:
    return x[0] > 0.0 or x[1] < 0.0


def _finite(of: Limits, x: Range) -> Range:
    return (min(max(x[0], -of.most), of.most), max(min(x[1], of.most), -of.most))


def _plus(of: Limits, x: Range, y: Range) -> Range:
    found = (x[0] + y[0], x[1] + y[1])
    return found if is_wild(x) or is_wild(y) else _finite(of, found)


def _times(of: Limits, x: Range, y: Range) -> Range:
    if is_wild(x) or is_wild(y):
        # Zero times infinity is NaN.
        return (0.0, INF) if any(a[0] > 0.0 and a[1] < INF and b[0] >= 0.0 for a, b in ((x, y), (y, x))) else WILD
    corners = [a * b for a in x for b in y]
    return _finite(of, (min(corners), max(corners)))


def _abs(of: Limits, x: Range) -> Range:
    least, most = sorted((abs(x[0]), abs(x[1])))
    return WILD if x == WILD else (least if _excludes_zero(x) else 0.0, most)


def _square(of: Limits, x: Range) -> Range:
    low, high = _abs(of, x)
    return WILD if is_wild(x) else _finite(of, (low * low, high * high))


def _has_inverse(of: Limits, x: Range) -> bool:
    return _excludes_zero(x) and not is_wild(x) and 1.0 / min(abs(x[0]), abs(x[1])) <= of.most


def _over(of: Limits, x: Range, y: Range) -> Range:
    if _has_inverse(of, y):
        return _times(of, x, (1.0 / y[1], 1.0 / y[0]))
    return (0.0, INF) if x[0] > 0.0 and y[0] >= 0.0 and x[1] < INF else WILD


def _roughly(low: float, high: float) -> Range:
    """Bounds of a function that is not rounded correctly: the sign is right."""
    share = 2.0**-40
    return (low - abs(low) * share, high + abs(high) * share)


def _exp(of: Limits, x: Range) -> Range:
    if x == WILD:
        return WILD
    low = 0.0 if x[0] < -700.0 else math.exp(min(x[0], 700.0))
    return _roughly(min(low, of.most), math.exp(x[1]) if x[1] < math.log(of.most) - 1.0 else INF)


def _log(of: Limits, x: Range) -> Range:
    return _roughly(math.log(x[0]), math.log(x[1])) if x[0] > 0.0 and x[1] < INF else WILD


def _is_few_products(of: Limits, x: Range, y: Range) -> bool:
    """Return true if a power is a product of few factors, or does not overflow."""
    if max(abs(y[0]), abs(y[1])) <= 16.0:
        return True
    return x[0] > 0.0 and max(b * math.log(a) for a in x for b in y) < math.log(of.most) - 1.0


def _has_finite_powers(of: Limits, x: Range, y: Range) -> bool:
    """Return true if the powers and their derivatives are finite."""
    is_whole = y[0] == y[1] and y[0].is_integer()
    if is_wild(x) or is_wild(y) or not _is_few_products(of, x, y):
        return False
    return (x[0] > 0.0 and _has_inverse(of, x)) or (y[0] >= 1.0 and (x[0] >= 0.0 or is_whole))


def _power(of: Limits, x: Range, y: Range) -> Range:
    if not _has_finite_powers(of, x, y):
        return (0.0, INF) if x[0] >= 0.0 and not is_wild(x) and not is_wild(y) else WILD
    return (0.0, of.most) if x[0] >= 0.0 or y[0] % 2 == 0 else of.all


def _bounded(low: float, high: float) -> Callable[..., Range]:
    """Rule of a function that is NaN only of NaN, and of infinities."""
    return lambda of, *xs: WILD if any(map(is_wild, xs)) else _roughly(low, high)


def _first(of: Limits, x: Range, *others: Range) -> Range:
    return x


def _sum(of: Limits, x: Range, *sizes: Range) -> Range:
    """A sum of no elements is 0, and one of numbers that are not negative is no less than 0."""
    return WILD if is_wild(x) else (0.0 if x[0] >= 0.0 else -of.most, of.most)


# The range of an op's result by those of its operands: `rule(limits, *operands)`. An op without a rule may have any
# finite result.
RULES: dict[str, Callable[..., Range]] = {
    "add": _plus,
    "subtract": lambda of, x, y: _plus(of, x, (-y[1], -y[0])),
    "multiply": _times,
    "strong_multiply": lambda of, x, y: join(_times(of, x, y), (0.0, 0.0)),
    "negative": lambda of, x: (-x[1], -x[0]),
    "square": _square,
    "abs": _abs,
    "divide": _over,
    "reciprocal": lambda of, x: _over(of, (1.0, 1.0), x),
    "sqrt": lambda of, x: WILD if x[0] < 0.0 else (math.sqrt(x[0]), math.sqrt(x[1])),
    "exp": _exp,
    "log": _log,
    "power": _power,
    "maximum": lambda of, x, y: WILD if WILD in (x, y) else (max(x[0], y[0]), max(x[1], y[1])),
    "minimum": lambda of, x, y: WILD if WILD in (x, y) else (min(x[0], y[0]), min(x[1], y[1])),
    "where": lambda of, condition, x, y: join(x, y),
    **dict.fromkeys(("sin", "cos", "tanh", "sign"), _bounded(-1.0, 1.0)),
    "sigmoid": _bounded(0.0, 1.0),
    "remainder": lambda of, x, y: join(y, (0.0, 0.0)) if _excludes_zero(y) and not is_wild(x) else WILD,
    **dict.fromkeys(("sum", "sum_to", "cumsum"), _sum),
    **dict.fromkeys(("max", "min", "getitem", "cast", "stop_gradient", "barrier", "watch", "ensure_sizes"), _first),
}
# Singular ops: the operands for which their value and their derivatives are finite.
TAME: dict[str, Callable[..., bool]] = {
    "divide": lambda of, x, y: _has_inverse(of, y),
    "reciprocal": _has_inverse,
    "remainder": lambda of, x, y: _excludes_zero(y),
    "sqrt": lambda of, x: x[0] > 0.0,
    "log": _has_inverse,
    "power": _has_finite_powers,
}
# Singular ops whose value is finite only where their derivatives are.
FINITE_WITH_ITS_SLOPE = ("exp", "exp2", "expm1", "sinh", "cosh")


def _dtype(value: Value) -> np.dtype | None:
    its = value.type.element if isinstance(value.type, StackType) else value.type
    return its.dtype if isinstance(its, TensorType) else None


class Ranges:
    """The ranges of a graph's values, and of those of its regions. Values that are `shown` count as finite."""

    def __init__(self, shown: frozenset[Value] = frozenset()) -> None:
        self.shown = shown
        self.found: dict[Value, Range] = {}
        # A value, or the derivative of an op, may be infinite or NaN.
        self.some_are_wild = False

    def __getitem__(self, value: Value) -> Range:
        found = self.found.get(value)
        if found is None:
            dtype = _dtype(value)
            found = WILD if dtype is None else limits_of(dtype).all
        return found

    def is_wild(self, value: Value) -> bool:
        return is_wild(self.found.get(value, (0.0, 0.0)))

    def number(self, value: Value) -> np.ndarray | None:
        """A value that is one whole number."""
        low, high = self[value]
        return np.asarray(int(low)) if low == high else None

    def is_tame(self, node: Node) -> bool:
        """Return true if the derivatives of a singular op are finite where the operands are in their ranges."""
        if node.op.name in FINITE_WITH_ITS_SLOPE:
            return not self.is_wild(node.results[0])
        rule, dtype = TAME.get(node.op.name), _dtype(node.results[0])
        if rule is None or dtype is None or dtype_kind(dtype) != "f" or any(map(self.is_wild, node.operands)):
            return False
        return rule(limits_of(dtype), *(self[v] for v in node.operands))

    def visit(self, node: Node) -> None:
        """Find the ranges of the results of a node that owns no regions."""
        for result in node.results:
            dtype = _dtype(result)
            if dtype is not None:
                limits = limits_of(dtype)
                found = self._of(node, dtype, limits)
                self.found[result] = found = _finite(limits, found) if result in self.shown else found
                self.some_are_wild |= is_wild(found) and result.type.is_differentiable
        if Trait.SINGULAR in node.op.traits and not self.some_are_wild:
            self.some_are_wild = not self.is_tame(node)

    def _of(self, node: Node, dtype: np.dtype, limits: Limits) -> Range:
        constant, barrier = attributes.Constant.find(node), attributes.Barrier.find(node)
        if constant is not None:
            x, is_real = constant.value, dtype_kind(dtype) != "c"
            if not constant.is_finite:
                return WILD
            is_known = is_real and not constant.varies and 0 < x.size <= MOST_KNOWN
            return (float(x.min()), float(x.max())) if is_known else limits.all
        if barrier is not None and barrier.name == attributes.NOT_FINITE:
            return WILD
        name, operands = node.op.name, [self[v] for v in node.operands]
        rule = RULES.get(name, _first if Trait.VIEW in node.op.traits else None)
        if rule is None or dtype_kind(dtype) == "c":
            wild = Trait.SINGULAR in node.op.traits or any(map(self.is_wild, node.operands))
            return WILD if wild else limits.all
        if name == "cast" and dtype_kind(dtype) != "f":
            return limits.all if is_wild(operands[0]) else _finite(limits, (operands[0][0] - 1.0, operands[0][1] + 1.0))
        if name == "multiply" and node.operands[0] is node.operands[1]:
            rule, operands = _square, operands[:1]
        return _rounded(limits, *rule(limits, *operands))

    def enter(self, pairs: Iterable[tuple[Value, Value]], widens: bool = False) -> bool:
        """Have the second of each pair be in the range of the first too; return true if one of them was not.

        `widens`: a bound that moves goes on to 0, then to the end of the dtype, so that a fixpoint is found soon.
        """
        moved = False
        for outer, inner in pairs:
            dtype, old = _dtype(inner), self.found.get(inner)
            new = self[outer] if old is None else join(old, self[outer])
            if dtype is None or new == old:
                continue
            if old is not None and widens:
                most, (low, high) = limits_of(dtype).most, new
                if -INF < low < old[0]:
                    low = 0.0 if low >= 0.0 else -most
                if INF > high > old[1]:
                    high = 0.0 if high <= 0.0 else most
                new = (low, high)
            self.found[inner], moved = new, True
        return moved


def _rounded(limits: Limits, low: float, high: float) -> Range:
    """Bounds after rounding."""
    if limits.rounding:
        low, high = low - abs(low) * limits.rounding, high + abs(high) * limits.rounding
    low, high = low if low == -INF else max(low, -limits.most), high if high == INF else min(high, limits.most)
    if 0.0 < low < limits.least:
        low = 0.0
    if -limits.least < high < 0.0:
        high = 0.0
    return (low, high)
