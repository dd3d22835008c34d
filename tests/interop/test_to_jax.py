"""`to_jax`: functions of this library under JAX's transforms: values, derivatives, and what JAX sees of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from leaks import growth

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import DifferentiationError, TracingError, TypeMismatchError
from ctrlgrad.interop import engine_primitive


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"), jax.enable_x64(True):
        yield


def root(a: Any) -> Any:
    """Newton's iteration for the square root."""
    return cg.while_loop(lambda x: abs(x * x - a) > 1e-13 * a, lambda x: 0.5 * (x + a / x), a)


def pendulum(x: Any) -> Any:
    """An ODE whose steps, and how many there are, depend on its state."""

    def step(state: Any) -> Any:
        t, x, v = state
        force = -cnp.sin(x)
        h = 0.3 / (1.0 + force * force)
        return t + h, x + h * v, v + h * force

    return cg.while_loop(lambda s: s[0] < 1.0, step, (0.0 * x, x, 0.0 * x))[1]


def loss(params: Any, inputs: Any) -> Any:
    """The training loss of a small recurrent model."""

    def cell(state: Any, x: Any) -> Any:
        state = cnp.tanh(params["w"] @ state + params["u"] * x)
        return state, state.sum()

    _, outputs = cg.scan(cell, cnp.zeros(3), inputs)
    return ((outputs - cnp.flip(inputs)) ** 2).sum()


PARAMS = {"w": np.random.default_rng(0).normal(size=(3, 3)) * 0.5, "u": np.random.default_rng(1).normal(size=3)}
INPUTS = np.array([0.3, -1.0, 0.7, 0.2])


def slope(fn: Any, x: Any, h: float = 1e-5) -> Any:
    """A central difference."""
    return (fn(x + h) - fn(x - h)) / (2 * h)


@pytest.mark.parametrize("fn", [root, pendulum])
def test_a_data_dependent_loop_has_derivatives_of_every_mode_and_order(fn: Any) -> None:
    f = cg.to_jax(fn)
    x = 0.9
    np.testing.assert_allclose(f(x), cg.function(fn)(x), rtol=1e-14)
    first, second = slope(fn, x), slope(cg.grad(fn), x)
    np.testing.assert_allclose(jax.grad(f)(x), first, rtol=1e-7)
    np.testing.assert_allclose(jax.grad(f)(x), cg.grad(fn)(x), rtol=1e-13)
    np.testing.assert_allclose(jax.jvp(f, (x,), (2.0,))[1], 2 * first, rtol=1e-7)
    for twice in (jax.hessian(f), jax.grad(jax.grad(f)), jax.jacrev(jax.jacfwd(f))):
        np.testing.assert_allclose(twice(x), second, rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(jax.hessian(f))(x), slope(cg.hessian(fn), x), rtol=1e-5)
    rows = np.array([0.5, 0.9, 1.3])
    np.testing.assert_allclose(jax.vmap(jax.grad(f))(rows), [cg.grad(fn)(x) for x in rows], rtol=1e-12)
    np.testing.assert_allclose(jax.grad(lambda x: jax.vmap(f)(x).sum())(rows), jax.vmap(jax.grad(f))(rows), rtol=1e-12)


def test_compiled_code_gives_the_same_numbers() -> None:
    f = cg.to_jax(root)
    np.testing.assert_allclose(jax.jit(jax.value_and_grad(f))(2.0), (2**0.5, 0.5 / 2**0.5), rtol=1e-12)
    rows = np.array([2.0, 9.0])
    expected = -0.25 * rows**-1.5
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.hessian(f)))(rows), expected, rtol=1e-11)


def test_a_recurrent_model_is_trained_by_jax() -> None:
    f = cg.to_jax(loss)
    np.testing.assert_allclose(f(PARAMS, INPUTS), loss(PARAMS, INPUTS), rtol=1e-14)
    gradient, expected = jax.jit(jax.grad(f))(PARAMS, INPUTS), cg.grad(loss)(PARAMS, INPUTS)
    for name in PARAMS:
        np.testing.assert_allclose(gradient[name], expected[name], rtol=1e-12)
    along = slope(lambda h: loss({**PARAMS, "w": PARAMS["w"] + h}, INPUTS), 0.0)
    np.testing.assert_allclose(gradient["w"].sum(), along, rtol=1e-7)
    # With respect to one argument, the other one the same for all rows.
    rows = np.stack([INPUTS, -INPUTS])
    found = jax.vmap(jax.grad(f), in_axes=(None, 0))(PARAMS, rows)
    np.testing.assert_allclose(found["u"][0], expected["u"], rtol=1e-12)
    summed = jax.grad(lambda p: jax.vmap(f, in_axes=(None, 0))(p, rows).sum())(PARAMS)
    np.testing.assert_allclose(summed["w"], found["w"].sum(0), rtol=1e-12)


