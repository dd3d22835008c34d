"""A case, and the operands that cases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from array_cases.running import data

XP = Any


@dataclass(frozen=True)
class Case:
    """A call written once for both modules; `arrays` are its traced operands."""

    label: str
    call: Callable[..., Any]
    arrays: tuple[Any, ...]
    # The expected result where NumPy has no such function.
    expected: Callable[..., Any] | None = None
    unknown: bool = True
    protocol: bool = True


A, B, V = data("float64", (3, 4)), data("float32", (4, 2)), data("float64", (4,))
T3, T4 = data("float32", (2, 3, 4)), data("float64", (2, 3, 4, 5))
I3, U3, M = data("int32", (3, 4)), data("uint8", (3, 4)), data("bool", (3, 4))
EMPTY = np.zeros((0, 4))
K, N, ONE = np.int64(2), np.int64(3), np.float64(1.5)
# Index operands.
IDX, IDX2 = np.array([2, 0, -1]), np.array([[0, 1], [1, 0]])


def case(label: str, call: Callable[..., Any], *arrays: Any, **options: Any) -> Case:
    return Case(label, call, arrays, **options)
