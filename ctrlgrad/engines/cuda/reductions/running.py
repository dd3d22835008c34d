"""Reductions step by step: each launch is the library's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch, ReductionText
from ctrlgrad.engines.cuda.reductions.stages import Shape, scan, stages

_ARRAY, _NUMBER = Access(()), Access(None)


def cumulate(context: Context, text: ReductionText, axis: int, x: Any, result: Any) -> None:
    """Put a scan on the library's stream."""
    _launch(context, scan(text, tuple(x.shape), axis, [x], [result], lambda _: _ARRAY, context.library.empty))


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
    library = context.library

    def access(x: Any) -> Access:
        return _ARRAY if library.is_array(x) else _NUMBER

    _launch(context, stages(text, shape, axes, inputs, stored, results, access, library.empty))


def _launch(context: Context, launches: Iterable[ReductionLaunch]) -> None:
    for launch in launches:
        context.launch(launch)


__all__ = ["cumulate", "reduce"]
