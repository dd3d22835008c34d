"""Jacobians and Hessians with complex arguments and results: those of holomorphic functions, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import DifferentiationError

X = np.array([1.0, 2.0])
Z = np.array([1.0 + 1.0j, 2.0 - 0.5j])

turned = lambda x: x * x * (1.0 + 2.0j)
squared_sum = lambda z: cnp.sum(z**3)
MODES = {"jacrev": cg.jacrev, "jacfwd": cg.jacfwd}


@pytest.mark.parametrize("transform", [cg.jacrev, cg.hessian, cg.grad])
def test_a_complex_result_of_real_arguments_is_refused_and_names_holomorphic(transform):
    with pytest.raises(DifferentiationError, match="the function's result is complex") as caught:
        transform(lambda x: cnp.sum(turned(x)))(X)
    assert "holomorphic=True" in str(caught.value) and "test_complex_derivatives.py" in str(caught.value)


def test_forward_mode_gives_both_parts_of_a_complex_result():
    np.testing.assert_allclose(cg.jacfwd(turned)(X), np.diag(2 * X) * (1.0 + 2.0j))


def test_forward_mode_along_complex_arguments_is_refused_and_names_holomorphic():
    with pytest.raises(DifferentiationError, match="an argument is complex") as caught:
        cg.jacfwd(lambda z: z * z)(Z)
    assert "holomorphic=True" in str(caught.value)


@pytest.mark.parametrize("transform", MODES.values(), ids=MODES)
def test_the_jacobian_of_a_holomorphic_function(transform):
    found = transform(lambda z: cnp.sin(z) * z, holomorphic=True)(Z)
    np.testing.assert_allclose(found, np.diag(np.cos(Z) * Z + np.sin(Z)), rtol=1e-14)


def test_gradient_and_hessian_of_a_holomorphic_function():
    value, gradient = cg.value_and_grad(squared_sum, holomorphic=True)(Z)
    np.testing.assert_allclose(value, np.sum(Z**3), rtol=1e-14)
    np.testing.assert_allclose(gradient, 3 * Z**2, rtol=1e-14)
    np.testing.assert_allclose(cg.grad(squared_sum, holomorphic=True)(Z), 3 * Z**2, rtol=1e-14)
    np.testing.assert_allclose(cg.hessian(squared_sum, holomorphic=True)(Z), np.diag(6 * Z), rtol=1e-13)


def test_the_gradient_of_a_holomorphic_loop_is_that_of_jax():
    jax = pytest.importorskip("jax")
    loop = lambda fori, sin: lambda z: fori(0, 3, lambda i, y: sin(y) * z, z)
    found = cg.grad(loop(cg.fori_loop, np.sin), holomorphic=True)(Z[0])
    with jax.enable_x64(True):
        expected = jax.grad(loop(jax.lax.fori_loop, jax.numpy.sin), holomorphic=True)
        # JAX has no reverse mode of fori_loop but of bounds that it knows.
        np.testing.assert_allclose(found, expected(Z[0]), rtol=1e-13)


@pytest.mark.parametrize("transform", [cg.grad, cg.jacrev, cg.jacfwd, cg.hessian])
def test_holomorphic_wants_complex_arguments(transform):
    with pytest.raises(DifferentiationError, match="real, with holomorphic=True"):
        transform(lambda x: cnp.sum(turned(x)), holomorphic=True)(X)


@pytest.mark.parametrize("transform", [cg.grad, cg.jacrev])
def test_holomorphic_wants_a_complex_result(transform):
    with pytest.raises(DifferentiationError, match="the function's result is real, with holomorphic=True"):
        transform(lambda z: cnp.sum(cnp.abs(z)), holomorphic=True)(Z)


def test_a_real_result_of_complex_arguments_stays_as_it_is():
    f: Any = lambda z: cnp.sum(cnp.real(z * z))
    np.testing.assert_allclose(cg.jacrev(f)(Z), cg.grad(f)(Z))
    np.testing.assert_allclose(cg.grad(f)(Z), 2 * Z)
