"""Python's `if`, `while` and `for` on what is differentiated, where a transform is applied to values; judged by JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TracingError


def doubled(x, n):
    """Powers until a bound, then one of two formulas, then a loop whose count depends on values."""
    np_ = jnp if isinstance(x, jax.Array) else cnp
    y = x
    while y < 100.0:
        y = y * x
    if y > 200.0:
        y = np_.sin(y) * n
    for _ in range(int(x)):
        y = y + x * n
    return y


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("x", [2.5, 3.0, 7.25])
def test_every_mode_goes_the_way_of_the_values(x):
    wanted = jax.value_and_grad(doubled)(jnp.asarray(x), 2.0)
    np.testing.assert_allclose(cg.value_and_grad(doubled)(x, 2.0), wanted, rtol=1e-10)
    np.testing.assert_allclose(cg.jvp(lambda x: doubled(x, 2.0), (x,), (1.0,)), wanted, rtol=1e-10)
    value, pullback = cg.vjp(lambda x: doubled(x, 2.0), x)
    np.testing.assert_allclose((value, *pullback(1.0)), wanted, rtol=1e-10)
    value, push = cg.linearize(lambda x: doubled(x, 2.0), x)
    np.testing.assert_allclose((value, push(1.0)), wanted, rtol=1e-10)


def test_to_the_second_order():
    wanted = jax.grad(jax.grad(doubled))(jnp.asarray(3.0), 2.0)
    np.testing.assert_allclose(cg.grad(cg.grad(doubled))(3.0, 2.0), wanted, rtol=1e-9)
    np.testing.assert_allclose(cg.hessian(doubled)(3.0, 2.0), wanted, rtol=1e-9)


def test_one_function_goes_another_way_for_other_values():
    slope = cg.grad(lambda x: x * x if x > 0 else -x)
    assert [float(slope(v)) for v in (3.0, -2.0, 4.0, 0.0)] == [6.0, -1.0, 8.0, -1.0]


def test_results_of_loops_are_numbers_too():
    def f(x):
        y = cg.while_loop(lambda y: y < 50.0, lambda y: y * x, x)
        return y * 2.0 if y > 60.0 else y

    assert float(cg.grad(f)(3.0)) == 2.0 * 4 * 3.0**3
    assert float(cg.grad(f)(2.0)) == 2.0 * 6 * 2.0**5


def test_thousands_of_iterations_of_python():
    def f(x):
        y = x
        while y < 1500.0:
            y = y + x
        return y

    assert float(cg.jvp(f, (1.0,), (1.0,))[1]) == 1500.0


def test_functions_with_rules():
    @cg.custom_vjp
    def f(x):
        return cnp.sin(x) if x > 0 else cnp.cos(x)

    def forward(x):
        return (f(x), (cnp.cos(x), x)) if x > 0 else (f(x), (-2.0 * cnp.sin(x), x))

    f.defvjp(forward, lambda kept, ct: (kept[0] * ct if kept[1] > 0 else 3.0 * kept[0] * ct,))
    np.testing.assert_allclose(cg.grad(f)(0.7), np.cos(0.7))
    np.testing.assert_allclose(cg.grad(f)(-0.7), 6.0 * np.sin(0.7))

    @cg.custom_jvp
    def g(x):
        return x * x if x > 0 else x

    g.defjvp(lambda x, t: (g(x[0]), 5.0 * t[0] if x[0] > 0 else 7.0 * t[0]))
    assert [float(cg.grad(g)(v)) for v in (2.0, -2.0)] == [5.0, 7.0]
    assert [float(cg.jvp(cg.checkpoint(g), (v,), (1.0,))[1]) for v in (2.0, -2.0)] == [5.0, 7.0]


def branching(x):
    return x * x if x > 0 else x


@pytest.mark.parametrize(
    "call",
    [
        lambda: cg.function(branching, autograph=False)(1.0),
        lambda: cg.function(cg.grad(branching), autograph=False)(1.0),
        lambda: cg.vmap(branching)(np.ones(3)),
        lambda: cg.vmap(cg.grad(branching))(np.ones(3)),
        lambda: cg.grad(lambda x: cg.fori_loop(0, 3, lambda i, y: branching(y), x))(1.0),
        lambda: cg.grad(
            lambda x: cg.cond(True, branching, branching, cg.fori_loop(0, 2, lambda i, y: branching(y), x))
        )(1.0),
    ],
    ids=["function", "function of grad", "vmap", "vmap of grad", "body", "beside a body"],
)
def test_batched_values_are_refused_as_conditions(call):
    with pytest.raises(TracingError, match="an `if`"):
        call()


def test_a_number_that_would_lose_its_derivative_is_refused():
    with pytest.raises(TracingError, match="float"):
        cg.grad(lambda x: x * float(x))(2.0)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.grad(lambda x: x * float(x))(2.0)
    # An element read by name is a number, in JAX too.
    assert cg.grad(lambda x: x * x.item())(2.0) == jax.grad(lambda x: x * x.item())(2.0) == 2.0
    assert float(cg.grad(lambda x: x * (x > 1.0).item() + float(cnp.argmax(x)))(2.0)) == 1.0


def test_indices_are_numbers():
    table = [10.0, 20.0, 30.0]
    slope = cg.grad(lambda x: x * table[cnp.floor(x).astype(int)] + np.arange(3.0)[cnp.floor(x).astype(int)])
    assert [float(slope(v)) for v in (0.5, 2.5)] == [10.0, 30.0]


def test_a_python_number_is_an_array_to_what_looks_at_it():
    f = lambda x: x**2 if x.astype(bool).item() else x
    assert [float(cg.grad(f)(v)) for v in (2.0, 0.0)] == [4.0, 1.0]
    assert float(cg.jvp(lambda n, x: x * n.astype(np.int32).item(), (3, 2.0), (np.zeros((), cg.float0), 1.0))[1]) == 3.0
