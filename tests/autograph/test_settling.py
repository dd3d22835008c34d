"""Variables that start as Python numbers, in a nest of loops: what is learned of them, and how often it is traced."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

CALLS = itertools.count()


def innermost(y: Any) -> Any:
    next(CALLS)
    return np.sin(y)


def one(y: Any, n: Any) -> Any:
    total = 0
    for _ in range(n):
        total = total + innermost(y)
    return total


def two(y: Any, n: Any) -> Any:
    total = 0
    for _ in range(n):
        total = total + one(y, n)
    return total


def four(y: Any, n: Any) -> Any:
    a = 0
    for _ in range(n):
        b = 0
        for _ in range(n):
            b = b + two(y, n)
        a = a + b
    return a


def eight(y: Any, n: Any) -> Any:
    a = 0
    i = 0
    while i < n:
        b = 0
        for _ in range(n):
            c = 0
            for _ in range(n):
                d = 0
                for _ in range(n):
                    d = d + four(y, n)
                c = c + d
            b = b + c
        a = a + b
        i = i + 1
    return a


def taken() -> int:
    """Number of calls of `innermost` since the last call of this function."""
    return next(CALLS)


@pytest.mark.parametrize(("nest", "depth"), [(one, 1), (two, 2), (four, 4), (eight, 8)])
def test_the_innermost_body_is_traced_a_few_times_more_with_every_level(nest: Any, depth: int) -> None:
    """Not twice as often: what is to be learned of a nest is learned from guesses."""
    before = taken()
    graph = cg.function(nest, autograph=True).graph(0.5, 2)
    assert taken() - before - 1 <= 2 * depth + 1
    assert graph.outputs[0].tensor.dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_result_of_a_nest_is_that_of_python(dtype: str) -> None:
    x = np.dtype(dtype).type(0.5)
    found = cg.function(four, autograph=True, engine="reference")(x, 2)
    np.testing.assert_allclose(found, 16 * np.sin(x), rtol=1e-6 if dtype == "float32" else 1e-13)
    assert float(cg.grad(cg.function(four, autograph=True))(0.5, 2)) == pytest.approx(16 * np.cos(0.5))


def collected(x: Any, n: Any) -> Any:
    """A flag leaves the inner loop, which writes an array."""
    total = 0
    for i in range(n):
        array = cg.TensorArray("float64", size=2, element_shape=())
        for j in range(2 + 0 * n):
            if j * x > 100.0:
                break
            array = array.write(j, x * (i + j))
        total = total + cnp.sum(array.stack())
    return total


def growing(x: Any, n: Any) -> Any:
    """An array learns its element in the inner loop, and a number beside it its dtype."""
    total = 0
    for i in range(n):
        array, last = cg.TensorArray(None, size=2), 0
        for j in range(2 + 0 * n):
            array = array.write(j, x * (i + j))
            last = last + total + x
        total = total + cnp.sum(array.stack()) + 0 * last
    return total


@pytest.mark.parametrize("nest", [collected, growing])
def test_arrays_and_flags_settle_in_a_nest(nest: Any) -> None:
    assert float(cg.function(nest, autograph=True, engine="reference")(2.0, 3)) == 2.0 * (1 + 3 + 5)


def inside_a_construct(x: Any, n: Any) -> Any:
    def body(carry: Any) -> Any:
        k, total = carry
        inner = 0
        for _ in range(n):
            inner = inner + innermost(x)
        return k + 1, total + inner

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0))[1]


def test_loops_of_python_and_constructs_learn_from_each_other() -> None:
    before = taken()
    found = cg.function(inside_a_construct, autograph=True, engine="reference")(0.5, 3)
    assert taken() - before - 1 <= 5
    np.testing.assert_allclose(found, 9 * np.sin(0.5))
