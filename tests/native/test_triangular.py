"""Native triangular solves and Cholesky factors agree with NumPy: forms, layouts, blocks, and the status of
failures."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from native.matrices import dense

from ctrlgrad.engines.native.products.library import Products
from ctrlgrad.engines.native.products.triangular import BLOCK

DTYPES = ("float32", "float64", "complex64", "complex128")
FORMS = list(itertools.product((True, False), (True, False)))
# Rows for which the last diagonal block is partial, whole or one more, and blocks are halved several times.
ROWS = (1, 2, 3, 5, 8, 13, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 100, 200)


def triangles(rng: np.random.Generator, n: int, dtype: str, lower: bool, unit: bool) -> tuple[np.ndarray, np.ndarray]:
    """A triangular matrix, and a copy with NaN in the triangle that must not be read."""
    part = np.tril if lower else np.triu
    a = dense(rng, n, n, dtype) / np.asarray(2 * n**0.5, dtype)
    a[np.diag_indices(n)] += np.asarray(1.5, dtype)
    whole, given = part(a), np.where(part(np.ones((n, n))) > 0, a, np.asarray(np.nan, dtype))
    if unit:
        whole[np.diag_indices(n)], given[np.diag_indices(n)] = 1, np.nan
    return whole, given


@pytest.mark.parametrize(("lower", "unit"), FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_triangular_systems(dtype: str, lower: bool, unit: bool, native: Products) -> None:
    rng, wide = np.random.default_rng(13), np.dtype(dtype).char in "FD"
    for n, r, small in itertools.product(ROWS, (1, 2, 3, 8, 17, 40), (True, False)):
        if small and n > BLOCK:
            continue
        whole, given = triangles(rng, n, dtype, lower, unit)
        b = dense(rng, n, r, dtype)
        for matrix, right in ((given, b), (np.asfortranarray(given), np.asfortranarray(b)), (given, b[:, ::-1])):
            x, status = native.triangular_solve(matrix, right, lower, unit, small)
            residual = np.abs(whole.astype("D" if wide else "d") @ x - right).max()
            scale = (np.abs(whole).astype("d") @ np.abs(x)).max()
            assert status == 0 and residual <= scale * max(n, 8) * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_factors(dtype: str, native: Products) -> None:
    rng = np.random.default_rng(14)
    for n, small in itertools.product((*ROWS, 333), (True, False)):
        if small and n > BLOCK:
            continue
        half = dense(rng, n, n, dtype)
        a = (half @ half.conj().T + n * np.eye(n)).astype(dtype)
        expected = np.linalg.cholesky(a.astype("D"))
        a[np.triu_indices(n, 1)] = np.nan  # the upper triangle is not read
        for matrix in (a, np.asfortranarray(a)):
            x, status = native.cholesky(matrix, small)
            assert status == 0 and not np.triu(x, 1).any()
            assert np.allclose(x, expected, rtol=0, atol=30 * n * np.finfo(dtype).eps)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_status_names_the_pivot(dtype: str, small: bool, native: Products) -> None:
    n = 5 if small else 3 * BLOCK
    eye, one = np.eye(n, dtype=dtype), np.ones((n, 1), dtype)
    for k in {0, 1, n // 2, n - 1}:
        singular, negative = eye.copy(), eye.copy()
        singular[k, k], negative[k, k] = 0, -1
        assert native.cholesky(singular, small)[1] == native.cholesky(negative, small)[1] == k + 1
        for lower in (True, False):
            assert native.triangular_solve(singular, one, lower, False, small)[1] == k + 1
            x, status = native.triangular_solve(singular, one, lower, True, small)
            assert status == 0 and (x == 1).all()
    x, status = native.cholesky(eye * np.asarray(np.nan, dtype), small)
    assert status == 0 and np.isnan(x[np.tril_indices(n)]).all()
    nothing, no_columns = np.zeros((0, 0), dtype), np.zeros((n, 0), dtype)
    assert native.cholesky(nothing, small)[1] == native.triangular_solve(nothing, nothing, True, False, small)[1] == 0
    assert native.triangular_solve(eye, no_columns, True, False, small)[1] == 0


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_complex_pivot_is_divided_by_though_its_square_is_no_number(dtype: str, native: Products) -> None:
    most = np.finfo(dtype).max
    for pivot in (complex(most / 4, most / 8), complex(most / 8, -most / 4), 8j / most, complex(0, most / 2)):
        a = np.array([[pivot]], dtype)
        x, status = native.triangular_solve(a, a * np.asarray(0.5, dtype), True)
        assert status == 0 and np.allclose(x, 0.5, rtol=10 * np.finfo(dtype).eps)
