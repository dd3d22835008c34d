"""Positions of extremes and growing sums in machine code, to the bit as the reference engine's."""

from __future__ import annotations

import numpy as np
import pytest

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
    x = (RNG.normal(size=shape) * 5).astype(dtype)
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
    agree("cumsum", array(dtype, shape), known, axis=axis, reverse=reverse)


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
