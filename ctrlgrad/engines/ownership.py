"""Test if a kernel may overwrite an operand: only where nothing else can see it.

The interpreter clears its own reference to an operand at its last use, so the reference count tells. What Python counts
for a value that one place alone holds depends on Python's version, so it is measured here.
"""

from __future__ import annotations

import sys
from typing import Any


def _of_popped(operands: list[Any]) -> int:
    value = operands.pop(0)
    return sys.getrefcount(value)


POPPED_ALONE = _of_popped([object()])
"""`sys.getrefcount` of a local variable whose value was taken off a list that alone held it."""
