"""Sorting and its positions in machine code agree with the reference engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.reference import array_kernels
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Builder, TensorType
from ctrlgrad.plan.effects import blocks_of, walk
from ctrlgrad.plan.lowering.sorting import BLOCK, FEW, MANY
from ctrlgrad.plan.model import Branch, Outside

RNG = np.random.default_rng(8)
DTYPES = ["f8", "f4", "f2", "i8", "u1", "b1"]
# Sizes known to the plan or not.
SIZES = {"known": True, "unknown": False}


def agree(op: str, *operands: np.ndarray, is_known: bool = True, is_outside: bool = False, **attrs: object) -> None:
    builder = Builder()
    shapes = [x.shape if is_known else (None,) * x.ndim for x in operands]
    values = [builder.input(TensorType(x.dtype, shape)) for x, shape in zip(operands, shapes, strict=True)]
    graph = builder.finish([builder.emit(op, values, attrs)])
    plan = engine.plan_of(graph, engine.shapes_of(graph, operands))
    asked = {s for b in walk(plan.body) if isinstance(b, Branch) for c in blocks_of(b) for s in c.steps}
    assert any(isinstance(step, Outside) and step not in asked for step in walk(plan.body)) == is_outside
    (found,), (expected,) = engine.run(graph, operands), run_on("reference", graph, operands)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """Few distinct numbers, so that many are equal; some are NaN."""
    x = RNG.integers(0, 5, shape)
    if dtype == "b1":
        return x > 2
    found = x.astype(dtype)
    if found.dtype.kind == "f":
        found = found - 2
        found[x == 4] = np.nan
        found[x == 3] = -0.0
    return found


@in_turn("dtype, way", DTYPES, [f"{order}, {sizes}" for order in ("ascending", "descending") for sizes in SIZES])
def test_argsort_is_stable(dtype: str, way: str) -> None:
    order, sizes = way.split(", ")
    descending, is_known = order == "descending", SIZES[sizes]
    for shape, axis in (((9,), 0), ((3, 5), 1), ((4, 2, 3), 0), ((0, 2), 0), ((2, 1), 1)):
        agree("argsort", numbers(dtype, *shape), is_known=is_known, axis=axis, descending=descending)


def test_many_elements_are_sorted_by_numpy() -> None:
    x = RNG.normal(size=(2, FEW + 1))
    agree("argsort", x, axis=1, descending=False, is_outside=True)
    agree("argsort", x, axis=1, descending=True, is_known=False)
    agree("argsort", x[:, 1:], axis=1, descending=False)


def test_a_long_row_of_unknown_size_takes_no_memory_for_comparisons_of_each_with_each() -> None:
    """A long row of unknown size needs no memory for pairwise comparisons.

    A row of 524,288 once asked for 288 GiB, for a branch that does not run.
    """
    fn = cg.function(lambda x: cnp.sort(x, axis=1), signature=[cg.TensorSpec((None, None), np.float32)])
    for n in (FEW - 1, FEW, FEW + 1, 1 << 19):
        x = RNG.normal(size=(2, n)).astype(np.float32)
        np.testing.assert_array_equal(fn(x), np.sort(x, axis=1))


@in_turn("dtype, sizes", [*DTYPES, "i4"], list(SIZES))
def test_the_largest_of_each_row(dtype: str, sizes: str) -> None:
    """The k largest of rows shorter than a block, of whole blocks, and longer: by selection, or by sorting where k
    is large."""
    is_known = SIZES[sizes]
    for shape, axis in (((9,), 0), ((3, BLOCK), 1), ((BLOCK + 1, 2), 0), ((2, 3 * BLOCK - 1, 3), 1), ((0, 4), 1)):
        n = shape[axis]
        for count in {0, 1, 3, n // 2, min(n, MANY), n}:
            is_outside = (not is_known or n > FEW) and (dtype == "i8" or count == 0 or count > MANY)
            agree("top_k", numbers(dtype, *shape), is_known=is_known, is_outside=is_outside, axis=axis, count=count)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "b1"])
def test_the_largest_where_all_are_as_small_as_can_be(dtype: str) -> None:
    least = -np.inf if np.dtype(dtype).kind == "f" else np.iinfo(dtype).min
    x = np.full((2, BLOCK + 2), least, dtype)
    x[1, BLOCK] += 1
    for count in (1, 5, BLOCK):
        agree("top_k", x, axis=1, count=count)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_largest_of_numbers_of_all_magnitudes(dtype: str) -> None:
    x = RNG.normal(size=(4, 500)) * 10.0 ** RNG.integers(-45, 38, (4, 500))
    x[:, 7], x[:, 90], x[:, 5] = np.inf, np.nan, -np.nan
    agree("top_k", x.astype(dtype), axis=1, count=30)


def test_a_row_with_less_than_k_elements_is_refused() -> None:
    three = cg.function(lambda x: cg.lax.top_k(x, 3)[1])
    for n in (4, 5):
        np.testing.assert_array_equal(three(np.arange(1.0 * n)), [n - 1, n - 2, n - 3])
    with pytest.raises(cg.CtrlgradError, match="top_k: the axis does not have as many elements"):
        three(np.arange(2.0))


@in_turn("dtype, way", DTYPES, [f"{side}, {sizes}" for side in ("left", "right") for sizes in SIZES])
def test_searchsorted(dtype: str, way: str) -> None:
    side, sizes = way.split(", ")
    for length in (0, 1, 2, 3, 7, 8, 20):
        for shape in ((), (5,), (2, 3), (0,)):
            row, values = np.sort(numbers(dtype, length)), np.asarray(numbers(dtype, *shape, 1)[..., 0])
            agree("searchsorted", row, values, is_known=SIZES[sizes], side=side)


@in_turn("dtype, sizes", [*DTYPES, "c8"], list(SIZES))
def test_nonzero(dtype: str, sizes: str) -> None:
    is_known = SIZES[sizes]
    for shape in ((6,), (0,), (1,), (3, 4), (2, 3, 2), (2, 0)):
        agree("nonzero", numbers(dtype, *shape) if dtype != "c8" else numbers("f4", *shape) * 1j, is_known=is_known)
    agree("nonzero", np.zeros((3, 2), dtype), is_known=is_known)
    agree("nonzero", np.ones((3, 2), dtype), is_known=is_known)


@pytest.mark.parametrize("threads", ["1", "2", "7", "64"])
@pytest.mark.parametrize("descending", [False, True])
def test_threads_share_the_rows_of_a_sort(threads: str, descending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share the rows of a sort, as many as rows and work allow; the result does not depend on their number."""
    monkeypatch.setenv("CTRLGRAD_THREADS", threads)
    lengths: list[int] = []
    found = np.argsort

    def noted(x: np.ndarray, *args: Any, **options: Any) -> np.ndarray:
        lengths.append(len(x))
        return found(x, *args, **options)

    monkeypatch.setattr(array_kernels.np, "argsort", noted)
    for work, rows in ((array_kernels.START, 5), (1, 5), (1, 1), (1, 0)):
        monkeypatch.setattr(array_kernels, "START", work)
        lengths.clear()
        x = RNG.integers(0, 9, (rows, 300, 2)).astype("float32").swapaxes(0, 1)
        order = array_kernels._descending(x, 0) if descending else array_kernels._ascending(x, 0)
        expected = found(-x if descending else x, axis=0, kind="stable")
        np.testing.assert_array_equal(order, expected)
        count = 1 if work > 1 else min(2 * rows, int(threads))
        assert sum(lengths) == (300 if count < 2 else 2 * rows) and len(lengths) == max(count, 1)
