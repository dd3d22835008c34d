"""Indices outside of an array: the modes of `x.at[key]`, `take` and `take_along_axis` are JAX's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import IndexOutOfRangeError, UserInputError
from ctrlgrad.verify import check_grads


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


X = np.random.default_rng(0).normal(size=(4, 3, 5)) + 2

# Integers inside, on both sides outside, with positions that are meant twice, and all outside.
GIVEN = (
    (1, np.array([0, 2, 1]), np.array([1, 0, 2])),
    (9, np.array([9, 1, -2]), np.array([-9, 0, 2])),
    (-9, np.array([2, 2, -9]), np.array([2, 2, 1])),
    (7, np.array([7, 8, -9]), np.array([9, 9, 9])),
)
KEYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "an int": lambda i, a, b: i,
    "an array": lambda i, a, b: a,
    "the second axis": lambda i, a, b: (slice(None), a),
    "the last axis": lambda i, a, b: (..., a),
    "two arrays": lambda i, a, b: (a, b),
    "arrays that are apart": lambda i, a, b: (a, slice(None), b),
    "an int and an array apart": lambda i, a, b: (i, slice(None), a),
    "arrays that broadcast": lambda i, a, b: (a[:, None], b[None, :]),
    "a slice beside": lambda i, a, b: (a, slice(1, 3)),
    "new axes": lambda i, a, b: (None, a, None, b),
}
# Updates as functions of the place and of a value.
UPDATES: dict[str, Callable[[Any, Any, str], Any]] = {
    "set": lambda at, v, mode: at.set(v, mode=mode),
    "add": lambda at, v, mode: at.add(v, mode=mode),
    "multiply": lambda at, v, mode: at.multiply(v, mode=mode),
    "divide": lambda at, v, mode: at.divide(v, mode=mode),
    "power": lambda at, v, mode: at.power(v, mode=mode),
    "min": lambda at, v, mode: at.min(v, mode=mode),
    "max": lambda at, v, mode: at.max(v, mode=mode),
    "get": lambda at, v, mode: at.get(mode="fill" if mode == "drop" else mode, fill_value=0.5),
}


def part_of(x: np.ndarray, key: Any) -> np.ndarray:
    """The part that a key selects once its integers lie inside."""
    items = key if isinstance(key, tuple) else (key,)
    return x[tuple(item * 0 if isinstance(item, int | np.ndarray) else item for item in items)]


@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("name", UPDATES)
def test_updates_and_gradients_with_a_mode(name: str, mode: str) -> None:
    update = UPDATES[name]
    for (which, key_of), given in itertools.product(KEYS.items(), GIVEN):
        key = key_of(*given)
        v = np.random.default_rng(1).normal(size=part_of(X, key).shape) + 2
        expected = np.asarray(update(jnp.asarray(X).at[key], v, mode))
        fn = lambda x, v, key=key: update(cnp.at(x)[key], v, mode)
        np.testing.assert_allclose(fn(X, v), expected, rtol=1e-12, err_msg=f"{which} {given}")
        np.testing.assert_allclose(cg.function(fn)(X, v), expected, rtol=1e-12, err_msg=f"{which} {given}")
    for key in (KEYS["an array"](*GIVEN[1]), KEYS["arrays that are apart"](*GIVEN[3])):
        v = np.random.default_rng(1).normal(size=part_of(X, key).shape) + 2
        check_grads(lambda x, v, key=key: update(cnp.at(x)[key], v, mode), (X, v))


@pytest.mark.parametrize("name", ["set", "add"])
def test_gradients_are_those_of_jax(name: str) -> None:
    """Minima with mode "clip" are infinite in JAX, and products have none there: finite differences judge these."""
    v, w = (np.random.default_rng(seed).normal(size=(3, *X.shape[1:])) + 2 for seed in (1, 2))
    for mode in ("clip", "drop"):
        key = KEYS["an array"](*GIVEN[1])
        loss = lambda x, v, key=key, mode=mode: (w * UPDATES[name](x.at[key], v, mode)[1:]).sum()
        found = cg.function(cg.grad(loss, argnums=(0, 1)))(X, v)
        expected = jax.grad(loss, (0, 1))(jnp.asarray(X), jnp.asarray(v))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_in_a_loop_with_indices_that_leave_the_array() -> None:
    def loop(xp: Any, at: Any, fori: Any, x: Any) -> Any:
        return fori(0, 6, lambda i, y: at(y)[i - 1].set(y[0] * 2, mode="drop"), x)

    x = np.array([1.0, 2.0, 3.0])
    expected = jax.jacobian(lambda x: loop(jnp, lambda y: y.at, jax.lax.fori_loop, x))(x)
    found = cg.jacobian(cg.function(lambda x: loop(cnp, cnp.at, cg.fori_loop, x)))(x)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_indices_as_the_run_knows(count: int) -> None:
    """Also none at all."""
    signature = (cg.TensorSpec((None,), "float64"), cg.TensorSpec((None,), "int64"))
    fn = cg.function(lambda x, i: x.at[i].set(7.0, mode="drop"), signature=signature)
    at = np.array([5, -1, 9])[:count]
    x = np.arange(3.0)
    np.testing.assert_array_equal(fn(x, at), jnp.asarray(x).at[at].set(7.0, mode="drop"))


def test_a_mask_beside_integers() -> None:
    key = np.array([True, False, True, False]), np.array([7, 1])
    np.testing.assert_array_equal(cnp.at(X)[key].set(5.0, mode="drop"), jnp.asarray(X).at[key].set(5.0, mode="drop"))


SCALAR_BOOLEANS: dict[str, Any] = {
    "alone": lambda b, outside: b,
    "first": lambda b, outside: (b, outside),
    "last": lambda b, outside: (outside, b),
    "beside a slice": lambda b, outside: (b, slice(None), outside),
    "beside integers": lambda b, outside: (slice(None), b, np.array([outside])),
}


@pytest.mark.parametrize("mode", [None, "clip", "drop", "fill"])
@pytest.mark.parametrize("name", SCALAR_BOOLEANS)
def test_a_scalar_boolean_chooses_all_or_nothing(name: str, mode: str | None) -> None:
    """A scalar boolean as a key adds an axis to what is read, of size 1 if it is true and 0 if false, as in JAX."""
    outside = 9 if mode else 1
    for method, values in (
        ("set", (5.0,)),
        ("add", (5.0,)),
        ("min", (1.0,)),
        ("get", ()),
        ("apply", (lambda x: x * x,)),
    ):

        def update(at: Any, b: Any) -> Any:
            return getattr(at[SCALAR_BOOLEANS[name](b, outside)], method)(*values, mode=mode)  # noqa: B023

        for flag in (True, False):
            expected = np.asarray(update(jnp.asarray(X).at, flag))
            np.testing.assert_array_equal(np.asarray(update(cnp.at(X), flag)), expected, strict=True)
            found = cg.function(lambda b: update(cnp.at(X), b))(np.array(flag))
            np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool", "complex128"])
def test_the_fill_value_of_a_dtype(dtype: str) -> None:
    x = np.ones(3, dtype)
    for found, expected in (
        (cnp.at(x)[np.array([0, 5])].get(mode="fill"), jnp.asarray(x).at[np.array([0, 5])].get(mode="fill")),
        (cnp.take(x, np.array([0, 5]), mode="fill"), jnp.take(x, np.array([0, 5]), mode="fill")),
    ):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected), strict=True)


def test_a_function_is_applied_as_often_as_a_position_is_named() -> None:
    x, i = np.arange(1.0, 5.0), np.array([1, 3, 1, 9])
    for mode in ("clip", "drop"):
        found = cnp.at(x)[i].apply(lambda v: v * v, mode=mode)
        np.testing.assert_array_equal(found, jnp.asarray(x).at[i].apply(lambda v: v * v, mode=mode))
    np.testing.assert_array_equal(cnp.at(x)[i[:3]].apply(cnp.sqrt, unique_indices=True)[3], 2.0)


def test_without_a_mode_they_are_an_error() -> None:
    for how in ({}, {"mode": None}, {"mode": "promise_in_bounds"}):
        with pytest.raises(IndexOutOfRangeError):
            cnp.at(X)[np.array([9])].set(0.0, **how)
    with pytest.raises(UserInputError, match="mode"):
        cnp.at(X)[9].set(0.0, mode="wrap")


@pytest.mark.parametrize("mode", ["clip", "wrap", "fill"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_take_with_a_mode(mode: str, axis: int | None) -> None:
    at = np.array([[9, 1], [-7, -1]])
    fn = lambda x: cnp.take(x, at, axis, mode=mode)
    expected = np.asarray(jnp.take(X, at, axis, mode=mode))
    np.testing.assert_array_equal(fn(X), expected)
    np.testing.assert_array_equal(cg.function(fn)(X), expected)
    if mode != "fill":
        np.testing.assert_array_equal(np.take(X, at, axis, mode=mode), expected)
        np.testing.assert_array_equal(cg.function(lambda x: np.take(x, at, axis, mode=mode))(X), expected)


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_take_along_axis_with_a_mode(mode: str) -> None:
    at = np.array([[[9]], [[1]], [[0]], [[2]]])
    expected = jnp.take_along_axis(jnp.asarray(X), jnp.asarray(at), 1, mode=mode)
    np.testing.assert_array_equal(cnp.take_along_axis(X, at, 1, mode=mode), expected)


@pytest.mark.parametrize(
    "at", [np.array([-1, 2, 9], np.int8), np.array([255, 1, 2], np.uint8), np.array([-300, 299], np.int16)]
)
def test_a_size_beyond_the_dtype_of_the_indices(at: np.ndarray) -> None:
    """JAX refuses the int8 ones."""
    x, wide = np.arange(300.0), at.astype(np.int64)
    for mode in ("clip", "drop"):
        expected = jnp.asarray(x).at[wide].set(-1.0, mode=mode)
        np.testing.assert_array_equal(cnp.at(x)[at].set(-1.0, mode=mode), expected)
        fn = cg.function(lambda x, i, mode=mode: x.at[i].set(-1.0, mode=mode))
        np.testing.assert_array_equal(fn(x, at), expected)
        np.testing.assert_array_equal(fn(x, at[0]), jnp.asarray(x).at[wide[0]].set(-1.0, mode=mode))
    huge = np.array([2**64 - 1, 2**63, 4], np.uint64)
    np.testing.assert_array_equal(cnp.at(x)[huge].get(mode="fill", fill_value=7.0), [7.0, 7.0, 4.0])


def test_take_along_axis_counts_negative_indices_from_the_end() -> None:
    """With mode "clip" too, unlike `take`."""
    at = np.array([[[-1, -9, 9, 4, -5]]])
    expected = jnp.take_along_axis(jnp.asarray(X), jnp.asarray(at), 2, mode="clip")
    np.testing.assert_array_equal(cnp.take_along_axis(X, at, 2, mode="clip"), expected)
    np.testing.assert_array_equal(cg.function(lambda x, i: cnp.take_along_axis(x, i, 2, mode="clip"))(X, at), expected)


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex64"])
def test_a_row_of_values_is_added_at_each_row_of_an_index_array(dtype: str) -> None:
    """`np.add.at` reads beyond the values there."""
    x, at, v = np.arange(5).astype(dtype), np.array([[1, 4], [2, 0], [1, 1]]), np.array([10, 20], dtype)
    for mode in (None, "clip", "drop"):
        expected = jnp.asarray(x).at[at].add(v)
        np.testing.assert_array_equal(cnp.at(x)[at].add(v, mode=mode), expected)
        np.testing.assert_array_equal(cg.function(lambda x, v: x.at[at].add(v), engine="reference")(x, v), expected)
    np.testing.assert_array_equal(cnp.at(x)[None, at].add(v), expected)


@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0), (0, 0)])
def test_an_array_without_elements(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape)
    key = (slice(None),) * (len(shape) - 1) + (np.array([0, 1, -1]),) if shape[-1] == 0 else np.array([0, 1, -1])
    for name, update in UPDATES.items():
        fn = lambda x, update=update: update(cnp.at(x)[key], 2.0, "drop")
        # JAX refuses to read from no elements.
        part = (*shape[:-1], 3) if shape[-1] == 0 else (3, *shape[1:])
        expected = np.full(part, 0.5) if name == "get" else np.asarray(update(jnp.asarray(x).at[key], 2.0, "drop"))
        np.testing.assert_array_equal(fn(x), expected, strict=True, err_msg=name)
        np.testing.assert_array_equal(cg.function(fn)(x), expected, err_msg=name)
    found = cnp.at(x)[key].apply(lambda v: v + 1, mode="drop")
    np.testing.assert_array_equal(found, x, strict=True)
