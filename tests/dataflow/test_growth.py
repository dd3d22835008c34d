"""Work done once per graph is linear in the graph's size; executed lines are counted, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.dataflow import lower
from ctrlgrad.dataflow.drawing import format_flat_dot, format_partition_dot
from ctrlgrad.dataflow.partition import partition, place
from ctrlgrad.dataflow.plan import CUTS, cluster
from ctrlgrad.ir import Graph


def lines_of(work: Callable[[], object]) -> int:
    """Number of Python lines that run."""
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def sine(x: Any, count: int) -> Any:
    """A chain of ops, some of them on another device."""
    for k in range(count):
        with cg.device("cpu:1" if k % 8 == 5 else None):
            x = np.sin(x) if k % 2 else x * 1.5
    return x


def four_nested_loops(n: int) -> Graph:
    """Four nested loops, with `n` ops in each body."""

    def loop(depth: int, y: Any) -> Any:
        def body(carry: Any) -> Any:
            z = sine(carry[1], n)
            return carry[0] + 1, loop(depth - 1, z) if depth else z

        return cg.while_loop(lambda carry: carry[0] < 2, body, (0, y))[1]

    return cg.function(lambda x: loop(3, x)).graph(0.5)


def loops_beside_each_other(n: int) -> Graph:
    def f(x: Any) -> Any:
        for _ in range(n):
            x = cg.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, sine(c[1], 6)), (0, x))[1]
        return x

    return cg.function(f).graph(0.5)


def branches_in_branches(n: int) -> Graph:
    """Nested conditionals, as a chain of `elif` gives."""

    def chain(x: Any, k: int) -> Any:
        return cg.cond(x > k, lambda: np.sin(x) * k, lambda: chain(x, k - 1)) if k else x

    return cg.function(lambda x: chain(x, n)).graph(0.5)


def updates_and_readers(n: int) -> Graph:
    def f(x: Any) -> Any:
        table, total = np.zeros(4) + x, x
        for k in range(n):
            total = total + table[k % 4]
            table = table.at[k % 4].set(total)
        return table.sum()

    return cg.function(f).graph(0.5)


def split(graph: Graph, cut: str) -> Any:
    return partition(cluster(place(lower(graph)), cut))


# Programs, each with its smaller size; the larger size is twice as much.
SIZES = {four_nested_loops: 40, loops_beside_each_other: 12, branches_in_branches: 12, updates_and_readers: 60}

STAGES: dict[str, Callable[[Graph], object]] = {
    "lowering": lower,
    "placement": lambda graph: place(lower(graph)),
    **{f"partition, {cut}": lambda graph, cut=cut: split(graph, cut) for cut in CUTS},  # type: ignore[misc]
    "text": lambda graph: str(lower(graph)),
    "drawing": lambda graph: format_flat_dot(lower(graph)),
    "drawing of a partition": lambda graph: format_partition_dot(split(graph, "none")),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("program", SIZES, ids=lambda program: program.__name__)
def test_twice_the_graph_is_twice_the_work(program: Callable[[int], Graph], stage: str) -> None:
    size = SIZES[program]
    small, large = (program(n) for n in (size, 2 * size))
    assert lines_of(lambda: STAGES[stage](large)) < 2.2 * lines_of(lambda: STAGES[stage](small))


def test_the_count_sees_what_is_quadratic() -> None:
    def quadratic(n: int) -> int:
        count = 0
        for a in range(n):
            for b in range(n):
                count += a == b
        return count

    assert lines_of(lambda: quadratic(40)) > 3.5 * lines_of(lambda: quadratic(20))
