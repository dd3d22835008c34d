"""How often a loop runs, told by the values in front of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import MaximumIterationsError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import INDEX, Builder, Counting, Graph, Loop, is_loop
from ctrlgrad.passes import know_counts, remove_dead_code

TESTS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "below": (lambda i, n: i < n, 1),
    "up to": (lambda i, n: i <= n, 1),
    "above": (lambda i, n: i > n, -1),
    "down to": (lambda i, n: i >= n, -1),
    "bound first": (lambda i, n: n > i, 1),
    "bound first, down to": (lambda i, n: n <= i, -1),
}


def counted(test: Callable[[Any, Any], Any], step: int, given: tuple[Any, Any], known: bool = False) -> Graph:
    """Of (start, bound): what the counter ends with, and how often the loop ran. `known`: both are constants."""

    def program(start: Any, bound: Any) -> Any:
        start, bound = given if known else (start, bound)

        def body(c: Any) -> Any:
            return c[0] + 1 if step > 0 else c[0] - 1, c[1] + 1

        return cg.while_loop(lambda c: test(c[0], bound), body, (start, np.int64(0)))

    return cg.function(program).graph(*given)


def told(graph: Graph) -> Graph:
    """The graph of the end and the number of iterations that `Counting` tells."""
    builder = Builder()
    builder.inputs = list(graph.inputs)
    constants = {n.result: n.attrs.value for n in graph.nodes if n.op.name == "constant"}
    for node in graph.nodes:
        builder.keep(node)
    (loop,) = (Loop.of(node) for node in graph.nodes if is_loop(node))
    counting = Counting.of(loop)
    assert counting is not None
    return remove_dead_code(builder.finish([f(builder, constants.get) for f in (counting.last, counting.trips)]))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
@pytest.mark.parametrize("name", TESTS)
def test_the_end_and_the_number_of_iterations(name: str, dtype: str, known: bool) -> None:
    test, step = TESTS[name]
    lowest, highest = (1, 254) if dtype == "uint8" else (-100, 120)
    for start, bound in ((3, 9), (9, 3), (5, 5), (lowest, highest), (highest, lowest)):
        given = np.array(start, dtype), np.array(bound, dtype)
        graph = counted(test, step, given, known)
        found = told(graph)
        assert not any(is_loop(node) for node in found.nodes)
        np.testing.assert_array_equal(run_on("reference", found, given), run_on("reference", graph, given))
        assert known <= all(node.op.name in ("constant", "cast", "subtract") for node in found.nodes)


NOT_COUNTED: dict[str, Callable[[Any], Any]] = {
    "steps of two": lambda n: cg.while_loop(lambda i: i < n, lambda i: i + 2, 0),
    "the other direction": lambda n: cg.while_loop(lambda i: i < n, lambda i: i - 1, n),
    "from the other side": lambda n: cg.while_loop(lambda i: i < n, lambda i: 1 - i, 0),
    "a moving bound": lambda n: cg.while_loop(lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1] - 1), (0, n)),
    "floats": lambda n: cg.while_loop(lambda x: x < 9.0, lambda x: x + 1.0, 0.0 * n),
    "two conditions": lambda n: cg.while_loop(
        lambda c: (c[0] < n) & (c[1] < 9.0), lambda c: (c[0] + 1, c[1] * 2.0), (0, 1.0)
    ),
    "a sometimes larger step": lambda n: cg.while_loop(lambda i: i < n, lambda i: i + np.minimum(i, 2), 1),
}


@pytest.mark.parametrize("name", NOT_COUNTED)
def test_loops_that_do_not_count(name: str) -> None:
    graph = cg.function(NOT_COUNTED[name]).graph(np.int64(7))
    (loop,) = (Loop.of(node) for node in graph.nodes if is_loop(node))
    assert Counting.of(loop) is None
    assert know_counts(graph) is graph


def test_counters_of_loops_after_each_other_are_known() -> None:
    """The first loop's end is the start of the second: no loop is left, and the result is a constant."""

    def program() -> Any:
        first = cg.while_loop(lambda i: i < 5, lambda i: i + 1, 0)
        return cg.while_loop(lambda i: i > -2, lambda i: i - 1, first)

    graph = remove_dead_code(know_counts(cg.function(program).graph()))
    assert [node.op.name for node in graph.nodes] == ["constant"]
    assert run_on("reference", graph, []) == [-2]


def test_a_loop_that_runs_too_often_says_so_where_only_its_counter_is_used() -> None:
    def program(n: Any) -> Any:
        return cg.while_loop(lambda i: i < n, lambda i: i + 1, 0, maximum_iterations=5)

    for engine in ("reference", "native"):
        f = cg.function(program, engine=engine)
        assert f(5) == 5
        with pytest.raises(MaximumIterationsError):
            f(6)


def test_an_end_beyond_the_dtype_is_left_to_the_loop() -> None:
    """A bound that its dtype does not go beyond is never passed: such a loop ends by its limit alone."""
    given = np.array(120, "int8"), np.array(127, "int8")
    assert told(counted(lambda i, n: i <= n, 1, given, known=True)).outputs[1].type == INDEX
