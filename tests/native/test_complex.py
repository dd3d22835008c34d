"""Complex numbers in compiled loops: both engines agree on values, gradients and second derivatives.

Each program is a loop with complex carries, of complex64 and of complex128, in machine code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.natively import run_natively
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.execution import run_on
from ctrlgrad.ir import TensorType, verify, walk

Function = Callable[..., Any]
PROGRAMS: dict[str, Function] = {}


def program(function: Function) -> Function:
    """A loop that takes a vector z `[3]`, a matrix m `[3, 3]`, rows `[4, 2, 3]` and floats x `[3]`."""
    PROGRAMS[function.__name__] = function
    return function


def loop(step: Function, start: Any, count: int = 4) -> Any:
    return cg.while_loop(lambda c: c[0] < count, lambda c: (c[0] + 1, *step(*c)), (0, *start))[1:]


@program
def sums_and_products(z: Any, m: Any, rows: Any, x: Any) -> Any:
    (end,) = loop(lambda t, c: (c * c * 0.3 - z / (c + 3.0) + 2j * x,), (z,))
    return end


@program
def a_scalar(z: Any, m: Any, rows: Any, x: Any) -> Any:
    (end,) = loop(lambda t, c: (c * z[1] + z[t % 3] * 0.5,), (z[0],))
    return end


@program
def escapes(z: Any, m: Any, rows: Any, x: Any) -> Any:
    """A loop whose trip count depends on a modulus."""
    more = lambda c: (c[0] < 9) & (cnp.sum(cnp.abs(c[1])) < 6.0)
    return cg.while_loop(more, lambda c: (c[0] + 1, c[1] * (1.3 + 0.4j) + z * 0.2), (0, z))[1]


@program
def matrix_products(z: Any, m: Any, rows: Any, x: Any) -> Any:
    (end,) = loop(lambda t, h: ((rows[t] @ m + h @ cnp.conj(m).T) * 0.4,), (rows[0],))
    return end


@program
def matrix_times_vector(z: Any, m: Any, rows: Any, x: Any) -> Any:
    v, u = loop(lambda t, v, u: (m @ v * 0.5, u + v @ m), (z, z))
    return v + u


@program
def a_recurrent_layer(z: Any, m: Any, rows: Any, x: Any) -> Any:
    """A recurrent layer: its products and sums are hoisted from the loop."""

    def step(t: Any, h: Any, out: Any) -> Any:
        h = cnp.tanh((cnp.concat([rows[t], h], axis=1) @ cnp.concat([m, m.T], axis=0) + z) * 0.3)
        return h, out.at[t].add(h @ m)

    h, out = loop(step, (cnp.zeros_like(rows[0]), cnp.zeros_like(rows)))
    return cnp.sum(h) + out


@program
def a_branch(z: Any, m: Any, rows: Any, x: Any) -> Any:
    def step(t: Any, c: Any) -> Any:
        pred = cnp.real(c[0]) > cnp.imag(c[1])
        return (cg.cond(pred, lambda c: c * (0.8 - 0.3j) + z, lambda c: cnp.conj(c) * 0.7 - z * c, c),)

    (end,) = loop(step, (z,), 5)
    return end


@program
def chosen_by_element(z: Any, m: Any, rows: Any, x: Any) -> Any:
    turn = np.where(x > 0, 1.0, 0.9j).astype(z.dtype)
    step = lambda t, c: (np.where(cnp.imag(c) > 0.0, c * c * 0.5, cnp.conj(c) + 0.5 * z) * turn,)
    (end,) = loop(step, (z,))
    return end


@program
def written_and_read_backwards(z: Any, m: Any, rows: Any, x: Any) -> Any:
    array = cg.TensorArray(z.dtype, size=4, element_shape=(3,))
    c, array = loop(lambda t, c, a: (c * z * 0.6 + 1j, a.write(t, c * c)), (z, array))
    (end,) = loop(lambda t, c: (c * 0.5 + array.read(3 - t) * (0.3 + 0.1j),), (c,))
    return end


@program
def rows_of_an_array(z: Any, m: Any, rows: Any, x: Any) -> Any:
    step = lambda t, a: (a.at[t % 3].set(a[(t + 1) % 3] * z + a[t % 3]).at[(t + 2) % 3].add(z * 0.1j),)
    (end,) = loop(step, (m,), 5)
    return end


@program
def parts_and_magnitudes(z: Any, m: Any, rows: Any, x: Any) -> Any:
    def step(t: Any, c: Any, total: Any) -> Any:
        turned = (cnp.real(c) * 0.8 + x * 0.1) + 1j * (cnp.imag(c) - cnp.abs(c) * 0.2)
        return turned.astype(z.dtype), total + cnp.sum(cnp.abs(turned) * cnp.real(cnp.conj(turned) * z))

    c, total = loop(step, (z, cnp.real(z[0]) * 0))
    return c * total


@program
def exponentials(z: Any, m: Any, rows: Any, x: Any) -> Any:
    (end,) = loop(lambda t, c: (cnp.exp(c * 0.3) - cnp.log(c + 3.0) + cnp.sqrt(c * c + 5.0 + 1j),), (z,))
    return end


@program
def circular_functions(z: Any, m: Any, rows: Any, x: Any) -> Any:
    (end,) = loop(lambda t, c: (cnp.sin(c * 0.4) * cnp.cos(z) + cnp.tanh(c * 0.3) - cnp.sinh(c * 0.1) * 0.5j,), (z,))
    return end


@program
def powers_and_inverses(z: Any, m: Any, rows: Any, x: Any) -> Any:
    (end,) = loop(lambda t, c: ((c + 2.5) ** 2 * 0.1 + 1.0 / (c + 3.0 + 2j) - (c + 3.0) ** (-1.5),), (z,))
    return end


@program
def reductions(z: Any, m: Any, rows: Any, x: Any) -> Any:
    def step(t: Any, c: Any) -> Any:
        total = cnp.sum(c, axis=0) + cnp.mean(c, axis=1) * 0.5j + cnp.cumsum(z)
        return (c * 0.3 + total[None, :] * 0.2 + cnp.prod(z) * 0.1,)

    (end,) = loop(step, (m,))
    return end


@program
def moved_about(z: Any, m: Any, rows: Any, x: Any) -> Any:
    def step(t: Any, c: Any) -> Any:
        joined = cnp.concat([c[1:], c[:1] * 2j], axis=0)
        return (cnp.flip(joined.T, axis=0) * 0.6 + cnp.reshape(c, (9,))[::3][:, None] * z,)

    (end,) = loop(step, (m,))
    return end


@program
def a_loop_in_a_loop(z: Any, m: Any, rows: Any, x: Any) -> Any:
    def step(t: Any, c: Any) -> Any:
        more = lambda d: (d[0] < t + 2) & (cnp.abs(cnp.sum(d[1])) < 20.0)
        inner = cg.while_loop(more, lambda d: (d[0] + 1, d[1] * (0.9 + 0.2j) + z * 0.1), (0, c))[1]
        return (inner * cnp.conj(z) + c * 0.3,)

    (end,) = loop(step, (z,), 3)
    return end


@program
def a_mixture_of_dtypes(z: Any, m: Any, rows: Any, x: Any) -> Any:
    """Carries of integers, bools and floats beside the complex one."""

    def step(t: Any, c: Any, n: Any, flag: Any, y: Any) -> Any:
        return np.where(flag, c * n, c - y).astype(z.dtype), n + t, ~flag, (y * 0.9 + cnp.imag(c)).astype(x.dtype)

    c, n, _, y = loop(step, (z, 1, True, x))
    return c * n + y


def loss_of(function: Function) -> Function:
    """A real loss that depends on the real and the imaginary parts of a program's results."""

    def loss(*arguments: Any) -> Any:
        end = function(*arguments)
        return cnp.sum(cnp.sin(cnp.real(end)) + cnp.cos(cnp.imag(end) * 0.7))

    return loss


