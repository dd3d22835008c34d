"""Reductions step by step: each launch is the library's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.reductions.model import ReductionText
from ctrlgrad.engines.cuda.reductions.stages import Shape, scan, stages

_ARRAY, _NUMBER = Access(()), Access(None)


def cumulate(context: Context, text: ReductionText, axis: int, x: Any, result: Any) -> None:
    """Put a scan on the library's stream."""
    for launch in scan(text, tuple(x.shape), axis, x, result, lambda _: _ARRAY):
        context.counts.kernels += 1
        context.library.reduce(launch, context.precision != "ieee")


def reduce(
    context: Context,
    text: ReductionText,
    shape: Shape,
    axes: Sequence[int],
    inputs: Sequence[Any],
    stored: Sequence[Any],
    results: Sequence[Any],
) -> None:
    """Put a reduction on the library's stream; see `stages`."""
    library, contracts = context.library, context.precision != "ieee"

    def access(x: Any) -> Access:
        return _ARRAY if library.is_array(x) else _NUMBER

    for launch in stages(text, shape, axes, inputs, stored, results, access, library.empty):
        context.counts.kernels += 1
        library.reduce(launch, contracts)


__all__ = ["cumulate", "reduce"]
