"""Errors of a distributed loop, told as the loop that the user wrote would have raised them.

A loop over chunks reads rows of batches and writes rows after the chunk. It fails if and only if the plain loop does,
but may name another index, size or iteration, and where several iterations would fail, another one of them. The plain
graph says it exactly: after an error it runs again, by the reference engine, up to where it fails. Values are
immutable, so it runs from the same arguments; callbacks have been called and are not called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ctrlgrad.engines.reference import REFERENCE, Kernels, Run, interpret
from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.ir import Graph, attributes, walk
from ctrlgrad.memory.session import current

SILENT = Kernels(
    "reference without callbacks",
    REFERENCE.pure,
    {**REFERENCE.in_place, "callback": lambda node: lambda values, run: ()},
    REFERENCE.control,
)


@contextmanager
def exact_errors(
    graph: Graph,
    optimised: Graph,
    arguments: Sequence[Any],
    on_host: Callable[[Sequence[Any]], Sequence[Any]] = list,
) -> Iterator[None]:
    """Raise the error of `graph` where running `optimised` fails, if loops were distributed.

    `on_host` gives the arguments as NumPy arrays, where they may lie on a device.
    """
    try:
        yield
    except ExecutionError as error:
        # Under a budget the reference engine could need more memory than there is.
        is_told_again = _is_distributed(optimised) and current() is None
        found = error_of(graph, on_host(arguments)) if is_told_again else None
        if found is None:
            raise
        raise found from error


def _is_distributed(graph: Graph) -> bool:
    return any((loop := attributes.Loop.find(node)) and loop.chunks_of is not None for node in walk(graph))


def error_of(graph: Graph, arguments: Sequence[Any]) -> CtrlgradError | None:
    """The error of a graph by the reference engine; None where it runs to its end."""
    try:
        interpret(graph, arguments, Run(), SILENT)
    except CtrlgradError as error:
        return error
    except Exception:
        return None
    return None
