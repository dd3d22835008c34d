"""Which ops have a vectorisable kernel, for the code generator: names and properties, without the kernels themselves.

Generating code reads only this table; `elementary` holds the functions and loads the compiler with them. A test holds
the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctrlgrad.engines.native.elementary_constants import DOUBLE, SINGLE


@dataclass(frozen=True)
class KernelInfo:
    """What generated code needs to know of the kernel of one op on one dtype."""

    name: str
    """Its name in generated source: the op and the dtype."""
    max_ulp: float
    """The stated bound of its error, as in `elementary.Elementary`."""
    limit: float | None = None
    """The largest magnitude of an operand for which it is valid; None where all are."""
    vectorises: bool = True
    """Whether a loop over it becomes packed instructions."""


# For float32 and float64.
_MAX_ULP = {
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
    "sqrt": (0.5, 0.5),
}
_EXACT = ["floor", "ceil", "trunc", "rint", "abs", "copysign", "sign", "signbit", "maximum", "minimum", "nextafter"]
_LIMITED = ("sin", "cos", "tan")
_LIBRARY = ("remainder", "floor_divide")


def _table() -> dict[tuple[str, str], KernelInfo]:
    table = {}
    for column, f in enumerate((SINGLE, DOUBLE)):
        dtype = f.dtype.__name__
        for op in (*_MAX_ULP, *_LIBRARY, *_EXACT):
            table[op, dtype] = KernelInfo(
                name=f"{op}_{dtype}",
                max_ulp=_MAX_ULP.get(op, (0.0, 0.0))[column],
                limit=f.trigonometric_limit if op in _LIMITED else None,
                vectorises=op not in _LIBRARY,
            )
    return table


KERNELS = _table()
"""The kernel of an op on a dtype, by both names: `KERNELS["exp", "float32"]`."""
