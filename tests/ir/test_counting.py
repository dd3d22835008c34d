"""Trip counts of loops, computed from values in front of the loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import MaximumIterationsError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import INDEX, Builder, Counting, Graph, Loop, Value, is_loop
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
    for node in graph.nodes:
        builder.keep(node)
    counting, number = read(graph), constants(graph)
    assert counting is not None
    return remove_dead_code(builder.finish([f(builder, number) for f in (counting.last, counting.trips)]))


def constants(graph: Graph) -> Callable[[Value], Any]:
    return {n.result: n.attrs.value for n in graph.nodes if n.op.name == "constant"}.get


def read(graph: Graph) -> Counting | None:
    """The counting rule of the graph's only loop."""
    (loop,) = (Loop.of(node) for node in graph.nodes if is_loop(node))
    return Counting.of(loop, constants(graph))


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
    assert read(graph) is None
    assert know_counts(graph) is graph


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
@pytest.mark.parametrize("name", TESTS)
def test_longer_steps_between_known_numbers(name: str, dtype: str, captured: bool) -> None:
    """Steps that are subtracted where the counter goes down, or added, below 0; in the body or captured by it."""
    for step, given in itertools.product((2, 3, 7), ((10, 90), (90, 10), (15, 15), (15, 17))):
        for subtracts in (TESTS[name][1] < 0,) if dtype == "uint8" else (False, True):
            graph = stepped(name, step, [np.array(x, dtype) for x in given], subtracts, captured)
            found = told(graph)
            assert {node.op.name for node in found.nodes} == {"constant"}
            np.testing.assert_array_equal(run_on("reference", found, []), run_on("reference", graph, []))


def stepped(name: str, step: int, given: Sequence[Any], subtracts: bool, captured: bool) -> Graph:
    """As `counted` of known numbers, by steps of a length."""
    (test, direction), (start, bound) = TESTS[name], given
    by = np.array(-direction * step if subtracts else direction * step, start.dtype)

    def program() -> Any:
        outside = cnp.array(by)

        def body(c: Any) -> Any:
            length = outside if captured else cnp.array(by)
            return c[0] - length if subtracts else c[0] + length, c[1] + 1

        return cg.while_loop(lambda c: test(c[0], bound), body, (start, np.int64(0)))

    return cg.function(program).graph()


@pytest.mark.parametrize(
    ("dtype", "start", "bound", "step", "reads"),
    [
        ("int8", 0, 126, 2, True),
        ("int8", 0, 127, 3, False),  # 126, and then it begins anew
        ("int8", 0, 127, 127, True),
        ("uint8", 250, 255, 5, True),
        ("uint8", 250, 255, 4, False),
        ("int64", 2**63 - 9, 2**63 - 1, 8, True),
        ("int64", 2**63 - 9, 2**63 - 1, 7, False),
        ("int64", 0, 9, 0, False),
        ("int64", 9, 0, -2, False),  # never begins, but would not end
    ],
)
def test_a_counter_that_would_leave_its_dtype_is_not_read(
    dtype: str, start: int, bound: int, step: int, reads: bool
) -> None:
    def program() -> Any:
        by = np.array(step, dtype)
        first, end = np.array(start, dtype), np.array(bound, dtype)
        return cg.while_loop(lambda c: c[0] < end, lambda c: (c[0] + by, c[1] * 0.5), (first, 1.0))

    assert (read(cg.function(program).graph()) is not None) is reads


def test_a_gradient_of_a_loop_with_longer_steps_saves_no_count() -> None:
    """The backward loop starts from a number that the graph says."""

    def f(x: Any) -> Any:
        return cg.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + 3, cnp.sin(c[1])), (1, x))[1]

    graph = cg.function(cg.grad(f)).graph(0.5)
    (backward,) = (loop for loop in map(Loop.of, filter(is_loop, graph.nodes)) if loop.attrs.counts_down)
    assert constants(graph)(backward.carries[0].init) == 3
    x, slope = 0.5, 1.0
    for _ in range(3):
        slope, x = slope * np.cos(x), np.sin(x)
    np.testing.assert_allclose(cg.grad(f)(0.5), slope, rtol=1e-12)


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


def test_a_loop_counts_by_each_of_several_tests() -> None:
    def program(i: Any, j: Any, n: Any, x: Any) -> Any:
        test = lambda c: cnp.logical_and(c[0] < n, cnp.logical_and(c[1] > 3, c[0] <= 50))
        return cg.while_loop(test, lambda c: (c[0] + 1, c[1] - 1, c[2] * 2.0), (i, j, x))

    def each(program: Callable[..., Any], *given: Any) -> tuple[Counting, ...]:
        graph = cg.function(program).graph(*given)
        (loop,) = (Loop.of(node) for node in graph.nodes if is_loop(node))
        return Counting.each(loop, constants(graph))

    i, x = np.int64(0), np.float64(1.0)
    assert sorted((c.step, c.beyond) for c in each(program, i, i, i, x)) == [(-1, 0), (1, 0), (1, 1)]
    # One by which it does not count is enough.
    either = lambda i, n, x: cg.while_loop(
        lambda c: cnp.logical_and(c[0] < n, c[1] < 9.0), lambda c: (c[0] + 1, c[1] * 2.0), (i, x)
    )
    assert each(either, i, i, x) == ()
