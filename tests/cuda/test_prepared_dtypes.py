"""Lists whose kernels compute with floats of 16 bits and complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on

DTYPES = ["float16", "bfloat16", "complex64", "complex128"]


def elements(dtype: str) -> Any:
    x = np.linspace(-0.5, 1.0, 9).reshape(3, 3)
    return (x + 0.25j * x.T if dtype.startswith("complex") else x).astype(dtype)


def computed(x: Any, k: Any) -> Any:
    """By kernels, with a number of the host; and rows that the gradient needs."""
    return cg.fori_loop(0, 4, lambda i, y: cnp.tanh(y) * k + x * x, x)


def updated(x: Any, k: Any) -> Any:
    """Rows written, added to, read and joined."""

    def step(i: Any, y: Any) -> Any:
        y = cnp.at(y)[i].add(x[i] * k)
        return cnp.concatenate([y[1:], y[:1]], axis=0) + cnp.at(y)[2 - i].set(x[0])

    return cg.fori_loop(0, 3, step, x)


def chosen(x: Any, k: Any) -> Any:
    """Indices that the card computes."""

    def step(i: Any, y: Any) -> Any:
        rows = cnp.argmax(cnp.abs(y).astype("float32"), axis=1)
        return y[rows] * k + y

    return cg.fori_loop(0, 3, step, x)


def multiplied(x: Any, k: Any) -> Any:
    """Products, one of which is added."""
    return cg.fori_loop(0, 3, lambda i, y: (y @ x) * k + x @ y.T, x)


def summed(x: Any, k: Any) -> Any:
    return cg.fori_loop(0, 3, lambda i, y: (y + cnp.sum(y, axis=0) * k + cnp.mean(y)) * 0.25, x)


def numbers(x: Any, k: Any) -> Any:
    """Value of an integer that goes by steps, as the host computes it."""
    return cg.fori_loop(0, 4, lambda i, y: y * (cnp.asarray(i).astype(x.dtype) * k + k), x)


def real(x: Any) -> Any:
    found = cnp.sum(cnp.real(x * cnp.conj(x))) if x.dtype.kind == "c" else cnp.sum(x * x)
    return found.astype("float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", [computed, updated, chosen, multiplied, summed, numbers])
def test_all_is_in_lists(fn: Callable[..., Any], dtype: str) -> None:
    """Also of the gradient, and of the gradient's; rows of indices from the card are only read."""
    x, k = elements(dtype), np.dtype(dtype).type(0.5)
    tolerance = {"float16": 2e-2, "bfloat16": 1e-1, "complex64": 1e-4}.get(dtype, 1e-9)
    loss = lambda x, k: real(fn(x, k))
    second = lambda x, k: real(cg.grad(loss)(x, k))
    for program in (loss, cg.grad(loss), cg.grad(second))[: 1 if fn is chosen else 3]:
        library, graph = StandIn(), cg.function(program).graph(x, k)
        ran = on_stand_in(graph, [x, k], library=library)
        for found, expected in zip(ran.results, on_reference(graph, [x, k]), strict=True):
            # Numbers of 16 bits are compared as fractions of the largest.
            scale = 1.0 if dtype_kind(np.dtype(dtype)) == "c" else float(np.max(np.abs(np.asarray(expected, "f4"))))
            assert_same([np.asarray(found) / scale], [np.asarray(expected) / scale], tolerance)
        report = explain_on(library, optimised_graph(graph, is_for_gpu=True), [x, k])
        assert all(loop.launching.startswith("from a list") for loop in report.all_loops()), str(report)


def test_a_complex_number_of_the_host_is_passed_whole() -> None:
    """Two words each, one that stays and one that differs from call to call."""
    library, x = StandIn(), elements("complex128")

    def fn(x: Any, k: Any) -> Any:
        return cg.fori_loop(0, 5, lambda i, y: y * k + (0.5 - 2.0j), x)

    for k in (np.complex128(0.3 - 0.7j), np.complex128(-1.1j)):
        graph = cg.function(fn).graph(x, k)
        ran = on_stand_in(graph, [x, k], library=library)
        assert ran.counts.runs == 1
        assert_same(ran.results, on_reference(graph, [x, k]))