def derivative(function: Function, order: int) -> Function:
    if order == 0:
        return function
    gradient = cg.grad(loss_of(function), argnums=(0, 1, 2, 3))
    if order == 1:
        return gradient
    slope = lambda *a: sum(cnp.sum(cnp.sin(cnp.real(g)) - cnp.imag(g) * 0.5) for g in gradient(*a))
    return cg.grad(slope, argnums=(0, 1, 2, 3))


def arguments_of(dtype: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(5)

    def draw(*shape: int) -> np.ndarray:
        return (0.6 * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))).astype(dtype)

    return draw(3), draw(3, 3), draw(4, 2, 3), rng.standard_normal(3).astype(draw(1).real.dtype)


def assert_engines_agree(name: str, dtype: str, order: int) -> None:
    arguments = arguments_of(dtype)
    graph = verify(cg.function(derivative(PROGRAMS[name], order)).graph(*arguments), name)
    assert any(isinstance(v.type, TensorType) and v.type.dtype == dtype for n in walk(graph) for v in n.results)
    leaves = [np.asarray(x) for x in tree.leaves(arguments)]
    expected = run_on("reference", graph, leaves)
    found = run_natively(graph, leaves)
    tolerance = 1e-11 if dtype == "complex128" else 2e-4
    assert_same(found, expected, tolerance)


every_dtype = pytest.mark.parametrize("dtype", ["complex64", "complex128"])


@every_dtype
@in_turn("name, order", list(PROGRAMS), [0, 1, 2])
def test_agreement(name: str, dtype: str, order: int) -> None:
    assert_engines_agree(name, dtype, order)


@in_turn("name, order", list(PROGRAMS), [0, 1, 2])
def test_distributed(name: str, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines agree when every product counts as heavy, so that loops are distributed."""
    monkeypatch.setattr("ctrlgrad.passes.heavy.HEAVY", 1)
    monkeypatch.setenv("CTRLGRAD_QUICK_CODE", "1")
    assert_engines_agree(name, "complex128", order)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("name", ["prod", "cumprod", "sum", "cumsum", "mean"])
def test_reductions_multiply_and_add_complex_numbers(name: str, dtype: str) -> None:
    """Reductions multiply and add complex numbers, instead of their real and imaginary parts separately."""
    rng = np.random.default_rng(11)
    x = (rng.normal(size=(3, 5)) + 1j * rng.normal(size=(3, 5))).astype(dtype)
    found = cg.function(lambda x: getattr(cnp, name)(x, axis=1), engine="native")(x)
    expected = getattr(np, name)(x, axis=1)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4 if dtype == "c8" else 1e-12)
