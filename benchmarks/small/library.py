"""The vocabulary of the small programs: names that ctrlgrad and JAX share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Library:
    """Functions that the programs call; `array` has NumPy's names."""

    array: Any
    fori_loop: Callable[..., Any]
    scan: Callable[..., Any]
    # Of a predicate, a body, a start, and the most iterations that there may be.
    while_loop: Callable[..., Any]
    cond: Callable[..., Any]
    vmap: Callable[..., Any]
    softmax: Callable[..., Any]
    logsumexp: Callable[..., Any]


@dataclass(frozen=True)
class Small:
    """`loss(*arrays)` is differentiated by its first `by` arrays; with `is_mapped` for each entry of the first axis."""

    loss: Callable[..., Any]
    arrays: tuple[Any, ...]
    by: int
    is_mapped: bool = False
