"""Mistakes of a first day: each error names the user's own words, and help is the function's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import CtrlgradError, TracingError, TypeMismatchError


def flagged(x: Any, training: bool) -> Any:
    """Twice x in training."""
    return 2.0 * x if training else x


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: cg.grad(lambda p: p["a"] * 2)({"a": 1.0, "name": "adam"}), r"p\['name'\]: 'adam', str"),
        (lambda: cg.random.normal((3,)), "random.normal: not a key"),
        (lambda: cg.random.uniform((3,)), "random.uniform: not a key"),
        (lambda: cg.vmap(lambda x, t: x[:t].sum())(np.ones((2, 3)), np.array([1, 2])), r"got: x\[:t\] with a bound"),
        (lambda: cg.function(flagged)(1.0, True), "static_argnames='training'"),
        (lambda: cg.function(lambda x: f"{x:.2f}")(1.0), r"debug.print\('\{x:.2f\}', x=x\)"),
        (lambda: cg.function(lambda x: "%.2f" % x)(1.0), r"debug.print\('\{x:.2f\}', x=x\)"),  # noqa: UP031
        (lambda: pickle.dumps(cg.function(flagged)), "pickle: flagged is a function of ctrlgrad"),
        (lambda: pickle.dumps(cg.grad(flagged)), "pickle: grad_flagged is a function of ctrlgrad"),
    ],
)
def test_an_error_names_what_the_user_wrote(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(CtrlgradError, match=words) as caught:
        call()
    assert "test_first_day.py" in str(caught.value) and "try: " in str(caught.value)


def test_a_comparison_is_no_flag() -> None:
    with pytest.raises(TracingError) as caught:
        cg.function(lambda x: x if x > 0 else -x)(1.0)
    assert "static_argnames" not in str(caught.value)


def test_the_advice_for_a_flag_works() -> None:
    fn = cg.function(flagged, static_argnames="training")
    assert (float(fn(1.0, training=True)), float(fn(1.0, training=False))) == (2.0, 1.0)


@pytest.mark.parametrize(
    "transform", [cg.function, cg.grad, cg.value_and_grad, cg.vmap, cg.jacfwd, cg.jacrev, cg.hessian]
)
def test_help_of_a_transform_has_the_functions_own(transform: Callable[..., Any]) -> None:
    assert "Twice x in training." in transform(flagged).__doc__


def test_functions_are_copied() -> None:
    fn = cg.grad(lambda x: x * x)
    for made in (copy.copy(fn), copy.deepcopy(fn)):
        assert float(made(3.0)) == 6.0


def test_a_string_in_a_pytree_is_shown_by_its_value() -> None:
    with pytest.raises(TypeMismatchError, match="'a long name"):
        cg.grad(lambda x: x)("a long name")


def test_a_key_of_jax_is_its_numbers_wherever_it_is_passed() -> None:
    jax = pytest.importorskip("jax")
    key = jax.random.key(3)
    own = cg.random.key(3)

    def drawn(key: Any) -> Any:
        return cg.random.normal(key, (2,))

    def redrawn(key: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, c: (cg.random.fold_in(c[0], i), c[1] + drawn(c[0])), (key, np.zeros(2)))[1]

    for fn in (drawn, cg.function(drawn), redrawn, lambda key: cg.grad(lambda x, k: (x * drawn(k)).sum())(1.0, key)):
        np.testing.assert_array_equal(fn(key), fn(own))
    np.testing.assert_array_equal(cg.vmap(drawn)(jax.random.split(key)), cg.vmap(drawn)(cg.random.split(own)))
    with pytest.raises(TracingError, match="a traced array of JAX") as caught:
        jax.jit(drawn)(key)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:4]] == ["at", "expected", "got"]  # JAX's note comes last


COUNT = 0


def counted(xs: Any) -> Any:
    global COUNT
    total = 0.0
    for x in xs:
        COUNT = COUNT + 1
        total = total + x
    return total


def test_a_global_is_not_assigned_in_a_loop_that_is_converted() -> None:
    with pytest.raises(CtrlgradError, match="global COUNT, beside a loop,"):
        cg.function(counted, autograph=True)(np.ones(3))
    assert COUNT == 0
