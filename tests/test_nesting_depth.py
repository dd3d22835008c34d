"""Cost of a nest of loops or branches by its depth: nodes for each level, and the work of making them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.batching import batcher
from ctrlgrad.errors import TracingError
from ctrlgrad.gradients.activity import Activity
from ctrlgrad.ir import walk
from ctrlgrad.passes import dead_code, optimise


def nested(depth: int, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]], body: Callable[[Any], Any]) -> Any:
    for _ in range(depth):
        body = wrap(body)
    return body


def in_fori(f):
    return lambda y: cg.fori_loop(0, 2, lambda i, c: f(c), y)


def in_while(f):
    return lambda y: cg.while_loop(lambda c: c < 1.0, lambda c: f(c) + 0.5, y)


def in_once(f):
    return lambda y: cg.fori_loop(0, 1, lambda i, c: f(c), y)


def in_likely(f):
    return lambda y: cg.cond(y > -1.0, lambda: f(y), lambda: y)


def in_map(f):
    return lambda y: cnp.sum(cg.map(lambda t: f(y * t), np.ones(2)))


def in_cond(f):
    return lambda y: cg.cond(y > 0.1, lambda: np.exp(f(np.cos(y) * 1.1)), lambda: np.tanh(y) * y)


NESTS = {"fori_loop": in_fori, "while_loop": in_while, "map": in_map}
nests = pytest.mark.parametrize("wrap", NESTS.values(), ids=NESTS)


def program(wrap: Any, depth: int, calls: list[int]) -> Any:
    def f(x):
        def innermost(y):
            calls.append(1)
            return np.sin(y) * x

        return nested(depth, wrap, innermost)(x)

    return f


def branching(depth: int) -> Any:
    """Conds in each other, in a loop."""
    return lambda x: cg.fori_loop(0, 3, lambda i, c: nested(depth, in_cond, np.sin)(c) * 0.5 + c, x)


def size(graph: Any) -> int:
    return sum(1 for _ in walk(graph))


def assert_grows_by_a_constant(sizes: list[int]) -> None:
    """Of each level after the first few: what stands at the ends of a nest differs."""
    assert len(set(np.diff(sizes[2:]))) == 1, sizes


@nests
@pytest.mark.parametrize("depth", [13, 30])
def test_the_gradient_of_a_deep_nest_calls_the_innermost_body_once(wrap, depth):
    calls: list[int] = []
    graph = cg.function(cg.grad(program(wrap, depth, calls))).graph(0.5)
    assert len(calls) == 1
    assert size(graph) < 40 * depth


def test_the_gradient_of_a_deep_nest_is_that_of_the_flat_loop():
    """A nest of loops of one iteration each around a loop of three."""
    once = lambda f: lambda y: cg.fori_loop(0, 1, lambda i, c: f(c), y)
    flat = lambda x: cg.fori_loop(0, 3, lambda i, c: np.sin(c) * x, x)
    for depth in (13, 30):
        deep = lambda x: nested(depth, once, lambda y: cg.fori_loop(0, 3, lambda i, c: np.sin(c) * x, y))(x)  # noqa: B023
        found = cg.function(cg.grad(deep), engine="reference")(0.5)
        np.testing.assert_allclose(found, cg.function(cg.grad(flat), engine="reference")(0.5), rtol=1e-14)


@nests
@pytest.mark.parametrize(
    "transform, x",
    [
        (lambda f: f, 0.3),
        (cg.grad, 0.3),
        (lambda f: cg.grad(cg.checkpoint(f)), 0.3),
        (cg.vmap, np.array([0.3, 0.2])),
        (lambda f: cg.vmap(cg.grad(f)), np.array([0.3, 0.2])),
    ],
    ids=["value", "grad", "grad of checkpoint", "vmap", "vmap of grad"],
)
def test_graphs_grow_by_as_many_nodes_with_every_level(wrap, transform, x):
    sizes, optimised = [], []
    for depth in range(2, 9):
        calls: list[int] = []
        graph = cg.function(transform(program(wrap, depth, calls))).graph(x)
        sizes.append(size(graph))
        optimised.append(size(optimise(graph)))
        assert len(calls) == 1
    assert_grows_by_a_constant(sizes)
    assert_grows_by_a_constant(optimised)


@pytest.mark.parametrize(
    "transform", [cg.grad, cg.vmap, lambda f: cg.vmap(cg.grad(f))], ids=["grad", "vmap", "vmap of grad"]
)
def test_branches_in_branches_of_a_loop_grow_by_as_many_nodes_with_every_level(transform):
    x = 0.3 if transform is cg.grad else np.array([0.3, -0.2])
    graphs = [cg.function(transform(branching(depth))).graph(x) for depth in range(2, 9)]
    assert_grows_by_a_constant([size(graph) for graph in graphs])
    assert_grows_by_a_constant([size(optimise(graph)) for graph in graphs])


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    calls: list[int] = []
    method = getattr(owner, name)

    def counted(*args: Any) -> Any:
        calls.append(1)
        return method(*args)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.mark.parametrize(
    "owner, name",
    [(Activity, "_varied_results"), (Activity, "_active_operands"), (dead_code._Pruning, "live_nodes")],
    ids=["varied values", "active values", "dead code"],
)
@nests
def test_each_node_of_a_nest_is_asked_a_bounded_number_of_times(monkeypatch, wrap, owner, name):
    """The fixpoint of a loop asks the loops inside; they have their answer ready."""
    calls = count_calls(monkeypatch, owner, name)
    found = []
    for depth in range(2, 9):
        del calls[:]
        cg.function(cg.grad(program(wrap, depth, []))).graph(0.5)
        found.append(len(calls))
    assert_grows_by_a_constant(found)


@nests
def test_each_body_of_a_nest_is_batched_once_more_for_a_level_around_it_at_most(monkeypatch, wrap):
    calls = count_calls(monkeypatch, batcher.Batcher, "run")
    found = []
    for depth in range(2, 9):
        del calls[:]
        cg.function(cg.vmap(program(wrap, depth, []))).graph(np.array([0.3, 0.2]))
        found.append(len(calls))
    # Two regions each.
    assert max(np.diff(found, n=2)) <= 2, found


@pytest.mark.parametrize("engine", ["native", "reference", "dataflow"])
@pytest.mark.parametrize("wrap", [in_once, in_likely], ids=["loops", "branches"])
def test_a_nest_that_is_too_deep_for_python_says_so_and_its_advice_helps(wrap, engine):
    deep = nested(100, wrap, np.sin)
    limit = sys.getrecursionlimit()
    advice = rf"deeper than Python allows(.|\n)*sys\.setrecursionlimit\({10 * limit}\)"
    calls = [deep, cg.function(deep), cg.grad(deep), lambda x: cg.vjp(deep, x), lambda x: cg.vmap(deep)(np.array([x]))]
    with cg.options(engine=engine):
        for call in calls[wrap is in_likely :]:
            with pytest.raises(TracingError, match=advice):
                call(0.5)
        try:
            sys.setrecursionlimit(10 * limit)
            found = cg.grad(deep)(0.5)
        finally:
            sys.setrecursionlimit(limit)
    np.testing.assert_allclose(found, np.cos(0.5), rtol=1e-14)
