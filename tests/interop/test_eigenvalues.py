"""Eigenvalues of matrices that need not be symmetric, from JAX and to JAX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

REAL = np.random.default_rng(0).normal(size=(2, 4, 4))
COMPLEX = REAL + 1j * np.random.default_rng(1).normal(size=REAL.shape)
WEIGHTS = np.random.default_rng(2).normal(size=4)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


@pytest.mark.parametrize("a", [REAL, COMPLEX, REAL.astype(np.float32)], ids=["real", "complex", "float32"])
def test_eigenvalues_and_vectors_are_jaxs_up_to_a_sign(a: np.ndarray) -> None:
    close = {"rtol": 1e-4, "atol": 1e-5} if a.dtype == np.float32 else {"rtol": 1e-10, "atol": 1e-12}
    squares = lambda a: jax.tree.map(jnp.square, lax.linalg.eig(a))
    for found, expected in zip(cg.from_jax(squares)(a), squares(a), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, **close)
    np.testing.assert_allclose(cg.from_jax(jnp.linalg.eigvals)(a), jnp.linalg.eigvals(a), **close)


def test_left_eigenvectors_are_those_of_the_other_side() -> None:
    values, left = cg.from_jax(lambda a: lax.linalg.eig(a, compute_right_eigenvectors=False))(REAL)
    adjoint = np.conj(np.swapaxes(left, -1, -2))
    np.testing.assert_allclose(adjoint @ REAL, values[..., None] * adjoint, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(left, axis=-2), 1)


def test_derivatives_of_eigenvalues_are_jaxs_both_ways() -> None:
    spread = lambda a: jnp.sum(jnp.abs(jnp.linalg.eigvals(a)) ** 2 * WEIGHTS)
    expected = jax.grad(spread)(REAL)
    np.testing.assert_allclose(cg.grad(cg.from_jax(spread))(REAL), expected, rtol=1e-9, atol=1e-11)

    ours = cg.to_jax(lambda a: cnp.sum(cnp.abs(cnp.linalg.eigvals(a)) ** 2 * WEIGHTS))
    np.testing.assert_allclose(jax.grad(ours)(REAL), expected, rtol=1e-9, atol=1e-11)


def test_eigenvectors_and_second_derivatives_go_to_jax_too() -> None:
    def f(a: Any) -> Any:
        values, vectors = cnp.linalg.eig(a)
        return cnp.sum(cnp.real(values**2 * cnp.sum(vectors * vectors, -2)) * WEIGHTS)

    back, a = cg.to_jax(f), REAL[0]
    np.testing.assert_allclose(jax.grad(back)(a), cg.grad(f)(a), rtol=1e-10)
    np.testing.assert_allclose(jax.hessian(back)(a), cg.hessian(f)(a), rtol=1e-8, atol=1e-10)


def test_a_matrix_that_is_not_finite_has_no_eigenvalues_and_leaves_others_alone() -> None:
    a = REAL.copy()
    a[0, 1, 2] = np.inf
    for found, expected in zip(cnp.linalg.eig(a), np.linalg.eig(REAL), strict=True):
        assert np.isnan(found[0]).all()
        np.testing.assert_allclose(found[1], expected[1])
