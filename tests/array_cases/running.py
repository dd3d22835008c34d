"""A function of arrays at once, traced, and by NumPy; and results side by side."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recording
from ctrlgrad.ir import Builder, Graph, TensorType, verify

TOLERANCE = {"float16": 3e-3, "float32": 2e-5, "float64": 1e-12, "complex128": 1e-12, "complex64": 2e-5}


def leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def trace(fn: Callable[..., Any], arrays: Sequence[Any], unknown: bool = False) -> Graph:
    """The graph of fn; with `unknown`, every size is. A Python number becomes a weak input."""
    builder = Builder()
    tensors = []
    for array in arrays:
        weak = isinstance(array, bool | int | float) and not isinstance(array, np.generic)
        a = np.asarray(array)
        shape = (None,) * a.ndim if unknown else a.shape
        tensors.append(Tensor(builder, builder.input(TensorType(a.dtype, shape)), weak))
    with recording(builder):
        outputs = [value_in(builder, leaf) for leaf in leaves(fn(*tensors))]
    graph = builder.finish(outputs)
    verify(graph)
    return graph


def run(fn: Callable[..., Any], arrays: Sequence[Any], unknown: bool = False) -> list[Any]:
    return run_graph(trace(fn, arrays, unknown), [np.asarray(a) for a in arrays], Run(check_types=True))


def reference(fn: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return leaves(fn(*arrays))


def assert_same(actual: Sequence[Any], expected: Sequence[Any], label: str) -> None:
    assert len(actual) == len(expected), label
    for a, e in zip(actual, expected, strict=True):
        a, e = np.asarray(a), np.asarray(e)
        assert a.dtype == e.dtype, f"{label}: {a.dtype}, expected {e.dtype}"
        assert a.shape == e.shape, f"{label}: {a.shape}, expected {e.shape}"
        tolerance = TOLERANCE.get(e.dtype.name, 0)
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance, err_msg=label)


def data(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return (rng.normal(size=shape) * 2).astype(dtype)
