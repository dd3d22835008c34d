"""`maximum_iterations` is kept where nothing uses the loop's result: a loop that makes a promise is never dropped."""

from __future__ import annotations

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import MaximumIterationsError
from ctrlgrad.ir import count_ops


def counted(n, x, maximum=5):
    """x, beside a counter that goes up to n."""
    up = lambda c: (c[0] + 1, c[1])
    return cg.while_loop(lambda c: c[0] < n, up, (0, x), maximum_iterations=maximum)


PLACES = {
    "unused": lambda x, n: (counted(n, x), x)[1],
    "a carry that passes through": lambda x, n: counted(n, x)[1],
    "in a loop": lambda x, n: cg.fori_loop(0, 2, lambda i, y: (counted(n, y), y * 2.0)[1], x),
    "passes through a loop": lambda x, n: cg.fori_loop(0, 2, lambda i, y: counted(n, y)[1], x),
    "in a branch": lambda x, n: cg.cond(x > 0, lambda: (counted(n, x), x)[1], lambda: x),
    "in a checkpoint": lambda x, n: cg.checkpoint(lambda x: (counted(n, x), x)[1])(x),
}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)

MODES = {
    "value": lambda f: f,
    "gradient": cg.grad,
    "second derivative": lambda f: cg.grad(cg.grad(f)),
    "forward mode": lambda f: lambda x, n: cg.jvp(lambda x: f(x, n), (x,), (1.0,))[1],
    "vmap": lambda f: lambda x, n: cg.vmap(f, in_axes=(0, None))(np.ones(2) * x, n),
    "vmap of the limit": lambda f: lambda x, n: cg.vmap(f)(np.ones(2) * x, n * np.array([0, 1])),
}


@pytest.mark.parametrize("engine", ["reference", "dataflow"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@places
def test_a_loop_with_a_limit_stays(place, mode, engine):
    f = cg.function(mode(place), engine=engine)
    f(0.7, 5)
    with pytest.raises(MaximumIterationsError) as caught:
        f(0.7, 10)
    assert "test_promises.py" in str(caught.value)


@pytest.mark.parametrize("name", ["unused", "a carry that passes through", "in a loop"])
def test_in_machine_code_too(name):
    f = cg.function(PLACES[name], engine="native")
    f(0.7, 5)
    with pytest.raises(MaximumIterationsError):
        f(0.7, 10)


def test_a_loop_that_never_changes_its_carry_fails_too():
    f = lambda x: cg.while_loop(lambda c: c < 3, lambda c: c, 0, maximum_iterations=5) + x
    with pytest.raises(MaximumIterationsError):
        cg.function(f, engine="reference")(1.0)


def test_only_the_counting_of_such_a_loop_is_left():
    """Values that the promise does not need are removed: the carry x, and its sine."""

    def f(x, n):
        step = lambda c: (c[0] + 1, np.sin(c[1]))
        return (cg.while_loop(lambda c: c[0] < n, step, (0, x), maximum_iterations=5), x)[1]

    graph = cg.function(f).graph(0.7, 3)
    (loop,) = [node for node in graph.nodes if node.op.name == "while"]
    assert count_ops(graph)["sin"] == 0 and len(loop.results) == 1


def test_without_a_promise_what_is_not_used_is_not_run():
    """Neither a loop without a limit nor an index that may be out of range: nothing was asked to fail."""
    unused = [
        lambda x, n: (counted(n, x, None), x)[1],
        lambda x, n: (cg.fori_loop(0, n, lambda i, y: y + x[i], 0.0), x)[1],
        lambda x, n: (x[n], x)[1],
    ]
    for f in unused:
        x = np.ones(3)
        assert cg.function(f).graph(x, 10).nodes == ()
        np.testing.assert_array_equal(cg.function(f)(x, 10), x)


def test_a_limit_that_is_used_costs_no_second_loop():
    gradient = cg.grad(lambda x: cg.while_loop(lambda y: y < 9.0, lambda y: y * y, x, maximum_iterations=9))
    assert count_ops(cg.function(gradient).graph(2.0))["while"] == 2
    assert float(gradient(2.0)) == cnp.asarray(4 * 2.0**3)
