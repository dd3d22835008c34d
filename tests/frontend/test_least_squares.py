"""Least squares, condition numbers, products of several matrices, and transforms along two axes: as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError

RNG = np.random.default_rng(4)
TALL, WIDE, SQUARE = RNG.normal(size=(5, 3)), RNG.normal(size=(3, 5)), RNG.normal(size=(3, 3))
SINGULAR = np.outer(np.arange(1.0, 6.0), np.arange(1.0, 4.0))
MATRIX = cg.TensorSpec((None, None), "float64")


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("a", [TALL, WIDE, SQUARE, SINGULAR], ids=["tall", "wide", "square", "singular"])
def test_least_squares_are_numpys(a: np.ndarray, columns: int | None, dtype: str) -> None:
    b = RNG.normal(size=(len(a),) if columns is None else (len(a), columns)).astype(dtype)
    a = (a + 0.3j * a[::-1] if dtype.startswith("c") else a).astype(dtype)
    rcond = max(a.shape) * np.finfo(dtype).eps
    x, squares, rank, s = np.linalg.lstsq(a, b, rcond=rcond)
    found = cg.function(lambda a, b: cnp.linalg.lstsq(a, b))(a, b)
    close = {"rtol": 2e-3, "atol": 1e-4} if dtype == "float32" else {"rtol": 1e-8, "atol": 1e-11}
    np.testing.assert_allclose(found[0], x, **close)
    left = np.atleast_1d((np.abs(b - a @ x) ** 2).sum(0))
    np.testing.assert_allclose(found[1], left, **close)
    assert int(found[2]) == rank
    np.testing.assert_allclose(found[3], s, **close)
    np.testing.assert_array_equal(np.shape(squares) in ((0,), left.shape), True)


def test_least_squares_of_rows_and_by_numpys_own_name() -> None:
    tall, sides = RNG.normal(size=(4, 5, 3)), RNG.normal(size=(4, 5))
    found = cg.vmap(lambda a, b: np.linalg.lstsq(a, b)[0])(tall, sides)
    np.testing.assert_allclose(
        found, [np.linalg.lstsq(a, b, None)[0] for a, b in zip(tall, sides, strict=True)], rtol=1e-8
    )


def test_singular_values_below_rcond_count_as_zero() -> None:
    a = np.diag([1.0, 0.1, 0.001])
    x, _, rank, _ = cnp.linalg.lstsq(a, np.ones(3), rcond=0.01)
    np.testing.assert_allclose(x, [1.0, 10.0, 0.0], atol=1e-12)
    assert int(rank) == 2


@pytest.mark.parametrize("p", [None, 2, -2, "fro", 1, np.inf])
def test_condition_numbers_are_numpys(p: Any) -> None:
    x = RNG.normal(size=(2, 3, 3))
    np.testing.assert_allclose(cg.function(lambda x: cnp.linalg.cond(x, p))(x), np.linalg.cond(x, p), rtol=1e-9)


def test_the_product_of_several_matrices_is_that_of_least_work() -> None:
    a, b, c, v = RNG.normal(size=(50, 2)), RNG.normal(size=(2, 50)), RNG.normal(size=(50, 3)), RNG.normal(size=3)
    for factors in ((a, b, c), (a, b, c, v), (v, c.T, a), (b, a)):
        expected = np.linalg.multi_dot(factors)
        np.testing.assert_allclose(cg.function(lambda *xs: cnp.linalg.multi_dot(xs))(*factors), expected, rtol=1e-9)
    graph = cg.function(lambda *xs: cnp.linalg.multi_dot(xs)).graph(a, b, c)
    assert [n.result.tensor.shape for n in graph.nodes if n.op.name == "matmul"] == [(2, 3), (50, 3)]
    unknown = cg.function(lambda *xs: cnp.linalg.multi_dot(xs), signature=[MATRIX] * 3)
    np.testing.assert_allclose(unknown(a, b, c), a @ b @ c, rtol=1e-9)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2"])
@pytest.mark.parametrize("given", [{}, {"s": (3, 6)}, {"axes": (0, 1)}, {"norm": "ortho"}])
def test_transforms_along_two_axes_are_numpys(name: str, given: dict[str, Any]) -> None:
    x = RNG.normal(size=(2, 4, 5))
    x = x if name.startswith("rfft") else x + 1j * RNG.normal(size=x.shape)
    expected = getattr(np.fft, name)(x, **given)
    np.testing.assert_allclose(getattr(cnp.fft, name)(x, **given), expected, rtol=1e-9, atol=1e-12)
    rows = cg.vmap(lambda r: getattr(np.fft, name)(r))(x)
    np.testing.assert_allclose(rows, getattr(np.fft, name)(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda: cnp.linalg.lstsq(np.ones(3), np.ones(3)), "not a matrix"),
        (lambda: cnp.linalg.multi_dot([np.ones((2, 2))]), "not several"),
        (lambda: cnp.linalg.multi_dot([np.ones((2, 2)), np.ones(2), np.ones((2, 2))]), "vectors at the ends"),
    ],
)
def test_other_ranks_are_refused(fn: Any, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        fn()


@pytest.mark.parametrize("module", ["linalg", "fft"])
def test_a_missing_name_is_told_by_the_public_module(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'ctrlgrad.numpy.{module}' has no attribute 'nonesuch'"):
        getattr(getattr(cnp, module), "nonesuch")  # noqa: B009
