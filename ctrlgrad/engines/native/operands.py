"""The operands of a compiled loop before it runs: how they lie in memory, their shapes, which may be overwritten."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.account import empty
from ctrlgrad.engines.native.frames import Layout
from ctrlgrad.engines.ownership import LENT_ALONE
from ctrlgrad.stacks.blocks import BlockStack


def layout_of(value: Any) -> Layout:
    """How an operand lies in memory."""
    if not isinstance(value, np.ndarray) or value.ndim == 0 or value.flags.c_contiguous:
        return "rows"
    if value.size > 1 and not any(value.strides):
        return "one"
    if value.ndim == 2 and value.flags.f_contiguous:
        return "columns"
    return "rows"


def shapes_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """The shapes of operands; of a stack its elements', None where it has none yet."""
    return tuple(map(_shape, values))


def _shape(value: Any) -> Any:
    if isinstance(value, BlockStack):
        return value.shape
    if isinstance(value, list):
        return next((tuple(v.shape) for v in value if v is not None), None)
    return tuple(value.shape)


def own_array(value: Any) -> np.ndarray:
    """A carried array that may be overwritten: itself where only the caller's variable holds it, else a copy."""
    if (
        isinstance(value, np.ndarray)
        and sys.getrefcount(value) <= LENT_ALONE
        and value.base is None
        and value.flags.writeable
        and value.flags.c_contiguous
    ):
        return value
    copy = empty(value.shape, value.dtype, "a carried value")
    copy[...] = value
    return copy


__all__ = ["layout_of", "own_array", "shapes_of"]
