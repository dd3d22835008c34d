"""Kernels that run tile by tile read in step, and lag behind no more than needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.decisions import with_vectors
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.expression import ExpressionBuilder
from ctrlgrad.plan.model import Array, Block, Kernel, Loop, Operand, Plan, Step, Tiles, View, Write
from ctrlgrad.plan.places import Buffer, Place
from ctrlgrad.plan.printer import format_plan
from ctrlgrad.plan.sizes import ONE, ZERO, Size
from ctrlgrad.plan.tiling import tiles_of

DOUBLE = np.dtype(np.float64)
N, R = Size(1, ("n",)), Size(1, ("r",))
SPECS = (cg.TensorSpec((None,), "float64"), cg.TensorSpec((), "int64"))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "TILE_BYTES", 1)
    monkeypatch.setattr(tiling, "POINTS", 4)
    monkeypatch.setattr(tiling, "FEWEST", 2)


class Made:
    """Kernels over a few buffers, each result an array of its own."""

    def __init__(self, is_known_at_entry: bool = True) -> None:
        self.places: dict[Array, Place] = {}
        self.buffers = tuple(Buffer(k, DOUBLE, N, is_known_at_entry) for k in range(4))

    def array(self, buffer: int) -> Array:
        array = Array(f"a{len(self.places)}", DOUBLE, (N,))
        self.places[array] = Place("buffer", buffer)
        return array

    def kernel(self, target: tuple[int, Size], sources: Sequence[tuple[int, Size]], stride: Size = ONE) -> Kernel:
        """A kernel that sums a number and the operands, each a buffer with an offset, into a buffer with an offset."""
        builder = ExpressionBuilder()
        total = builder.constant(float(len(self.places)), DOUBLE)
        operands = []
        for k, (buffer, offset) in enumerate(sources):
            operands.append(Operand(View(self.array(buffer), (offset,), (N,), (stride,))))
            total = total + builder.emit("load", (), DOUBLE, (k, 0))
        write = Write(View(self.array(target[0]), (target[1],), (N,), (ONE,)), (0,))
        return Kernel((N,), tuple(operands), (), builder.finish(total), (write,))

    def tiles(self, steps: Sequence[Step]) -> tuple[Tiles, int] | None:
        plan = Plan(
            "made", (), (), Block(tuple(steps)), (), (), (), {}, buffers=self.buffers, places=self.places, handles={}
        )
        return tiles_of(steps, 0, plan)


def _value(size: Size, names: dict[str, int]) -> int:
    return size.factor * int(np.prod([names[name] for name in size.names], dtype=int))


def _run(made: Made, kernel: Kernel, points: range, memory: np.ndarray, names: dict[str, int]) -> None:
    """Run some points of a kernel, one after the other."""
    (write,) = kernel.writes
    constant = kernel.expression.instructions[0].value
    for i in points:
        total = constant
        for operand in kernel.operands:
            at = _value(operand.view.offset[0], names)
            total = total + memory[made.places[operand.view.array].number, at + i]
        memory[made.places[write.view.array].number, _value(write.view.offset[0], names) + i] = total


@pytest.mark.parametrize("seed", range(60))
def test_tiles_compute_what_kernels_compute_one_after_the_other(seed: int, small_tiles: None) -> None:
    rng = np.random.default_rng(seed)
    made, offsets = Made(), [ZERO, ONE, Size(2), R, Size(3, ("r",))]
    steps = []
    for _ in range(rng.integers(2, 7)):
        target, at = int(rng.integers(4)), offsets[rng.integers(5)]
        sources = [(int(rng.integers(4)), offsets[rng.integers(5)]) for _ in range(rng.integers(1, 4))]
        # A kernel reads an array that it overwrites only at the point that it writes.
        steps.append(made.kernel((target, at), [(b, at if b == target else o) for b, o in sources]))
    found = made.tiles(steps)
    assert found is not None and found[1] == len(steps)
    tiles, _ = found
    assert tiles.points == 4
    for names in ({"n": n, "r": r} for n in (0, 1, 3, 4, 11, 23) for r in (0, 1, 5)):
        expected = rng.normal(size=(4, 60))
        memory = expected.copy()
        for kernel in steps:
            _run(made, kernel, range(names["n"]), expected, names)
        lags = [sum(_value(term, names) for term in lag) for lag in tiles.lags]
        for start in range(0, names["n"] + max(lags), tiles.points):
            for kernel, lag in zip(tiles.kernels, lags, strict=True):
                points = range(max(start - lag, 0), min(start - lag + tiles.points, names["n"]))
                _run(made, kernel, points, memory, names)
        np.testing.assert_array_equal(memory, expected)


def test_a_kernel_that_reads_ahead_stays_behind(small_tiles: None) -> None:
    made = Made()
    steps = [made.kernel((0, ZERO), [(1, ZERO)]), made.kernel((2, ZERO), [(0, ONE)]), made.kernel((3, ZERO), [(2, R)])]
    found = made.tiles(steps)
    assert found is not None
    assert found[0].lags == ((), (ONE,), (ONE, R))


def test_writes_begin_where_a_tile_does(small_tiles: None) -> None:
    made = Made()
    found = made.tiles([made.kernel((0, R), [(1, ZERO)]), made.kernel((2, ZERO), [(0, ZERO)])])
    assert found is not None
    assert found[0].lags == ((R,), ())


def test_kernels_that_need_all_of_an_array_wait_for_it(small_tiles: None) -> None:
    made = Made()
    first = made.kernel((0, ZERO), [(1, ZERO)])
    whole = made.kernel((2, ZERO), [(0, ZERO)], stride=ZERO)
    found = made.tiles([first, made.kernel((3, ZERO), [(0, ZERO)]), whole])
    assert found is not None and found[1] == 2


def test_buffers_that_grow_when_they_are_needed_stay_apart(small_tiles: None) -> None:
    made = Made(is_known_at_entry=False)
    assert made.tiles([made.kernel((0, ZERO), [(1, ZERO)]), made.kernel((2, ZERO), [(0, ZERO)])]) is None


def _chain(x: Any, n: Any) -> Any:
    """A step that reads on both sides of its point, over an array that it writes in place."""

    def step(_: Any, y: Any) -> Any:
        before = cnp.concat([x[:1], x[1:] * y[:-1]])
        middle = y + 0.25 * before
        after = cnp.concat([middle[1:] * 0.5, x[-1:]])
        return y * 0.5 + cnp.concat([x[:1], x[1:] * after[:-1]]) - 0.125 * cnp.tanh(before)

    return cg.fori_loop(0, n, step, cnp.zeros_like(x))


def _program(signature: bool, gradient: bool = False) -> Any:
    function = cg.grad(lambda x, n: cnp.sum(_chain(x, n) ** 2)) if gradient else _chain
    specs = [cg.TensorSpec((None,), "float64"), cg.TensorSpec((), "int64")] if signature else None
    return cg.function(function, signature=specs)


@pytest.mark.parametrize("signature", [True, False])
@pytest.mark.parametrize("gradient", [False, True])
def test_compiled_tiles_compute_what_the_reference_engine_computes(
    signature: bool, gradient: bool, small_tiles: None
) -> None:
    for size in (2, 3, 4, 7, 8, 9, 64, 101):
        x = np.random.default_rng(size).normal(size=size)
        graph = optimised_graph(_program(signature, gradient).graph(x, np.int64(5)))
        given = [x, np.int64(5)]
        plan = engine.plan_of(graph, engine.shapes_of(graph, given))
        if size >= 9:
            assert "@llvm.smin.i64" in PlanWriter(with_vectors(plan, 32)).function("plan")
        (found,), (expected,) = (run_on(name, graph, given) for name in ("native", "reference"))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_short_vectors_of_a_known_size_have_no_tiles() -> None:
    x = np.ones(100)
    graph = optimised_graph(_program(False).graph(x, np.int64(5)))
    plan = engine.plan_of(graph, engine.shapes_of(graph, [x, np.int64(5)]))
    assert "@llvm.smin.i64" not in PlanWriter(with_vectors(plan, 32)).function("plan")


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
def test_results_of_shifted_arrays_are_the_reference_engines(function: Any, signature: bool, small_tiles: None) -> None:
    given: dict[str, Any] = {"signature": SPECS} if signature else {}
    for size in (11, 16, 31, 33, 64, 257) if signature else (33, 100):
        args = [np.random.default_rng(size).normal(size=size), np.int64(3)]
        graph = optimised_graph(cg.function(function, **given).graph(*args))
        found, expected = (run_on(name, graph, args) for name in ("native", "reference"))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def _tiled_plan() -> Plan:
    given = [np.ones(1000), np.int64(3)]
    graph = optimised_graph(cg.function(chain, signature=SPECS).graph(*given))
    return engine.plan_of(graph, engine.shapes_of(graph, given))


def test_the_checker_accepts_the_tiles_and_the_text_shows_them(small_tiles: None) -> None:
    plan = _tiled_plan()
    assert plan.tiles
    check(plan)
    assert "tiles of 4 after the kernel above, r12 behind {" in format_plan(plan)


def test_the_checker_refuses_lags_that_are_too_small(small_tiles: None) -> None:
    plan = _tiled_plan()
    ((first, tiles),) = ((step, found) for step, found in plan.tiles.items() if any(found.lags))
    behind = [k for k, lag in enumerate(tiles.lags) if lag]
    refused = 0
    for k in behind:
        lags = tuple(() if number == k else lag for number, lag in enumerate(tiles.lags))
        try:
            check(replace(plan, tiles={first: replace(tiles, lags=lags)}))
        except PlanError as error:
            refused += "too early" in str(error)
    # The lag of a kernel that only has to stay aligned may be smaller.
    assert refused >= 1
    with pytest.raises(PlanError, match="too early"):
        check(replace(plan, tiles={first: replace(tiles, lags=((),) * len(tiles.lags))}))


def test_the_checker_refuses_tiles_of_a_loop_whose_points_meet(small_tiles: None) -> None:
    plan = _tiled_plan()
    (loop,) = (step for step in walk(plan.body) if isinstance(step, Loop))
    kernels = tuple(step for step in loop.body.steps if isinstance(step, Kernel))
    with pytest.raises(PlanError, match=r"too early|reduces"):
        check(replace(plan, tiles={loop: Tiles(kernels, ((),) * len(kernels), 4)}))
