"""Matrices without a solution give NaN in programs of JAX; in other programs they raise an error, or give NaN on
request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ExecutionError, UserInputError

RIGHT = np.array([1.0, 3.0], np.float32)
FINE = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)
MATRICES = {
    "indefinite": np.array([[1.0, 2.0], [2.0, 1.0]], np.float32),
    "singular": np.array([[1.0, 2.0], [2.0, 4.0]], np.float32),
    "zero": np.zeros((2, 2), np.float32),
    "nan": np.full((2, 2), np.nan, np.float32),
}
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "cho_solve": lambda a: jsl.cho_solve(jsl.cho_factor(a), RIGHT),
    "solve": lambda a: jnp.linalg.solve(a, RIGHT),
    "solve pos": lambda a: jsl.solve(a, RIGHT, assume_a="pos"),
    "inv": jnp.linalg.inv,
    "solve_triangular": lambda a: jsl.solve_triangular(a, RIGHT),
    "lower": lambda a: jsl.solve_triangular(a, RIGHT, lower=True, trans=1),
    "lu_solve": lambda a: jsl.lu_solve(jsl.lu_factor(a), RIGHT),
    "singular values": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "singular vectors": lambda a: jnp.abs(jnp.linalg.svd(a)[0]),
    "pinv": jnp.linalg.pinv,
}


def same(found: Any, expected: Any) -> None:
    """Check that finite numbers agree with JAX's, and that all other elements are not finite in both."""
    found, expected = np.asarray(found), np.asarray(expected)
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), is_finite)
    np.testing.assert_allclose(found[is_finite], expected[is_finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("matrix", MATRICES)
def test_a_program_of_jax_has_nan(name: str, matrix: str) -> None:
    fn, a = OPERATIONS[name], MATRICES[matrix]
    both = np.stack([FINE, a])
    for engine in ("native", "reference"):
        same(cg.function(cg.from_jax(fn), engine=engine)(a), jax.jit(fn)(a))
        same(cg.function(cg.from_jax(jax.vmap(fn)), engine=engine)(both), jax.jit(jax.vmap(fn))(both))
        same(cg.function(cg.vmap(cg.from_jax(fn)), engine=engine)(both), jax.jit(jax.vmap(fn))(both))


@pytest.mark.parametrize("name", ["cholesky", "solve", "inv", "cho_solve", "lower"])
@pytest.mark.parametrize("matrix", ["indefinite", "singular", "zero"])
def test_derivatives_of_what_has_no_answer_end_without_an_error(name: str, matrix: str) -> None:
    fn, a = OPERATIONS[name], MATRICES[matrix]
    read = cg.from_jax(fn)
    expected = jax.jit(jax.grad(lambda a: jnp.sum(fn(a))))(a)
    tangent = jax.jit(lambda a: jax.jvp(fn, (a,), (a + 1,)))(a)[1]
    for found, of_jax in (
        (cg.grad(lambda a: cnp.sum(read(a)))(a), expected),
        (cg.jvp(read, (a,), (a + 1,))[1], tangent),
    ):
        # Not all that JAX makes NaN depends on what has none.
        is_finite = np.isfinite(of_jax)
        assert np.isfinite(found).all() == is_finite.all()
        np.testing.assert_allclose(found[is_finite], of_jax[is_finite], rtol=1e-4)


def test_a_search_for_a_jitter_goes_on_until_a_factor_is_finite() -> None:
    @cg.from_jax
    def factor(a: Any) -> Any:
        def fails(state: tuple[Any, Any]) -> Any:
            return jnp.isnan(state[1]).any()

        def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
            jitter = state[0] * 10
            return jitter, jnp.linalg.cholesky(a + jitter * jnp.eye(2))

        return jax.lax.while_loop(fails, step, (jnp.float32(1e-3), jnp.full((2, 2), jnp.nan)))[1]

    given = np.array([[1.0, 2.5], [2.5, 1.0]], np.float32)
    found = np.asarray(factor(given))
    np.testing.assert_allclose(found @ found.T, given + 10 * np.eye(2), rtol=1e-5)


@pytest.mark.parametrize("engine", ["native", "reference", "dataflow"])
@pytest.mark.parametrize(
    "fn, matrix, needs",
    [
        (cnp.linalg.cholesky, "indefinite", "not positive definite"),
        (cnp.linalg.inv, "singular", "not invertible"),
        (lambda a: cnp.linalg.solve(a, RIGHT), "zero", "not invertible"),
    ],
)
def test_other_programs_have_an_error_that_says_what_is_wrong_or_nan(
    fn: Callable[[Any], Any], matrix: str, needs: str, engine: str
) -> None:
    made = cg.function(fn, engine=engine)
    with pytest.raises(ExecutionError, match=f"(?s){needs}.*no_answer"):
        made(MATRICES[matrix])
    with cg.options(no_answer="nan"):
        assert not np.isfinite(made(MATRICES[matrix])).any()
        assert np.isfinite(made(FINE)).all()
    with pytest.raises(ExecutionError, match=needs):
        made(MATRICES[matrix])
    with pytest.raises(UserInputError, match="no such no_answer"), cg.options(no_answer="zero"):
        pass
