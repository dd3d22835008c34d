"""The table of device kernels.

An entry takes the node and returns a function of the run's context and the operands; it gives the result, or a tuple
of results. It may empty the list of operands: what it takes off the list it may overwrite if nothing else holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.ir import Node

Kernel = Callable[[Context, list[Any]], Any]
Factory = Callable[[Node], Kernel]

DEVICE: dict[str, Factory] = {}


def filled_shape(context: Context, shape: Sequence[int | None], dims: Sequence[Any]) -> tuple[int, ...]:
    """A shape template, its unknown dimensions filled; a size that is on the device is read."""
    rest = iter(context.on_host(*dims))
    return tuple(int(next(rest)) if d is None else d for d in shape)


def call(fn: Callable[[Context, list[Any]], Any]) -> Kernel:
    """A kernel that calls a function of the library, counted."""

    def kernel(context: Context, operands: list[Any]) -> Any:
        context.counts.calls += 1
        return fn(context, operands)

    return kernel
