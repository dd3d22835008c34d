"""The two tables of kernels, and how a kernel may update in place.

A pure entry takes the node and returns a function of the operands. An in-place entry returns a function of
(operands as a list that it may empty, the run); it owns an operand when the interpreter has let go of it,
see `own`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.run import Run
from ctrlgrad.ir import Node, attributes

Pure = Callable[[Node], Callable[..., Any]]
InPlace = Callable[[Node], Callable[[list[Any], Run], Any]]

PURE: dict[str, Pure] = {}
IN_PLACE: dict[str, InPlace] = {}


def same(fn: Callable[..., Any]) -> Pure:
    """The entry of an op that is one function whatever the node."""
    return lambda node: fn


def template_shape(node: Node, dims: Sequence[Any]) -> tuple[int, ...]:
    """The node's shape template, its unknown dimensions filled."""
    rest = iter(dims)
    return tuple(int(next(rest)) if d is None else d for d in attributes.Shape.of(node).shape)


# In-place updates. A value may be overwritten only where nothing else can see it: no other reference to the array
# object, and no other array that shares its memory. The interpreter clears its own reference to an operand at its last
# use, so the reference count tells. What Python counts for a value that one place alone holds depends on Python's
# version, so it is measured.


def _of_popped(operands: list[Any]) -> int:
    value = operands.pop(0)
    return sys.getrefcount(value)


POPPED_ALONE = _of_popped([object()])
"""`sys.getrefcount` of a local variable whose value was taken off a list that alone held it."""


def own(operands: list[Any], run: Run) -> Any:
    """Take the first operand off the list as an array that may be overwritten: itself if unshared, else a copy."""
    value = operands.pop(0)
    unshared = sys.getrefcount(value) == POPPED_ALONE
    if unshared and isinstance(value, np.ndarray) and value.base is None and value.flags.writeable:
        return value
    run.counters.copied_bytes += value.nbytes
    return np.array(value)


def own_stack(operands: list[Any]) -> Any:
    """As `own`, for a stack of any engine; a copy of a stack copies references, not rows."""
    value = operands.pop(0)
    return value if sys.getrefcount(value) == POPPED_ALONE else value.copy()
