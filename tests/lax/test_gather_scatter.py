"""`lax.gather` and the scatters are XLA's: by a loop over windows in NumPy, and by JAX."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.execution import run_on


@pytest.fixture(autouse=True)
def _by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


class Case:
    """Random dimension numbers, with an operand, starts of which some lie outside, and updates."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        shape = [int(n) for n in rng.integers(1, 5, rank)]
        axes = [int(a) for a in rng.permutation(rank)]
        common = sorted(axes[: rng.integers(0, 2)]) if rank > 1 else []
        others = sorted({*axes} - {*common})
        components = [int(a) for a in rng.permutation(others)[: rng.integers(0, len(others) + 1)]]
        dropped = [d for d in others if rng.random() < 0.5]
        self.sizes = [1 if d in dropped or d in common else int(rng.integers(1, n + 1)) for d, n in enumerate(shape)]
        rows = int(rng.integers(len(common), 3))
        batch = [int(n) for n in rng.integers(1, 4, rows)]
        of_starts = [int(i) for i in rng.permutation(rows)[: len(common)]]
        for d, axis in zip(common, of_starts, strict=True):
            batch[axis] = shape[d]
        self.kept = [d for d in range(rank) if d not in dropped and d not in common]
        offsets = sorted(int(i) for i in rng.permutation(rows + len(self.kept))[: len(self.kept)])
        self.numbers = tuple(map(tuple, (offsets, dropped, components, common, of_starts)))
        self.x = rng.normal(size=shape)
        self.starts = rng.integers(-1, 4, (*batch, len(components)))
        self.batch, self.offsets, self.components = batch, offsets, components
        self.common = list(zip(common, of_starts, strict=True))
        of_kept, of_batch = iter([self.sizes[d] for d in self.kept]), iter(batch)
        self.result = [next(of_kept if a in offsets else of_batch) for a in range(rows + len(self.kept))]
        self.updates = rng.normal(size=self.result)

    def windows(self, clip: bool) -> Any:
        """For each element of a window: where it stands in the result and in the operand, None if outside."""
        for row in product(*map(range, self.batch)):
            start = [0] * self.x.ndim
            for d, at in zip(self.components, self.starts[row], strict=True):
                start[d] = int(at)
            last = [n - s for n, s in zip(self.x.shape, self.sizes, strict=True)]
            inside = clip or all(0 <= a <= b for a, b in zip(start, last, strict=True))
            start = [min(max(a, 0), b) for a, b in zip(start, last, strict=True)]
            for d, axis in self.common:
                start[d] = row[axis]
            for within in product(*map(range, self.sizes)):
                of_kept, of_row = iter([within[d] for d in self.kept]), iter(row)
                place = tuple(next(of_kept if a in self.offsets else of_row) for a in range(len(self.result)))
                yield place, tuple(a + b for a, b in zip(start, within, strict=True)) if inside else None


CASES = list(range(60))


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_a_gather_reads_each_window(mode: str) -> None:
    for seed in CASES:
        case = Case(seed)
        expected = np.full(case.result, 7.0)
        for place, at in case.windows(mode == "clip"):
            expected[place] = 7.0 if at is None else case.x[at]
        numbers = lax.GatherDimensionNumbers(*case.numbers)
        read = lambda x, i, n=numbers, s=case.sizes: lax.gather(x, i, n, s, mode=mode, fill_value=7.0)
        np.testing.assert_array_equal(cg.function(read)(case.x, case.starts), expected, err_msg=f"case {seed}")
        # The starts as constants.
        np.testing.assert_array_equal(read(case.x, case.starts), expected, err_msg=f"case {seed}")


COMBINE = {
    "scatter": lambda old, new: new,
    "scatter_add": np.add,
    "scatter_sub": np.subtract,
    "scatter_mul": np.multiply,
    "scatter_min": np.minimum,
    "scatter_max": np.maximum,
}


@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("name", COMBINE)
def test_a_scatter_writes_each_window_in_turn(name: str, mode: str) -> None:
    for seed in CASES if name in ("scatter", "scatter_add") else CASES[:20]:
        case = Case(seed)
        expected = case.x.copy()
        for place, at in case.windows(mode == "clip"):
            if at is not None:
                expected[at] = COMBINE[name](expected[at], case.updates[place])
        numbers = lax.ScatterDimensionNumbers(*case.numbers)
        write = lambda x, i, u, n=numbers: getattr(lax, name)(x, i, u, n, mode=mode)
        found = cg.function(write)(case.x, case.starts, case.updates)
        np.testing.assert_allclose(found, expected, err_msg=f"case {seed}", rtol=1e-12)


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_reads_and_sums_are_each_others_transposes(mode: str) -> None:
    for seed in CASES[:25]:
        case = Case(seed)
        numbers = lax.GatherDimensionNumbers(*case.numbers)
        read = lambda x, n=numbers, c=case: lax.gather(x, c.starts, n, c.sizes, mode=mode, fill_value=0.0)
        _, back = cg.vjp(read, case.x)
        (found,) = back(case.updates)
        writes = lax.ScatterDimensionNumbers(*case.numbers)
        zero = np.zeros_like(case.x)
        expected = lax.scatter_add(zero, case.starts, case.updates, writes, mode=mode)
        np.testing.assert_allclose(found, expected, atol=1e-12, err_msg=f"case {seed}")


