"""What a traced tensor means as a condition."""

from __future__ import annotations

from typing import Any

from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import TensorType
from ctrlgrad.source import Source


def is_traced(x: Any) -> bool:
    return isinstance(x, Tensor)


def truth(x: Tensor, construct: str, source: Source | None) -> Tensor:
    """The truth of a tensor with one element, as a bool scalar: for a number, whether it is not zero."""
    t = x.type
    if not isinstance(t, TensorType) or any(d != 1 for d in t.shape):
        raise TypeMismatchError(
            f"autograph: the condition of {construct} is not a scalar",
            source=source,
            expected="bool[], or one number",
            got=str(t),
            hint="reduce it with numpy.any or numpy.all; choose elementwise with numpy.where, numpy.logical_and,\n"
            "numpy.logical_or and numpy.logical_not",
        )
    scalar: Any = FUNCTIONS["reshape"](x, ()) if t.rank else x
    return scalar if t.dtype == bool else FUNCTIONS["not_equal"](scalar, 0)  # type: ignore[no-any-return]
