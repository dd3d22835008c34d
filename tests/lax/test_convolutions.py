"""Convolutions are JAX's, with their derivatives."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.errors import ShapeError, UserInputError

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _in_double_precision_by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def case(x: Any, w: Any, **settings: Any) -> tuple[Any, Any, dict[str, Any]]:
    return rng.normal(size=x), rng.normal(size=w), settings


CASES = {
    "strides": case((2, 3, 7, 6), (4, 3, 3, 2), window_strides=(2, 1), padding="SAME"),
    "last": case((1, 5, 6, 2), (2, 2, 2, 3), window_strides=(1, 1), padding="SAME_LOWER"),
    "dilated": case((2, 2, 9), (3, 2, 3), window_strides=(2,), padding=[(3, -1)], lhs_dilation=(2,), rhs_dilation=(2,)),
    "groups": case((2, 4, 6), (6, 2, 2), window_strides=(1,), padding="VALID", feature_group_count=2),
    "batches": case((4, 3, 6), (6, 3, 2), window_strides=(1,), padding="VALID", batch_group_count=2),
    "long": case((1, 2, 60), (3, 2, 40), window_strides=(3,), padding=[(4, 4)]),
    "wide": case((1, 2, 9, 9), (3, 2, 6, 6), window_strides=(1, 2), padding="VALID", rhs_dilation=(1, 1)),
    "none": case((2, 3), (4, 3), window_strides=(), padding="VALID"),
}
CASES["last"][2]["dimension_numbers"] = ("NHWC", "HWIO", "NHWC")


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_and_its_derivatives(name: str) -> None:
    x, w, settings = CASES[name]
    total = lambda lib, xp: lambda x, w: xp.sum(xp.sin(lib.conv_general_dilated(x, w, **settings)))
    theirs = jax.jit(jax.value_and_grad(total(jax.lax, jax.numpy), argnums=(0, 1)))(x, w)
    ours = cg.value_and_grad(total(lax, cnp), argnums=(0, 1))(x, w)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


def test_a_convolution_in_machine_code_and_mapped() -> None:
    x, w, settings = CASES["strides"]
    f = lambda x, w: cg.vmap(lambda x: lax.conv_general_dilated(x[None], w, **settings)[0])(x)
    with cg.options(engine="native"):
        found = cg.function(f)(x, w)
    np.testing.assert_allclose(found, lax.conv_general_dilated(x, w, **settings), rtol=1e-12)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride, size", [(2, 3), (3, 2)])
def test_a_transposed_convolution(padding: str, stride: int, size: int) -> None:
    x, w = rng.normal(size=(2, 5, 3)), rng.normal(size=(size, 4, 3))
    settings = {"dimension_numbers": ("NHC", "HIO", "NHC"), "transpose_kernel": True}
    found = lax.conv_transpose(x, w, (stride,), padding, **settings)
    expected = jax.lax.conv_transpose(x, w, (stride,), padding, **settings)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("padding", ["VALID", ((2, 1), (0, 3))], ids=["VALID", "numbers"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("window", [(3, 3), (7, 6)], ids=str)
def test_of_sizes_that_only_a_run_knows(padding: Any, strides: tuple[int, int], window: tuple[int, int]) -> None:
    """Convolutions of unknown sizes, also smaller than the window: few positions of it become slices, many indices."""
    w = rng.normal(size=(4, 2, *window))
    ours = lambda x, w: cnp.sum(cnp.sin(lax.conv_general_dilated(x, w, strides, padding)))
    theirs = lambda x, w: jax.numpy.sum(jax.numpy.sin(jax.lax.conv_general_dilated(x, w, strides, padding)))
    signature = (cg.TensorSpec((3, 2, None, None), np.float64), cg.TensorSpec(w.shape, np.float64))
    f = cg.function(cg.value_and_grad(ours, (0, 1)), signature=signature, engine="native")
    for size in ((8, 9), (7, 12), (2, 5), (1, 1)):
        x = rng.normal(size=(3, 2, *size))
        (value, gradients), (expected, others) = f(x, w), jax.value_and_grad(theirs, (0, 1))(x, w)
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        for one, other in zip(gradients, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_same_padding_of_unknown_sizes() -> None:
    """Beside each other, windows are padded alike whatever the size; apart, it depends on the size."""
    w = rng.normal(size=(4, 2, 4))
    signature = (cg.TensorSpec((3, 2, None), np.float64),)
    f = cg.function(lambda x: lax.conv(x, w, (1,), "SAME"), signature=signature)
    for size in (7, 2):
        x = rng.normal(size=(3, 2, size))
        np.testing.assert_allclose(f(x), jax.lax.conv(x, w, (1,), "SAME"), rtol=1e-12)
    apart = cg.function(lambda x: lax.conv(x, w, (2,), "SAME"), signature=signature)
    with pytest.raises(ShapeError, match="depends on a size that only a run knows"):
        apart(x)


def test_bad_convolutions_are_named() -> None:
    with pytest.raises(ShapeError, match="features do not fit"):
        lax.conv(np.ones((1, 2, 3)), np.ones((1, 3, 2)), (1,), "VALID")
    with pytest.raises(UserInputError, match="no such padding"):
        lax.conv(np.ones((1, 2, 3)), np.ones((1, 2, 2)), (1,), "EQUAL")
    with pytest.raises(UserInputError, match="no such padding"):
        lax.conv_transpose(np.ones((1, 3, 2)), np.ones((2, 2, 1)), (2,), "SAME_LOWER")
    with pytest.raises(ShapeError, match="letters"):
        lax.conv_dimension_numbers((1, 2, 3), (1, 2, 3), ("NWC", "OIH", "NWC"))
