"""`from_jax`: arguments, dtypes, results, errors, and primitives that users add."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive
from random_jaxprs.generate import Program
from random_jaxprs.judge import judge

import ctrlgrad as cg
from ctrlgrad.errors import TracingError, TypeMismatchError, UnsupportedPrimitiveError
from ctrlgrad.interop.primitives import TABLE


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


class Pair(NamedTuple):
    w: Any
    b: Any


def test_pytrees_go_in_and_out() -> None:
    @cg.from_jax
    def f(params: Any, x: Any, *, scale: Any) -> Any:
        y = params["layer"].w @ x + params["layer"].b
        return {"y": [y * scale, None], "n": (jnp.sum(y),)}

    params = {"layer": Pair(np.eye(2, dtype=np.float32), np.ones(2, np.float32))}
    found = f(params, jnp.arange(2.0), scale=2.0)
    np.testing.assert_allclose(found["y"][0], [2.0, 4.0])
    assert found["y"][1] is None
    gradient = cg.grad(lambda params: f(params, np.ones(2, np.float32), scale=1.0)["n"][0])(params)
    assert isinstance(gradient["layer"], Pair)
    np.testing.assert_allclose(gradient["layer"].b, [1.0, 1.0])


def test_python_values_reach_the_function_as_they_are() -> None:
    @cg.from_jax
    def f(x: Any, training: bool, count: int, activation: Any) -> Any:
        for _ in range(count):
            x = activation(x)
        return -x if training else x

    x = np.float32(0.5)
    np.testing.assert_allclose(f(x, True, 2, jnp.sin), -np.sin(np.sin(x)), rtol=1e-6)
    np.testing.assert_allclose(f(x, False, 1, jnp.cos), np.cos(x), rtol=1e-6)


def test_a_class_is_no_array() -> None:
    x = np.arange(3.0, dtype=np.float32)
    np.testing.assert_array_equal(cg.from_jax(lambda x, dtype: x.astype(dtype))(x, np.int32), [0, 1, 2])
    np.testing.assert_array_equal(cg.to_jax(lambda x, dtype: x.astype(dtype))(x, np.int32), [0, 1, 2])


def test_dtypes_are_jaxs() -> None:
    f = cg.from_jax(lambda x: (x, jnp.arange(3), x > 0, x.astype(jnp.float16), x * 1j))
    with jax.enable_x64(False):
        found = f(np.ones(2, np.float32))
    assert [x.dtype.name for x in found] == ["float32", "int32", "bool", "float16", "complex64"]
    with jax.enable_x64(True):
        found = f(np.ones(2))
    assert [x.dtype.name for x in found] == ["float64", "int64", "bool", "float16", "complex128"]


def test_a_weakly_typed_array_gives_way_in_promotions() -> None:
    with jax.enable_x64(True):
        two, add = jnp.asarray(2.0), cg.from_jax(lambda x, y: x + y)
        assert two.weak_type
        for other in (jnp.float32(1), jnp.ones(2, jnp.float16), np.ones(2, np.float32)):
            assert add(two, other).dtype == (two + other).dtype == other.dtype


def test_64_bits_are_not_lost_in_silence() -> None:
    f = lambda x: x * x
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match=r"float64 argument as float32.*test_from_jax\.py.*x64=True"):
            found = cg.from_jax(f)(np.array([1.0]))
        assert found.dtype == np.float32
        wide, narrow = cg.from_jax(f, x64=True), cg.from_jax(f, x64=False)
        assert wide(np.array([1.0])).dtype == np.float64
        assert narrow(np.array([1.0])).dtype == np.float32
        gradient = cg.grad(lambda x: narrow(x).sum())(np.array([3.0]))
        assert gradient.dtype == np.float64
        assert narrow(2.0).dtype == np.float32  # a Python number has no width to lose


def test_a_result_that_stands_for_a_python_number_does_not_widen() -> None:
    half = cg.from_jax(lambda x: x / 2, x64=True)
    assert cg.function(lambda x: half(3.0) * x)(np.ones(2, np.float32)).dtype == np.float32


def test_a_signature_is_traced_once() -> None:
    # Not a list: a list that changes is noticed, and traced anew.
    calls: deque[Any] = deque()

    @cg.from_jax
    def f(x: Any) -> Any:
        calls.append(x.shape)
        return jnp.sin(x)

    for size in (2, 3, 2, 3):
        f(np.ones(size, np.float32))
    cg.while_loop(lambda c: c.sum() < 0, f, np.ones(3, np.float32))
    assert list(calls) == [(2,), (3,)]


def test_keys_go_in_and_out() -> None:
    split = cg.from_jax(lambda key: jax.random.split(key))
    words = split(jax.random.key(3))
    np.testing.assert_array_equal(words, jax.random.key_data(jax.random.split(jax.random.key(3))))
    drawn = cg.from_jax(lambda key: jax.random.uniform(key, (3,)))
    np.testing.assert_array_equal(drawn(words[1]), drawn(jax.random.split(jax.random.key(3))[1]))


@pytest.mark.parametrize("width", ["uint8", "uint16", "uint32", "uint64"])
def test_random_bits_are_jaxs(width: str) -> None:
    def f(seed: Any) -> Any:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 7), 3)
        return jax.vmap(lambda key: jax.random.bits(key, (2, 2), width))(keys)

    with jax.enable_x64(True):
        for seed in (np.int32(-5), np.int64(2**40 + 3), np.int64(-7)):
            np.testing.assert_array_equal(cg.from_jax(f)(seed), f(seed))


def test_a_key_is_carried_through_a_loop() -> None:
    def walk(key: Any, scale: Any) -> Any:
        def step(state: Any) -> Any:
            key, x = state
            key, now = jax.random.split(key)
            return key, x + scale * jax.random.uniform(now)

        return lax.while_loop(lambda state: state[1] < 2, step, (key, 0.0 * scale))[1]

    with jax.enable_x64(True):
        ours, key = cg.from_jax(walk), jax.random.key(1)
        np.testing.assert_allclose(ours(key, 0.3), walk(key, 0.3), rtol=1e-14)
        tangent = jax.jvp(lambda scale: walk(key, scale), (0.3,), (1.0,))[1]
        np.testing.assert_allclose(cg.grad(lambda scale: ours(key, scale))(0.3), tangent, rtol=1e-12)


def test_an_unknown_primitive_is_named_with_its_line() -> None:
    mystery = Primitive("mystery")
    mystery.def_abstract_eval(lambda x, *, scale: x)
    f = cg.from_jax(lambda x: mystery.bind(x, scale=2.0))
    with pytest.raises(UnsupportedPrimitiveError, match="'mystery' has no translation") as raised:
        f(np.float32(1))
    assert "test_from_jax.py" in str(raised.value) and 'jax_primitive("mystery")' in str(raised.value).replace("'", '"')

    @cg.interop.jax_primitive("mystery")
    def _(x: Any, *, scale: float) -> Any:
        return np.sin(scale * x)

    try:
        assert float(cg.grad(f)(np.float32(0))) == 2.0
    finally:
        del TABLE["mystery"]


def test_a_program_is_read_once_however_many_traces_it_is_part_of(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, sine = [], TABLE["sin"]
    monkeypatch.setitem(TABLE, "sin", lambda equation, x: reads.append(x) or sine(equation, x))
    f, x = cg.from_jax(lambda x: jnp.sin(x)), np.float32(0.5)
    assert f(x) == np.sin(x) and cg.grad(f)(x) == np.cos(x)
    cg.hessian(f)(x)
    cg.fori_loop(0, 3, lambda i, y: f(y), x)
    assert len(reads) == 1
    # Where an argument is known it is read with that, so that what follows from it is computed at once.
    known = cg.from_jax(lambda n, x: lax.cond(n > 1, jnp.sin, jnp.cos, x))
    graph = cg.function(lambda x: known(np.int32(2), x)).graph(x)
    assert [node.op.name for node in graph.nodes] == ["sin"] and len(reads) == 2


def test_a_refused_primitive_says_why() -> None:
    f = cg.from_jax(lambda x: io_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x))
    with pytest.raises(UnsupportedPrimitiveError, match="it has results and effects"):
        f(np.float32(1))


def test_an_unsupported_dtype_is_named_with_its_line() -> None:
    with pytest.raises(cg.CtrlgradError, match=r"float8_e4m3fn(.|\n)*test_from_jax\.py"):
        cg.from_jax(lambda x: x.astype(jnp.float8_e4m3fn))(np.float32(1))


def test_a_failing_run_names_the_line_of_the_jax_program() -> None:
    def f(x: Any) -> Any:
        return lax.while_loop(lambda y: y < 1e9, lambda y: y * x, x)

    with pytest.raises(cg.CtrlgradError, match=r"test_from_jax\.py"), cg.options(check_nans=True):
        cg.from_jax(lambda x: jnp.log(x - 2) * f(x + 2))(np.float32(1))


def test_debug_print_happens_in_every_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    def body(i: Any, x: Any) -> Any:
        jax.debug.print("{} at {step}", x, step=i)
        return x * 2

    cg.from_jax(lambda x: lax.fori_loop(0, 2, body, x))(np.float32(1))
    assert capsys.readouterr().out.split() == ["1.0", "at", "0", "2.0", "at", "1"]


def test_jax_is_not_loaded_before_it_is_asked_for() -> None:
    code = "import sys, ctrlgrad; dir(ctrlgrad); assert 'jax' not in sys.modules; ctrlgrad.from_jax"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(("seed", "back"), [(0, False), (3, True)])
def test_random_programs(seed: int, back: bool) -> None:
    program = Program(seed)
    assert [str(wrong) for wrong in judge(program, back=back)] == [], str(program)


def test_user_rules_replace_rules_of_primitives() -> None:
    """Registered first of all, before anything else of `interop` is loaded."""
    code = """
