"""Loops whose points are independent run tile by tile, with the same trip counts and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.execution import run_on
from ctrlgrad.plan import tiling
from ctrlgrad.plan.decisions import with_vectors
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Loop, Tiles
from ctrlgrad.plan.tiling import loop_tiles


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "TILE_BYTES", 1)
    monkeypatch.setattr(tiling, "POINTS", 4)


def polynomial(x: Any, c: Any) -> Any:
    """A polynomial: one carry updated in place, and one number an iteration from an array that the loop does not
    change."""
    return cg.fori_loop(0, c.shape[0], lambda i, y: y * x + c[i], cnp.zeros_like(x))


def numbers(x: Any, c: Any) -> Any:
    """A loop whose trip count depends on numbers that it carries, and which returns more than the array."""

    def body(carry: Any) -> Any:
        i, t, y = carry
        return i + 1, t + 0.5 * c[i], cnp.tanh(y + t) * 0.5

    return cg.while_loop(lambda carry: (carry[1] < 2.0) & (carry[0] < 4), body, (0, 0.0, x))


def two(x: Any, c: Any) -> Any:
    """Two carries that depend on each other, and a temporary of several kernels."""

    def body(i: Any, carry: Any) -> Any:
        y, z = carry
        middle = cnp.sin(y) * c[i]
        return y + middle * z, z - middle * y

    return cg.fori_loop(0, c.shape[0], body, (x, x * 0.5))


def rows(x: Any, c: Any) -> Any:
    """A loop that reads one row an iteration from an array that it does not change."""
    m = c[:, None] * x
    return cg.fori_loop(0, c.shape[0], lambda i, y: y * 0.5 + m[i], cnp.zeros_like(x))


def beside(x: Any, c: Any) -> Any:
    return cg.fori_loop(0, c.shape[0], lambda i, y: cnp.concat([y[1:], x[:1]]) * c[i], x)


def moved_along(x: Any, c: Any) -> Any:
    """A loop that reads as many points as it writes, shifted by one."""

    def body(i: Any, carry: Any) -> Any:
        y, z = carry
        z = z.at[:-1].set(y[1:] * c[i])
        return y.at[:-1].set(z[:-1] + 1.0), z

    return cg.fori_loop(0, c.shape[0], body, (x, x * 0.5))


def told_by_the_array(x: Any, c: Any) -> Any:
    return cg.while_loop(lambda carry: (carry[0] < 3) & (carry[1][0] < 9.0), lambda a: (a[0] + 1, a[1] + c[0]), (0, x))[
        1
    ]


def read_as_a_number(x: Any, c: Any) -> Any:
    return cg.fori_loop(0, c.shape[0], lambda i, y: y * 0.5 + y[0] * c[i], x)


def summed(x: Any, c: Any) -> Any:
    return cg.fori_loop(0, c.shape[0], lambda i, y: y * 0.5 + cnp.sum(y) * c[i], x)


def written_elsewhere_each_time(x: Any, c: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return y.at[i : i + x.shape[0] - 4].set(x[4:] * c[i] + 1.0)

    return cg.fori_loop(0, 4, body, x)


TILED = [polynomial, numbers, two, rows]
WHOLE = [beside, moved_along, told_by_the_array, read_as_a_number, summed, written_elsewhere_each_time]
SPECS = (cg.TensorSpec((None,), "float64"), cg.TensorSpec((None,), "float64"))


def arguments(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    return rng.normal(size=size), rng.uniform(0.5, 1.5, size=5)


def tiles(function: Callable[..., Any], size: int, **given: Any) -> list[Tiles | None]:
    """The tiling of each loop of a program, or None."""
    args = arguments(size)
    graph = optimised_graph(cg.function(function, **given).graph(*args))
    plan = engine.plan_of(graph, engine.shapes_of(graph, args))
    return [plan.tiles.get(step) for step in walk(plan.body) if isinstance(step, Loop)]


@pytest.mark.parametrize("function", TILED)
def test_loops_whose_points_do_not_meet_run_tile_by_tile(function: Any, small_tiles: None) -> None:
    for given in ({}, {"signature": SPECS}):
        (found,) = tiles(function, 64, **given)
        assert found is not None and found.points == 4


@pytest.mark.parametrize("function", WHOLE)
def test_other_loops_do_not(function: Any, small_tiles: None) -> None:
    assert not any(tiles(function, 64)) and not any(tiles(function, 64, signature=SPECS))


def test_a_loop_that_saves_its_values_does_not(small_tiles: None) -> None:
    gradient = cg.grad(lambda x, c: cnp.sum(polynomial(x * x, c) ** 2))
    assert not any(tiles(gradient, 64))


def test_arrays_that_fit_the_nearest_cache_stay_whole() -> None:
    assert tiles(polynomial, 1000) == [None]
    (found,) = tiles(polynomial, 10_000)
    assert found is not None and found.points == tiling.TILE_BYTES // 16


@pytest.mark.parametrize("signature", [True, False])
@pytest.mark.parametrize("function", [*TILED, *WHOLE])
def test_results_are_the_reference_engines(function: Any, signature: bool, small_tiles: None) -> None:
    for size in (5, 7, 8, 9, 64, 101) if not signature or function in WHOLE else (0, 2, 3, 4, 5, 7, 8, 9, 64, 101):
        args = arguments(size)
        given = {"signature": SPECS} if signature else {}
        graph = optimised_graph(cg.function(function, **given).graph(*args))
        found, expected = (run_on(name, graph, list(args)) for name in ("native", "reference"))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_an_index_beyond_the_end_is_told_even_where_there_are_no_points(small_tiles: None) -> None:
    def reads_too_far(x: Any, c: Any) -> Any:
        return cg.fori_loop(0, c.shape[0] + 1, lambda i, y: y * x + c[i], cnp.zeros_like(x))

    function = cg.function(reads_too_far, signature=SPECS, engine="native")
    for size in (0, 3, 64):
        with pytest.raises(CtrlgradError, match="out of"):
            function(*arguments(size))


def test_kernels_that_threads_share_stay_whole() -> None:
    """Kernels shared among threads stay whole: all threads together have more first-level cache than one."""
    x = np.zeros(1 << 20)
    graph = optimised_graph(cg.function(polynomial).graph(x, np.ones(5)))
    plan = engine.plan_of(graph, engine.shapes_of(graph, [x, np.ones(5)]))
    (loop,) = (step for step in walk(plan.body) if isinstance(step, Loop))
    assert loop_tiles(loop, plan) is not None and loop not in plan.tiles
    assert "@cg_parallel" in PlanWriter(with_vectors(plan, 32)).function("plan")
