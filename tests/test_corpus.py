"""Every program of the corpus: its value, its graphs and its derivatives, by judges that share no code with them."""

from __future__ import annotations

import numpy as np
import pytest
from instruments.comparing import assert_same_trees
from instruments.tables import in_turn, programs_at_orders
from programs import BY_NAME, PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import TracingError
from ctrlgrad.ir import Graph, verify

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=repr)

# The twin computes with cut gradients what the program's value is, but finite differences see through the cut.
CUT = {"stop_gradient_in_a_loop"}

# `xs[t]` on an array of NumPy's own with a traced t is decided by NumPy, which needs a number: such a program runs
# traced only, where its arguments are tensors, and says so otherwise.
INDEXES_AN_ARGUMENT = {
    "attention_over_a_growing_memory",
    "embedding_and_einsum",
    "gather_with_index_arrays",
    "hidden_markov_likelihood",
    "lstm",
    "masked_rnn",
    "row_reads",
    "row_reads_at_computed_indices",
    "unknown_time_and_batch",
}


def run_checked(graph: Graph, program: Program) -> list[np.ndarray]:
    """Run with every intermediate result checked against its declared type."""
    return run_graph(graph, tree.leaves(program.args), Run(check_types=True))


@in_turn("program, engine", PROGRAMS, ["native", "reference"])
def test_value_is_that_of_the_python_twin(program: Program, engine: str) -> None:
    """By the reference engine or in machine code: tests/native holds one to the other."""
    expected = program.numpy_fn(*program.args)
    with cg.options(engine=engine):
        result = program.function()(*program.args)
    assert_same_trees(result, expected)
    assert all(np.asarray(leaf).dtype == np.float64 for leaf in tree.leaves(result))


@in_turn("program, engine", PROGRAMS, ["native", "reference"])
def test_value_is_the_same_outside_of_a_trace(program: Program, engine: str) -> None:
    with cg.options(engine=engine):
        if program.name in INDEXES_AN_ARGUMENT:
            with pytest.raises(TracingError, match="asarray"):
                program.fn(*program.args)
        else:
            assert_same_trees(program.fn(*program.args), program.numpy_fn(*program.args))


@in_turn("program, order", PROGRAMS, [1, 2])
def test_graph_is_valid_and_runs_as_typed(program: Program, order: int) -> None:
    graph = verify(program.graph(order), f"order {order}")
    for leaf in run_checked(graph, program):
        assert np.all(np.isfinite(leaf))


@programs_at_orders(0, 1, 2)
def test_graph_text_is_stable(program: Program, order: int) -> None:
    assert str(program.traced_again(order)) == str(program.graph(order))


@every_program
def test_running_a_graph_leaves_its_arguments_alone(program: Program) -> None:
    before = [np.array(leaf) for leaf in tree.leaves(program.args)]
    first = run_checked(program.graph(1), program)
    second = run_checked(program.graph(1), program)
    for a, b in zip(tree.leaves(program.args), before, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@every_program
def test_small_changes_keep_trip_counts_and_branches(program: Program) -> None:
    """Within the steps of finite differences the number of executed nodes does not change."""
    graph = verify(program.graph(0), "forward")
    counts = set()
    for step in (0.0, 1e-4, -1e-4):
        args = [x * (1.0 + step) + step if np.asarray(x).dtype.kind == "f" else x for x in tree.leaves(program.args)]
        run = Run()
        run_graph(graph, [np.asarray(x) for x in args], run)
        counts.add((run.counters.ops, *run.counters.iterations.values()))
    assert len(counts) == 1


@in_turn("program, judge", PROGRAMS, ["finite_differences", "jax"])
def test_derivatives(program: Program, judge: str) -> None:
    """Of first and second order: a check of order 2 makes those of order 1 on its way."""
    against = ("jax",) if program.name in CUT else (judge,)
    fn = cg.function(program.fn, signature=program.signature) if program.signature else program.fn
    report = cg.check_grads(fn, program.args, order=2, modes=("rev",), against=against)
    assert {row.order for row in report.rows} >= {1, 2}


def test_the_gradient_of_an_output_that_no_input_reaches_is_zero() -> None:
    program = BY_NAME["zero_gradient"]
    dx, dw = cg.grad(program.fn, argnums=(0, 1))(*program.args)
    assert dx == 0.0 and dx.shape == ()
    np.testing.assert_array_equal(dw, np.zeros(2))


def test_stop_gradient_cuts_inside_a_loop() -> None:
    """By hand: dy and dz are carried beside y and z, and the cut term takes no part in them."""
    x, w = (float(a) for a in BY_NAME["stop_gradient_in_a_loop"].args)
    y = z = x
    dy = dz = np.array([1.0, 0.0])
    for _ in range(4):
        sine, dsine = np.sin(y), np.cos(y) * dy
        dz = dz + np.array([0.0, y])
        y, dy, z = sine * w + x, dsine * w + np.array([1.0, sine]), z + y * w
    gradient = cg.grad(BY_NAME["stop_gradient_in_a_loop"].fn, argnums=(0, 1))(x, w)
    np.testing.assert_allclose(gradient, dy * z + y * dz, rtol=1e-12)


def test_the_corpus_holds_what_it_should() -> None:
    assert len(PROGRAMS) >= 60
    assert all(program.argnums for program in PROGRAMS)