def test_it_runs_within_scan_and_its_gradient_too() -> None:
    f = cg.to_jax(root)

    def total(a: Any) -> Any:
        return lax.scan(lambda c, x: (f(c + x * a), None), 1.0, jnp.arange(1.0, 4.0))[0]

    def by_hand(a: Any) -> Any:
        c = 1.0
        for x in (1.0, 2.0, 3.0):
            c = np.sqrt(c + x * a)
        return c

    value, gradient = jax.jit(jax.value_and_grad(total))(2.0)
    np.testing.assert_allclose(value, by_hand(2.0), rtol=1e-12)
    np.testing.assert_allclose(gradient, slope(by_hand, 2.0), rtol=1e-7)


def test_a_while_loop_of_jax_is_reversed_by_jax() -> None:
    def g(a: Any) -> Any:
        return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-13, lambda x: 0.5 * (x + a / x), a)

    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(g)(2.0)
    f = cg.to_jax(cg.from_jax(g))
    np.testing.assert_allclose(jax.grad(f)(2.0), jax.jvp(g, (2.0,), (1.0,))[1], rtol=1e-12)
    np.testing.assert_allclose(jax.grad(jax.grad(f))(2.0), -0.25 * 2**-1.5, rtol=1e-11)
    # The function is converted once more in both directions.
    np.testing.assert_allclose(cg.grad(cg.from_jax(f))(2.0), 0.5 / 2**0.5, rtol=1e-12)


def test_functions_without_loops_are_pure_jax() -> None:
    @cg.to_jax
    def f(x: Any, scale: Any) -> Any:
        y = cg.cond(x.sum() > 0, lambda: cnp.sin(x) * scale, lambda: x * x)
        return {"y": y @ y, "row": y[1:]}

    x = np.array([0.3, 0.7])
    assert f.explain(x, 2.0).form == "pure JAX"
    assert "ctrlgrad" not in str(jax.make_jaxpr(f)(x, 2.0))
    for point in (x, -x):
        found = jax.jit(jax.grad(lambda x: f(x, 2.0)["y"]))(point)
        np.testing.assert_allclose(found, cg.grad(lambda x: f.fn(x, 2.0)["y"])(point), rtol=1e-13)
    np.testing.assert_allclose(f(x, 2.0)["row"], 2 * np.sin(x[1:]), rtol=1e-14)


def test_explain_names_the_line_of_what_jax_has_no_operations_for() -> None:
    found = cg.to_jax(root).explain(2.0)
    assert found.form == "one primitive"
    assert str(found).startswith("one primitive: it has a loop whose iterations the data count at ")
    assert "test_to_jax.py" in str(found)

    @cg.custom_jvp
    def twice(x: Any) -> Any:
        return 2 * x

    twice.defjvp(lambda primals, tangents: (twice(*primals), 7 * tangents[0]))
    assert "rule of its own" in str(cg.to_jax(twice).explain(1.0))
    assert jax.grad(cg.to_jax(twice))(1.0) == 7.0


def test_a_reverse_rule_alone_serves_jaxs_reverse_mode() -> None:
    """JAX takes a gradient by its forward mode and transposes it: of that one only what it transposes is made."""

    @cg.custom_vjp
    def twice(x: Any) -> Any:
        return 2 * x

    twice.defvjp(lambda x: (twice(x), ()), lambda _, ct: (7 * ct,))

    def fn(x: Any) -> Any:
        return cg.while_loop(lambda c: c < 10.0, lambda c: twice(c) * x / x, x)

    f, x = cg.to_jax(fn), 3.0
    np.testing.assert_allclose(jax.grad(f)(x), 49.0)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(f)))(np.array([3.0, 6.0])), [49.0, 7.0])
    np.testing.assert_allclose(jax.grad(lambda x: jax.grad(f)(x) * x)(x), 49.0)
    for forward in (jax.jvp, jax.jit(lambda f, *args: jax.jvp(f, *args), static_argnums=0)):
        with pytest.raises(DifferentiationError, match="forward mode needs a forward rule"):
            forward(f, (x,), (1.0,))


def test_integers_have_no_derivative() -> None:
    f = cg.to_jax(lambda n, x: cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * x), (0, 1.0)))
    three = np.array(3)
    assert jax.grad(lambda x: f(three, x)[1])(2.0) == 12.0
    (count, power), (still, moved) = jax.jvp(lambda x: f(three, x), (2.0,), (1.0,))
    assert (int(count), float(power), float(moved)) == (3, 8.0, 12.0)
    assert still.dtype == jax.dtypes.float0
    gradient = jax.grad(lambda n, x: f(n, x)[1], argnums=(0, 1), allow_int=True)(three, 2.0)
    assert gradient[0].dtype == jax.dtypes.float0
    assert gradient[1] == 12.0


