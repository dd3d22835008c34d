"""Differences between versions of JAX: flags and options of XLA, primitives and their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick_jax
from jax.extend.core import Primitive

import ctrlgrad as cg
from ctrlgrad.errors import UnsupportedPrimitiveError
from ctrlgrad.verify import check_grads, jax_translation

X = np.array([0.3, -0.7, 0.999])


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def named(name: str) -> Callable[..., Any]:
    """A primitive of this name, of arrays of one shape: the installed JAX need not have it."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x, *more, **params: x)
    return primitive.bind


def test_flags_that_xla_does_not_know_are_left_out() -> None:
    level = "--xla_backend_optimization_level=0"
    assert quick_jax.known([level]) == [level]
    assert quick_jax.known(["--xla_no_such_flag=1", level, "--xla_nor_this=true"]) == [level]
    assert quick_jax.known(["--xla_no_such_flag=1"]) == []


def test_the_judge_compiles_where_xla_does_not_know_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_translation, "_quick", lambda: {"xla_no_such_option": True})
    assert check_grads(lambda x: x**3, (X,), against=["jax"]).ok


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("log2", lambda x: (x + 1.0,), lambda x: jnp.log2(x + 1.0)),
        ("one_minus_square", lambda x: (x,), lambda x: 1 - x * x),
        ("polynomial", lambda x: (x, x * 0 + 5.0, 2 * x, x * 0 + 7.0), lambda x: 5 + x * (2 * x + x * 7)),
    ],
)
def test_primitives_of_newer_versions(
    name: str, operands: Callable[[Any], Any], expected: Callable[[Any], Any]
) -> None:
    ours = cg.from_jax(lambda x: named(name)(*operands(x)))
    np.testing.assert_allclose(ours(X), expected(X), rtol=1e-12)
    total, theirs = (lambda x: jnp.sum(jnp.sin(expected(x)))), cg.from_jax(lambda x: jnp.sum(jnp.sin(x)))
    composed = lambda x: theirs(ours(x))
    np.testing.assert_allclose(cg.grad(composed)(X), jax.grad(total)(X), rtol=1e-12)
    np.testing.assert_allclose(cg.hessian(composed)(X), jax.hessian(total)(X), rtol=1e-9, atol=1e-12)


def test_one_minus_a_square_and_its_derivative_lose_no_digits() -> None:
    ours = cg.from_jax(named("one_minus_square"))
    assert float(ours(np.float32(1 - 2**-20))) == pytest.approx(2**-19 - 2**-40, rel=1e-7)
    assert float(cg.grad(ours)(1e-30)) == -2e-30


def test_a_parameter_that_the_installed_version_does_not_have_is_named() -> None:
    with pytest.raises(UnsupportedPrimitiveError, match=r"'rev' has no parameter 'dimensions' in JAX \d") as found:
        cg.from_jax(lambda x: named("rev")(x, axes=(0,)))(X)
    assert "the parameters axes" in str(found.value) and "test_versions_of_jax.py" in str(found.value)
