"""Native LU solves agree with NumPy: layouts, pivots, and the status of a singular matrix."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from native.matrices import FLOATS, dense

from ctrlgrad.engines.native.products.library import Products

SMALL = pytest.mark.parametrize("small", [True, False])


COMPLEX = [("complex64", False), ("complex128", False)]


@pytest.mark.parametrize("dtype, small", [*itertools.product(FLOATS, (True, False)), *COMPLEX])
def test_linear_systems(dtype: str, small: bool, native: Products) -> None:
    rng, sizes = np.random.default_rng(12), range(1, 20) if small else (1, 2, 7, 31, 32, 65, 100, 129, 200)
    for n, r in itertools.product((*sizes, 33, 64), (1, 2, 9, 40)):
        a = dense(rng, n, n, dtype) + np.diag(np.full(n, 0.5)).astype(dtype)
        b = dense(rng, n, r, dtype)
        for matrix, right in ((a, b), (a.T, np.asfortranarray(b)), (a[::-1, ::-1], b[:, ::-1])):
            x, status = native.lu_solve(matrix, right, small)
            residual = np.abs(matrix.astype("D") @ x - right).max()
            scale = np.abs(matrix).max() * np.abs(x).max() * n
            assert status == 0 and residual <= scale * np.finfo(dtype).eps * 4


@SMALL
@pytest.mark.parametrize("dtype", FLOATS)
def test_pivoting_is_needed_and_done(dtype: str, small: bool, native: Products) -> None:
    a = np.array([[0, 1, 2], [1e-6, 1, 0], [3, 0, 1]], dtype)
    b = np.array([[3.0], [1.0], [4.0]], dtype)
    x, status = native.lu_solve(a, b, small)
    assert status == 0 and np.allclose(x, np.linalg.solve(a.astype("d"), b), rtol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_product_of_the_pivots_is_the_determinant(dtype: str, native: Products) -> None:
    rng = np.random.default_rng(15)
    for n in (0, 1, 2, 3, 5, 8, 13, 33):
        a = dense(rng, n, n, dtype) / max(n, 1) ** 0.5
        for matrix in (a, a.T, a[::-1], a[:, ::-1]):
            x, status = native.pivots(matrix)
            expected, rtol = np.linalg.det(matrix.astype("d")), n * 5e3 * np.finfo(dtype).eps
            assert status == 0 and np.isclose(x.prod(), expected, rtol=rtol)
    x, status = native.pivots(np.ones((3, 3), dtype))
    assert status == 2 and not x.any()


@pytest.mark.parametrize("dtype, small", [*itertools.product(FLOATS, (True, False)), *COMPLEX])
def test_the_status_names_the_pivot(dtype: str, small: bool, native: Products) -> None:
    n = 5 if small else 70
    eye, one = np.eye(n, dtype=dtype), np.ones((n, 1), dtype)
    for k in (0, 1, n // 2, n - 1):
        singular = eye.copy()
        singular[k, k] = 0
        assert native.lu_solve(singular, one, small)[1] == k + 1
    assert native.lu_solve(np.ones((n, n), dtype), one, small)[1] == 2
    x, status = native.lu_solve(eye * np.nan, one, small)
    assert status == 0 and np.isnan(x).all()  # like LAPACK: NaN, and the matrix counts as regular
    nothing, no_columns = np.zeros((0, 0), dtype), np.zeros((n, 0), dtype)
    assert native.lu_solve(nothing, nothing, small)[1] == native.lu_solve(eye, no_columns, small)[1] == 0
