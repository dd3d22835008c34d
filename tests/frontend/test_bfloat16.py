"""bfloat16 as a dtype: what it promotes to, what is rounded when, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruments.stand_in import StandIn, StandInDevice

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import NAMES, can_cast, dtype_kind, finfo, result_type
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend.array.promote import loop_dtypes

ENGINES = ["reference", "native", "dataflow", "cuda"]
BF16 = np.dtype(cnp.bfloat16)
X = np.linspace(-2, 3, 6).astype(BF16)


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in in the place of the first device."""
    found = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: found)
    return found


def test_promotion_of_two_dtypes_is_jaxs_with_bfloat16_and_numpys_without() -> None:
    for a in NAMES:
        for b in NAMES:
            expected = jnp.promote_types(a, b) if "bfloat16" in (a, b) else np.promote_types(a, b)
            assert cnp.promote_types(a, b) == result_type(np.dtype(a), np.dtype(b)) == expected, (a, b)


@pytest.mark.parametrize("other", NAMES)
def test_arrays_promote_as_their_dtypes(other: str) -> None:
    expected = jnp.promote_types("bfloat16", other)
    y = np.ones(6, other)
    with cg.options(engine="reference"):
        assert cg.function(lambda x, y: x + y)(X, y).dtype == cg.function(cnp.multiply)(y, X).dtype == expected
    assert cnp.result_type(X, y) == expected


def test_python_numbers_and_booleans_keep_bfloat16_and_complex_ones_make_it_complex64() -> None:
    with cg.options(engine="reference"):
        for number in (2, 2.5, True):
            assert cg.function(lambda x, n=number: n * x)(X).dtype == BF16
        assert cg.function(lambda x: x * 1j)(X).dtype == np.complex64
        assert cg.function(lambda x, y: x * y)(X, np.float64(2)).dtype == np.float64
    assert loop_dtypes(np.add, (X, 10**30)) == (BF16, BF16)
    assert loop_dtypes(np.ldexp, (X, np.ones(6, np.int8)))[0] == BF16


def test_each_operation_rounds_and_a_function_rounds_once() -> None:
    """1 + 2**-9 is 1 in bfloat16; a sigmoid's or a special function's steps are not."""
    tiny = np.asarray(2.0**-9, BF16)
    narrow = np.linspace(0.2, 5, 40).astype(BF16)
    with cg.options(engine="reference"):
        assert cg.function(lambda t: (1 + t) - 1)(tiny) == 0
        for name, fn in (("sigmoid", cnp.sigmoid), ("digamma", cg.scipy.special.digamma)):
            expected = fn(narrow.astype(np.float32)).astype(BF16)
            np.testing.assert_array_equal(cg.function(fn)(narrow), expected, name)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_and_products_of_16_bits_are_added_up_in_float32(engine: str, dtype: str) -> None:
    """One by one, 256 ones are the largest whole sum in bfloat16, and 2048 in float16."""
    x = np.ones((3000, 2), dtype)
    with cg.options(engine=engine):
        found = cg.function(lambda x: (x.sum(0), cnp.cumsum(x, 0)[-1], x.T @ x, x.mean(), cnp.cumsum(x[::-1], 0)[-1]))(
            x
        )
    expected = np.asarray(3000).astype(dtype)
    for y in (found[0], found[1], found[2], found[4]):
        np.testing.assert_array_equal(y, expected)
    assert found[3] == 1 and all(y.dtype == dtype for y in found)


def test_questions_about_it_are_answered() -> None:
    assert cnp.finfo(cnp.bfloat16).eps == finfo(BF16).eps == 2.0**-7
    assert cnp.isdtype(BF16, "real floating") and cnp.isdtype(BF16, ("integral", BF16))
    assert cnp.issubdtype(BF16, cnp.floating) and not cnp.issubdtype(BF16, np.float16)
    assert not cnp.issubdtype(np.float32, BF16) and dtype_kind(BF16) == "f"
    assert can_cast(BF16, np.float32) and not can_cast(np.float32, BF16) and not can_cast(BF16, np.int8, "same_kind")
    assert can_cast(np.float64, BF16, "same_kind") and not can_cast(np.complex64, BF16, "same_kind")
    assert str(cg.function(lambda x: x * 2).graph(X)).splitlines()[0] == "graph function(x: bf16[6]) {"


