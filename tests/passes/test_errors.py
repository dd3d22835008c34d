"""A distributed loop fails as the loop that the user wrote: the same error, place, index, size and iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from corpus.program import normal
from instruments.checked import checked

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import without_passes
from ctrlgrad.engines.exact_errors import exact_errors
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, MaximumIterationsError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph, walk
from ctrlgrad.passes import OPTIMISATIONS, distribute, hoist_invariants, split_products


def reads_too_far(xs: Any, w: Any, n: Any) -> Any:
    body = lambda c: (c[0] + 1, np.tanh(c[1] + xs[c[0]] @ w))
    return cnp.sum(cg.while_loop(lambda c: c[0] < n, body, (0, np.zeros((2, 3))))[1])


def writes_too_far(xs: Any, w: Any, n: Any) -> Any:
    def body(c: Any) -> Any:
        h = np.tanh(c[1] * 0.5 + 1.0)
        return c[0] + 1, h, c[2].at[c[0]].set(h @ w + xs[c[0]] @ w)

    rows = cnp.zeros((5, 2, 3))
    return cnp.sum(cg.while_loop(lambda c: c[0] < n, body, (0, np.zeros((2, 4)) + xs[0], rows))[2])


def writes_a_slot_twice(xs: Any, w: Any, n: Any) -> Any:
    """The write fails in iteration 4 and the read in iteration 5 of the same chunk; the first error is reported."""

    def body(c: Any) -> Any:
        t, h, array = c
        h = np.tanh(h * 0.5 + cnp.sum(xs[t + 2]))
        return t + 1, h, array.write(t % 4, h @ w + xs[t] @ w)

    array = cg.TensorArray("float64", size=7, element_shape=(2, 3))
    return cnp.sum(cg.while_loop(lambda c: c[0] < n, body, (0, np.zeros((2, 4)), array))[2].stack())


def runs_too_long(xs: Any, w: Any, n: Any) -> Any:
    body = lambda c: (c[0] + 1, np.tanh(c[1] + xs[c[0]] @ w))
    start = (0, np.zeros((2, 3)))
    return cnp.sum(cg.while_loop(lambda c: c[0] < n, body, start, maximum_iterations=5)[1])


def grows_too_far(xs: Any, w: Any, n: Any) -> Any:
    """Fails in the middle of the second pass of an outer loop."""

    def body(c: Any) -> Any:
        return c[0] + 1, c[1] + reads_too_far(xs, w, 5 + 3 * c[0])

    return cg.while_loop(lambda c: c[0] < n, body, (0, 0.0))[1]


CASES: list[tuple[Callable[..., Any], type[ExecutionError]]] = [
    (reads_too_far, IndexOutOfRangeError),
    (writes_too_far, IndexOutOfRangeError),
    (writes_a_slot_twice, ExecutionError),
    (runs_too_long, MaximumIterationsError),
    (grows_too_far, IndexOutOfRangeError),
]


def graph_of(function: Callable[..., Any], order: int, arguments: tuple[Any, ...]) -> Graph:
    traced = cg.grad(function, argnums=(0, 1)) if order else function
    return cg.function(traced).graph(*arguments)


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("function", "kind"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_the_error_of_the_plain_loop(
    function: Callable[..., Any], kind: type[ExecutionError], order: int, engine: str
) -> None:
    arguments = (normal(0, 7, 2, 4), normal(1, 4, 3), np.int64(9))
    graph = graph_of(function, order, arguments)
    distributed = distribute(hoist_invariants(split_products(graph)), 3)
    assert "chunks_of" in {name for node in walk(distributed) for name in node.attrs.given()}
    with pytest.raises(kind) as plain:
        run_on("reference", graph, arguments)
    with (
        pytest.raises(kind) as found,
        exact_errors(graph, distributed, arguments),
        checked(),
        without_passes(*(name for name, _ in OPTIMISATIONS)),
    ):
        run_on(engine, distributed, arguments)
    assert str(found.value) == str(plain.value)
    assert type(found.value) is type(plain.value)
    assert found.value.source == plain.value.source


def test_callbacks_are_not_called_again() -> None:
    seen = []

    def told(xs: Any, w: Any, n: Any) -> Any:
        def body(c: Any) -> Any:
            cg.debug.callback(lambda i, iterations: seen.append(int(i)), c[0])
            return c[0] + 1, np.tanh(c[1] + xs[c[0]] @ w)

        return cnp.sum(cg.while_loop(lambda c: c[0] < n, body, (0, np.zeros((2, 3))))[1])

    arguments = (normal(0, 4, 2, 4), normal(1, 4, 3), np.int64(9))
    graph = graph_of(told, 0, arguments)
    distributed = distribute(graph, 3)
    expected = pytest.raises(IndexOutOfRangeError, match="index 4 is out of bounds for axis 0 with size 4")
    with expected, exact_errors(graph, distributed, arguments):
        run_on("reference", distributed, arguments)
    assert seen == [0, 1, 2, 3, 4]
