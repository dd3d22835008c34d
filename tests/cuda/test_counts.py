"""Costs of a run: launches, waits and copies, asserted as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_stand_in
from programs import BY_NAME

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.program import Context, Counts


def lstm_counts(steps: int, order: int) -> Counts:
    program = BY_NAME["lstm"]
    graph = program.graph(order)
    leaves = program.leaves
    leaves[-2:] = [np.resize(leaves[-2], (steps, *leaves[-2].shape[1:])), np.asarray(steps)]
    return on_stand_in(graph, leaves).counts


def per_step(order: int) -> dict[str, int]:
    """Growth of the counts with a step, which is the same from each to the next."""
    counts = [vars(lstm_counts(steps, order)) for steps in (3, 4)]
    return {k: counts[1][k] - counts[0][k] for k in counts[0] if isinstance(counts[0][k], int)}


NOTHING = dict.fromkeys(("calls", "uploads", "graphs", "runs", "predicate_reads", "reads", "results"), 0)


def test_a_step_of_an_lstm() -> None:
    """Two products, the second added to the first by BLAS, and one kernel for all that follows.

    Prepared: one more has the step's input where a product finds it, and one counts.
    """
    assert per_step(0) == {"kernels": 1 + 2, "products": 2} | NOTHING


def test_a_step_of_an_lstm_and_of_its_gradient() -> None:
    """Forward the same: the six pushes are outputs of its kernel. Backward one kernel, which writes the four gates'
    cotangents into one array; four products, two of them added by BLAS; a sum over the batch, which one more kernel
    adds up; and a row that is added to. Two rows are copied for products, and one kernel counts. One more leaves
    what is not finite out of an operand of a product (strong zeros)."""
    assert per_step(1) == {"kernels": 3 + 4 + 3 + 1, "products": 2 + 4} | NOTHING


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool"])
def test_parts_of_unequal_sizes_are_copied_one_by_one(dtype: str) -> None:
    """Parts without elements are not copied."""
    parts = [np.arange(3 * n).reshape(3, n).astype(dtype) for n in (2, 0, 1, 4)]
    graph = cg.function(lambda *xs: cnp.concatenate(xs, axis=1)).graph(*parts)
    found = on_stand_in(graph, parts)
    np.testing.assert_array_equal(found.results[0], np.concatenate(parts, axis=1))
    assert (found.counts.kernels, found.counts.calls) == (3, 0)


def test_a_loop_of_scalars_launches_nothing() -> None:
    program = BY_NAME["newton_iteration"]
    leaves = program.leaves
    counts = on_stand_in(program.graph(1), leaves).counts
    assert (counts.launches, counts.predicate_reads, counts.reads, counts.results) == (0, 0, 0, 0)


def test_an_iteration_that_follows_data() -> None:
    """One kernel for the carry and the sum of its squares, one for the predicate, one that counts, and one that says
    whether there is another iteration, which is waited for."""

    def shrink(x: Any) -> Any:
        return cg.while_loop(lambda x: np.sum(x * x) > 1.0, lambda x: np.tanh(x) * 0.9, x)

    def kernels(x: np.ndarray) -> Counts:
        return on_stand_in(cg.function(shrink).graph(x), [x]).counts

    few, many = kernels(np.full(3, 0.7)), kernels(np.full(8, 1.0))
    # One iteration and five. The host asks before and behind a run too.
    assert (few.predicate_reads, many.predicate_reads) == (1 + 2, 5 + 2)
    assert (many.kernels - few.kernels, many.calls - few.calls, many.uploads - few.uploads) == (4 * 4, 0, 0)
    assert (few.runs, many.runs) == (1, 1)


def test_a_row_costs_the_row() -> None:
    """Reads of rows are views; an update of a carried array is one launch, in place."""

    def fill(x: Any) -> Any:
        return cg.fori_loop(0, len(x) - 1, lambda i, x: x.at[i + 1].add(x[i]), x)

    counts = [on_stand_in(cg.function(fill).graph(np.ones((n, 3))), [np.ones((n, 3))]).counts for n in (7, 17)]
    # A read that stands before an update of the same array is a copy of the row. One more counts.
    assert counts[1].launches - counts[0].launches == 10 * 3


def test_constants_are_sent_once() -> None:
    table = np.arange(12.0).reshape(4, 3)

    def rows(x: Any) -> Any:
        return cg.fori_loop(0, 4, lambda i, x: x + cnp.take(table, i, axis=0), x)

    graph = optimised_graph(cg.function(rows).graph(np.ones(3)), is_for_gpu=True)
    library = StandIn()
    uploads = []
    for _ in range(2):
        context = Context(library)
        run_with(context, graph, [np.ones(3)])
        uploads.append(context.counts.uploads)
    assert uploads == [2, 1]


def test_results_come_in_one_copy() -> None:
    x = np.ones((2, 3))
    counts = on_stand_in(cg.function(lambda x: (x + 1.0, x * 2.0, x.sum())).graph(x), [x]).counts
    assert (counts.results, counts.reads) == (1, 0)


@pytest.mark.parametrize("values", [3, 8])
def test_a_push_is_no_launch(values: int) -> None:
    """Saved values are outputs of the kernel that makes them, however many there are."""

    def loss(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            for _ in range(values):
                x = np.tanh(x) * np.sin(x)
            return x

        return cg.fori_loop(0, 6, body, x).sum()

    x = np.array([0.3, 0.7])
    graph = cg.function(cg.grad(loss)).graph(x)
    counts = on_stand_in(graph, [x]).counts
    # Each loop has one kernel, one that counts, and one at its beginning. One more writes a number into an array.
    assert counts.kernels <= 6 * 2 * 2 + 2 + 1
