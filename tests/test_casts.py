"""Floats as integers: on every engine what is beyond an integer's range becomes its end, and NaN 0, as in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from instruments.stand_in_runs import on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import converted

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def edges(dtype: object) -> np.ndarray:
    """Numbers beside the ends of every integer's range, in a float dtype: 19 of each sign are vectors and a rest."""
    ends = [2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64)]
    beside = [x for end in ends for x in (end, np.nextafter(end, 0), end - 1, end + 1, end - 0.5)]
    positive = np.array([0.0, 0.5, 0.99, 1.0, 12.7, 1e10, 1e20, 1e300, np.inf, 5e-324, *beside])
    with np.errstate(over="ignore"):
        return np.concatenate([positive, -positive, [np.nan]]).astype(dtype)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[object, str], np.ndarray]:
    """JAX's answers."""
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        every = jax.jit(lambda *xs: [[x.astype(target) for target in INTEGERS] for x in xs])
        found = every(*map(edges, FLOATS))
    return {
        (source, target): np.asarray(found[i][k])
        for i, source in enumerate(FLOATS)
        for k, target in enumerate(INTEGERS)
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_casts_are_those_of_jax(source: object, target: str, expected: dict[tuple[object, str], np.ndarray]) -> None:
    x = edges(source)
    for engine in ("native", "reference", "dataflow"):
        for part in (slice(None), slice(0, 3), slice(-1, None)):
            found = cg.function(lambda x: cnp.astype(x, target), engine=engine)(x[part])
            np.testing.assert_array_equal(found, expected[source, target][part], err_msg=engine)
    np.testing.assert_array_equal(converted(x, np.dtype(target)), expected[source, target])
    np.testing.assert_array_equal(cnp.astype(x, target), expected[source, target])


@pytest.mark.parametrize("target", INTEGERS)
def test_casts_in_kernels_of_cuda(target: str, expected: dict[tuple[object, str], np.ndarray]) -> None:
    for source in FLOATS:
        x = edges(source)
        graph = cg.function(lambda x: cnp.astype(x, target)).graph(x)
        (found,) = on_stand_in(graph, [x]).results
        np.testing.assert_array_equal(found, expected[source, target])


def test_casts_of_numbers_constants_and_carries(expected: dict[tuple[object, str], np.ndarray]) -> None:
    assert cnp.astype(300.5, "uint8") == 255
    assert cnp.astype(-1.5, "uint8") == 0
    constant = cg.function(lambda x: x + cnp.astype(np.array([-3.0, 12.7, 260.0]), "uint8"))
    np.testing.assert_array_equal(constant(np.zeros(3, np.uint8)), [0, 12, 255])

    @cg.function
    def last(x: float) -> object:
        return cg.fori_loop(0, 3, lambda i, c: (c[0] * -100.0, cnp.astype(c[0] * -100.0, "int8")), (x, np.int8(0)))[1]

    assert last(1.0) == -128
    assert last(np.nan) == 0


def test_a_program_of_jax_casts_as_jax_does() -> None:
    x = np.array([-3.0, 12.7, 260.0, np.nan], np.float32)
    np.testing.assert_array_equal(cg.from_jax(lambda x: x.astype(jnp.uint8))(x), [0, 12, 255, 0])
    # A known value is converted while the program is read.
    known = lambda y: y * jnp.array([-3.0, 12.7, 260.0, np.nan]).astype(jnp.uint8)
    np.testing.assert_array_equal(cg.from_jax(known)(np.float32(1.0)), [0, 12, 255, 0])


DIVISIONS = {
    "div": jax.lax.div,
    "rem": jax.lax.rem,
    "floor_divide": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "divmod": lambda a, b: jnp.divmod(a, b)[1],
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8", "uint32"])
def test_a_program_of_jax_divides_integers_by_zero_as_jax_does(name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    a = np.array([1, limits.max, 0, limits.min, 7, limits.min, 0], dtype)
    b = np.array([0, 0, 0, 0, 2, limits.max if limits.min == 0 else -1, 3], dtype)
    fn = DIVISIONS[name]
    for engine in ("native", "reference", "dataflow"):
        found = cg.function(cg.from_jax(fn), engine=engine)(a, b)
        np.testing.assert_array_equal(found, jax.jit(fn)(a, b), err_msg=engine)