def test_pytrees_and_python_values() -> None:
    def fn(tree: Any, count: int, mode: str, *, extra: Any = None) -> Any:
        y = cg.while_loop(lambda x: x < 10.0, lambda x: x * count, tree["a"][0])
        return [y, None, (), {"mode": mode, "b": tree["b"]}]

    found = cg.to_jax(fn)({"a": (1.5, None), "b": np.arange(3)}, 2, "fast", extra=())
    assert float(found[0]) == 12.0
    assert found[1:3] == [None, ()]
    assert found[3]["mode"] == "fast"
    assert isinstance(found[3]["b"], jax.Array)
    assert cg.to_jax(lambda: ())() == ()


def test_complex_derivatives_are_those_of_jax() -> None:
    def fn(z: Any) -> Any:
        return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * z + 1.0), (0, z))[1]

    def by_jax(z: Any) -> Any:
        w = z
        for _ in range(3):
            w = w * z + 1.0
        return w

    f, z = cg.to_jax(fn), 0.4 + 0.3j
    np.testing.assert_allclose(jax.grad(lambda z: abs(f(z)))(z), jax.grad(lambda z: abs(by_jax(z)))(z), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(f, holomorphic=True)(z), jax.grad(by_jax, holomorphic=True)(z), rtol=1e-12)


def test_results_are_of_32_bits_while_64_are_off() -> None:
    def fn(x: Any) -> Any:
        count, y = cg.while_loop(
            lambda c: c[1] > 1.0, lambda c: (c[0] + 1, c[1] * np.array(0.5)), (0, x * np.array(1.0))
        )
        return count, y

    f = cg.to_jax(fn)
    with jax.enable_x64(False):
        count, y = jax.jit(f)(np.float64(3.0))
        assert (count.dtype, y.dtype) == (np.int32, np.float32)
        gradient = jax.jit(jax.grad(lambda x: f(x)[1]))(3.0)
        assert (gradient.dtype, float(gradient)) == (np.float32, 0.25)
        assert f.explain(3.0).form == "one primitive"
    assert f(3.0)[1].dtype == np.float64


def test_threads_share_a_function() -> None:
    f = cg.to_jax(root)
    compiled = jax.jit(jax.grad(f))

    def work(seed: int) -> float:
        # Settings hold for a thread.
        with jax.enable_x64(True), cg.options(engine="reference"):
            points = 2.0 + seed + np.arange(5)
            wrong = [float(g(x)) - 0.5 * x**-0.5 for x in points for g in (compiled, jax.grad(f))]
        return max(map(abs, wrong))

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(work, range(8))) < 1e-12


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_calls_leave_nothing_behind(engine: str) -> None:
    """Calls leave no objects behind; `python -m tests.leaks` makes a hundred thousand of them."""
    with cg.options(engine=engine):
        found = growth(1000)
    # Fewer, where what other tests have made goes meanwhile.
    assert found.programs <= 0
    assert found.arrays <= 0
    assert found.objects < 200


def test_errors_say_what_to_do() -> None:
    with pytest.raises(TypeMismatchError, match="key_data"):
        cg.to_jax(root)(jax.random.key(0))
    with pytest.raises(TypeMismatchError, match="int4"):
        cg.to_jax(root)(jnp.ones((), jnp.int4))
    with pytest.raises(TypeMismatchError, match="neither an array nor hashable"):
        cg.to_jax(root)({1, 2})
    with pytest.raises(TracingError, match="one more argument"):
        jax.grad(lambda w: cg.to_jax(lambda x: root(x * w))(2.0))(1.0)
    with pytest.raises(TracingError, match="not known before it runs"):
        cg.to_jax(lambda x: x[x > 0])(np.array([1.0, -1.0]))
    with pytest.raises(TracingError, match="traced tensor of this library"):
        cg.grad(cg.to_jax(root))(2.0)


def test_an_error_of_a_compiled_run_has_our_words() -> None:
    f = cg.to_jax(lambda x, i: cg.while_loop(lambda c: c < 5.0, lambda c: c + x[i], 0.0))
    x = jnp.ones(3)
    with pytest.raises(IndexError):
        f(x, np.array(7))
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of"):
        jax.jit(f)(x, np.array(7)).block_until_ready()


