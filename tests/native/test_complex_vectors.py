"""Kernels of complex numbers agree with NumPy. Their vectors hold real and imaginary parts: whole vectors and
remainders, by rows, columns, indices and strides, reduced or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native.engine import plan_of
from ctrlgrad.plan.arguments import ArgumentShape
from ctrlgrad.plan.axes import axes_of, lanes_along, lanes_of
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel

TOLERANCE = {"complex64": 1e-4, "complex128": 1e-11}


def programs(np_: Any, x: Any, y: Any, row: Any, column: Any, real: Any, rows: Any, columns: Any) -> tuple[Any, ...]:
    return (
        x * y,
        x * row + column,
        np_.conj(x) * real,
        np_.abs(x),
        np_.exp(x) * column,
        x / (y + 3),
        np_.where(real > 0, x, y),
        x.real * y.imag,
        # Loads and stores lane by lane.
        np_.exp(x[:, ::-1]),
        np_.exp(x.T),
        x[rows] * row,
        np_.exp(x[:, columns]),
        # Reductions of all, of columns, of rows.
        (x * y).sum(),
        (x * row).sum(0),
        (x * y).sum(1),
        x.sum(1)[::-1],
        np_.exp(x).sum(1),
        (np_.conj(x) * x).real.sum(1),
        (x == y).sum(1),
        (x / 3).prod(1),
    )


@pytest.mark.parametrize("shape", [(3, 1), (2, 2), (5, 3), (9, 8), (40, 7), (3, 16), (4, 33), (1, 100)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_agrees_with_numpy(dtype: str, shape: tuple[int, int]) -> None:
    rng, (m, n) = np.random.default_rng(1), shape

    def numbers(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)

    real = rng.normal(size=shape).astype(numbers(1).real.dtype)
    indices = rng.integers(0, m, 2 * m), rng.integers(0, n, n)
    given = (numbers(m, n), numbers(m, n), numbers(n), numbers(m, 1), real, *indices)
    expected = programs(np, *given)
    unknown = tuple(cg.TensorSpec((None,) * x.ndim, x.dtype) for x in given)
    for signature in (None, unknown):
        found = cg.function(lambda *a: programs(cnp, *a), engine="native", signature=signature)(*given)
        for x, y in zip(found, expected, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("dtype", "lanes"), [("complex64", 8), ("complex128", 4)])
def test_a_kernel_has_as_many_lanes_as_its_parts_have(dtype: str, lanes: int) -> None:
    def recurrence(state: Any, rates: Any) -> Any:
        return cg.fori_loop(0, 5, lambda k, x: cnp.exp(1j * cnp.abs(x)) * rates + cnp.conj(x), state)

    given = [np.zeros(64, dtype), np.zeros(64, dtype)]
    graph = cg.function(recurrence).graph(*given)
    plan = plan_of(graph, [ArgumentShape((64,))] * 2)
    kernels = [step for step in walk(plan.body) if isinstance(step, Kernel)]
    assert kernels
    for kernel in kernels:
        views = [*(operand.view for operand in kernel.operands), *(write.view for write in kernel.writes)]
        (axis,) = axes_of(kernel, views)
        assert lanes_along(kernel, axis, (), (), lanes_of(kernel, views, 32)) in (lanes, 2 * lanes)
