"""Vectors whose lanes lie apart (gather and scatter): agreement with the reference engine, and bounds checks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import engine, target
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.passes import optimise
from ctrlgrad.plan.decisions import with_vectors

COUNTS = (3, 8, 11, 16, 29, 61, 130)

PROGRAMS: dict[str, Any] = {
    "gathered": lambda table, x, i: cnp.sin(table[i]) * x,
    "gathered twice": lambda table, x, i: cnp.exp(x) * x[i] + table[i],
    "gathered by what was gathered": lambda table, x, i: cnp.cos(table[i[i]]) + x,
    "gathered from rows": lambda table, x, i: cnp.tanh(cnp.stack([table, 2 * table])[1, i] - x),
    "gathered further along": lambda table, x, i: cnp.sin(cnp.stack([table, 2 * table, x])[i % 3, :]) + x,
    "bools": lambda table, x, i: cnp.where((table > 0.5)[i], cnp.sin(x), cnp.cos(x)),
    "added": lambda table, x, i: cnp.at(table)[i].add(cnp.exp(x) * table[i]),
    "added with a product": lambda table, x, i: cnp.at(table)[i].add(cnp.exp(x) * x),
    "the last one stays": lambda table, x, i: cnp.at(table)[i].set(cnp.sin(x)),
    "strides": lambda table, x, i: cnp.sin(cnp.stack([table, x], axis=1)[:, 1]) + x,
    "strides of rows": lambda table, x, i: cnp.exp(-cnp.transpose(cnp.stack([table, x, x])) * x[:, None]),
    "written by strides": lambda table, x, i: cnp.at(cnp.stack([table, x], axis=1))[:, 1].set(cnp.sin(x) * table),
    "written backwards": lambda table, x, i: cnp.sin(table)[::-1] * x,
    "reduced": lambda table, x, i: cnp.sum(cnp.exp(table[i]) * x),
    "reduced by strides": lambda table, x, i: cnp.sum(cnp.exp(table[::2]) * x[::2]),
}


@pytest.fixture(params=[16, 32, 64], ids=lambda n: f"{n} bytes")
def vector_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> int:
    """Compile for vectors of another processor."""
    monkeypatch.setattr(target.Target, "vector_bytes", property(lambda _: request.param))
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    return int(request.param)


def arguments(count: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A table, numbers, and indices into the table: some indices repeat, and some count from the end."""
    rng = np.random.default_rng(count)
    return rng.random(count).astype(dtype), rng.random(count).astype(dtype), rng.integers(-count, count, count)


@in_turn("name, dtype", sorted(PROGRAMS), ["float32", "float64"])
def test_values_and_gradients_of_all_sizes(name: str, dtype: str, vector_bytes: int) -> None:
    program, exact = PROGRAMS[name], 4e-6 if dtype == "float32" else 1e-14
    gradient = cg.grad(lambda *xs: cnp.sum(program(*xs) ** 2), argnums=(0, 1))
    for count in COUNTS:
        given = arguments(count, dtype)
        for function in (program, gradient):
            found = cg.function(function, engine="native")(*given)
            with cg.options(engine="reference"):
                expected = function(*given)
            for a, b in zip(*map(cg.tree_util.tree_leaves, (found, expected)), strict=True):
                np.testing.assert_allclose(a, b, rtol=exact, atol=exact)


@pytest.mark.parametrize("name", ["gathered", "added", "strides", "strides of rows", "reduced"])
def test_sizes_that_the_run_knows(name: str, vector_bytes: int) -> None:
    one = (None,)
    signature = (cg.TensorSpec(one, "float64"), cg.TensorSpec(one, "float64"), cg.TensorSpec(one, "int64"))
    function = cg.function(PROGRAMS[name], signature=signature, engine="native")
    for count in COUNTS:
        given = arguments(count, "float64")
        with cg.options(engine="reference"):
            expected = PROGRAMS[name](*given)
        np.testing.assert_allclose(function(*given), expected, rtol=1e-14)


@pytest.mark.parametrize("place", [0, 7, 8, 30, 36])
def test_a_lane_that_is_out_of_range_is_told(place: int, vector_bytes: int) -> None:
    table, x, i = arguments(37, "float64")
    i[place], i[36] = 40, 41
    function = cg.function(PROGRAMS["gathered"], engine="native")
    with pytest.raises(IndexError, match=r"\b41\b" if place == 36 else r"\b40\b"):
        function(table, x, i)


def test_masked_lanes_are_not_bounds_checked() -> None:
    """Lanes that a mask leaves out are not bounds-checked; their indices are computed from zeros."""
    program = lambda table, x, i: cnp.sin(table[i - 3]) * x
    table, x, i = np.ones(2), np.ones(29), np.full(29, 3)
    np.testing.assert_allclose(cg.function(program, engine="native")(table, x, i), np.full(29, np.sin(1.0)))


def _text(function: Any, *given: Any) -> str:
    graph = optimise(cg.function(function).graph(*given))
    return PlanWriter(with_vectors(engine.plan_of(graph, engine.shapes_of(graph, given)), 32)).function("plan")


@pytest.mark.parametrize("name", ["gathered", "added", "strides"])
def test_functions_are_of_vectors(name: str) -> None:
    text = _text(PROGRAMS[name], *arguments(64, "float64"))
    assert re.search(r"call <\d+ x double> @cg_(sin|exp)_float64_v", text)
    assert not re.search(r"call double @cg_(sin|exp)_float64\(", text)


def test_without_functions_elements_go_one_by_one() -> None:
    text = _text(lambda table, x, i: table[i] * x, *arguments(64, "float64"))
    assert "fmul double" in text
    assert "insertelement" not in text


def slow_lanes(x: Any, counts: Any) -> Any:
    """Loops with data-dependent trip counts, whose stacks are read and written at a place per lane."""

    def one(x: Any, count: Any) -> Any:
        body = lambda s: (cnp.sin(s[0]) * x + s[0], s[1] + 1)
        return cg.while_loop(lambda s: s[1] < count, body, (x, 0))[0]

    return cnp.sum(cg.vmap(cg.grad(one))(x, counts))


@pytest.mark.parametrize("name", ["gathered", "gathered by what was gathered", "added", "strides of rows"])
def test_second_derivatives_by_two_judges(name: str) -> None:
    table, x, i = arguments(11, "float64")
    program = lambda table, x: cnp.sum(PROGRAMS[name](table, x, i) ** 2)
    with cg.options(engine="native"):
        cg.check_grads(program, (table, x), order=2)


def test_lanes_of_loops_by_two_judges() -> None:
    x, counts = np.linspace(0.1, 0.9, 11), np.array([2, 0, 9, 1, 3, 17, 2, 5, 0, 8, 4])
    with cg.options(engine="native"):
        cg.check_grads(lambda x: slow_lanes(x, counts), (x,), order=1)