@pytest.mark.parametrize("name", ["scatter", "scatter_mul", "scatter_max"])
def test_derivatives_of_scatters_where_windows_meet_and_lie_outside(name: str) -> None:
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    starts = np.array([[1], [5], [1], [0], [-2]])
    x, u = np.arange(6.0).reshape(3, 2) + 0.3, np.arange(10.0).reshape(5, 2) - 4.2
    f = lambda x, u, i: cnp.sum(cnp.sin(getattr(lax, name)(x, i, u, numbers, mode="drop")))
    cg.check_grads(cg.function(lambda x, u: f(x, u, starts)), (x, u), order=2, against=("finite_differences",))


@pytest.mark.parametrize("name", ["scatter", "scatter_add"])
def test_derivatives_of_scatters_are_those_of_jax(name: str) -> None:
    dims, starts = ((1,), (0,), (0,)), np.array([[1], [7], [0]])
    x, u = np.arange(6.0).reshape(3, 2) + 0.3, np.arange(6.0).reshape(3, 2) - 4.2
    jnp = jax.numpy
    total = lambda xp, lib, n: lambda x, u: xp.sum(xp.sin(getattr(lib, name)(x, starts, u, n, mode="drop")))
    found = cg.grad(total(cnp, lax, lax.ScatterDimensionNumbers(*dims)), argnums=(0, 1))(x, u)
    expected = jax.jit(jax.grad(total(jnp, jax.lax, jax.lax.ScatterDimensionNumbers(*dims)), argnums=(0, 1)))(x, u)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_no_window_lies_inside() -> None:
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    f = cg.function(lambda x, i, u: lax.scatter(x, i, u, numbers))
    np.testing.assert_array_equal(f(np.arange(3.0), np.array([[3], [-1]]), np.ones(2)), np.arange(3.0))


def test_fill_values_are_those_of_jax() -> None:
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    read = lambda dtype: lax.gather(np.zeros(2, dtype), np.array([[2]]), numbers, (1,))[0]
    assert np.isnan(read(np.float32)) and read(np.int8) == -128 and read(np.uint8) == 255 and read(bool)


def test_jax_s_own_numbers_and_modes_are_taken() -> None:
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    mode = jax.lax.GatherScatterMode.CLIP
    np.testing.assert_array_equal(lax.gather(np.arange(3), np.array([[5], [1]]), numbers, (1,), mode=mode), [2, 1])


def test_windows_in_machine_code_and_mapped() -> None:
    reads, writes = lax.GatherDimensionNumbers((1,), (0,), (0,)), lax.ScatterDimensionNumbers((1,), (0,), (0,))

    def f(x: Any, i: Any) -> Any:
        rows = lax.gather(x, i, reads, (1, 2))
        return lax.scatter(x, i, rows * 2, writes) + lax.scatter_add(x, i, rows, writes)

    x, i = np.arange(12.0).reshape(2, 3, 2), np.array([[[2], [9], [0]], [[1], [1], [-1]]])
    graph = cg.function(cg.vmap(f)).graph(x, i)
    (expected,) = run_on("reference", graph, [x, i])
    (found,) = run_on("native", graph, [x, i])
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(expected, np.stack([f(a, b) for a, b in zip(x, i, strict=True)]), rtol=1e-12)


def test_a_window_written_in_a_loop_leaves_the_rest_in_place() -> None:
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    step = lambda k, x: lax.scatter(x, k[None], k * 1.0, numbers)
    f = cg.function(lambda x: cg.fori_loop(0, 5, step, x), engine="native")
    np.testing.assert_array_equal(f(np.full(4, 9.0)), np.arange(4.0))


def test_bad_windows_are_named() -> None:
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    with pytest.raises(TypeMismatchError, match="starts are not integers"):
        lax.gather(np.ones(3), np.ones((2, 1)), numbers, (1,))
    with pytest.raises(ShapeError, match="one component for each axis"):
        lax.gather(np.ones(3), np.ones((2, 2), int), numbers, (1,))
    with pytest.raises(UserInputError, match="no such mode"):
        lax.gather(np.ones(3), np.ones((2, 1), int), numbers, (1,), mode="wrap")
    with pytest.raises(TypeMismatchError, match="updates' dtype"):
        lax.scatter(np.ones(3), np.ones((2, 1), int), np.ones(2, int), lax.ScatterDimensionNumbers((), (0,), (0,)))
