"""The registry of small programs, and arguments that many of them take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Products of five terms call routines; products of fewer terms are kernels.
x2, x5 = np.array([1.0, 2.0]), np.array([0.3, -0.2, 0.5, 0.1, -0.4])
square = np.arange(25.0).reshape(5, 5) / 25
wide = np.arange(32 * 33.0).reshape(32, 33) / 999


@dataclass(frozen=True)
class Small:
    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    order: int = 0
    signature: Any = None


SMALL: dict[str, Small] = {}


def small(*arguments: Any, order: int = 0, signature: Any = None) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        SMALL[fn.__name__] = Small(fn, arguments, order, signature)
        return fn

    return add
