"""Precision of computations: whether loops flush subnormal numbers, and the rounding of computations on a card.

Precision on a card is one choice for products, their sums, and the contractions that kernels may do.

- "ieee": operands and sums of products are rounded in the dtypes that they have (sums of floats of 16 bits in
  float32), and a multiplication and an addition are two operations.
- "tf32": products of float32 round their operands to 10 bits of fraction, and sum in float32.
- "bf16": products of float32 round their operands to 7 bits of fraction, and sum in float32.

With the last two a multiplication and an addition may be one operation. Other dtypes than float32 and complex64 are
computed as with "ieee" in all else. The choice allows, it does not ask: engines on the processor round as "ieee" says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from ctrlgrad.blocks import holding

Precision = Literal["ieee", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_PRECISION: ContextVar[Precision] = ContextVar("precision", default="ieee")


def current_precision() -> Precision:
    return _PRECISION.get()


_FLUSHES: ContextVar[bool] = ContextVar("flush subnormals", default=True)


def flushes_subnormals() -> bool:
    """Return True if compiled programs with loops take subnormal numbers for zero."""
    return _FLUSHES.get()


@contextmanager
def computing_with(precision: Precision, flush_subnormals: bool) -> Iterator[None]:
    """A block of code whose runs compute so."""
    with holding(_PRECISION, precision), holding(_FLUSHES, flush_subnormals):
        yield
