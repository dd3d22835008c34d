"""Elementary functions on float32 and float64 scalars, for loops that are to vectorise.

Each op has one compiled function per dtype. Its body is inlined where it is called, holds no branch and, where
`vectorises` says so, no call, so that a loop over contiguous arrays becomes packed instructions. Nothing compiles
before its first use.

Special values are NumPy's: NaN in gives NaN (but `power` gives 1 for x**0 and 1**y, and `hypot` infinity for an
infinite side), zeros keep their sign, overflow is infinity, and subnormal numbers are not flushed. Errors are in units
in the last place (ULP) of the correctly rounded result, and are measured in `tests/native/test_elementary.py`. The
fused multiply-add is LLVM's: a processor without one gets the same results by a slow call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctrlgrad.engines.native import elementary_table
from ctrlgrad.engines.native.elementary_circular import circular, inverses
from ctrlgrad.engines.native.elementary_constants import DOUBLE, SINGLE
from ctrlgrad.engines.native.elementary_exact import divisions, instructions, lengths, sums_of_exponentials
from ctrlgrad.engines.native.elementary_exponential import Kernels, exponentials, logarithms, powers


@dataclass(frozen=True)
class Elementary:
    """How compiled code computes one op on one dtype."""

    function: Any
    """The jitted function, of as many scalars of that dtype as the op has operands."""
    name: str
    """A name for it in generated source: the op and the dtype."""
    max_ulp: float
    """The stated bound of its error; 0.5 is correct rounding, 0 an exact result.

    For `logaddexp`, ULP of the largest of 1, the result and the larger operand, by magnitude: its terms may cancel.
    """
    limit: float | None = None
    """The largest magnitude of an operand for which it is valid; None where all are."""
    vectorises: bool = True
    """Whether a loop over it becomes packed instructions; otherwise it calls the C library."""


def _functions() -> dict[str, Kernels]:
    parts = {f: (exponentials(f), logarithms(f)) for f in (SINGLE, DOUBLE)}
    power = powers(parts[DOUBLE][1], parts[DOUBLE][0])
    functions = {}
    for f, (exponential, logarithm) in parts.items():
        dtype = f.dtype.__name__
        both = exponential | logarithm | {"power": power[dtype]} | circular(f) | inverses(f)
        both |= instructions(f) | lengths(f) | divisions(f)
        functions[dtype] = both | sums_of_exponentials(both["exp"], both["log1p"], f)
    return functions


def _table() -> dict[tuple[str, str], Elementary]:
    functions = _functions()
    return {
        (op, dtype): Elementary(functions[dtype][op], info.name, info.max_ulp, info.limit, info.vectorises)
        for (op, dtype), info in elementary_table.KERNELS.items()
    }


KERNELS = _table()
"""The kernel of an op on a dtype, by both names: `KERNELS["exp", "float32"]`."""
