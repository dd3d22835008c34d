"""Bases of the whole space: `qr(mode="complete")` and `svd(full_matrices=True)` of matrices that are not square."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError
from ctrlgrad.scipy import linalg

WEIGHTS = np.sin(np.arange(16.0)).reshape(4, 4)
# Columns that have nothing below the diagonal: LAPACK's reflectors are the identity there.
TRIANGLE = np.array([[2.0, 0.5], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])


@pytest.fixture(autouse=True)
def _by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def _numbers(*shape: int, dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype[0] == "c" else 0)).astype(dtype)


def _assert_orthonormal(basis: np.ndarray, size: int, tolerance: float) -> None:
    assert basis.shape[-2:] == (size, size)
    products = np.conj(np.swapaxes(basis, -1, -2)) @ basis
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(size), products.shape), atol=tolerance)


MATRICES = {
    "tall": _numbers(5, 3),
    "wide": _numbers(3, 5),
    "square": _numbers(3, 3),
    "several": _numbers(2, 4, 2),
    "complex": _numbers(4, 2, dtype="complex128"),
    "float32": _numbers(4, 2, dtype="float32"),
    "integers": np.arange(8).reshape(4, 2),
    "one column": _numbers(3, 1),
    "no column": _numbers(3, 0),
    "of rank one": np.outer([0.0, 1.0, 2.0], [1.0, 2.0]),
    "a triangle": TRIANGLE,
}


@pytest.mark.parametrize("name", MATRICES)
def test_whole_bases_are_orthonormal_and_give_the_matrix_back(name: str) -> None:
    a = MATRICES[name]
    (m, n), k, tolerance = a.shape[-2:], min(a.shape[-2:]), 1e-5 if name == "float32" else 1e-12
    q, r = cnp.linalg.qr(a, mode="complete")
    _assert_orthonormal(q, m, tolerance)
    np.testing.assert_allclose(q @ r, a, atol=tolerance)
    if name != "of rank one":
        for found, expected in zip((q, r), np.linalg.qr(a, mode="complete"), strict=True):
            np.testing.assert_allclose(found, expected, atol=tolerance)
            assert found.dtype == expected.dtype
    u, s, vh = cnp.linalg.svd(a, full_matrices=True)
    _assert_orthonormal(u, m, tolerance)
    _assert_orthonormal(vh, n, tolerance)
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, atol=tolerance)


def test_scipy_s_qr_is_complete_by_default() -> None:
    a = MATRICES["tall"]
    q, r = linalg.qr(a)
    assert q.shape == (5, 5) and r.shape == (5, 3)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    np.testing.assert_allclose(linalg.qr(a, mode="r")[0], r)


def test_derivatives_of_a_complete_qr_are_those_of_jax() -> None:
    def of(xp: Any) -> Any:
        def total(a: Any) -> Any:
            q, r = xp.linalg.qr(a, mode="complete")
            return xp.sum(xp.sin(q) * WEIGHTS) + xp.sum(r**2 * WEIGHTS[:, :2])

        return total

    a, t = _numbers(4, 2), np.cos(np.arange(8.0)).reshape(4, 2)
    both = lambda ad, xp: lambda a: (ad.grad(of(xp))(a), ad.jvp(ad.grad(of(xp)), (a,), (t,))[1])
    for found, expected in zip(both(cg, cnp)(a), jax.jit(both(jax, jnp))(a), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    cg.check_grads(of(cnp), (a,), modes=("rev", "fwd"), against=("finite_differences",))


@pytest.mark.parametrize("a", [_numbers(4, 2), TRIANGLE], ids=["any", "a triangle"])
def test_functions_of_the_complement_have_derivatives_where_lapack_s_basis_jumps(a: np.ndarray) -> None:
    def by_qr(a: Any) -> Any:
        q, r = cnp.linalg.qr(a, mode="complete")
        return cnp.sum((q[:, 2:] @ q[:, 2:].T) * WEIGHTS) + cnp.sum(cnp.abs(r[:2]) ** 3 * WEIGHTS[:2, :2])

    def by_svd(a: Any) -> Any:
        u, _, _ = cnp.linalg.svd(a, full_matrices=True)
        _, _, vh = cnp.linalg.svd(a.T, full_matrices=True)
        return cnp.sum((u[:, 2:] @ u[:, 2:].T) * WEIGHTS) + cnp.sum((vh[2:].T @ vh[2:]) ** 2 * WEIGHTS)

    for fn in (by_qr, by_svd):
        cg.check_grads(fn, (a,), order=2, modes=("rev", "fwd"), against=("finite_differences",))


@pytest.mark.parametrize(
    "fn", [lambda a: cnp.linalg.qr(a, mode="complete").Q, lambda a: cnp.linalg.svd(a, full_matrices=True).U]
)
def test_a_whole_basis_needs_known_sizes(fn: Any) -> None:
    with pytest.raises(ShapeError, match="needs known sizes"):
        cg.function(fn, signature=(cg.TensorSpec((None, 2)),))(TRIANGLE)
