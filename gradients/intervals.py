"""Interval arithmetic: the range of an op's result by those of its operands; see `ranges`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.records import record

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


def _minus(of: Limits, x: Range, y: Range) -> Range:
    return _plus(of, x, (-y[1], -y[0]))


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


def _sqrt(of: Limits, x: Range) -> Range:
    return WILD if x[0] < 0.0 else (math.sqrt(x[0]), math.sqrt(x[1]))


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
    """Of a function that gives a bound of an infinity, and NaN of NaN alone."""
    return lambda of, x: WILD if x == WILD else _roughly((low, high))


def _of_finite(low: float, high: float) -> Rule:
    """Of a function that gives NaN of an infinity; an infinite bound stands for the end of the dtype."""
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
    """Elements to which others have been added, any number of times."""
    added = _sum(of, join(value, (0.0, 0.0)))
    return join(x, _plus(of, x, added))


RULES: dict[str, Rule] = {
    "add": _plus,
    "subtract": _minus,
    "multiply": _times,
    "strong_multiply": lambda of, x, y: join(_times(of, x, y), (0.0, 0.0)),
    "negative": lambda of, x: (-x[1], -x[0]),
    "square": square,
    "abs": _abs,
    "divide": _over,
    "reciprocal": lambda of, x: _over(of, (1.0, 1.0), x),
    "sqrt": _sqrt,
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
