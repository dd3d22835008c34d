"""The reductions of kernels."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ctrlgrad.dtypes import dtype_kind

# How ops reduce elements to one.
HOW: dict[str, Literal["sum", "product", "max", "min"]] = {
    "sum": "sum",
    "sum_to": "sum",
    "prod": "product",
    "max": "max",
    "min": "min",
    "any": "max",
    "all": "min",
}
# The extreme whose position each reduction finds; reductions of two outputs to one number.
EXTREMES = {"argmax": "max", "argmin": "min"}
OF_TWO = frozenset([*EXTREMES, "dot"])
# Reductions whose results of several parts are combined by the reduction itself.
COMBINED = frozenset(("sum", "dot", "product", "max", "min"))


def may_combine(how: str, is_row: bool) -> bool:
    """Return true if results of parts become one; positions do in a single row, with the extremes found there."""
    return how in COMBINED or (is_row and how in EXTREMES)


def neutral_of(how: str, dtype: np.dtype) -> object:
    """The number that a reduction starts with, of a dtype of real numbers; of positions the first one."""
    if how in ("sum", *OF_TWO):
        return dtype.type(0)
    if how == "product":
        return dtype.type(1)
    if dtype_kind(dtype) == "b":
        return how == "min"
    if dtype_kind(dtype) == "f":
        return dtype.type(-np.inf if how == "max" else np.inf)
    return np.iinfo(dtype).min if how == "max" else np.iinfo(dtype).max
