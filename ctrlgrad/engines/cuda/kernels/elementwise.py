"""Sums and conversions of arrays that no group computes, by generated kernels.

The library's own functions, as CuPy compiles them, take subnormal float32 numbers for zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.reductions.running import compute
from ctrlgrad.engines.cuda.texts import binary_text, cast_text


def added(context: Context, a: Any, b: Any) -> Any:
    """The sum of two arrays of one dtype."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    found = context.library.empty(shape, a.dtype)
    compute(context, binary_text("add", a.dtype), shape, [a, b], [found])
    return found


def add_to(context: Context, x: Any, value: Any) -> None:
    """`x += value`, which is an array or a number of the dtype."""
    compute(context, binary_text("add", x.dtype), tuple(x.shape), [x, value], [x])


def converted(context: Context, x: Any, dtype: np.dtype) -> Any:
    """An array in another dtype, or as it is."""
    if x.dtype == dtype:
        return x
    found = context.library.empty(tuple(x.shape), dtype)
    compute(context, cast_text(x.dtype, dtype), tuple(x.shape), [x], [found])
    return found