import numpy as np, ctrlgrad as cg
@cg.interop.jax_primitive("sin")
def _(x, **params):
    return 2.0 * x
import jax.numpy as jnp
assert float(cg.from_jax(lambda x: jnp.sin(x))(np.float32(3.0))) == 6.0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("transform", [jax.grad, jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])])
def test_a_transform_of_jax_around_it_is_explained(transform: Any) -> None:
    with pytest.raises(TracingError, match=r"a traced array of JAX[^$]*ctrlgrad\.to_jax\(fn\)"):
        transform(cg.from_jax(jnp.sin))(jnp.float32(1.0))


def test_a_function_in_a_model_of_equinox_is_explained_and_the_advice_works() -> None:
    equinox = pytest.importorskip("equinox")
    model, x = equinox.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)), jnp.ones(2)
    with pytest.raises(TypeMismatchError, match=r"m\.activation[^$]*equinox\.partition\(model, equinox\.is_array\)"):
        cg.grad(cg.from_jax(lambda m, x: m(x).sum()))(model, x)
    params, rest = equinox.partition(model, equinox.is_array)
    found = cg.grad(cg.from_jax(lambda params, x: equinox.combine(params, rest)(x).sum()))(params, x)
    wanted = equinox.filter_grad(lambda m, x: m(x).sum())(model, x)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
