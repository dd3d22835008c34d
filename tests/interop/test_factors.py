"""LAPACK's reductions by reflectors are JAX's, factors and signs; and they have derivatives, which JAX has not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np
import pytest
from interop.libraries import close, directional
from jax import lax

import ctrlgrad as cg
from ctrlgrad.errors import DifferentiationError

# Primitives that Lineax's QR calls and JAX does not export.
inside = pytest.importorskip("jax._src.lax.linalg")
geqrf = inside.geqrf


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def numbers(kind: str, *shape: int) -> Any:
    rng = np.random.default_rng(3)
    real = rng.normal(size=shape)
    return real + 1j * rng.normal(size=shape) if kind == "complex" else real


def same(fn: Any, *args: Any) -> None:
    close(cg.from_jax(fn)(*args), fn(*args), 1e-12)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_orthogonal_matrices_as_products_of_reflectors(kind: str) -> None:
    for shape in ((5, 3), (3, 5), (2, 3, 3), (1, 1)):
        same(geqrf, numbers(kind, *shape))
    same(lambda a: lax.linalg.householder_product(*geqrf(a)), numbers(kind, 2, 4, 3))
    a = numbers(kind, 5, 3)
    for transpose in (False, True):
        same(lambda a, x, t=transpose: inside.ormqr(*geqrf(a), x, left=True, transpose=t), a, numbers(kind, 5, 2))
        same(lambda a, x, t=transpose: inside.ormqr(*geqrf(a), x, left=False, transpose=t), a, numbers(kind, 2, 5))


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_hessenberg_and_tridiagonal_matrices(kind: str) -> None:
    same(lax.linalg.hessenberg, numbers(kind, 2, 4, 4))
    a = numbers(kind, 4, 4)
    hermitian = a + np.conj(a.T)
    for lower in (True, False):
        same(lambda a, lower=lower: lax.linalg.tridiagonal(a, lower=lower), hermitian)


def test_a_column_that_is_zero_already_has_no_reflector() -> None:
    same(geqrf, np.array([[2.0, 1.0], [0.0, 3.0], [0.0, 4.0]]))


def test_the_factors_have_derivatives() -> None:
    fn = lambda a: jax.numpy.sum(jax.numpy.sin(lax.linalg.hessenberg(a)[0]))
    a = numbers("real", 4, 4)
    difference, found = directional(fn, (a,), (cg.grad(cg.from_jax(fn))(a),))
    assert found == pytest.approx(difference, rel=1e-7)


# A matrix that is symmetric, one that is not, and directions likewise.
SPREAD = np.array([[4.0, 0.3, -0.5], [0.9, 3.0, 0.2], [0.1, -0.4, 2.0]])
SYMMETRIC = (SPREAD + SPREAD.T) / 2
WEIGHTS = np.array([[1.0, -2.0, 0.5], [0.3, 1.5, -0.7], [2.0, 0.4, -1.1]])
RIGHT = np.array([[1.0, 0.5], [-2.0, 1.0], [0.7, -0.3]])
FROM_TRIANGLES = {
    "lower": lambda a: jnp.sum(WEIGHTS * lax.linalg.cholesky(a, symmetrize_input=False)),
    "scipy's lower": lambda a: jnp.sum(WEIGHTS * jax.scipy.linalg.cholesky(a, lower=True)),
    "scipy's upper": lambda a: jnp.sum(WEIGHTS * jax.scipy.linalg.cholesky(a)),
    "upper for a solution": lambda a: jnp.sum(jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), RIGHT) ** 2),
    "lower for eigenvalues": lambda a: jnp.sum(WEIGHTS[0] * lax.linalg.eigh(a, symmetrize_input=False)[1]),
    "upper for eigenvalues": lambda a: jnp.sum(WEIGHTS[0] * lax.linalg.eigh(a, lower=False, symmetrize_input=False)[1]),
}


def symmetric_part(a: Any) -> Any:
    return (a + a.T) / 2


@pytest.mark.parametrize("a", [SYMMETRIC, SPREAD], ids=["symmetric", "not symmetric"])
def test_jaxs_symmetric_part_is_read_so_derivatives_are_jaxs_in_every_direction(a: Any) -> None:
    """`jnp.linalg.cholesky` and `eigvalsh` symmetrize their argument, by equations of the jaxpr."""
    for fn in (
        lambda a: jnp.sum(WEIGHTS * jnp.linalg.cholesky(a)),
        lambda a: jnp.sum(WEIGHTS[0] * jnp.linalg.eigvalsh(a)),
    ):
        read = cg.from_jax(fn)
        close(read(a), fn(a), 1e-12)
        gradient = cg.grad(read)(a)
        close(gradient, jax.grad(fn)(a))
        close(gradient, gradient.T)
        difference, found = directional(fn, (a,), (gradient,))
        assert found == pytest.approx(difference, rel=1e-7)


@pytest.mark.parametrize("a", [SYMMETRIC, SPREAD], ids=["symmetric", "not symmetric"])
@pytest.mark.parametrize("case", FROM_TRIANGLES)
def test_of_one_triangle_derivatives_are_by_that_triangle(case: str, a: Any) -> None:
    """Without that JAX reads one triangle, but its rules take directions, and `eigh`'s the matrix, for symmetric.

    Ours are those of differences in every direction. In symmetric ones, at a symmetric matrix, JAX's are the same.
    """
    read, fn = cg.from_jax(FROM_TRIANGLES[case]), jax.jit(FROM_TRIANGLES[case])
    close(read(a), fn(a), 1e-12)
    gradient = cg.grad(read)(a)
    difference, found = directional(fn, (a,), (gradient,))
    assert found == pytest.approx(difference, rel=1e-7, abs=1e-8)
    close((np.tril if "upper" in case else np.triu)(gradient, -1 if "upper" in case else 1), np.zeros((3, 3)))
    kept = np.triu(a) if "upper" in case else np.tril(a)
    close(symmetric_part(gradient), symmetric_part(jax.jit(jax.grad(fn))(kept + kept.T - np.diag(np.diag(a)))))
    along = np.random.default_rng(5).normal(size=a.shape)
    close(cg.jvp(read, (a,), (along,))[1], np.sum(gradient * along))


@pytest.mark.parametrize("lower", [True, False])
def test_a_solution_by_a_factor_has_no_derivative_by_the_other_triangle(lower: bool) -> None:
    fn = lambda c, b: jnp.sum(WEIGHTS[:, :2] * jax.scipy.linalg.cho_solve((c, lower), b))
    gradients = cg.grad(cg.from_jax(fn), argnums=(0, 1))(SPREAD, RIGHT)
    close(gradients, jax.grad(fn, argnums=(0, 1))(SPREAD, RIGHT))
    close((np.triu if lower else np.tril)(gradients[0], 1 if lower else -1), np.zeros((3, 3)))
    difference, found = directional(fn, (SPREAD, RIGHT), gradients)
    assert found == pytest.approx(difference, rel=1e-7)


def test_a_complex_factor_of_one_triangle() -> None:
    a = SPREAD + 0.3j * WEIGHTS
    for fn in (
        lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
        lambda a: jax.scipy.linalg.cholesky(a),
        lambda a: jnp.linalg.cholesky(a),
    ):
        same(fn, a)
        size = lambda a, fn=fn: jnp.sum(jnp.abs(fn(a) - WEIGHTS) ** 2)
        read = cg.from_jax(lambda x, y, size=size: size(x + 1j * y))
        gradients = cg.grad(read, argnums=(0, 1))(a.real, a.imag)
        difference, found = directional(lambda x, y, size=size: size(x + 1j * y), (a.real, a.imag), gradients)
        assert found == pytest.approx(difference, rel=1e-7)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_schurs_decomposition_and_roots_of_matrices_by_it(kind: str) -> None:
    a = numbers(kind, 5, 5)
    same(jax.scipy.linalg.schur, a)
    same(lambda a: jax.scipy.linalg.schur(a, output="complex"), a)
    same(jax.scipy.linalg.sqrtm, a @ np.conj(a.T))
    same(lambda a: jax.scipy.linalg.funm(a, jnp.sin), a)
    several = numbers(kind, 3, 4, 4)
    several[1, 0, 0] = np.nan
    same(lambda a: lax.linalg.schur(a), several)
    rows = cg.vmap(cg.from_jax(lambda a: lax.linalg.schur(a)[0]))(several)
    np.testing.assert_array_equal(rows, lax.linalg.schur(several)[0])


def test_schurs_decomposition_has_no_derivative_and_says_so() -> None:
    f = cg.from_jax(lambda a: jnp.sum(jax.scipy.linalg.schur(a)[0]))
    for derive in (cg.grad, lambda f: lambda a: cg.jvp(f, (a,), (a,))):
        with pytest.raises(DifferentiationError, match="Schur's decomposition has no derivative"):
            derive(f)(np.eye(2))


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_whole_bases_and_pivoted_columns(kind: str) -> None:
    for shape in ((5, 3), (3, 5), (4, 4), (2, 4, 2)):
        a = numbers(kind, *shape)
        same(lambda a: jnp.linalg.qr(a, mode="complete"), a)
        same(lambda a: lax.linalg.qr(a, pivoting=True, full_matrices=False), a)
        same(lambda a: lax.linalg.qr(a, pivoting=True), a)
        u, s, vh = cg.from_jax(jnp.linalg.svd)(a)
        np.testing.assert_allclose(s, jnp.linalg.svd(a)[1])
        for basis in (u, vh):
            products = np.conj(np.swapaxes(basis, -1, -2)) @ basis
            np.testing.assert_allclose(products, np.broadcast_to(np.eye(basis.shape[-1]), products.shape), atol=1e-12)
        k = s.shape[-1]
        np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, atol=1e-12)


def test_functions_of_whole_bases_have_derivatives() -> None:
    a = numbers("real", 4, 3)
    weights = numbers("real", 4, 4)
    f = cg.from_jax(lambda a: jnp.sum(jnp.linalg.qr(a, mode="complete")[0] * weights))
    cg.check_grads(f, (a,), modes=("rev", "fwd"), against=("finite_differences",))
    # The space that is left over, whichever basis it has.
    beside = cg.from_jax(lambda a: jnp.sum((jnp.linalg.svd(a)[0][:, 3:] @ jnp.linalg.svd(a)[0][:, 3:].T) * weights))
    cg.check_grads(beside, (a,), modes=("rev",), against=("finite_differences",))
