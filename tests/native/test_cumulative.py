"""Cumulative sums and products in machine code: every axis, parts that threads share, rounding, derivatives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.machines import THREADS

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import threads
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.cumulative import HELD, STRIP
from ctrlgrad.engines.native.products.library import products
from ctrlgrad.ir import Builder, TensorType
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.model import Cumulate, Plan, Share
from ctrlgrad.plan.printer import format_plan
from ctrlgrad.verify import check_grads

RNG = np.random.default_rng(11)
DTYPES = ("f8", "f4", "f2", "c16", "c8", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")
SHAPES = [
    (0,),
    (1,),
    (2,),
    (67,),
    (1, 9),
    (9, 1),
    (5, 0),
    (0, 5),
    (33, 7),
    (6, 70),
    (3, 5, 4),
    (2, 9, 1),
    (2, 3, STRIP + 1),
]


def plan_of(fn: Callable[..., Any], *args: np.ndarray) -> Plan:
    graph = optimised_graph(cg.function(fn).graph(*args))
    return engine.plan_of(graph, engine.shapes_of(graph, args))


def whole_numbers(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers whose sums are exact in any order."""
    x = RNG.integers(-3, 4, shape)
    return np.asarray(x + 1j * RNG.integers(-3, 4, shape) if dtype[0] == "c" else x).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_axis_of_every_shape(dtype: str, reverse: bool) -> None:
    for shape, is_known in itertools.product(SHAPES, (True, False)):
        for axis in range(len(shape)):
            x = whole_numbers(dtype, shape)
            builder = Builder()
            value = builder.input(TensorType(x.dtype, shape if is_known else tuple(None for _ in shape)))
            graph = builder.finish([builder.emit("cumsum", (value,), {"axis": axis, "reverse": reverse})])
            turned = np.flip(x, axis) if reverse else x
            expected = np.cumsum(turned, axis, dtype=x.dtype)
            (found,) = engine.run(graph, [x])
            np.testing.assert_array_equal(found, np.flip(expected, axis) if reverse else expected)


@pytest.mark.parametrize("dtype", ["i8", "i4", "u2", "i1"])
def test_products_of_integers(dtype: str) -> None:
    for shape in SHAPES:
        for axis in range(len(shape)):
            x = whole_numbers(dtype, shape)
            found = cg.function(lambda x, axis=axis: cg.lax.cumprod(x, axis), engine="native")(x)
            np.testing.assert_array_equal(found, np.cumprod(x, axis, dtype=x.dtype))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::-1],
        lambda x: x[:, ::-1],
        lambda x: x[3:],
        lambda x: x[:, 2:5],
        lambda x: x.T[::-1],
        lambda x: cnp.broadcast_to(x[0], (4, *x.shape[1:])),
        lambda x: cnp.swapaxes(x.reshape(4, 5, 9), 0, 1),
    ],
)
def test_views_are_read_as_they_lie(view: Callable[[Any], Any]) -> None:
    x = RNG.normal(size=(20, 9))
    for axis in (0, 1):
        fn = lambda x, axis=axis: cnp.cumsum(view(x), axis)
        found, expected = (cg.function(fn, engine=name)(x) for name in ("native", "reference"))
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_a_turned_or_flipped_matrix_is_not_copied() -> None:
    for fn in (lambda x: cnp.cumsum(x.T, 0), lambda x: cnp.cumsum(x[::-1], 0)):
        assert isinstance(plan_of(lambda x, fn=fn: cnp.sum(fn(x)), np.ones((5, 7))).body.steps[0], Cumulate)


@pytest.mark.parametrize(
    "shape", [(30_001,), (3, 9_001), (9_001, 3), (5_003, 12), (2, 4_001, 3), (90, 1_000), (1_000, 90)]
)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "i4"])
def test_the_same_bits_whatever_the_number_of_threads(
    shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WORK_TO_SHARE", 1000)
    monkeypatch.setattr(threads, "WORK_OF_A_PART", 5000)
    x = (RNG.normal(size=shape) * 5).astype(dtype)
    before = products().threads
    for axis, reverse in itertools.product(range(len(shape)), (False, True)):
        fn = cg.function(lambda x, axis=axis, reverse=reverse: cg.lax.cumsum(x, axis, reverse), engine="native")
        found = []
        for count in THREADS:
            products().set_threads(count)
            found.append(fn(x))
        products().set_threads(before)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)
        turned = np.flip(x, axis) if reverse else x
        expected = np.cumsum(turned, axis, dtype={"f": "f8", "c": "c16", "i": "i4"}[x.dtype.kind])
        expected = np.flip(expected, axis) if reverse else expected
        np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("shape", [(200_003,), (100_003, 2), (50_003, HELD + 1)])
