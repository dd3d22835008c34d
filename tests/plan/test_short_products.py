"""Products of few terms for few columns become kernels and fuse; other products call routines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel, Product
from ctrlgrad.verify import check_grads
from tests.plan.plans import plan_of


def steps_of(fn: Callable[..., Any], *args: Any, order: int = 0) -> tuple[int, int]:
    """Number of products and number of kernels in a plan."""
    steps = list(walk(plan_of(fn, *args, order=order).body))
    return sum(isinstance(s, Product) for s in steps), sum(isinstance(s, Kernel) for s in steps)


def operands(*shapes: tuple[int, ...], dtype: str = "float64") -> list[np.ndarray]:
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


LAYOUTS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...]]] = {
    "plain": (lambda a, b: a @ b, (19, 4), (4, 3)),
    "one term": (lambda a, b: a @ b, (19, 1), (1, 7)),
    "one column": (lambda a, b: a @ b, (19, 3), (3, 1)),
    "right transposed": (lambda a, b: a @ b.T, (19, 4), (5, 4)),
    "left transposed": (lambda a, b: a.T @ b, (4, 19), (4, 8)),
    "turned round": (lambda a, b: a[::-1] @ b[:, ::-1], (19, 2), (2, 6)),
    "vectors": (lambda a, b: (a @ b[0], a[0] @ b), (9, 3), (3, 3)),
    "batches": (lambda a, b: a @ b, (5, 4, 4), (5, 4, 4)),
    "a batch of the right side": (lambda a, b: a @ b, (11, 4), (6, 4, 3)),
    "a batch of the left side": (lambda a, b: a @ b, (6, 11, 2), (2, 3)),
    "no rows": (lambda a, b: a @ b, (0, 4), (4, 3)),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_they_have_the_values_of_numpy(name: str, dtype: str) -> None:
    product, *shapes = LAYOUTS[name]
    a, b = operands(*shapes, dtype=dtype)
    found = cg.function(product, engine="native")(a, b)
    expected = product(*(x.astype("float64") for x in (a, b)))
    for x, y in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=8 * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps)
    assert steps_of(product, a, b)[0] == 0


@pytest.mark.parametrize(
    ("a", "b", "dtype", "products"),
    [
        ((9, 4), (4, 8), "float64", 0),
        ((9, 5), (5, 3), "float64", 1),
        ((9, 4), (4, 9), "float64", 1),
        ((9, 0), (0, 3), "float64", 1),
        ((9, 6), (6, 3), "complex128", 0),
        ((9, 7), (7, 3), "complex128", 4),
        ((9, 4), (4, 3), "int32", 1),
    ],
)
def test_more_terms_or_columns_and_other_numbers_stay_products(
    a: tuple[int, int], b: tuple[int, int], dtype: str, products: int
) -> None:
    assert steps_of(lambda a, b: a @ b, *operands(a, b, dtype=dtype))[0] == products


BATCHES: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...], int]] = {
    "matrices and vectors": (lambda a, b: cnp.einsum("bij,bj->bi", a, b), (5, 6, 7), (5, 7), 0),
    "vectors and matrices": (lambda a, b: cnp.einsum("bi,bij->bj", a, b), (5, 6), (5, 6, 9), 0),
    "sixteen": (lambda a, b: (a @ b[:, :, None])[:, :, 0], (3, 16, 16), (3, 16), 0),
    "seventeen terms": (lambda a, b: (a @ b[:, :, None])[:, :, 0], (3, 5, 17), (3, 17), 1),
    "seventeen rows": (lambda a, b: (a @ b[:, :, None])[:, :, 0], (3, 17, 5), (3, 5), 1),
    "transposed": (lambda a, b: (cnp.swapaxes(a, 1, 2) @ b[:, :, None])[:, :, 0], (4, 5, 6), (4, 5), 0),
    "backwards": (lambda a, b: (a[:, ::-1, ::-1] @ b[::-1, :, None])[:, :, 0], (4, 5, 6), (4, 6), 0),
    "two axes": (lambda a, b: cnp.einsum("abij,abj->abi", a, b), (2, 3, 6, 5), (2, 3, 5), 0),
    "one vector": (lambda a, b: a @ b, (4, 6, 5), (5,), 1),
    "no batch": (lambda a, b: a @ b, (6, 5), (5,), 1),
    "integers": (
        lambda a, b: cnp.einsum("bij,bj->bi", (9 * a).astype("int32"), (9 * b).astype("int32")),
        (5, 6, 7),
        (5, 7),
        1,
    ),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", sorted(BATCHES))
def test_a_batch_of_small_matrices_and_vectors_is_a_kernel(name: str, dtype: str) -> None:
    product, *shapes, products = BATCHES[name]
    a, b = operands(*shapes, dtype=dtype)
    assert steps_of(product, a, b)[0] == products
    found = cg.function(product, engine="native")(a, b)
    expected = cg.function(product, engine="reference")(*(x.astype("float64") for x in (a, b)))
    tolerance = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    if dtype == "float64" and name != "integers":
        with cg.options(engine="native"):
            check_grads(lambda a, b: cnp.sum(cnp.sin(product(a, b))), (a, b), order=2)


def test_elementwise_ops_join_the_kernel_of_a_short_product() -> None:
    a, b, w = operands((9, 4), (4, 3), (9, 1))

    def summed(a: Any, b: Any, w: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, s: s + w * (a @ (b * s[0, 0])), cnp.zeros((9, 3)))

    # The kernels are the zeros, the scaled right-hand side, and the rest.
    assert steps_of(summed, a, b, w) == (0, 3)


def test_their_gradients_are_those_of_products() -> None:
    a, b = operands((7, 3), (3, 4))
    with cg.options(engine="native"):
        check_grads(lambda a, b: cnp.sum(cnp.sin(a @ b) @ cnp.cos(b.T)), (a, b), order=2)
