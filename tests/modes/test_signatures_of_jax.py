"""Transforms called as JAX's are: what they accept and what they return beside, judged by JAX itself."""

from __future__ import annotations

import enum
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import CtrlgradError, TypeMismatchError

X = np.array([0.7, -0.4, 1.3])
NOTHING = np.zeros((), cg.float0)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def same(found: Any, expected: Any) -> None:
    found, treedef = jax.tree.flatten(found)
    expected, expected_treedef = jax.tree.flatten(expected)
    assert treedef == expected_treedef
    for a, b in zip(found, expected, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype and np.shape(a) == np.shape(b)
        if np.asarray(a).dtype != cg.float0:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


AUX = {
    "vjp": lambda lib, xp: (lambda r: (r[0], r[1](r[0]), r[2]))(
        lib.vjp(lambda x: (xp.sin(x) * x, {"kept": x * 2}), X, has_aux=True)
    ),
    "jvp": lambda lib, xp: lib.jvp(lambda x: (xp.sin(x) * x, {"kept": x * 2}), (X,), (X + 1,), has_aux=True),
    "jacfwd": lambda lib, xp: lib.jacfwd(lambda x: (xp.sin(x) * x[0], {"kept": x * 2}), has_aux=True)(X),
    "jacrev": lambda lib, xp: lib.jacrev(lambda x: (xp.sin(x) * x[0], {"kept": x * 2}), has_aux=True)(X),
    "hessian": lambda lib, xp: lib.hessian(lambda x: (xp.sum(xp.sin(x) * x[0]), {"kept": x * 2}), has_aux=True)(X),
    "linearize": lambda lib, xp: (lambda r: (r[0], r[1](X + 1), r[2]))(
        lib.linearize(lambda x: (xp.sin(x) * x, {"kept": x * 2}), X, has_aux=True)
    ),
    "grad": lambda lib, xp: lib.grad(lambda x: (xp.sum(xp.sin(x)), [x]), has_aux=True)(X),
}


@pytest.mark.parametrize("name", AUX)
def test_auxiliary_results_are_returned(name):
    same(AUX[name](cg, cnp), AUX[name](jax, jnp))


class Mode(enum.Enum):
    FAST = "fast"


OBJECT = object()
# Each leaf but "x" is no array.
KEPT = {"n": None, "o": OBJECT, "f": len, "m": Mode.FAST, "d": np.dtype("int8"), "t": int}
KEPT |= {"o": OBJECT, "f": len, "m": Mode.FAST, "d": np.dtype("int8"), "t": int, "s": "text", "i": 3, "b": True}


def _beside(x: Any) -> dict[str, Any]:
    return {**KEPT, "x": x * 2, "nested": [("text", {"deep": Mode.FAST}), x]}


def _square(x: Any) -> Any:
    return x * x, _beside(x)


# The aux of each transform at 3.0, beside a derivative that is 6.0, or 2.0 for the second.
OF_AUX = {
    "grad": lambda lib, f: lib.grad(f, has_aux=True)(3.0),
    "value_and_grad": lambda lib, f: (lambda r: (r[1], r[0][1]))(lib.value_and_grad(f, has_aux=True)(3.0)),
    "vjp": lambda lib, f: (lambda r: (r[1](1.0)[0], r[2]))(lib.vjp(f, 3.0, has_aux=True)),
    "jvp": lambda lib, f: lib.jvp(f, (3.0,), (1.0,), has_aux=True)[1:],
    "linearize": lambda lib, f: (lambda r: (r[1](1.0), r[2]))(lib.linearize(f, 3.0, has_aux=True)),
    "jacrev": lambda lib, f: lib.jacrev(f, has_aux=True)(3.0),
    "grad of grad": lambda lib, f: lib.grad(lambda x: lib.grad(f, has_aux=True)(x), has_aux=True)(3.0),
    "control flow on values": lambda lib, f: lib.grad(lambda x: f(x) if x > 0 else (x, None), has_aux=True)(3.0),
}
# JAX refuses them here: its `vmap` returns arrays alone.
ALSO_OF_AUX = {
    "jacfwd": lambda lib, f: lib.jacfwd(f, has_aux=True)(3.0),
    "hessian": lambda lib, f: lib.hessian(f, has_aux=True)(3.0),
}


def _same_aux(found: Any, expected: Any) -> None:
    assert set(found) == set(expected)
    assert all(found[name] is expected[name] for name in KEPT)
    assert float(found["x"]) == 6.0 == float(expected["x"])
    (text, inner), x = found["nested"]
    assert (text, inner, float(x)) == ("text", {"deep": Mode.FAST}, 3.0)


@pytest.mark.parametrize("name", [*OF_AUX, *ALSO_OF_AUX])
def test_leaves_of_aux_that_are_no_arrays_are_handed_on(name):
    call = {**OF_AUX, **ALSO_OF_AUX}[name]
    for _ in range(2):
        derivative, aux = call(cg, _square)
        _same_aux(aux, call(jax, _square)[1] if name in OF_AUX else _beside(3.0))
        assert float(derivative) == (2.0 if name in ("grad of grad", "hessian") else 6.0)


@pytest.mark.parametrize("name", [*OF_AUX, *ALSO_OF_AUX])
def test_aux_of_each_call_is_its_own(name):
    """A trace that an earlier call made is found again; its aux is not."""
    call = {**OF_AUX, **ALSO_OF_AUX}[name]
    found = [call(cg, lambda x, label=label: (x * x, label))[1] for label in ("one", "other")]
    assert found == ["one", "other"]


def test_aux_that_is_no_array_inside_compiled_and_mapped_functions():
    """Inside they are Python values, that `if` may ask; as results they are refused, by JAX too."""

    def inside(x: Any, lib: Any) -> Any:
        slope, aux = lib.grad(_square, has_aux=True)(x)
        assert type(aux["b"]) is bool and type(aux["i"]) is int and aux["o"] is OBJECT
        return slope + aux["x"] if aux["b"] else x

    same(cg.function(lambda x: inside(x, cg))(3.0), np.asarray(jax.jit(lambda x: inside(x, jax))(3.0)))
    same(cg.vmap(lambda x: inside(x, cg))(X), np.asarray(jax.vmap(lambda x: inside(x, jax))(X)))
    for of in (cg.function, lambda f: lambda x: cg.vmap(f)(x + X)):
        with pytest.raises(TypeMismatchError, match="a leaf is not an array or a number"):
            of(cg.grad(_square, has_aux=True))(3.0)
    for of in (jax.jit, lambda f: lambda x: jax.vmap(f)(x + X)):
        with pytest.raises(TypeError, match="not a valid JAX type"):
            of(jax.grad(_square, has_aux=True))(3.0)


INTEGERS = {
    "grad": lambda lib, xp: lib.grad(lambda p: p["a"] * p["n"], allow_int=True)({"a": 2.0, "n": 3}),
    "value_and_grad": lambda lib, xp: lib.value_and_grad(lambda a, n: a * n, (0, 1), allow_int=True)(2.0, np.int64(3)),
    "jacrev": lambda lib, xp: lib.jacrev(lambda a, n: a * n, (0, 1), allow_int=True)(X, np.arange(3)),
    "vjp": lambda lib, xp: lib.vjp(lambda a, n: a * n, X, np.arange(3))[1](X),
    "jvp": lambda lib, xp: lib.jvp(lambda a, n: a * n, (X, np.int64(3)), (X, NOTHING)),
    "linearize": lambda lib, xp: lib.linearize(lambda a, n: a * n, X, np.int64(3))[1](X, NOTHING),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_the_derivative_with_respect_to_an_integer_holds_nothing(name):
    same(INTEGERS[name](cg, cnp), INTEGERS[name](jax, jnp))


def test_float0_leaves_a_function_that_is_called_twice():
    f = cg.function(lambda a, n: cg.grad(lambda a, n: a * n, (0, 1), allow_int=True)(a, n))
    for _ in range(3):
        gradient, nothing = f(2.0, 3)
        assert gradient == 3.0 and nothing.dtype == cg.float0 and nothing.shape == ()


def test_the_tangent_of_an_integer_is_not_taken_for_a_number():
    with pytest.raises(CtrlgradError, match=r"float0"):
        cg.jvp(lambda a, n: a * n, (X, 3), (X, 1))


def loss(w, x, training=False, steps=2, mode="sum"):
    y = w
    for _ in range(steps):
        y = y * x
    if training:
        y = y + w * w
    assert type(training) is bool and type(steps) is int
    return y.sum() if mode == "sum" else y.max()


CALLS = ({"training": True}, {"steps": 3}, {"training": False, "mode": "max"}, {"training": True, "steps": 0})


@pytest.mark.parametrize("kwargs", CALLS, ids=str)
@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_python_values_that_are_not_differentiated_reach_the_function(name, kwargs):
    same(getattr(cg, name)(loss)(X, 2.0, **kwargs), getattr(jax, name)(loss)(X, 2.0, **kwargs))


def test_python_values_by_position_and_in_containers_reach_the_function():
    f = cg.grad(lambda w, options: w * w if options["square"] else w * options["by"][0])
    assert [float(f(3.0, {"square": flag, "by": (5,)})) for flag in (True, False, True)] == [6.0, 5.0, 6.0]


def test_a_known_python_value_is_not_compiled_again(compilations):
    f = cg.grad(lambda w, n: w**n)
    assert [float(f(2.0, n)) for n in (2, 3, 2, 3, 2)] == [4.0, 12.0, 4.0, 12.0, 4.0]
    assert len(compilations) == 2


@pytest.mark.parametrize("flag", [np.array(1.0), np.array(-1.0), 1.0, -1.0, np.bool_(True)], ids=repr)
def test_python_control_flow_on_what_is_not_differentiated(flag):
    f = lambda w, flag: w * w if flag > 0 else -w
    same(cg.grad(f)(3.0, flag), np.asarray(jax.grad(f)(3.0, flag)))


STATIC = {
    "by number": {"static_argnums": 1},
    "from the end": {"static_argnums": (-1,)},
    "by name": {"static_argnames": "n"},
    "by names": {"static_argnames": ["n"]},
}


@pytest.mark.parametrize("given", STATIC.values(), ids=STATIC)
def test_static_arguments_of_a_function(given):
    def total(x, n):
        assert type(n) is int
        return sum(x for _ in range(n))

    f = cg.function(total, **given)
    assert [float(f(2.0, 3)), float(f(2.0, n=3)), float(f(2.0, 4)), float(f(5.0, 3))] == [6.0, 6.0, 8.0, 15.0]
    assert float(jax.jit(total, **given)(2.0, 3)) == 6.0
    assert f.traces == 3


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vmap"])
def test_static_arguments_of_a_transform(name):
    seen = []

    def f(x, rate):
        seen.append(type(rate))
        return (x * rate).sum()

    getattr(cg, name)(f, static_argnums=1)(X, 0.5)
    assert set(seen) == {float}


def test_a_static_argument_that_cannot_be_compared_is_refused():
    with pytest.raises(CtrlgradError, match="not hashable"):
        cg.function(lambda x, n: x, static_argnums=1)(2.0, [3])


def test_checkpoint_takes_policies_and_static_arguments():
    f = lambda x, n: sum(np.sin(x) for _ in range(n))
    for policy in (None, cg.checkpoint_policies.nothing_saveable, jax.checkpoint_policies.everything_saveable):
        g = cg.checkpoint(f, policy=policy, static_argnums=(1,))
        np.testing.assert_allclose(cg.grad(g)(1.0, 2), 2 * np.cos(1.0))
    with pytest.raises(CtrlgradError, match="policy"):
        cg.checkpoint(f, policy=lambda prim, *_, **__: True)


def test_vmap_over_no_argument_has_a_size():
    assert cg.vmap(lambda: 2.0, axis_size=3)().tolist() == [2.0, 2.0, 2.0]
    assert cg.vmap(lambda x, n: x if n == 2 else -x, in_axes=(0, None))(X, 2).tolist() == X.tolist()
    with pytest.raises(CtrlgradError, match="axis_size: i64"):
        cg.vmap(lambda x: x, axis_size=4)(X)


@pytest.mark.parametrize("pred", [0, 3, 0.0, -0.5, np.array(2), np.float32(0), True], ids=repr)
def test_a_number_is_a_predicate(pred):
    call = lambda lib, p: lib.cond(p, lambda x: x + 1.0, lambda x: x * 2.0, operand=5.0)
    assert float(call(cg, pred)) == float(cg.function(lambda p: call(cg, p))(pred)) == float(call(jax.lax, pred))


def test_an_operand_by_keyword_of_switch():
    assert float(cg.switch(1, [lambda x: x, lambda x: -x], operand=2.0)) == -2.0


def test_unroll_changes_nothing():
    f = lambda x: (
        cg.scan(lambda c, y: (c * y, c), x, X, unroll=2)[0] + cg.fori_loop(0, 3, lambda i, c: c * x, x, unroll=True)
    )
    np.testing.assert_allclose(cg.grad(f)(2.0), X.prod() + 32.0)


def test_linearize_does_not_repeat_the_forward_pass():
    calls = []

    def f(x):
        calls.append(1)
        return cg.fori_loop(0, 5, lambda i, y: np.sin(y) * x, x)

    _, push = cg.linearize(f, X)
    before = len(calls)
    for t in np.eye(3):
        np.testing.assert_allclose(
            push(t), cg.jvp(lambda x: cg.fori_loop(0, 5, lambda i, y: np.sin(y) * x, x), (X,), (t,))[1]
        )
    assert len(calls) == before


def test_linearize_in_a_trace_and_through_another_derivative():
    f = lambda x, t: cg.linearize(lambda x: np.sin(x) * x, x)[1](t)
    g = lambda x, t: jax.linearize(lambda x: jnp.sin(x) * x, x)[1](t)
    np.testing.assert_allclose(cg.function(f)(X, X + 1), g(X, X + 1))
    np.testing.assert_allclose(cg.grad(lambda x: cnp.sum(f(x, x)))(X), jax.grad(lambda x: jnp.sum(g(x, x)))(X))


def test_a_linearized_function_leaves_and_enters_compiled_functions():
    push = cg.function(lambda x: cg.linearize(lambda x: x * x, x)[1])(X)
    np.testing.assert_allclose(cg.function(lambda push, t: push(t))(push, X), 2 * X * X)


def test_the_tangent_of_an_integer_is_float0_to_linearize():
    _, push = cg.linearize(cnp.sum, np.array([1, 2, 3]))
    assert push(np.zeros(3, cg.float0)).dtype == cg.float0
    for tangent in (np.ones((3, 2)), np.ones(3, int)):
        with pytest.raises(CtrlgradError, match="expected: float0"):
            push(tangent)


def test_the_transpose_of_a_linear_function_is_that_of_jax():
    w = np.arange(6.0).reshape(2, 3)
    f = lambda x, y: {"a": w @ x, "b": 3.0 * y}
    ct = {"a": np.array([1.0, -2.0]), "b": np.array(0.5)}
    shapes = jax.ShapeDtypeStruct((3,), np.float64), cg.TensorSpec((), np.float64)
    for primals in ((np.ones(3), 1.0), shapes):
        found = cg.linear_transpose(f, *primals)(ct)
        np.testing.assert_allclose(found[0], w.T @ ct["a"])
        assert float(found[1]) == 1.5
    transposed = cg.function(lambda x: cg.linear_transpose(lambda x: 2.0 * x, x))(1.0)
    assert cg.function(lambda f, ct: f(ct))(transposed, 3.0) == (6.0,)
    for fn in (lambda x: x * x, lambda x: cnp.maximum(x, 0.0)):
        with pytest.raises(CtrlgradError, match="linear_transpose: the function is not linear"):
            cg.linear_transpose(fn, 1.0)
    with pytest.raises(CtrlgradError, match=r"linear_transpose: the argument\[0\] is no float"):
        cg.linear_transpose(lambda n: 2 * n, 1)


def test_vmap_takes_no_dict_of_axes():
    with pytest.raises(CtrlgradError, match="vmap: in_axes"):
        cg.vmap(lambda x: x["a"], in_axes={"a": 0})


def test_a_tangent_that_does_not_fit_is_refused_by_linearize():
    with pytest.raises(CtrlgradError, match=r"linearize: the tangent\[0\]"):
        cg.linearize(np.sin, X)[1](np.ones(2))


def test_eval_shape_computes_nothing():
    given = cg.TensorSpec((4, 3), "float32"), jax.ShapeDtypeStruct((3,), "float32")
    found = cg.eval_shape(lambda w, x: {"y": w @ x}, *given)
    assert found == {"y": cg.TensorSpec((4,), np.dtype("float32"))}
    assert cg.eval_shape(lambda x, mode: x.astype(mode), X, "int32").dtype == np.int32


def test_graphs_of_many_python_values_are_bounded(monkeypatch):
    monkeypatch.setattr(importlib.import_module("ctrlgrad.function"), "SIGNATURES", 4)
    slope = cg.grad(lambda x, n: x**2 * n)
    for n in (*range(1, 9), 1):
        assert slope(3.0, n) == 6.0 * n
    assert len(slope._cache) == 4


def test_other_names_of_transforms_and_the_type_of_arrays():
    same(cg.jacobian(cnp.sin)(X), jax.jacobian(jnp.sin)(X))
    same(cg.grad(cg.remat(lambda x: (x**3).sum()))(X), jax.grad(jax.remat(lambda x: (x**3).sum()))(X))
    assert isinstance(cnp.sin(X), cg.Array)
    seen = []
    cg.grad(lambda x: seen.append(isinstance(x, cg.Array)) or x.sum())(X)
    assert seen == [True]
