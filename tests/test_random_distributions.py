"""The numbers of `ctrlgrad.random` are those of `jax.random`: integers to the bit, floats to the last digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.random.keys import threefry2x32

jax = pytest.importorskip("jax")
pytest.importorskip("jax.extend.random")
SEED = 7


@pytest.fixture(autouse=True)
def _in_double_precision_by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def both(name: str, *args: Any, **settings: Any) -> tuple[Any, Any]:
    # One program: by itself each of its ops would be compiled.
    theirs = jax.jit(lambda seed: getattr(jax.random, name)(jax.random.key(seed), *args, **settings))(SEED)
    return getattr(cg.random, name)(cg.random.key(SEED), *args, **settings), np.asarray(theirs)


DISTRIBUTIONS: dict[str, tuple[Any, ...]] = {
    "normal": ((50,),),
    "truncated_normal": (-1.0, np.array([0.5, 2.0]), (20, 2)),
    "gumbel": ((50,),),
    "exponential": ((50,),),
    "laplace": ((50,),),
    "logistic": ((50,),),
    "rayleigh": (np.array([1.0, 2.0]), (20, 2)),
    "maxwell": ((20,),),
    "double_sided_maxwell": (np.array([0.5, 1.0]), 2.0, (5, 2)),
    "triangular": (0.0, np.array([0.2, 1.5]), 2.0, (20, 2)),
    "wald": (2.0, (20,)),
    "gamma": (np.array([0.3, 1.0, 7.0]), (20, 3)),
    "loggamma": (np.array([1e-3, 2.5]), None),
    "beta": (0.7, 2.0, (20,)),
    "dirichlet": (np.array([0.5, 1.0, 3.0]), (7,)),
    "t": (3.0, (20,)),
    "generalized_normal": (1.5, (20,)),
    "lognormal": (1.5, (20,)),
    "weibull_min": (2.0, 1.5, (20,)),
}
MADE_OF_OTHERS: dict[str, tuple[Any, ...]] = {
    "chisquare": (3.0, (20,)),
    "f": (3.0, 5.0, (20,)),
    "ball": (3, 2.0, (5,)),
    "multivariate_normal": (np.arange(2.0), np.array([[2.0, 0.5], [0.5, 1.0]]), (5,)),
    "orthogonal": (3, (2,)),
}


def check(name: str, args: tuple[Any, ...], dtype: str) -> None:
    args = tuple(x.astype(dtype) if isinstance(x, np.ndarray) else x for x in args)
    found, expected = both(name, *args, dtype=dtype)
    assert found.dtype == dtype and found.shape == expected.shape
    tolerance = {"rtol": 2e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-11, "atol": 1e-12}
    np.testing.assert_allclose(found, expected, **tolerance)


@in_turn("name, dtype", list(DISTRIBUTIONS), ["float32", "float64"])
def test_a_distribution(name: str, dtype: str) -> None:
    check(name, DISTRIBUTIONS[name], dtype)


@pytest.mark.parametrize("name", MADE_OF_OTHERS)
def test_a_distribution_made_of_others(name: str) -> None:
    check(name, MADE_OF_OTHERS[name], "float64")


@pytest.mark.parametrize(
    "name, args",
    [
        ("randint", ((50,), -3, 9)),
        ("randint", ((50,), 0, 256, "uint8")),
        ("randint", ((50,), np.iinfo("int32").min, np.iinfo("int32").max, "int32")),
        ("randint", ((5,), 4, 4)),
        ("bits", ((50,), "uint8")),
        ("bits", ((50,), "uint16")),
        ("permutation", (20,)),
        ("choice", (9, (4, 5))),
        ("choice", (9, (6,), False)),
        ("choice", (4, (20,), True, np.array([0.1, 0.2, 0.3, 0.4]))),
        ("choice", (4, (3,), False, np.array([0.1, 0.2, 0.3, 0.4]))),
        ("categorical", (np.log(np.arange(1.0, 13.0)).reshape(3, 4),)),
        ("categorical", (np.log(np.arange(1.0, 13.0)).reshape(3, 4), 0, (5, 4))),
        ("categorical", (np.log(np.arange(1.0, 13.0)).reshape(3, 4), -1, (2, 3), False)),
        ("poisson", (np.array([0.0, 0.5, 8.0, 30.0, 200.0], np.float32), (6, 5))),
        ("geometric", (np.array([0.1, 0.6]), (10, 2))),
        ("bernoulli", (np.float32(0.3), (30,))),
    ],
)
def test_whole_numbers_to_the_bit(name: str, args: tuple[Any, ...]) -> None:
    found, expected = both(name, *args)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("settings", [{}, {"axis": 1}, {"axis": 1, "independent": True}])
def test_rows_in_a_random_order(settings: dict[str, Any]) -> None:
    x = np.arange(12).reshape(3, 4)
    found, expected = both("permutation", x, **settings)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rows_drawn(replace: bool, axis: int) -> None:
    found, expected = both("choice", np.arange(12).reshape(3, 4), (3, 1), replace, axis=axis)
    np.testing.assert_array_equal(found, expected)


def test_a_gamma_number_moves_with_its_parameter() -> None:
    a, key = np.array([0.3, 1.0, 4.2]), cg.random.key(3)
    ours = cg.grad(lambda a: cnp.sum(cg.random.gamma(key, a) ** 2))(a)
    theirs = jax.jit(jax.grad(lambda a: (jax.random.gamma(jax.random.key(3), a) ** 2).sum()))(a)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    along = cg.jvp(lambda a: cg.random.loggamma(key, a), (a,), (np.ones(3),))[1]
    gamma = cg.jvp(lambda a: cg.random.gamma(key, a), (a,), (np.ones(3),))
    np.testing.assert_allclose(along, gamma[1] / gamma[0], rtol=1e-9)


def test_gamma_numbers_in_machine_code() -> None:
    f = lambda key, a: cg.random.gamma(key, a, (4,)) + cg.random.poisson(key, a)
    expected = f(cg.random.key(3), 2.5)
    np.testing.assert_allclose(cg.function(f, engine="native")(cg.random.key(3), 2.5), expected, rtol=1e-12)


def test_keys_and_their_numbers() -> None:
    key = jax.random.key(SEED)
    np.testing.assert_array_equal(cg.random.key_data(key), jax.random.key_data(key))
    np.testing.assert_array_equal(cg.random.wrap_key_data(cg.random.key_data(key)), cg.random.key(SEED))
    assert cg.random.key_impl(cg.random.clone(key)) == "threefry2x32"
    np.testing.assert_array_equal(cg.random.split(key, (2, 3)), jax.random.key_data(jax.random.split(key, (2, 3))))
    x = np.arange(8, dtype=np.uint32).reshape(4, 2)
    found = threefry2x32(*x)
    expected = jax.extend.random.threefry2x32_p.bind(*x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_bad_input_is_named() -> None:
    key = cg.random.key(0)
    with pytest.raises(TypeMismatchError, match="integer dtype"):
        cg.random.randint(key, (3,), 0, 5, np.float32)
    with pytest.raises(TypeMismatchError, match="integer dtype"):
        cg.random.poisson(key, 3.0, dtype=np.float32)
    with pytest.raises(ShapeError, match="does not fit the mean"):
        cg.random.multivariate_normal(key, np.zeros(2), np.eye(3))
    with pytest.raises(UserInputError, match="no such method"):
        cg.random.multivariate_normal(key, np.zeros(2), np.eye(2), method="lu")
    with pytest.raises(UserInputError, match="more is drawn"):
        cg.random.categorical(key, np.zeros(3), shape=(4,), replace=False)
