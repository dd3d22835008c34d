"""Compiled programs with loops flush subnormal numbers to zero; other programs keep them
(`options(flush_subnormals=)`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import target
from ctrlgrad.engines.native.products.library import products

TINY = np.finfo(np.float64).smallest_normal
has_control = pytest.mark.skipif(
    target.host().triple.partition("-")[0] not in target._CONTROL, reason="this processor always keeps them"
)


def halved(x: Any) -> Any:
    """Each element divided by 16 in a loop."""
    return cg.fori_loop(0, 4, lambda i, y: y * 0.5, x)


@has_control
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16, 64])
@pytest.mark.parametrize("count", [1, 7, 1_000, 300_000])
def test_a_loop_flushes_subnormal_numbers_on_all_threads(count: int, threads: int) -> None:
    x = np.full(count, TINY)
    before = products().threads
    products().set_threads(threads)
    try:
        fn = cg.function(halved, engine="native")
        assert not np.any(fn(x))
        with cg.options(flush_subnormals=False):
            np.testing.assert_array_equal(fn(x), x / 16)
        assert not np.any(fn(x))
    finally:
        products().set_threads(before)


def test_a_program_without_loops_keeps_them() -> None:
    x = np.full(1_000, TINY)
    np.testing.assert_array_equal(cg.function(lambda x: x / 16, engine="native")(x), x / 16)


@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_own_arithmetic_keeps_them(fails: bool) -> None:
    """The caller's floating-point mode is restored after a call, also after a failed one."""

    def body(i: Any, y: Any) -> Any:
        return cg.pure_callback(lambda y: y * (1 // (not fails)), y, y)

    fn = cg.function(lambda x: cg.fori_loop(0, 3, body, x), engine="native")
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        fn(np.ones(3))
    assert np.all(np.full(3, TINY) / 16 == 2.0**-1026)


def vanishing(engine: str) -> tuple[Callable[..., Any], np.ndarray]:
    def loss(w: Any) -> Any:
        return cnp.sum(cg.fori_loop(0, 300, lambda i, h: cnp.tanh(h @ w), cnp.ones((2, 3), "float32")))

    return cg.function(cg.grad(loss), engine=engine), 0.2 * np.eye(3, dtype=np.float32)


def test_vanishing_gradients_are_those_of_the_other_engines() -> None:
    """Vanishing gradients agree with the other engines: flushing changes them by less than the smallest normal
    number."""
    native, w = vanishing("native")
    reference, _ = vanishing("reference")
    np.testing.assert_allclose(native(w), reference(w), rtol=1e-5, atol=1e-37)
