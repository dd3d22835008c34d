"""Prepared loop bodies, forward and backward, agree with the reference engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.bodies import joined, multiplied, reduced
from instruments.comparing import assert_same
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import nn
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.engines.cuda.prepared.model import CannotPrepare
from ctrlgrad.errors import ExecutionError, ShapeError


def launching_of(fn: Callable[..., Any], *args: Any) -> list[str]:
    """Form in which each loop's launches were put on the stream, in a run that agrees with the reference engine."""
    graph, library = cg.function(fn).graph(*args), StandIn()
    leaves = cg.tree.leaves(args)
    assert_same(on_stand_in(graph, leaves).results, on_reference(graph, leaves), 1e-9)
    return [loop.launching for loop in explain_on(library, optimised_graph(graph, is_for_gpu=True), leaves).all_loops()]


def all_from_lists(loss: Callable[..., Any], *args: Any) -> bool:
    """The loss and its gradient by the first argument."""
    found = launching_of(loss, *args) + launching_of(cg.grad(loss), *args)
    return len(found) >= 3 and all(text.startswith("from a list") for text in found)


def normed(params: Any, state: Any, x: Any) -> Any:
    h, c = nn.lstm_cell(params, state, x)
    return nn.layer_norm(h), nn.layer_norm(c)


@pytest.mark.parametrize(
    ("init", "cell", "count"),
    [(nn.rnn_init, nn.rnn_cell, 1), (nn.lstm_init, nn.lstm_cell, 2), (nn.gru_init, nn.gru_cell, 1)]
    + [(nn.lstm_init, normed, 2)],
)
def test_cells(init: Callable[..., Any], cell: Callable[..., Any], count: int) -> None:
    rng = np.random.default_rng(0)
    params, xs = init(cg.random.key(0), 4, 5, np.float64), rng.normal(size=(4, 3, 4))

    def loss(params: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = cell(params, state, x)
            return state, state[0]

        return cnp.sum(cg.scan(step, (np.zeros((3, 5)),) * count, xs)[1] ** 2)

    assert all_from_lists(loss, params, xs)


def test_attention() -> None:
    """Batched products of matrices that lie transposed, a softmax along their rows, and layers that are normed."""
    rng = np.random.default_rng(1)
    batch, length, heads, features = 2, 5, 3, 2
    width = heads * features
    weights = [rng.normal(size=(width, width)) * 0.3 for _ in range(4)]
    memory, xs = rng.normal(size=(batch, length, width)), rng.normal(size=(3, batch, width))

    def loss(weights: Any, memory: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            z = nn.layer_norm(h + x)
            q = (z @ weights[0]).reshape(batch, 1, heads, features)
            k, v = ((memory @ w).reshape(batch, length, heads, features) for w in weights[1:3])
            h = h + nn.dot_product_attention(q, k, v).reshape(batch, width) @ weights[3]
            return h, None

        return cnp.sum(cg.scan(step, xs[0], xs)[0] ** 2)

    assert all_from_lists(loss, weights, memory, xs)


@pytest.mark.parametrize("fn", [reduced, joined, multiplied])
def test_bodies(fn: Callable[[Any], Any]) -> None:
    x = np.linspace(-0.5, 1.0, 27).reshape(3, 3, 3) ** 2
    assert all_from_lists(lambda x: cnp.sum(cnp.sin(fn(x))), x)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "int64"])
def test_extremes_are_those_of_numpy(dtype: str) -> None:
    """The least value, and in floats NaN, at every position."""
    info = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
    x = np.array([[info.min, 3, 1], [info.max, 2, info.min], [1, 1, 1]], dtype)
    if dtype.startswith("f"):
        x = np.concatenate([x, np.array([[np.nan, 1, 2], [1, 2, np.nan], [-np.inf] * 3, [np.inf, 1, -np.inf]], dtype)])

    def extremes(x: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            return cnp.max(x, axis=1), cnp.min(x, axis=1), cnp.any(x > 2, axis=1), cnp.all(x > 0, axis=1)

        zero = cnp.zeros(len(x), dtype)
        return cg.fori_loop(0, 2, step, (zero, zero, zero > 0, zero > 0))

    assert launching_of(extremes, x)[0].startswith("from a list")


def test_a_fault_in_the_preparation_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once any IndexError or ValueError made a loop run step by step."""
    graph = cg.function(lambda x: cg.fori_loop(0, 20, lambda i, x: cnp.sin(x), x)).graph(np.ones(3))

    def fail(error: Exception) -> None:
        def prepared(*_: Any) -> Any:
            raise error

        monkeypatch.setattr(runner, "prepared", prepared)
        on_stand_in(graph, [np.ones(3)])

    for fault in (IndexError("ours"), ValueError("ours"), KeyError("ours")):
        with pytest.raises((type(fault), ExecutionError), match="ours"):
            fail(fault)
    for reason in (CannotPrepare("no"), ShapeError("the program's")):
        fail(reason)
