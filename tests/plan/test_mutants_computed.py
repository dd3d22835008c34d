"""Mutants with correct places but wrong numbers, parts or repeated chunks: checked execution rejects each of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments import plan_machine as machine
from instruments.plan_machine import RunEndedError, execute
from plan.plans import graph_of, placed, reference_kernel
from plan.small_programs import SMALL

from ctrlgrad.engines.reference import run_graph
from ctrlgrad.ir import Graph
from ctrlgrad.plan import chunks, fusion, packing
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.lowering import ragged
from ctrlgrad.plan.lowering.state import State
from ctrlgrad.plan.model import Length, ReadRow, Stack
from ctrlgrad.plan.sizes import ONE

Mutation = Callable[[pytest.MonkeyPatch], None]
MUTANTS: list[Any] = []


def mutant(*programs: str) -> Callable[[Mutation], Mutation]:
    """Register a mutation that must be rejected on each of these programs."""

    def add(mutation: Mutation) -> Mutation:
        MUTANTS.extend(pytest.param(mutation, name, id=f"{mutation.__name__}-{name}") for name in programs)
        return mutation

    return add


@mutant("transpose_of_a_dead_value")
def fusion_reads_other_positions(patch: pytest.MonkeyPatch) -> None:
    """Fusion accepts reads at other positions, so places are right and numbers are wrong."""
    patch.setattr(fusion._Group, "takes", lambda self, kernel: True)


@mutant("products_with_two_matrices")
def products_share_what_was_packed_first(patch: pytest.MonkeyPatch) -> None:
    right = packing._Packing.product

    def product(self: Any, step: Any, defined: Any, packs: Any) -> Any:
        found = right(self, step, defined, packs)
        return found if found.packed is None else replace(found, packed=next(iter(packs.values())).result)

    patch.setattr(packing._Packing, "product", product)


@mutant("update_of_what_is_needed", "gradient_of_a_loop")
def sums_are_shared_along_what_they_add_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "shared_axes", lambda kernel: tuple(range(len(kernel.space))))


@mutant("scatter_that_meets_itself")
def what_is_scattered_is_shared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "shared_axes", lambda kernel: (0,))


@mutant("gradient_of_a_loop_with_a_captured_value")
def a_chunk_that_is_run_again_does_not_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chunks, "_limited", lambda loop, limit: (loop.condition, loop.test))


@mutant("gradient_of_a_loop_with_a_captured_value")
def a_loop_that_is_run_again_forgets_what_it_captures(patch: pytest.MonkeyPatch) -> None:
    right = chunks.reads
    patch.setattr(chunks, "reads", lambda step: tuple(v for v in right(step) if isinstance(v, Stack)))


@mutant("gradient_of_a_loop_that_reads_what_it_fills")
def a_loop_that_reads_what_it_fills_is_run_again(patch: pytest.MonkeyPatch) -> None:
    right = chunks.reads
    patch.setattr(chunks, "reads", lambda step: () if isinstance(step, ReadRow | Length) else right(step))


@mutant("gradient_of_a_loop_over_parts", "gradient_of_a_carry_that_grows")
def rows_whose_sizes_differ_are_taken_off_as_one(patch: pytest.MonkeyPatch) -> None:
    right = ragged.pop

    def pop(state: Any, node: Any, stack: Any) -> None:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(state, "array", lambda dtype, shape: State.array(state, dtype, (ONE, *shape[1:])))
            right(state, node, stack)

    patch.setattr(ragged, "pop", pop)


@mutant("gradient_of_parts_with_two_sizes")
def rows_come_back_with_their_sizes_turned(patch: pytest.MonkeyPatch) -> None:
    right = ragged.pop

    def pop(state: Any, node: Any, stack: Any) -> None:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(state, "array", lambda dtype, shape: State.array(state, dtype, shape[::-1]))
            right(state, node, stack)

    patch.setattr(ragged, "pop", pop)


def runs(graph: Graph, arguments: list[Any]) -> Iterator[list[Any]]:
    """Run by one thread, by several in a few orders, and with chunks run again."""
    plan = placed(graph, arguments)
    yield execute(plan, arguments, reference_kernel, rows_per_block=2, repeats=True)
    for seed in range(8):
        yield execute(plan, arguments, reference_kernel, rows_per_block=2, threads=random.Random(seed))


def judge(graph: Graph, arguments: list[Any]) -> None:
    expected = run_graph(graph, arguments)
    for found in runs(graph, arguments):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("mutation, name", MUTANTS)
def test_a_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, mutation: Mutation, name: str) -> None:
    program = SMALL[name]
    graph = graph_of(program.fn, *program.arguments, order=program.order, signature=program.signature)
    arguments = [np.asarray(x) for x in program.arguments]
    judge(graph, arguments)
    mutation(monkeypatch)
    with pytest.raises((PlanError, AssertionError, RunEndedError)):
        judge(graph, arguments)
