"""Carries that start as Python numbers, in a nest of loops: what is learned of them, and how often they are traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TypeMismatchError


def fori(f):
    return lambda y: cg.fori_loop(0, 2, lambda i, c: c + f(y), 0)


def of_its_carry(f):
    """An inner loop whose body depends on the settled type of the outer loop's carry."""
    return lambda y: cg.fori_loop(0, 2, lambda i, c: c + f(y + c), 0)


def while_loop(f):
    return lambda y: cg.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + f(y)), (0, 0))[1]


def scan(f):
    def outer(y):
        total, rows = cg.scan(lambda c, x: (c + f(y * x), c), 0, np.ones(2))
        return total + cnp.sum(rows)

    return outer


def summed(f):
    return lambda y: cg.foldl(lambda c, x: c + f(y * x), np.ones(2), 0)


LOOPS = (fori, of_its_carry, while_loop, scan, summed)
loops = pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)


def nest(loop: Any, depth: int, innermost: Any) -> Any:
    for _ in range(depth):
        innermost = loop(innermost)
    return innermost


@loops
def test_the_innermost_body_is_traced_once_more_with_every_level(loop):
    """Twice more where a carry stays a Python number, of which something might still be learned."""
    for depth in (1, 2, 5, 8):
        calls: list[int] = []

        def innermost(y):
            calls.append(1)  # noqa: B023
            return np.sin(y)

        graph = cg.function(nest(loop, depth, innermost)).graph(0.5)
        assert len(calls) == (2 * depth if loop is while_loop else depth + 1)
        assert graph.outputs[0].tensor.dtype == np.float64


@loops
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_result_is_that_of_python(loop, dtype):
    x = np.dtype(dtype).type(0.5)
    found = cg.function(nest(loop, 3, np.sin), engine="reference")(x)
    plain = {
        fori: 8 * np.sin(x),
        while_loop: 8 * np.sin(x),
        summed: 8 * np.sin(x),
        # Each level: twice f, and the sum of the carries 0 and f.
        scan: 27 * np.sin(x),
        of_its_carry: of_python(3, x),
    }[loop]
    np.testing.assert_allclose(found, plain, rtol=1e-6 if dtype == "float32" else 1e-13)


def of_python(depth, y):
    if depth == 0:
        return np.sin(y)
    total = 0.0
    for _ in range(2):
        total += of_python(depth - 1, y + total)
    return total


def test_a_dtype_is_learned_step_by_step():
    """b becomes float32 by x, then a by b, in both loops."""

    def step(i, c):
        a, _ = cg.fori_loop(0, 2, lambda j, d: (d[0] + d[1], d[1] + x32), (0, 0))
        return (c[0] + c[1], c[1] + a)

    x32 = np.float32(1.5)
    a, b = cg.function(lambda: cg.fori_loop(0, 3, step, (0, 0)), engine="reference")()
    assert (a.dtype, b.dtype) == (np.float32, np.float32)
    assert (float(a), float(b)) == (4.5, 4.5)


def test_an_array_learns_its_element_in_a_nest():
    def collected(x, depth):
        array = cg.TensorArray(None, size=2)
        value = x if depth == 0 else collected(x, depth - 1)
        filled = cg.fori_loop(0, 2, lambda i, c: c.write(i, value * (i + 1.0)), array)
        return cnp.sum(filled.stack())

    assert float(cg.function(lambda x: collected(x, 2), engine="reference")(2.0)) == 54.0

    def inside(i, total):
        filled = cg.fori_loop(0, 2, lambda j, c: c.write(j, total + j), cg.TensorArray(None, size=2))
        return total + cnp.sum(filled.stack()) * 0.5

    assert float(cg.function(lambda: cg.fori_loop(0, 2, inside, 1), engine="reference")()) == 5.5


def test_a_guess_in_error_is_not_shown():
    """The loop inside starts as an integer; the gradient around its result is legal once it has learned."""

    def body(i, c):
        a, _ = cg.fori_loop(0, 2, lambda j, d: (d[0] + d[1], d[1] + 0.5), (0, 0))
        return c + cg.grad(lambda y: y * y)(a)

    assert float(cg.function(lambda: cg.fori_loop(0, 2, body, 0), engine="reference")()) == 2.0


def test_an_error_of_a_body_inside_is_shown_as_it_is():
    body = lambda i, c: c + cnp.ones(3)
    with pytest.raises(TypeMismatchError, match="the body's result differs from the carry") as caught:
        cg.function(lambda: cg.fori_loop(0, 2, lambda i, c: c + cg.fori_loop(0, 2, body, 0), 0)).graph()
    assert "carry: starts as f64[], the body returns f64[3]" in str(caught.value)
