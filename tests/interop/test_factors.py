"""LAPACK's reductions by reflectors are JAX's, factors and signs; and they have derivatives, which JAX has not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from interop.libraries import close, directional
from jax import lax

import ctrlgrad as cg

# What Lineax's QR calls; JAX does not export these.
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
