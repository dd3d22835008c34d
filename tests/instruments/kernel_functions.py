"""Functions that kernels' text calls, written with NumPy: a statement of a kernel is Python too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ctrlgrad.dtypes import NAMES, converted
from ctrlgrad.engines.cuda.kernel import C_TYPES, function_name
from ctrlgrad.ops.elementwise import FACTS
from ctrlgrad.plan.elementary.table import all_elementary


def _typed(dtype: str) -> Callable[[Any], Any]:
    return lambda x: np.asarray(x).astype(dtype)[()]


def _complex(dtype: str) -> Callable[[Any, Any], Any]:
    def joined(re: Any, im: Any) -> Any:
        found = np.empty(np.broadcast_shapes(np.shape(re), np.shape(im)), dtype)
        found.real, found.imag = re, im
        return found

    return joined


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Rounded twice, the first time far below the dtype's precision; the statement's dtype rounds again."""
    wide: Any = np.float64 if np.result_type(a, b, c) == np.float32 else np.longdouble
    a, b, c = (np.asarray(x).astype(wide) for x in (a, b, c))
    return a * b + c


def _bits(dtype: str) -> Callable[[Any], Any]:
    return lambda x: np.asarray(x).view(dtype)[()]


MEANING: dict[str, Any] = {name: getattr(np, name) for name in ("sqrt", "floor", "ceil", "trunc", "rint", "copysign")}
MEANING |= {
    "np_abs": np.abs,
    "np_quotient": lambda a, b: (a - np.fmod(a, b)) // b,
    "np_remainder": np.fmod,
    "np_select": np.where,
    "np_fma": _fma,
    "np_real": np.real,
    "np_imag": np.imag,
    "true": np.True_,
    "false": np.False_,
}
MEANING |= {name: _typed(name) for name in NAMES if not name.startswith("complex")}
MEANING |= {name: _complex(name) for name in ("complex64", "complex128")}
MEANING |= {f"bits_{name}": _bits(name) for name in (*C_TYPES, "float16", "bfloat16")}
MEANING |= {f"saturated_{name}": partial(converted, dtype=np.dtype(name)) for name in C_TYPES if "int" in name}
MEANING["np_bfloat16"] = _typed("bfloat16")
MEANING |= {
    function_name(f.name, f.dtype): FACTS[f.name].numpy if f.name in FACTS else getattr(np, f.name)
    for f in all_elementary()
}

__all__ = ["MEANING"]
