"""Runs of graphs on the stand-in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on, run_with
from ctrlgrad.engines.cuda.prepared import binding
from ctrlgrad.engines.cuda.prepared.runner import Body
from ctrlgrad.engines.cuda.program import Context, Counts
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph
from instruments.python_calls import calls_of_the_engine
from instruments.stand_in import StandIn, StandInArray

# One library for many runs: a budget names its device.
LIBRARY = StandIn()


@dataclass(frozen=True)
class Ran:
    """The results of a run, and what it did."""

    results: list[Any]
    counts: Counts


def on_stand_in(graph: Graph, arguments: Sequence[Any], kinds: str = "", library: StandIn | None = None) -> Ran:
    """Run on the stand-in, arguments of some dtype kinds being on the device from the start."""
    context = Context(library or StandIn())
    lies = [not isinstance(x, list) and np.asarray(x).dtype.kind in kinds for x in arguments]
    given = [StandInArray(np.array(x)) if on_device else x for x, on_device in zip(arguments, lies, strict=True)]
    return Ran(run_with(context, optimised_graph(graph, is_for_gpu=True), given), context.counts)


def calls_on_stand_in(run: Callable[[], Any]) -> int:
    """Count of calls of the engine's functions in a run on the stand-in.

    Each run makes its CUDA graphs: a kept one fits again only where memory happens to have the same addresses.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(binding, "GRAPHS", 0)
        run()  # the graphs that were kept before go
        return calls_of_the_engine(run)


def step_by_step(graph: Graph, arguments: Sequence[Any]) -> Ran:
    """Run without prepared lists."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Body, "form", lambda *_: "it was asked for")
        return on_stand_in(graph, arguments)


def on_reference(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    return run_on("reference", graph, arguments)


def most_pushes(graph: Graph, arguments: Sequence[Any]) -> int:
    """The most rows that one node pushes in a run, on the reference engine."""
    run = Run()
    run_graph(graph, arguments, run)
    return max(run.counters.pushes_by_node.values())


def graph_of(fn: Callable[[Any], Any], order: int, x: np.ndarray) -> Graph:
    """A function of one array, its gradient (order 1), or the gradient of the squares of that (2); made once."""
    return _graph_of(fn, order, x.shape, x.dtype)


@functools.cache
def _graph_of(fn: Callable[[Any], Any], order: int, shape: tuple[int, ...], dtype: np.dtype) -> Graph:
    loss = lambda x: cnp.sum(cnp.sin(fn(x)))
    programs = [fn, cg.grad(loss), cg.grad(lambda x: cnp.sum(cg.grad(loss)(x) ** 2))]
    return cg.function(programs[order]).graph(np.zeros(shape, dtype))


def launching_of(graph: Graph, arguments: Sequence[Any]) -> list[str]:
    """Form in which the launches of each loop were put on the stream."""
    return [
        loop.launching for loop in explain_on(StandIn(), optimised_graph(graph, is_for_gpu=True), arguments).all_loops()
    ]


__all__ = ["LIBRARY", "Ran", "graph_of", "launching_of", "most_pushes", "on_reference", "on_stand_in", "step_by_step"]
