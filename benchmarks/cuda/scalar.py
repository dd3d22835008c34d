"""The gradient of a loop over one number, which goes on as long as the number says, against a `scan` of JAX's.

The numbers lie on the host, where the loop is machine code of the processor, or on the card, where each iteration is a
few kernels. JAX's loop has a static length and no predicate: it reverses no other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
from benchmarks.cuda.lstm import jax_on_card, take, timed
from benchmarks.cuda.results import Row
from benchmarks.loops.inputs import map_inputs
from benchmarks.loops.with_ctrlgrad import mapped_loss
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.program import Context

# Iterations: of numbers on the host, and of numbers on the card, which take long.
ON_HOST, ON_CARD, TINY = 1_000_000, 100_000, 48


def of_ctrlgrad(row: Row, library: ArrayLibrary, repeats: int, is_on_card: bool) -> list[Any]:
    """The loss and its gradients, `row.length` iterations."""
    arguments = [np.float64(x) for x in map_inputs(None)]
    trips = np.int64(row.length)
    step = cg.function(cg.value_and_grad(mapped_loss(None), argnums=tuple(range(len(arguments)))))
    graph = optimised_graph(step.graph(*arguments, trips))
    given: list[Any] = [*arguments, trips]
    if is_on_card:
        with library.running():
            given = [library.upload(x) for x in given]
            library.read(given[:1])

    def run() -> tuple[list[Any], Context]:
        context = Context(library)
        return run_with(context, graph, given), context

    seconds, (results, context) = timed(run, repeats, warm_up=1)
    take(row, seconds, float(results[0]))
    counts = context.counts
    row.graphs, row.launches = counts.graphs, counts.launches / row.length
    row.reads = counts.reads + counts.predicate_reads + counts.results
    return results


def of_jax(row: Row, repeats: int) -> None:
    """The same by a `scan`."""
    jax = jax_on_card(row)
    if jax is None:
        return
    from benchmarks.loops.with_jax import mapped

    seconds, (value, _) = timed(mapped(row.length).step, repeats, warm_up=1)
    take(row, seconds, float(value))
    row.note = f"jax {jax.__version__}"


__all__ = ["ON_CARD", "ON_HOST", "TINY", "of_ctrlgrad", "of_jax"]