def test_machine_code_serves_it_in_32_bits() -> None:
    """In a process of its own, with JAX's settings as they are."""
    program = """
        import jax, numpy as np, ctrlgrad as cg
        f = cg.to_jax(lambda a: cg.while_loop(lambda x: x > 1.0, lambda x: 0.5 * x, a).sum())
        gradient = jax.jit(jax.vmap(jax.grad(f)))(np.array([3.0, 5.0]))
        assert gradient.dtype == np.float32
        print(gradient.tolist())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0.25, 0.125]"


@pytest.mark.parametrize("loops", [False, True])
def test_python_numbers_and_weak_arrays_give_way_in_promotions(loops: bool) -> None:
    def scaled(x: Any, y: Any) -> Any:
        return cg.while_loop(lambda c: c.sum() < 10, lambda c: c + x * y, 0 * x * y) if loops else x * y

    f, single = cg.to_jax(scaled), jnp.ones(2, jnp.float32)
    assert f.explain(2.0, single).form == ("one primitive" if loops else "pure JAX")
    for two in (2.0, jnp.asarray(2.0)):
        assert f(two, single).dtype == jax.jit(f)(two, single).dtype == np.float32
        assert jax.grad(lambda y, two=two: f(two, y).sum())(single).dtype == np.float32
        assert not f(two, single).weak_type
    assert f(np.float64(2.0), single).dtype == np.float64


def _halved(x: Any) -> Any:
    return cg.while_loop(lambda c: c.sum() > 1.0, lambda c: 0.5 * c, x)


@pytest.mark.parametrize(("dtype", "result"), [(jnp.bfloat16, jnp.bfloat16), (jnp.float8_e4m3fn, np.float32)])
def test_bfloat16_stays_what_it_is_and_floats_of_8_bits_are_computed_with_as_float32(dtype: Any, result: Any) -> None:
    f = cg.to_jax(_halved)
    x = jnp.asarray([1.5, 2.0], dtype)
    for call in (f, jax.jit(f)):
        assert call(x).dtype == result
        np.testing.assert_array_equal(call(x).astype(np.float32), [0.375, 0.5])
        slope = jax.grad(lambda x, call=call: call(x).sum())(x)
        assert slope.dtype == dtype
        np.testing.assert_array_equal(slope.astype(np.float32), [0.25, 0.25])


def test_bfloat16_without_loops_becomes_operations_of_jax() -> None:
    f = cg.to_jax(lambda x: cg.numpy.exp(x) @ x)
    x = jnp.linspace(-1, 1, 5, dtype=jnp.bfloat16)
    assert f.explain(x).form == "pure JAX" and f(x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(f(x)), cg.function(lambda x: cg.numpy.exp(x) @ x)(np.asarray(x)))


def test_python_numbers_have_the_type_that_jax_takes_them_for() -> None:
    """JAX's rules hand a Python number on as it is: NumPy alone would make 64 bits of it."""

    def root(a: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-5, lambda x: 0.5 * (x + a / x), a)

    with jax.enable_x64(False), cg.options(engine="native"):
        slope = jax.grad(cg.to_jax(cg.from_jax(root)))(4.0)
        assert slope.dtype == np.float32
        np.testing.assert_allclose(slope, 0.25, rtol=1e-4)


def test_results_outside_of_compiled_code_are_arrays_of_jax() -> None:
    """In the first call, in later ones, which put them there otherwise, and with compilation off."""
    f = cg.to_jax(lambda x: (root(x), x > 1.0))
    for off in (False, False, True):
        with jax.disable_jit(off):
            found = f(np.float64(4.0))
        assert all(isinstance(y, jax.Array) for y in found) and [y.dtype.name for y in found] == ["float64", "bool"]
        np.testing.assert_allclose(found[0], 2.0, rtol=1e-12)
        assert found[1]


def test_one_call_outside_of_compiled_code_compiles_nothing_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    put, calls = engine_primitive._compiled_put, []
    monkeypatch.setattr(engine_primitive, "_compiled_put", lambda *xs: (calls.append(len(xs)), put(*xs))[1])
    f = cg.to_jax(lambda x: (root(x), root(2 * x)))
    f(np.float64(4.0))
    assert calls == []
    f(np.float64(9.0))
    f(np.float64(2.0))
    assert calls == [2, 2]


def test_an_array_of_numpy_that_changes_after_the_call_does_not_change_its_derivative() -> None:
    x = np.array([4.0, 9.0], np.float64)
    f = cg.to_jax(lambda w, x: (w * root(x.sum())) * x.sum())
    _, pull = jax.vjp(lambda w: f(w, x), np.float64(1.0))
    x[:] = 0
    np.testing.assert_allclose(pull(np.float64(1.0))[0], 13 * np.sqrt(13), rtol=1e-12)
