"""Kernels that run tile by tile keep only a window of a temporary that no other kernel reads."""

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
from ctrlgrad.execution import run_on
from ctrlgrad.plan import tiling
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Loop, Plan
from ctrlgrad.plan.tiling import tiles_of
from ctrlgrad.plan.windows import Window, times_read, windows_of

SPECS = (cg.TensorSpec((None,), "float64"), cg.TensorSpec((), "int64"))


@pytest.fixture(params=[16, 32])
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "TILE_BYTES", 1)
    monkeypatch.setattr(tiling, "POINTS", request.param)
    monkeypatch.setattr(tiling, "FEWEST", 2)


def shifted(x: Any, by: int) -> Any:
    """The array shifted by some places, with zeros at the free end."""
    n = x.shape[0]
    if by >= 0:
        return cnp.concat([cnp.zeros(by), x])[:n]
    return cnp.concat([x, cnp.zeros(-by)])[-by:]


def chain(x: Any, n: Any) -> Any:
    """Steps of a Runge-Kutta kind: each reads neighbours in the array that the step before has written."""

    def slope(y: Any) -> Any:
        return cnp.concat([x[:1], x[1:] * y[:-1]])

    def step(_: Any, y: Any) -> Any:
        a = slope(y)
        b = slope(y + 0.5 * a)
        c = slope(y + 0.5 * b)
        return y + 0.25 * (a + b + c)

    return cg.fori_loop(0, n, step, cnp.zeros_like(x))


def both_sides(x: Any, n: Any) -> Any:
    def step(_: Any, y: Any) -> Any:
        left = cnp.concat([y[1:] * 0.5, x[-1:]])
        right = cnp.concat([x[:3], left[:-3] * 0.5])
        far = cnp.concat([right[5:] + y[5:], x[:5]])
        return y * 0.25 + far * left

    return cg.fori_loop(0, n, step, x)


def random_program(seed: int) -> Callable[[Any, Any], Any]:
    """Sums of earlier arrays, each shifted by a few elements; some are used again after the loop."""
    rng = np.random.default_rng(seed)
    terms = [[(int(rng.integers(k + 1)), int(rng.integers(-9, 10))) for _ in range(2)] for k in range(5)]
    kept = int(rng.integers(1, 6))

    def program(x: Any, n: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            y, _ = carry
            arrays = [y]
            for pair in terms:
                arrays.append(sum(0.5 * shifted(arrays[k], by) for k, by in pair) + x)
            return arrays[-1], arrays[kept]

        return cg.fori_loop(0, n, step, (x, x))

    return program


def planned(function: Any, size: int, **given: Any) -> Plan:
    args = [np.ones(size), np.int64(3)]
    graph = optimised_graph(cg.function(function, **given).graph(*args))
    return engine.plan_of(graph, engine.shapes_of(graph, args))


def windows(plan: Plan) -> list[Window]:
    """The windows of the loop's body."""
    (loop,) = (step for step in walk(plan.body) if isinstance(step, Loop))
    for number in range(len(loop.body.steps)):
        found = tiles_of(loop.body.steps, number, plan)
        if found is not None:
            return list(windows_of(found[0], plan, times_read(plan)).values())
    return []


def test_temporaries_that_nobody_else_reads_are_windows(small_tiles: None) -> None:
    assert len(windows(planned(chain, 1000))) == 3
    # At unknown sizes the sums of `y` and a slope are arrays of their own.
    assert len(windows(planned(chain, 1000, signature=SPECS))) == 4


def test_carried_or_shared_arrays_stay_whole(small_tiles: None) -> None:
    def kept(x: Any, n: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            y, _ = carry
            a = cnp.concat([x[:1], x[1:] * y[:-1]])
            b = cnp.concat([x[:1], x[1:] * a[:-1]])
            return y + b, b

        return cg.fori_loop(0, n, step, (x, x))

    # The only window is that of `a`.
    assert len(windows(planned(kept, 1000))) == 1


def needed_besides(x: Any, n: Any) -> Any:
    """A temporary that is also summed, and an array from before the loop that only the loop's kernels read."""
    z = cnp.sin(x)

    def step(_: Any, carry: Any) -> Any:
        y, total = carry
        a = cnp.concat([z[:1], x[1:] * y[:-1]])
        b = cnp.concat([x[:1], z[1:] * a[:-1]])
        return y * 0.5 + cnp.concat([x[:1], z[1:] * b[:-1]]), total + cnp.sum(a)

    return cg.fori_loop(0, n, step, (x, 0.0))


@pytest.mark.parametrize("signature", [True, False])
@pytest.mark.parametrize("function", [chain, both_sides, needed_besides, *map(random_program, range(12))])
def test_results_are_the_reference_engines(function: Any, signature: bool, small_tiles: None) -> None:
    given: dict[str, Any] = {"signature": SPECS} if signature else {}
    for size in (11, 16, 31, 33, 48, 64, 100, 257) if signature else (33, 100):
        args = [np.random.default_rng(size).normal(size=size), np.int64(3)]
        graph = optimised_graph(cg.function(function, **given).graph(*args))
        found, expected = (run_on(name, graph, args) for name in ("native", "reference"))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_a_window_moves_on_where_little_has_to_move(small_tiles: None) -> None:
    text = PlanWriter(planned(chain, 1000, signature=SPECS), 32).function("plan")
    assert text.count("call void @llvm.memmove") == 4
