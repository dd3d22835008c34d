"""Which elementary functions there are, as expressions, and how close to the exact result each comes.

Special values are NumPy's: NaN in gives NaN (but `power` gives 1 for x**0 and 1**y, and `hypot` infinity for an
infinite side), zeros keep their sign, overflow is infinity, and subnormal numbers are not flushed. Errors are in units
in the last place (ULP) of the correctly rounded result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.forks import once
from ctrlgrad.ops import special
from ctrlgrad.plan.elementary.circular import circular, inverses
from ctrlgrad.plan.elementary.constants import DOUBLE, SINGLE, Format
from ctrlgrad.plan.elementary.exact import divisions, is_beyond_fmod, lengths
from ctrlgrad.plan.elementary.exponential import Functions, exponentials
from ctrlgrad.plan.elementary.logarithm import logarithms, sums_of_exponentials
from ctrlgrad.plan.elementary.notation import absolute, square_root
from ctrlgrad.plan.elementary.power import FEW_BITS, integer_power, powers
from ctrlgrad.plan.expression import Expression, ExpressionBuilder, Number, select

MAX_ULP = {
    "exp": (1.1, 1.1),
    "exp2": (1.2, 1.2),
    "expm1": (1.8, 2.2),
    "log": (1.0, 1.0),
    "log2": (1.8, 1.8),
    "log10": (2.5, 3.0),
    "log1p": (1.6, 1.6),
    "tanh": (2.6, 2.6),
    "sigmoid": (2.5, 2.5),
    "sinh": (1.8, 1.8),
    "cosh": (1.5, 1.5),
    "power": (0.51, 1.5),
    "sin": (1.7, 1.7),
    "cos": (1.7, 1.7),
    "tan": (4.0, 4.0),
    "arcsin": (2.2, 2.4),
    "arccos": (1.5, 1.5),
    "arctan": (1.6, 1.9),
    "arctan2": (1.9, 2.0),
    "arcsinh": (2.2, 2.2),
    "arccosh": (2.4, 2.4),
    "arctanh": (2.2, 2.2),
    "hypot": (0.51, 2.2),
    "logaddexp": (2.0, 2.0),
    "fmod": (0.0, 0.0),
    "erfinv": (4.0, 5.5),
}
"""The functions of floats, each with the stated bound of its error for float32 and float64."""
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class Elementary:
    """A function of numbers of one dtype that gives one of that dtype."""

    name: str
    dtype: np.dtype
    arity: int
    max_ulp: float
    """The stated bound of its error; 0 is an exact result.

    For `logaddexp`, ULP of the largest of 1, the result and the larger operand, by magnitude: its terms may cancel.
    """
    function: Callable[..., Number]
    beyond: Callable[..., Number] | None = None
    """Whether `function` does not hold for these arguments; None where it holds for all."""
    library: str | None = None
    """What holds beyond: a function of the C library, or an elementary one of that name."""

    @once
    def expression(self) -> Expression:
        """Its result, and for a function with a limit whether the arguments are beyond it."""
        builder = ExpressionBuilder()
        arguments = [builder.emit("argument", (), self.dtype, k) for k in range(self.arity)]
        results = [self.function(*arguments)]
        if self.beyond is not None:
            results.append(self.beyond(*arguments))
        return builder.finish(*results)


@functools.cache
def elementary(name: str, dtype: np.dtype) -> Elementary:
    """The function of a name on a dtype. Raises KeyError where there is none."""
    if name in ("integer_power", "integer_power_any") and dtype.name in _INTEGERS:
        return _integer_power(name, dtype)
    column = {"float32": 0, "float64": 1}[dtype.name]
    f = (SINGLE, DOUBLE)[column]
    function = _functions(f)[name]
    beyond = is_beyond_fmod(f) if name == "fmod" else _beyond(f) if name in circular(f) else None
    library = None if beyond is None else name + ("f" if f is SINGLE else "")
    arity = sum(p.kind is not p.KEYWORD_ONLY for p in inspect.signature(function).parameters.values())
    return Elementary(name, dtype, arity, MAX_ULP[name][column], function, beyond, library)


def all_elementary() -> list[Elementary]:
    """Every function on every dtype."""
    floats = [elementary(name, f.dtype) for f in (SINGLE, DOUBLE) for name in MAX_ULP]
    return floats + [elementary("integer_power", np.dtype(dtype)) for dtype in _INTEGERS]


@functools.cache
def _functions(f: Format) -> Functions:
    functions: Functions = {}
    for family in (exponentials, logarithms, sums_of_exponentials, powers, circular, inverses, lengths, divisions):
        functions |= family(f)
    given = special.Functions(f is SINGLE, functions["log"], square_root, select)
    return functions | {name: functools.partial(formula, of=given) for name, formula in special.FORMULAS.items()}


def _beyond(f: Format) -> Callable[[Number], Number]:
    """Whether an angle is too large."""
    return lambda x: absolute(x) > f.trigonometric_limit


def _integer_power(name: str, dtype: np.dtype) -> Elementary:
    bit_count = 8 * dtype.itemsize - (dtype_kind(dtype) == "i")
    if name == "integer_power_any" or bit_count <= FEW_BITS:
        return Elementary(name, dtype, 2, 0.0, lambda x, y: integer_power(x, y, bit_count))
    few = 1 << FEW_BITS
    return Elementary(
        name,
        dtype,
        2,
        0.0,
        lambda x, y: integer_power(x, y, FEW_BITS),
        # A negative exponent is an error before it is a number.
        lambda x, y: y >= few,
        "integer_power_any",
    )
