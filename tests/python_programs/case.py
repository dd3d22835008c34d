"""A program, and its registration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A function and one set of arguments for it."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    number: int

    def __repr__(self) -> str:
        return f"{getattr(self.fn, '__name__', 'object').strip('<>')}-{self.number}"


CASES: list[Case] = []


def case(*argument_lists: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function with lists of arguments; a decorator."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES.extend(Case(fn, args, number) for number, args in enumerate(argument_lists))
        return fn

    return register


ROWS = np.array([[0.3, -0.2], [1.1, 0.4], [-0.7, 0.9], [2.1, -1.3]])