def test_created_arrays_have_it() -> None:
    for x in (cnp.zeros(2, cnp.bfloat16), cnp.full(2, 0.1, "bfloat16"), cnp.arange(2, dtype=BF16), cnp.asarray(X)):
        assert isinstance(x, np.ndarray) and x.dtype == BF16
    with pytest.raises(UserInputError, match="no such default"), cg.options(default_float="bfloat16"):
        pass


@pytest.mark.parametrize("engine", ENGINES)
def test_bits_make_it_and_are_made_of_it_for_all_numbers(engine: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    with cg.options(engine=engine):
        x = cg.lax.bitcast_convert_type(bits, cnp.bfloat16)
        assert x.dtype == BF16 and np.array_equal(np.asarray(x).view(np.uint16), bits)
        np.testing.assert_array_equal(cg.lax.bitcast_convert_type(x, np.uint16), bits)


@pytest.mark.parametrize("fn", [cnp.linalg.det, cnp.linalg.eigvalsh, lambda x: cnp.linalg.solve(x, x)])
def test_factorisations_refuse_it_as_they_do_float16(fn: Any) -> None:
    with pytest.raises(TypeMismatchError, match="half precision"):
        fn(np.eye(2).astype(BF16))


def loss(x: Any, w: Any) -> Any:
    """A loop whose number of runs depends on data, with products, functions and a sum."""
    (_, y) = cg.while_loop(
        lambda c: (c[0] < 12) & (c[1].sum() < 1e3), lambda c: (c[0] + 1, cnp.tanh(w @ c[1] + x)), (0, x)
    )
    return cnp.sum(cnp.exp(y) * x)


def in_jax(x: Any, w: Any) -> Any:
    y, _ = jax.lax.scan(lambda y, _: (jnp.tanh(w @ y + x), None), x, None, length=12)
    return jnp.sum(jnp.exp(y) * x)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_through_a_loop_are_within_rounding_of_float32_and_as_near_as_jaxs(engine: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(BF16) / 2 for s in ((4,), (4, 4)))
    wide = [np.asarray(x, np.float32), np.asarray(w, np.float32)]
    with cg.options(engine=engine):
        found = cg.grad(loss, argnums=(0, 1))(x, w)
        exact = cg.grad(loss, argnums=(0, 1))(*wide)
        step = cg.jvp(lambda x: loss(x, w), (x,), (x,))[1]
    of_jax = jax.grad(in_jax, argnums=(0, 1))(jnp.asarray(x), jnp.asarray(w))
    for a, b, j in zip(found, exact, of_jax, strict=True):
        assert a.dtype == BF16 and j.dtype == jnp.bfloat16
        b = np.asarray(b)
        scale = float(np.abs(b).max())
        np.testing.assert_allclose(np.asarray(a, np.float32), b, atol=0.02 * scale)
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(j, np.float32), atol=0.03 * scale)
    assert step.dtype == BF16
    np.testing.assert_allclose(float(step), float(np.vdot(exact[0], wide[0])), rtol=0.05)


@pytest.mark.parametrize("engine", ["reference", "native", "cuda"])
def test_saved_rows_are_swapped_mapped_and_recomputed_as_they_are(engine: str, card: StandIn) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(BF16) / 4 for s in ((64,), (64, 64)))

    def long(x: Any) -> Any:
        return cg.while_loop(lambda c: c[0] < 200, lambda c: (c[0] + 1, cnp.sin(c[1] + x)), (0, w[0] + x))[1].sum()

    # A card has the arguments and the loop's buffers within the budget too.
    devices, budget = ({card.name: StandInDevice()}, "12 KiB") if engine == "cuda" else ({}, "8 KiB")
    with cg.options(engine=engine):
        slope = cg.grad(long)
        free = slope(x)
        with cg.memory.budget(device=budget, devices=devices):
            np.testing.assert_array_equal(slope(x), free)
        np.testing.assert_array_equal(cg.vmap(slope)(np.stack([x, x])), np.stack([free, free]))
