"""Sums over long axes keep terms that are small beside a large total, in every engine and along every axis."""

from __future__ import annotations

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native.sum_blocks import BLOCK

ENGINES = ["native", "reference", "dataflow"]
# The first element is so large that adding 1 to it in float32 changes nothing: a sum in order would lose every term.
LARGE, ROWS = 2.0**24, 20 * BLOCK


def rows(*shape: int, dtype: type = np.float32) -> np.ndarray:
    x = np.ones(shape, dtype)
    x[0] = LARGE
    return x


def lost(found: object, expected: float) -> float:
    """The largest error, in lost elements of 1 per added element of `LARGE`."""
    return float(np.max(np.abs(np.asarray(found).astype(np.complex128) - expected)))


SUMS = {
    "leading axis of two": (lambda x: cnp.sum(x, axis=0), (ROWS, 2), 1),
    "leading axis of a thousand": (lambda x: cnp.sum(x, axis=0), (ROWS, 1000), 1),
    "leading axis of one": (lambda x: cnp.sum(x, axis=0), (ROWS, 1), 1),
    "leading axis of rows that are not dense": (lambda x: cnp.sum(x[:, ::2, 1:], axis=0), (ROWS, 4, 3), 1),
    "two axes with one between": (lambda x: cnp.sum(x, axis=(0, 2)), (ROWS, 3, 2), 2),
    "last axis of a transpose": (lambda x: cnp.sum(x.T, axis=1), (ROWS, 3), 1),
    "every other element": (lambda x: cnp.sum(x[::2, 0]), (2 * ROWS, 1), 1),
    "all, element by element": (lambda x: cnp.sum(x[:, 0]), (ROWS, 2), 1),
    "einsum": (lambda x: cnp.einsum("ij->j", x), (ROWS, 2), 1),
    "vector by matrix": (lambda x: cnp.ones(x.shape[0], x.dtype) @ x, (8 * ROWS, 2), 1),
    "column by vector": (lambda x: x[:, 0] @ cnp.ones(x.shape[0], x.dtype), (8 * ROWS, 2), 1),
    "running total": (lambda x: cnp.cumsum(x, axis=0)[-1], (ROWS, 2), 1),
    "running total backwards": (lambda x: cnp.flip(cnp.cumsum(cnp.flip(x, 0), axis=0), 0)[0], (ROWS, 2), 1),
    "running total of a vector": (lambda x: cnp.cumsum(x[:, 0])[-1], (ROWS, 1), 1),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_a_large_total_does_not_swallow_what_is_added(name: str, engine: str, dtype: type) -> None:
    function, shape, each = SUMS[name]
    count = shape[0] // 2 if "every other" in name else shape[0]
    expected = each * (LARGE + count - 1)
    found = cg.function(function, engine=engine)(rows(*shape, dtype=dtype))
    # A sum in order would lose all rows; a sum by blocks may lose a block.
    assert lost(found, expected) <= count * each / 8
    assert np.asarray(found).dtype == dtype


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradient_of_what_is_the_same_in_all_rows(engine: str) -> None:
    weights = rows(ROWS, 2)
    gradient = cg.function(cg.grad(lambda b: cnp.sum((b + np.float32(0)) * weights)), engine=engine)
    assert lost(gradient(np.zeros(2, np.float32)), LARGE + ROWS - 1) <= 2 * BLOCK


@pytest.mark.parametrize("engine", ENGINES)
def test_mean_and_norm(engine: str) -> None:
    x = rows(ROWS, 2)
    mean = cg.function(lambda x: cnp.mean(x, axis=0), engine=engine)(x)
    assert lost(mean * ROWS, LARGE + ROWS - 1) <= 2 * BLOCK
    squares = cg.function(lambda x: cnp.linalg.norm(cnp.sqrt(x), axis=0) ** 2, engine=engine)(x)
    assert lost(squares, LARGE + ROWS - 1) <= 2 * BLOCK


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK + 3])
@pytest.mark.parametrize("shape", [(3,), (1,), (2, 5)])
def test_whole_numbers_are_added_up_exactly_at_each_number_of_blocks(
    count: int, shape: tuple[int, ...], dtype: type
) -> None:
    x = np.random.default_rng(count).integers(-9, 9, (count, *shape)).astype(dtype)
    for axes in (0, *([(0, 2)] if len(shape) == 2 else [])):
        found = cg.function(lambda x, axes=axes: cnp.sum(x, axis=axes), engine="native")(x)
        np.testing.assert_array_equal(found, x.sum(axis=axes))
    turned = np.ascontiguousarray(np.moveaxis(x, 0, -1))
    found = cg.function(lambda x: cnp.sum(cnp.moveaxis(x, -1, 0), axis=0), engine="native")(turned)
    np.testing.assert_array_equal(found, x.sum(axis=0))


@pytest.mark.parametrize("count", [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_an_axis_whose_size_the_run_finds(count: int) -> None:
    x = rows(3 * BLOCK + 1, 2)

    def kept(x: np.ndarray, n: int) -> object:
        return cnp.sum(x[:n], axis=0)

    found = cg.function(kept, engine="native")(x, np.int64(count)) if count else np.zeros(2)
    assert lost(found, LARGE + count - 1 if count else 0) <= 2 * BLOCK


def test_sums_in_memory_beside_sums_in_registers_and_what_is_stored() -> None:
    def several(x: np.ndarray) -> tuple[object, ...]:
        y = x * 2
        return y, cnp.sum(y, axis=0), cnp.sum(y, axis=1), cnp.sum(y), cnp.max(y, axis=0)

    x = np.random.default_rng(1).integers(-9, 9, (3 * BLOCK + 5, 7)).astype(np.float32)
    for found, expected in zip(
        cg.function(several, engine="native")(x),
        (2 * x, *(2 * x.sum(a) for a in (0, 1, None)), 2 * x.max(0)),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
