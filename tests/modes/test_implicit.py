"""Derivatives through solvers: custom_root and custom_linear_solve, to second order, and associative_scan, by JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import CtrlgradError

A = np.array([[2.0, 1.0, 0.1], [0.5, 4.0, -0.3], [0.2, 0.6, 3.0]])
B = np.array([3.0, 4.0, -1.0])


def root(a):
    f = lambda x: x * x * x - a
    newton = lambda f, x: cg.while_loop(lambda x: abs(f(x)) > 1e-13, lambda x: x - f(x) / (3 * x * x), x)
    return cg.custom_root(f, 1.0, newton, lambda g, y: y / g(1.0))


def test_a_root_to_second_order_in_all_modes():
    first, second = 1 / 3 * 5.0 ** (-2 / 3), -2 / 9 * 5.0 ** (-5 / 3)
    np.testing.assert_allclose([cg.grad(root)(5.0), cg.jvp(root, (5.0,), (1.0,))[1]], first, rtol=1e-12)
    orders = (
        cg.grad(cg.grad(root)),
        cg.jacfwd(cg.jacfwd(root)),
        cg.jacfwd(cg.jacrev(root)),
        cg.jacrev(cg.jacfwd(root)),
    )
    np.testing.assert_allclose([f(5.0) for f in orders], second, rtol=1e-12)


def test_a_root_in_a_function_in_a_loop_and_under_vmap():
    f = lambda a: cg.fori_loop(0, 3, lambda i, y: root(y + a), a)
    cg.check_grads(f, (2.0,), order=2)
    np.testing.assert_allclose(cg.vmap(cg.grad(root))(np.array([1.0, 8.0])), [1 / 3, 1 / 12], rtol=1e-12)


def test_a_root_of_a_pytree_with_something_beside():
    def solve(f, x):
        x = cg.fori_loop(0, 30, lambda i, x: {"y": x["y"] - f(x)["y"] / (2 * x["y"])}, x)
        return x, f(x)["y"]

    tangent_solve = lambda g, y: {"y": y["y"] / g({"y": np.ones(2)})["y"]}
    f = lambda a: cg.custom_root(
        lambda x: {"y": x["y"] ** 2 - a}, {"y": np.ones(2)}, solve, tangent_solve, has_aux=True
    )
    x, residual = f(np.array([4.0, 9.0]))
    np.testing.assert_allclose(x["y"], [2.0, 3.0])
    np.testing.assert_allclose(residual, 0, atol=1e-12)
    np.testing.assert_allclose(cg.grad(lambda a: cnp.sum(f(a)[0]["y"]))(np.array([4.0, 9.0])), [1 / 4, 1 / 6])


def dense(f, y):
    return np.linalg.solve(cg.jacfwd(f)(y), y)


def solution(a, b, transpose=dense):
    return cg.custom_linear_solve(lambda v: a @ v, b, dense, transpose)


def test_a_linear_solve_to_second_order_in_all_modes():
    f = lambda a, b: cnp.sum(solution(a, b) ** 2)
    with jax.enable_x64(True):
        g = lambda a, b: jnp.sum(jnp.linalg.solve(a, b) ** 2)
        first, second = jax.jit(lambda a, b: (jax.grad(g, (0, 1))(a, b), jax.hessian(g, (0, 1))(a, b)))(A, B)
    for x, y in zip(cg.grad(f, (0, 1))(A, B), first, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10)
    for outer, inner in (
        (cg.jacfwd, cg.jacrev),
        (cg.jacfwd, cg.jacfwd),
        (cg.jacrev, cg.jacrev),
        (cg.jacrev, cg.jacfwd),
    ):
        found = outer(inner(f, (0, 1)), (0, 1))(A, B)
        for row, expected in zip(found, second, strict=True):
            for x, y in zip(row, expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_a_symmetric_operator_is_its_own_transpose():
    symmetric = A + A.T
    f = lambda b: cg.custom_linear_solve(lambda v: symmetric @ v, b, dense, symmetric=True)[0]
    np.testing.assert_allclose(cg.grad(f)(B), np.linalg.inv(symmetric)[0], rtol=1e-12)


def test_without_a_transposed_solver_reverse_mode_goes_through_the_solver():
    jacobi = lambda f, y: cg.fori_loop(0, 60, lambda i, x: x + (y - f(x)) / np.diag(A), y * 0.0)
    f = lambda b: cg.custom_linear_solve(lambda v: A @ v, b, jacobi)
    np.testing.assert_allclose(cg.jacfwd(f)(B), np.linalg.inv(A), rtol=1e-10)
    np.testing.assert_allclose(cg.jacrev(f)(B), np.linalg.inv(A), rtol=1e-10)


def test_an_operator_that_changes_the_shape_is_refused():
    with pytest.raises(CtrlgradError, match="custom_linear_solve: matvec"):
        cg.custom_linear_solve(lambda v: v[:2], B, dense)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_prefix_results_are_those_of_jax(size, reverse):
    x = np.linspace(0.5, 1.5, size * 2).reshape(2, size)
    affine = lambda a, b: (b[0] * a[0], b[0] * a[1] + b[1])
    found = cg.associative_scan(affine, (x, x + 1), reverse=reverse, axis=1)
    with jax.enable_x64(True):
        expected = jax.jit(lambda x: jax.lax.associative_scan(affine, (x, x + 1), reverse=reverse, axis=1))(x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_derivatives_of_prefix_results():
    f = lambda x: cg.associative_scan(lambda a, b: a * b, x)
    cg.check_grads(f, (B,), order=2)
    np.testing.assert_allclose(cg.vmap(f)(A), np.cumprod(A, axis=1), rtol=1e-13)


def test_prefix_results_over_an_unknown_size_are_refused():
    f = cg.function(lambda x: cg.associative_scan(lambda a, b: a + b, x), signature=[cg.TensorSpec((None,))])
    with pytest.raises(CtrlgradError, match="no one known size"):
        f(B)


def _solved_by_a_captured_matrix(xp, lax):
    def f(a):
        matrix = a * xp.asarray([[2.0, 1.0], [0.5, 4.0]])
        solve = lambda matvec, b: xp.linalg.solve(matrix, b)
        back = lambda vecmat, b: xp.linalg.solve(matrix.T, b)
        return lax.custom_linear_solve(lambda v: matrix @ v, xp.sin(a) * xp.ones(2), solve, back).sum()

    return f


def _newton_with_a_captured_parameter(xp, lax):
    def f(a):
        newton = lambda f, x: lax.fori_loop(0, 9, lambda i, x: x - (x * x - a) / (2 * x), x)
        return lax.custom_root(lambda x: x * x - a, 1.0, newton, lambda g, y: y / g(1.0) * (a / a))

    return f


def _root_in_a_loop(xp, lax):
    root = _newton_with_a_captured_parameter(xp, lax)
    return lambda a: lax.fori_loop(0, 3, lambda i, s: s + root(a * s), a)


@pytest.mark.parametrize("make", [_solved_by_a_captured_matrix, _newton_with_a_captured_parameter, _root_in_a_loop])
def test_what_a_solver_closes_over_has_no_part_in_the_derivative(make):
    ours, theirs = make(cnp, cg), make(jnp, jax.lax)
    x, e = 2.0, 1e-6
    np.testing.assert_allclose(cg.grad(ours)(x), (ours(x + e) - ours(x - e)) / (2 * e), rtol=1e-7)
    with jax.enable_x64(True):
        for found, wanted in (
            (cg.grad(ours)(x), jax.grad(theirs)(x)),
            (cg.function(cg.grad(cg.grad(ours)))(x), jax.grad(jax.grad(theirs))(x)),
            (cg.jvp(cg.grad(ours), (x,), (1.0,))[1], jax.jvp(jax.grad(theirs), (x,), (1.0,))[1]),
            (cg.vmap(cg.grad(ours))(np.array([x, 1.5])), jax.vmap(jax.grad(theirs))(jnp.array([x, 1.5]))),
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
