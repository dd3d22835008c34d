"""Kernels that run tile by tile read in step, and lag behind no more than needed."""

from __future__ import annotations

from collections.abc import Sequence
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
from ctrlgrad.plan.expression import ExpressionBuilder
from ctrlgrad.plan.model import Array, Block, Kernel, Operand, Plan, Step, View, Write
from ctrlgrad.plan.places import Buffer, Place
from ctrlgrad.plan.sizes import ONE, ZERO, Size
from ctrlgrad.plan.tiling import Tiles, tiles_of

DOUBLE = np.dtype(np.float64)
N, R = Size(1, ("n",)), Size(1, ("r",))


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
            assert "@llvm.smin.i64" in PlanWriter(plan, 32).function("plan")
        (found,), (expected,) = (run_on(name, graph, given) for name in ("native", "reference"))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_short_vectors_of_a_known_size_have_no_tiles() -> None:
    x = np.ones(100)
    graph = optimised_graph(_program(False).graph(x, np.int64(5)))
    plan = engine.plan_of(graph, engine.shapes_of(graph, [x, np.int64(5)]))
    assert "@llvm.smin.i64" not in PlanWriter(plan, 32).function("plan")
