"""Engines run graphs. They are interchangeable: the reference engine says what a graph means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ctrlgrad.engines.auto import auto_kernels, has_native
from ctrlgrad.engines.block_kernels import as_lists
from ctrlgrad.engines.reference import REFERENCE, FiniteCheck, Kernels, Run, interpret
from ctrlgrad.engines.report import Report, explain
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph
from ctrlgrad.passes import OPTIMISATIONS, optimise

ENGINES = ("auto", "native", "reference")


def kernels_of(engine: str) -> Kernels:
    """What an engine runs nodes by."""
    if engine == "reference":
        return REFERENCE
    if engine == "auto":
        return auto_kernels()
    if not has_native():
        raise UserInputError(
            "the native engine is not installed",
            expected="the packages numba and scipy",
            got="an installation without them",
            hint="pip install 'ctrlgrad[native]', or use engine='reference'",
        )
    from ctrlgrad.engines.native.engine import NATIVE

    return NATIVE


def run_on(engine: str, graph: Graph, arguments: Sequence[Any], check_nans: bool = False) -> list[Any]:
    """The outputs of a graph for the given arrays (and lists, for stacks), by an engine."""
    run = Run(finite=FiniteCheck() if check_nans else None)
    kernels = kernels_of(engine)
    if kernels is REFERENCE or run.is_watched:
        return as_lists(interpret(graph, arguments, run, kernels))
    return as_lists(interpret(_optimised(graph, current_without()), arguments, run, kernels))


def explain_native(graph: Graph, arguments: Sequence[Any]) -> Report:
    """Run a graph on the native engine and say what was done with each of its loops."""
    kernels_of("native")
    return explain(_optimised(graph, current_without()), arguments)


def _optimised(graph: Graph, without: frozenset[str]) -> Graph:
    """The graph as compiling engines run it, made once and kept with it. Only loops gain by the passes."""
    if not any(node.regions for node in graph.nodes):
        return graph
    key = f"optimised without {sorted(without)}"
    if key not in graph.compiled:
        graph.compiled[key] = optimise(graph, without)
    optimised: Graph = graph.compiled[key]
    return optimised


_WITHOUT: ContextVar[frozenset[str]] = ContextVar("passes that are left out", default=frozenset())


def current_without() -> frozenset[str]:
    """The names of the passes that are left out."""
    return _WITHOUT.get()


@contextmanager
def without_passes(*names: str) -> Iterator[None]:
    """Leave passes out of what compiling engines do to graphs, for a block of code."""
    known = {name for name, _ in OPTIMISATIONS}
    for name in names:
        if name not in known:
            raise UserInputError(f"there is no pass {name!r}", expected=", ".join(sorted(known)), got=name)
    token = _WITHOUT.set(_WITHOUT.get() | set(names))
    try:
        yield
    finally:
        _WITHOUT.reset(token)


__all__ = [
    "ENGINES",
    "Report",
    "current_without",
    "explain_native",
    "has_native",
    "kernels_of",
    "run_on",
    "without_passes",
]
