"""Kernels step by step: each launch is the library's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch, ReductionText
from ctrlgrad.engines.cuda.reductions.stages import Shape, elementwise, scan, stages

_ARRAY, _NUMBER = Access(()), Access(None)


def cumulate(context: Context, text: ReductionText, axis: int, x: Any, result: Any) -> None:
    """Put a scan on the library's stream."""
    _launch(context, scan(text, tuple(x.shape), axis, [x], [result], lambda _: _ARRAY, context.library.empty))


def compute(context: Context, text: KernelText, shape: Shape, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Put an elementwise kernel on the library's stream; inputs are numbers, or arrays that broadcast to the shape."""
    _launch(context, elementwise(text, shape, inputs, outputs, _accessed(context)))


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
    access, empty = _accessed(context), context.library.empty
    _launch(context, stages(text, shape, axes, inputs, stored, results, access, empty))


def _accessed(context: Context) -> Callable[[Any], Access]:
    return lambda x: _ARRAY if context.library.is_array(x) else _NUMBER


def _launch(context: Context, launches: Iterable[ReductionLaunch]) -> None:
    for launch in launches:
        context.launch(launch)
