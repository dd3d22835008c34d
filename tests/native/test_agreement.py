"""The native engine agrees with the reference engine: the corpus and random programs, to second order.

The corpus and the random programs run in checked mode, where generated code is plain Python and every access to memory
is checked; a sample of the corpus runs compiled. CTRLGRAD_NATIVE_RANDOM_PROGRAMS says how many random programs (90).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from programs import BY_NAME, PROGRAMS, Program
from random_programs.campaign import Batch, run_batch
from random_programs.engines import Settings

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.engines import run_on
from ctrlgrad.engines.native.checked import checked
from ctrlgrad.ir import TensorType

RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_NATIVE_RANDOM_PROGRAMS", "90"))
PER_PART = 30

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=repr)

# How many loops run natively for the value, the gradient and the second derivative. A loop that is differentiated
# becomes two, and those in turn four: what is not listed has one loop.
NATIVE_LOOPS = dict.fromkeys(BY_NAME, (1, 2, 4)) | {
    "tensor_array_written_forwards_read_backwards": (2, 4, 8),
    "tensor_array_written_backwards": (2, 4, 8),
    "tensor_array_of_unknown_size": (2, 4, 8),
    "branch_with_different_captures": (0, 0, 0),
    "branch_with_an_empty_side": (0, 0, 0),
    "branch_with_integer_and_unused_results": (0, 0, 0),
    "known_sizes_in_an_unknown_carry": (1, 1, 1),
    "a_write_that_appends_to_a_rewritable_array": (0, 0, 0),
    "a_write_that_appends": (0, 0, 0),
    "a_write_that_appends_to_rows": (0, 0, 0),
    "writes_that_append_in_a_loop": (0, 0, 0),
    "a_captured_array_that_is_written_to_and_not_carried": (0, 0, 0),
    "two_loops_in_sequence": (2, 4, 8),
    "zero_gradient": (1, 0, 0),
    "unknown_size": (1, 2, 3),
    "unknown_time_and_batch": (1, 1, 1),
    "viterbi_score_of_the_best_path": (2, 4, 8),
    "kept_rows_and_a_loop_over_them": (2, 4, 8),
}

# Why loops run on the reference engine, by program and order: each reason with the number of loops.
UNKNOWN_SIZE = "a size that broadcast_to is given depends on data"
NOT_CARRIED, SUM_OF_STACKS = "a loop changes a stack that it does not carry", "stack_sum inside a loop"
TENSOR_OF_UNKNOWN_LENGTH = "the size of the result of stack_to_tensor depends on data"
FALLBACKS: dict[tuple[str, int], dict[str, int]] = {
    ("a_captured_array_that_is_written_to_and_not_carried", 0): {NOT_CARRIED: 1},
    ("a_captured_array_that_is_written_to_and_not_carried", 1): {NOT_CARRIED: 1, SUM_OF_STACKS: 1},
    ("a_captured_array_that_is_written_to_and_not_carried", 2): {NOT_CARRIED: 2, SUM_OF_STACKS: 2},
    ("known_sizes_in_an_unknown_carry", 1): {UNKNOWN_SIZE: 1},
    ("known_sizes_in_an_unknown_carry", 2): {UNKNOWN_SIZE: 2, "a size that reshape is given depends on data": 1},
    ("writes_that_append_in_a_loop", 0): {TENSOR_OF_UNKNOWN_LENGTH: 1},
    ("writes_that_append_in_a_loop", 1): {TENSOR_OF_UNKNOWN_LENGTH: 1, UNKNOWN_SIZE: 1},
    ("writes_that_append_in_a_loop", 2): {TENSOR_OF_UNKNOWN_LENGTH: 1, UNKNOWN_SIZE: 3},
    ("unknown_size", 2): {UNKNOWN_SIZE: 1},
    ("unknown_time_and_batch", 1): {"a size that sum_to is given depends on data": 1},
    ("unknown_time_and_batch", 2): {"a size that sum_to is given depends on data": 3},
}


def leaves_of(program: Program) -> list[np.ndarray]:
    return [np.asarray(x) for x in tree.leaves(program.args)]


def assert_same(found: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-11) -> None:
    """Relative to each element, or to the largest of an array that holds smaller ones."""
    for a, b in zip(found, expected, strict=True):
        assert (np.asarray(a).dtype, np.shape(a)) == (np.asarray(b).dtype, np.shape(b))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1.0, np.max(np.abs(b), initial=0.0)))


@every_program
@pytest.mark.parametrize("order", [0, 1, 2])
def test_corpus_checked(program: Program, order: int, plans: Any) -> None:
    graph, leaves = program.graph(order), leaves_of(program)
    before = [x.copy() for x in leaves]
    with checked():
        found = run_on("native", graph, leaves)
    assert_same(found, run_on("reference", graph, leaves))
    for x, old in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(x, old)
    assert Counter(plans.reasons) == FALLBACKS.get((program.name, order), {})
    assert len(plans.native) == NATIVE_LOOPS[program.name][order]


def test_the_tables_name_programs() -> None:
    assert set(NATIVE_LOOPS) == set(BY_NAME)
    assert {name for name, _ in FALLBACKS} <= set(BY_NAME)


# Random programs.


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // PER_PART)))
def test_random_programs_checked(part: int, plans: Any) -> None:
    """To second order; one part in three again within less and less memory."""
    settings = Settings("native", orders=3, budget=part % 3 == 2)
    outcome = run_batch(Batch(0, part * PER_PART, PER_PART, settings))
    assert not outcome.failures, outcome.failures[0]
    assert outcome.examined >= PER_PART // 2
    assert len(plans.native) > outcome.examined


# Compiled.

# Together: stacks pushed, popped, read and held whole, with marks and from inner loops; branches; rows read, written
# and added to; index arrays; matrix products; bool and integer values; sizes not known when code is made.
COMPILED = (
    "tensor_array_of_unknown_size",
    "loop_in_a_branch_in_a_loop",
    "gather_with_index_arrays",
    "row_writes",
    "lstm",
    "early_exit",
    "reductions_in_the_body",
    "unknown_size",
)


@pytest.mark.parametrize("name", COMPILED)
def test_corpus_compiled(name: str, plans: Any) -> None:
    program = BY_NAME[name]
    graph, leaves = program.graph(1), leaves_of(program)
    assert_same(run_on("native", graph, leaves), run_on("reference", graph, leaves))
    assert len(plans.native) == NATIVE_LOOPS[name][1]


def in_float32(program: Program) -> tuple[Any, list[np.ndarray]]:
    """The gradient's graph with all floats single, and its arguments."""

    def single(x: Any) -> Any:
        array = np.asarray(x)
        return array.astype(np.float32) if array.dtype == np.float64 else array

    arguments = tuple(tree.map(single, a) for a in program.args)
    function = cg.function(cg.grad(program.loss, argnums=program.argnums))
    return function.graph(*arguments), [np.asarray(x) for x in tree.leaves(arguments)]


