"""Engines run graphs. They are interchangeable: the reference engine says what a graph means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.engines.auto import auto_kernels, has_native
from ctrlgrad.engines.block_kernels import as_lists
from ctrlgrad.engines.reference import REFERENCE, FiniteCheck, Kernels, Run, interpret
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph

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
    return as_lists(interpret(graph, arguments, run, kernels_of(engine)))


__all__ = ["ENGINES", "kernels_of", "run_on"]
