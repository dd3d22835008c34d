"""Whether a kernel may overwrite an operand: only where nothing else can see it.

The interpreter clears its own reference to an operand at its last use, so the reference count tells. What Python counts
for a value that one place alone holds depends on how it got to where the question is asked, and on Python's version; it
is measured here, once for each of the two ways.
"""

from __future__ import annotations

import sys
from typing import Any


def _of_popped(operands: list[Any]) -> int:
    value = operands.pop(0)
    return sys.getrefcount(value)


def _of_argument(value: Any) -> int:
    return sys.getrefcount(value)


def _of_lent() -> int:
    value = object()
    return _of_argument(value)


POPPED_ALONE = _of_popped([object()])
"""`sys.getrefcount` of a local variable whose value was taken off a list that alone held it."""
LENT_ALONE = _of_lent()
"""`sys.getrefcount` of a parameter whose value only a local variable of the caller holds besides."""

__all__ = ["LENT_ALONE", "POPPED_ALONE"]