def test_rounding_is_no_worse_than_that_of_a_sum_in_order(shape: tuple[int, ...]) -> None:
    """Mean errors over all elements of sums of positive numbers, against sums in twice the precision."""
    x = RNG.random(shape)
    exact = np.cumsum(x, 0, dtype=np.longdouble)
    found, in_order = (np.abs(y - exact).mean() for y in (cg.function(lambda x: cnp.cumsum(x, 0))(x), np.cumsum(x, 0)))
    assert found <= in_order


@pytest.mark.parametrize("where", [0, 5, 70, 40_000])
@pytest.mark.parametrize("values", [(np.nan,), (np.inf,), (-np.inf, np.inf), (np.inf, np.nan)])
def test_nan_and_infinities_go_on_as_in_numpy(where: int, values: tuple[float, ...]) -> None:
    x = RNG.normal(size=(50_000, 1))
    for k, value in enumerate(values):
        x[where + 3 * k] = value
    with np.errstate(invalid="ignore"):
        for given in (x, x[:, 0], np.repeat(x, 3, 1), x.T):
            axis = int(given.ndim == 2 and given.shape[0] == 1)
            found, expected = cg.function(lambda x, axis=axis: cnp.cumsum(x, axis))(given), np.cumsum(given, axis)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_sum_of_negative_zeros_is_a_negative_zero() -> None:
    for shape in ((100,), (100, 3), (100, 40), (1 << 18,)):
        found = cg.function(lambda x: cnp.cumsum(x, 0))(np.full(shape, -0.0))
        assert np.signbit(found).all()


def test_the_plan_says_how_it_is_shared_and_the_checker_judges_it() -> None:
    plan = plan_of(lambda x: cnp.cumsum(x, 0), np.ones((1 << 17, 2), "f4"))
    ((step, share),) = plan.shares.items()
    assert share == Share((1,), 8192, 16, has_results=True)
    told = ", in float64, lanes along columns, 16 parts along 1 with results of their own"
    assert told in format_plan(plan)
    check(plan)
    for wrong, told in (
        (Share((1,), 8192, 15, has_results=True), "not its 131072 positions"),
        (Share((1,), 8192, 16), "results of their own or not"),
        (Share((2,), 1, 2, has_results=True), "results of their own or not"),
        (Share((1, 2), 8192, 16, has_results=True), "parts along"),
        (Share((2,), 1, 3), "not its 2 positions"),
    ):
        with pytest.raises(PlanError, match=told):
            check(replace(plan, shares={step: wrong}))


@pytest.mark.parametrize(
    ("shape", "axis", "cut"),
    [
        ((1 << 16,), 0, (1,)),
        ((1 << 8, 1 << 8), 1, (0,)),
        ((1 << 4, 1 << 12), 0, (2,)),
        ((1 << 15, 2), 0, (1,)),
        ((1 << 8, 1 << 4, 1 << 4), 1, (0,)),
    ],
)
def test_the_axis_that_gives_most_parts_is_cut(shape: tuple[int, ...], axis: int, cut: tuple[int, ...]) -> None:
    (share,) = plan_of(lambda x: cnp.cumsum(x, axis), np.ones(shape)).shares.values()
    assert share.axes == cut


def test_little_work_is_not_shared() -> None:
    """24 units for each float64: it is read twice and written."""
    count = -(-threads.WORK_TO_SHARE // 24)
    assert not plan_of(cnp.cumsum, np.ones(count - 1)).shares
    assert plan_of(cnp.cumsum, np.ones(count)).shares


@pytest.mark.parametrize("shape", [(9,), (4, 3), (3, 20), (2, 3, 2)])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives(shape: tuple[int, ...], name: str, reverse: bool) -> None:
    """First and second derivatives by finite differences and by JAX."""
    jax = pytest.importorskip("jax")
    x, w = RNG.normal(size=shape) + 1, RNG.normal(size=shape)
    for axis in range(len(shape)):
        fn = lambda x, axis=axis: cnp.sum(cnp.sin(getattr(cg.lax, name)(x, axis, reverse)) * w)
        check_grads(fn, (x,), order=2)
        with jax.enable_x64(True):
            judge = lambda x, axis=axis: jax.numpy.sum(jax.numpy.sin(getattr(jax.lax, name)(x, axis, reverse)) * w)
            second = lambda np, grad, f: grad(lambda x: np.sum(grad(f)(x) ** 2))
            np.testing.assert_allclose(cg.function(cg.grad(fn))(x), jax.grad(judge)(x), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(
                cg.function(second(cnp, cg.grad, fn))(x), second(jax.numpy, jax.grad, judge)(x), rtol=1e-9, atol=1e-8
            )