@pytest.mark.parametrize("mode", ["checked", "compiled"])
@pytest.mark.parametrize("name", ["lstm", "scan_over_pytrees", "branch_in_a_loop"])
def test_float32(name: str, mode: str, plans: Any) -> None:
    graph, leaves = in_float32(BY_NAME[name])
    assert any(isinstance(v.type, TensorType) and v.type.dtype == np.float32 for v in graph.outputs)
    expected = run_on("reference", graph, leaves)
    if mode == "checked":
        with checked():
            found = run_on("native", graph, leaves)
    else:
        found = run_on("native", graph, leaves)
    assert_same(found, expected, 1e-5)
    assert plans.native and not plans.reasons


# Gradients taken inside a loop body.


def _branch(r: Any) -> Any:
    return cg.cond(r[0] > -9, lambda: cnp.exp(cnp.sum(r)), lambda: r[0])


def _nested_branch(r: Any) -> Any:
    return cg.cond(
        r[0] > 0, lambda: cg.cond(r[1] > 0, lambda: cnp.exp(r[0]) * r[1], lambda: cnp.sin(r[1])), lambda: r[1]
    )


def _branch_in_a_loop(r: Any) -> Any:
    return cg.fori_loop(0, 3, lambda i, c: cg.cond(c > i, lambda: cnp.exp(c / 8) * r[1], lambda: c - r[0]), r[0])


def _loop_in_a_branch(r: Any) -> Any:
    return cg.cond(r[0] > 0, lambda: cg.fori_loop(0, 3, lambda i, c: cnp.sin(c) * r[1], r[0]), lambda: r[1] ** 2)


def _switch(r: Any) -> Any:
    return cg.switch(
        (r[0] > 0) + 2 * (r[1] > 0), [lambda: cnp.exp(r[0]), lambda: r[1], lambda: cnp.sum(cnp.sin(r) ** 2)]
    )


@pytest.mark.parametrize("k", [_branch, _nested_branch, _branch_in_a_loop, _loop_in_a_branch, _switch])
def test_gradients_taken_inside_a_loop_through_branches(k: Any, plans: Any) -> None:
    def rows(v: Any) -> Any:
        return cg.map(lambda r: cg.grad(k)(r), v)

    def scanned(v: Any) -> Any:
        return cg.scan(
            lambda c, r: (c * 0.5 + cg.grad(k)(r + c), cg.grad(lambda x: cnp.sum(cg.grad(k)(x) ** 2))(r)), v[0], v
        )

    v = np.array([[0.1, 0.2], [-10.0, 0.3], [0.5, -0.4], [-0.5, -0.4]])
    for function in (rows, scanned, cg.grad(lambda v: sum(cnp.sum(x**2) for x in scanned(v)))):
        graph = cg.function(function).graph(v)
        with checked():
            found = run_on("native", graph, [v])
        assert_same(found, run_on("reference", graph, [v]))
    assert not plans.reasons
