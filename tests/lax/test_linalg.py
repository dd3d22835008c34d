"""Linear algebra by the names of `jax.lax.linalg` and `jax.scipy.linalg`: the factors, and derivatives."""

from __future__ import annotations

import jax
import jax.scipy
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.scipy import linalg

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _in_double_precision_by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (2, 5), (2, 3, 3)])
def test_lu_and_its_derivatives(shape):
    a = rng.normal(size=shape)
    for ours, theirs in zip(lax.linalg.lu(a), jax.lax.linalg.lu(a), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    p, lower, upper = linalg.lu(a)
    np.testing.assert_allclose(p @ lower @ upper, a, atol=1e-12)
    f = lambda a: cnp.sum(cnp.sin(linalg.lu(a)[1])) + cnp.sum(cnp.cos(linalg.lu(a)[2]))
    cg.check_grads(cg.function(f), (a,), order=2, against=("finite_differences",))


def test_lu_in_other_forms():
    a = rng.normal(size=(4, 3))
    a[2] = a[1]
    left, upper = linalg.lu(a, permute_l=True)
    np.testing.assert_allclose(left @ upper, a, atol=1e-12)
    p, lower, upper = linalg.lu(a, p_indices=True)
    np.testing.assert_allclose(lower[p] @ upper, a, atol=1e-12)
    z = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
    p, lower, upper = linalg.lu(z)
    np.testing.assert_allclose(p @ lower @ upper, z, atol=1e-12)
    with pytest.raises(ShapeError, match="not matrices"):
        linalg.lu(np.ones(3))


def test_lu_in_machine_code():
    a = rng.normal(size=(2, 5, 5))
    with cg.options(engine="native"):
        both, pivots, order = cg.function(lax.linalg.lu)(a)
    for x, y in zip((both, pivots, order), lax.linalg.lu(a), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)
    np.testing.assert_array_equal(lax.linalg.lu_pivots_to_permutation(pivots, 5), order)


@pytest.mark.parametrize("trans", [0, 1, 2])
def test_solutions_by_lu(trans):
    a, b = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3)), rng.normal(size=(3, 2)) + 0j
    matrix = {0: a, 1: a.T, 2: a.conj().T}[trans]
    np.testing.assert_allclose(linalg.lu_solve(linalg.lu_factor(a), b, trans), np.linalg.solve(matrix, b))
    x = linalg.lu_solve(linalg.lu_factor(a), b[:, 0], trans)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b[:, 0]))


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose_a", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
def test_triangular_solutions(left_side, lower, transpose_a, unit_diagonal):
    a = rng.normal(size=(2, 3, 3)) + 3 * np.eye(3)
    b = rng.normal(size=(2, 3, 4) if left_side else (2, 4, 3))
    settings = {"left_side": left_side, "transpose_a": transpose_a}
    x = lax.linalg.triangular_solve(a, b, lower=lower, unit_diagonal=unit_diagonal, **settings)
    matrix = np.tril(a) if lower else np.triu(a)
    matrix = matrix * (1 - np.eye(3)) + np.eye(3) if unit_diagonal else matrix
    matrix = np.swapaxes(matrix, -1, -2) if transpose_a else matrix
    np.testing.assert_allclose(matrix @ x if left_side else x @ matrix, b, atol=1e-11)


def test_other_factors():
    a = rng.normal(size=(4, 3))
    q, r = lax.linalg.qr(a, full_matrices=False)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    s = a.T @ a
    v, w = lax.linalg.eigh(s)
    np.testing.assert_allclose(v * w @ v.T, s, atol=1e-12)
    np.testing.assert_allclose(lax.linalg.cholesky(s), np.linalg.cholesky(s), atol=1e-12)
    u, d, vh = lax.linalg.svd(a, full_matrices=False)
    np.testing.assert_allclose(u * d @ vh, a, atol=1e-12)
    dl, d, du, b = rng.normal(size=4), rng.normal(size=4) + 5, rng.normal(size=4), rng.normal(size=(4, 2))
    matrix = np.diag(d) + np.diag(dl[1:], -1) + np.diag(du[:-1], 1)
    np.testing.assert_allclose(matrix @ lax.linalg.tridiagonal_solve(dl, d, du, b), b, atol=1e-12)


def test_polar_factors_and_their_derivative():
    a = rng.normal(size=(3, 3))
    u, p = linalg.polar(a)
    np.testing.assert_allclose(u @ p, a, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, np.eye(3), atol=1e-12)
    u, p = linalg.polar(a, "left")
    np.testing.assert_allclose(p @ u, a, atol=1e-12)
    cg.check_grads(lambda a: cnp.sum(cnp.sin(linalg.polar(a)[0])), (a,), against=("finite_differences",))
    with pytest.raises(UserInputError, match="no such side"):
        linalg.polar(a, "middle")


def test_the_derivative_of_an_exponential():
    a, e = rng.normal(size=(2, 3, 3)) * 0.3
    found = linalg.expm_frechet(a, e)
    expected = cg.jvp(linalg.expm, (a,), (e,))
    np.testing.assert_allclose(found[0], expected[0], atol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-12)


def test_inverses_and_companions():
    np.testing.assert_allclose(linalg.invhilbert(4) @ linalg.hilbert(4), np.eye(4), atol=1e-9)
    for kind in ("symmetric", "lower", "upper"):
        np.testing.assert_allclose(linalg.invpascal(4, kind) @ linalg.pascal(4, kind), np.eye(4), atol=1e-9)
    for n in (1, 2, 3, 4, 7):
        c = rng.normal(size=n + 1)
        found = np.sort_complex(np.linalg.eigvals(linalg.fiedler_companion(c)))
        np.testing.assert_allclose(found, np.sort_complex(np.roots(c)), atol=1e-7)


def test_cholesky_and_eigh_by_the_names_of_jax_read_what_jaxs_read():
    a = np.diag([4.0, 5.0, 6.0]) + rng.normal(size=(3, 3)) / 3
    cases = [
        lambda lax, linalg: lax.linalg.cholesky(a),
        lambda lax, linalg: lax.linalg.cholesky(a, symmetrize_input=False),
        lambda lax, linalg: lax.linalg.eigh(a, symmetrize_input=False)[1],
        lambda lax, linalg: lax.linalg.eigh(a, lower=False, symmetrize_input=False)[1],
        lambda lax, linalg: linalg.cholesky(a),
        lambda lax, linalg: linalg.cholesky(a, lower=True),
        lambda lax, linalg: linalg.cho_solve(linalg.cho_factor(a, lower=True), a),
        lambda lax, linalg: linalg.eigh(a)[0],
    ]
    for call in cases:
        np.testing.assert_allclose(call(lax, linalg), call(jax.lax, jax.scipy.linalg), atol=1e-12)


def test_an_exponential_that_needs_more_squarings_is_not_a_number() -> None:
    """As JAX's. Once it was that of a matrix with other angles."""
    a = np.array([[0.0, 1e6], [-1e6, 0.0]])
    assert np.isnan(cg.scipy.linalg.expm(a)).all()
    c, s = np.cos(1e6), np.sin(1e6)
    np.testing.assert_allclose(cg.scipy.linalg.expm(a, max_squarings=18), [[c, s], [-s, c]], atol=1e-8)
