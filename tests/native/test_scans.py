"""Positions of extremes and cumulative sums of whole numbers in machine code have the bits of the reference engine."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import engine
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Builder, TensorType
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Outside

RNG = np.random.default_rng(7)


def agree(op: str, x: np.ndarray, shape: tuple[int | None, ...], **attrs: object) -> None:
    builder = Builder()
    value = builder.input(TensorType(x.dtype, shape))
    graph = builder.finish([builder.emit(op, (value,), attrs)])
    plan = engine.plan_of(graph, engine.shapes_of(graph, [x]))
    assert not any(isinstance(step, Outside) for step in walk(plan.body))
    (found,), (expected,) = engine.run(graph, [x]), run_on("reference", graph, [x])
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    if expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    x = RNG.normal(size=shape) * 5
    # Processors disagree on a negative float as an unsigned integer, and NumPy may warn.
    x = (x.astype("i8") if dtype.startswith("u") else x).astype(dtype)
    if x.dtype.kind == "f" and x.size:
        x.flat[0] = -0.0
    return x


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("dtype", "shape", "axis"),
    [("f8", (5,), 0), ("f4", (3, 4), 1), ("c16", (4, 1, 3), 0), ("u1", (3, 4), 0), ("f8", (0, 3), 0), ("f2", (6,), 0)],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_cumsum(dtype: str, shape: tuple[int, ...], axis: int, reverse: bool, is_known: bool) -> None:
    known = shape if is_known else tuple(None for _ in shape)
    agree("cumsum", np.round(array(dtype, shape)), known, axis=axis, reverse=reverse)


@pytest.mark.parametrize("dtype", ["i4", "u1"])
def test_cumprod(dtype: str) -> None:
    agree("cumprod", array(dtype, (4, 3)), (4, 3), axis=0, reverse=False)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    ("dtype", "shape", "axis"), [("f8", (5,), 0), ("f4", (3, 4), 1), ("b1", (2, 3, 4), 1), ("u1", (7, 2), 0)]
)
def test_the_first_extreme(op: str, dtype: str, shape: tuple[int, ...], axis: int, keepdims: bool) -> None:
    agree(op, array(dtype, shape), shape, axes=(axis,), keepdims=keepdims)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_a_nan_is_the_first_extreme(op: str) -> None:
    x = array("f8", (3, 4))
    x[1, 2] = x[1, 3] = np.nan
    agree(op, x, (None, None), axes=(1,), keepdims=False)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_equal_extremes(op: str) -> None:
    agree(op, np.ones((2, 5), np.float32), (2, 5), axes=(1,), keepdims=False)


@pytest.mark.parametrize("op", ["argmax", "argmin", "any", "all"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((1000,), 0), ((33, 5), 0), ((5, 129), 1), ((2, 3, 70), 1)])
def test_where_the_first_of_bools_is(op: str, keepdims: bool, shape: tuple[int, ...], axis: int) -> None:
    for share in (0.0, 0.01, 0.5, 1.0):
        agree(op, RNG.random(shape) < share, shape, axes=(axis,), keepdims=keepdims)


SPECIAL = {
    "the neutral number everywhere": lambda x, worst: np.full_like(x, worst),
    "the neutral number before others": lambda x, worst: np.where(np.arange(x.shape[-1]) < x.shape[-1] - 1, worst, x),
    "equal extremes": lambda x, worst: np.where(np.arange(x.shape[-1]) % 5 == 3, -worst, x),
    "few numbers": lambda x, worst: np.round(x),
}


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i2", "u8"])
def test_positions_along_the_innermost_axis(op: str, name: str, dtype: str) -> None:
    """One pass finds positions along the innermost axis: by several vectors, by part of one, in many rows or one."""
    for shape in ((1,), (7,), (31,), (100,), (3, 5), (40, 9), (2, 70), (3, 1, 33), (2, 40, 1)):
        x = array(dtype, shape)
        if x.dtype.kind == "f":
            worst = -np.inf if op == "argmax" else np.inf
        else:
            limits = np.iinfo(x.dtype)
            worst = limits.min if op == "argmax" else limits.max
        if name == "equal extremes" and x.dtype.kind != "f":
            worst = 1 if op == "argmax" and x.dtype.kind == "i" else 0
        x = np.asarray(SPECIAL[name](x, worst)).astype(dtype)
        for is_known in (True, False):
            known = shape if is_known else tuple(None for _ in shape)
            agree(op, x, known, axes=(len(shape) - 1,), keepdims=False)
            if shape[-1] == 1 and len(shape) > 1:
                agree(op, x, known, axes=(len(shape) - 2,), keepdims=True)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("length", [3, 8, 33, 100])
def test_the_first_nan_wherever_it_is(op: str, length: int) -> None:
    """The first NaN is found before and after the extreme, in its lane and in other lanes."""
    extreme = np.inf if op == "argmax" else -np.inf
    for first in range(length):
        x = array("f8", (length,))
        x[length // 2] = extreme
        x[first] = x[-1] = np.nan
        agree(op, x, (None,), axes=(0,), keepdims=False)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_positions_in_what_threads_would_share(op: str) -> None:
    x = RNG.normal(size=1 << 20).astype(np.float32)
    agree(op, x, x.shape, axes=(0,), keepdims=False)
    agree(op, x.reshape(1 << 10, 1 << 10), (1 << 10, 1 << 10), axes=(1,), keepdims=False)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0, 5), (0, 3, 1)])
def test_positions_in_no_rows(op: str, shape: tuple[int, ...], is_known: bool) -> None:
    axis = max(k for k, size in enumerate(shape) if size > 1)
    agree(op, np.ones(shape), shape if is_known else tuple(None for _ in shape), axes=(axis,), keepdims=False)


@pytest.mark.parametrize("op", [cnp.argmax, cnp.argmin])
@pytest.mark.parametrize("dtype", ["f8", "i8", "f2"])
@pytest.mark.parametrize("is_known", [True, False])
def test_positions_along_two_axes_of_which_one_has_a_single_element(op: Any, dtype: str, is_known: bool) -> None:
    """Positions along two axes, one of a single element. Found: a kernel of both axes returned the extremes as
    positions."""
    for shape in ((5, 1), (40, 1), (3, 40, 1), (1, 40), (1, 30, 1), (20, 1, 1)):
        x = (10 * RNG.normal(size=shape)).astype(dtype)
        signature = None if is_known else (cg.TensorSpec((None,) * len(shape), x.dtype.name),)
        for first, second in itertools.permutations(range(len(shape)), 2):

            def both(x: Any, a: int = first, b: int = second) -> tuple[Any, Any]:
                return op(x, axis=a), op(x, axis=b)

            found = cg.function(lambda x, both=both: both(x), engine="native", signature=signature)(x)
            reference = getattr(np, op.__name__)
            np.testing.assert_array_equal(found[0], reference(x, axis=first))
            np.testing.assert_array_equal(found[1], reference(x, axis=second))
