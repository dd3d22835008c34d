"""`float0`: the dtype of the derivative with respect to an integer or a boolean, an array without any bytes.

It is the structured dtype of NumPy that JAX has for it. A graph cannot hold it: in a trace a `Float0` stands for such
an array, and becomes one where the function that was traced hands out its results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.frontend.apply import type_of, value_in
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import current
from ctrlgrad.ir import StackType

float0 = np.dtype([("float0", np.void, 0)])


class Float0(Tensor):
    """An array of `float0` in a trace: booleans of its shape, which nothing should be computed from."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype:
        return float0


def float0_like(x: Any) -> Any:
    """The derivative with respect to something that has none: an array of `float0` of its shape."""
    builder = current()
    shape = () if isinstance(type_of(x), StackType) else FUNCTIONS["shape"](x)
    if builder is None:
        return np.zeros(shape, float0)
    return Float0(builder, value_in(builder, FUNCTIONS["zeros"](shape, np.bool_)))


def is_float0(x: Any) -> bool:
    """Return true if x is an array of `float0`."""
    return isinstance(x, Float0) or (isinstance(x, np.ndarray | np.generic) and x.dtype == float0)


def without_numbers(traced: Any, result: Any) -> Any:
    """Convert a result for the caller: zeros of `float0` for a `Float0`, otherwise the computed result."""
    return np.zeros(np.shape(result), float0) if isinstance(traced, Float0) else result
