"""Slices of a plainly constant length, `x[i : i + 3]`, and the dynamic slices of `lax`, by rows and in machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad import lax
from ctrlgrad.errors import IndexOutOfRangeError, TypeMismatchError
from ctrlgrad.execution import explain_on

X, M, STARTS = np.arange(10.0) ** 2, np.arange(30.0).reshape(5, 6), np.array([1, 2])

# A function of an array and a start.
CALLS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "length": (lambda x, i: x[i : i + 3], X),
    "negative start": (lambda x, i: x[i - 7 : i - 4], X),
    "both ends moved": (lambda x, i: x[i + 1 : i + 4] * 2, X),
    "constant first": (lambda x, i: x[i : 2 + i], X),
    "two axes": (lambda x, i: x[i : 2 + i, i - 1 : i + 2], M),
    "new axis": (lambda x, i: x[:, i : 2 + i, None], M),
    "beside an index": (lambda x, i: x[i, i : 2 + i], M),
    "set": (lambda x, i: x.at[i : i + 2, i : i + 3].set(x[0, :3]), M),
    "add": (lambda x, i: x.at[i : i + 2, 3].add(2.0), M),
    "gradient": (lambda x, i: cg.grad(lambda x: (x[i : i + 3] ** 2).sum())(x), X),
    "in a loop": (lambda x, i: cg.fori_loop(0, 3, lambda k, s: s + x[i + k : i + k + 2].sum(), 0.0), X),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)), M),
    "dynamic_update_slice": (lambda x, i: lax.dynamic_update_slice(x, x[:2, :2] * 2, (i, i + 9)), M),
}


@pytest.mark.parametrize("label", CALLS)
@pytest.mark.parametrize("shared", [True, False])
def test_slices_by_rows(label: str, shared: bool) -> None:
    fn, x = CALLS[label]
    xs = [x, x] if shared else [x, x + 1]
    with cg.options(engine="reference"):
        rows = [cg.function(fn)(row, start) for row, start in zip(xs, STARTS, strict=True)]
        found = cg.vmap(fn, in_axes=(None if shared else 0, 0))(x if shared else np.stack(xs), STARTS)
    np.testing.assert_array_equal(found, np.stack(rows))


def test_starts_of_narrow_integers() -> None:
    with cg.options(engine="reference"):
        found = cg.vmap(lambda x, i: x[i : i + 3], in_axes=(None, 0))(X, STARTS.astype(np.int32))
    np.testing.assert_array_equal(found, np.stack([X[1:4], X[2:5]]))


@pytest.mark.parametrize("start", [8, -1, -2])
def test_a_slice_that_would_be_shorter_fails(start: int) -> None:
    with cg.options(engine="reference"), pytest.raises(IndexOutOfRangeError):
        cg.vmap(lambda x, i: x[i : i + 3], in_axes=(None, 0))(X, np.array([0, start]))


def test_a_length_of_each_rows_own_is_an_error() -> None:
    with pytest.raises(TypeMismatchError, match="a slice's bound differs from row to row"):
        cg.vmap(lambda x, i: x[i : 2 * i], in_axes=(None, 0))(X, STARTS)


LOOPS: dict[str, Callable[..., Any]] = {
    "slice": lambda x: cg.fori_loop(0, 5, lambda i, s: s + x[i : i + 3].sum(), 0.0),
    "dynamic_slice": lambda x: cg.fori_loop(0, 5, lambda i, s: s + lax.dynamic_slice(x, (i,), (3,)).sum(), 0.0),
    "dynamic_update_slice": lambda x: cg.fori_loop(0, 5, lambda i, x: lax.dynamic_update_slice(x, x[:2] * 2, (i,)), x),
}


@pytest.mark.parametrize("label", LOOPS)
def test_slices_of_traced_starts_are_native(label: str) -> None:
    graph = cg.function(LOOPS[label]).graph(X)
    (loop,) = explain_on("native", graph, [X]).all_loops()
    assert (loop.engine, loop.ops) == ("native", {})
    for fn in (LOOPS[label], cg.grad(lambda x: LOOPS[label](x).sum())):
        found = [cg.function(fn, engine=engine)(X) for engine in ("native", "reference")]
        np.testing.assert_allclose(*found)
