"""Products as cuBLAS is asked for them: by a cuBLAS that reads memory by its own rules, and as the options say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.cublas import NAMES, Cublas
from instruments.stand_in import StandIn, StandInArray
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
from ctrlgrad.dtypes import computed_dtype, finfo
from ctrlgrad.engines.cuda import cupy_library, products
from ctrlgrad.engines.cuda.kernels import DEVICE, at_once
from ctrlgrad.engines.cuda.prepared.ops import product_sum
from ctrlgrad.engines.cuda.products import layout, too_large
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.engines.precision import PRECISIONS, Precision
from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.ir import Builder, TensorType


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    imaginary = 1j * rng.normal(size=shape) if dtype.startswith("complex") else 0.0
    return np.asarray(rng.normal(size=shape) + imaginary).astype(dtype)


@pytest.fixture
def library() -> StandIn:
    return StandIn()


def product(
    library: StandIn, a: np.ndarray, b: np.ndarray, precision: Precision, total: np.ndarray | None = None
) -> np.ndarray:
    """The product of arrays as they lie, or that added to a total."""
    builder = Builder()
    (node,) = builder.finish(
        [builder.emit("matmul", [builder.input(TensorType(x.dtype, x.shape)) for x in (a, b)])]
    ).nodes
    kernel = DEVICE["matmul"](node) if total is None else at_once(product_sum, node)
    with library.running():
        given = [StandInArray(x, held="the test's") for x in (a, b)]
        given = given if total is None else [StandInArray(total, held="the test's"), *given]
        found = kernel(Context(library, precision=precision), given)
    return np.asarray(found.data)


CASES = {
    "matrices": lambda d: (array(3, 4, dtype=d), array(4, 5, dtype=d)),
    "transposed": lambda d: (array(4, 3, dtype=d).T, array(5, 4, dtype=d).T),
    "parts": lambda d: (array(6, 9, dtype=d)[:3, 2:6], array(7, 9, dtype=d).T[1:5, 1:6]),
    "every second": lambda d: (array(3, 8, dtype=d)[:, ::2], array(4, 5, dtype=d)[::-1]),
    "a row and a column": lambda d: (array(1, 4, dtype=d), array(4, 1, dtype=d)),
    "a column and a row": lambda d: (array(3, 1, dtype=d), array(1, 5, dtype=d)),
    "part of a column": lambda d: (array(3, 6, dtype=d)[:, 2:3], array(5, 6, dtype=d)[:, 1:2].T),
    "batches": lambda d: (array(2, 3, 4, dtype=d), array(2, 4, 5, dtype=d)),
    "batches, transposed": lambda d: (array(2, 4, 3, dtype=d).swapaxes(1, 2), array(2, 5, 4, dtype=d).swapaxes(1, 2)),
    "batches that broadcast": lambda d: (array(6, 1, 3, 4, dtype=d), array(2, 4, 5, dtype=d)),
    "a batch and a matrix": lambda d: (array(2, 3, 4, dtype=d), array(4, 5, dtype=d)),
    "a matrix and a batch": lambda d: (array(3, 4, dtype=d), array(2, 4, 5, dtype=d)),
    "one repeated": lambda d: (np.broadcast_to(array(1, 4, dtype=d), (3, 4)), array(4, 5, dtype=d)),
    "nothing to sum": lambda d: (array(3, 0, dtype=d), array(0, 5, dtype=d)),
    "nothing": lambda d: (array(0, 4, dtype=d), array(4, 5, dtype=d)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", NAMES.values())
def test_a_product_is_what_it_is_in_numpy(library: StandIn, case: str, dtype: str) -> None:
    a, b = CASES[case](dtype)
    computed = computed_dtype(np.dtype(dtype))
    expected = np.matmul(np.asarray(a, computed), np.asarray(b, computed)).astype(dtype)
    found = product(library, a, b, "ieee")
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    rtol = 1e-5 if computed == dtype else 2 * float(finfo(dtype).eps)
    np.testing.assert_allclose(found.astype(computed), expected.astype(computed), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("case", ["matrices", "transposed", "nothing to sum"])
def test_a_product_is_added_in_place(library: StandIn, case: str, order: Any) -> None:
    a, b = CASES[case]("float64")
    total = np.asarray(array(3, 5, dtype="float64"), order=order)
    expected = total + a @ b
    found = product(library, a, b, "ieee", total)
    assert (found is total) == (order == "C")
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        *[("float32", [69, 77, 75]), ("complex64", [69, 77, 75]), ("float64", [70] * 3), ("complex128", [70] * 3)],
        *[("float16", [68] * 3), ("bfloat16", [68] * 3)],
    ],
)
def test_the_precision_is_said_to_every_product(library: StandIn, dtype: str, expected: list[int]) -> None:
    """Of float32 and complex64 alone cuBLAS takes another one than the dtype's own; where they are not to be rounded,
    the pedantic one, which no math mode of the handle's changes."""
    for precision in PRECISIONS:
        product(library, *CASES["matrices"](dtype), precision)
        product(library, *CASES["matrices"](dtype), precision, array(3, 5, dtype=dtype))
    assert library.driver._cublas.computed == [n for n in expected for _ in range(2)]


HUGE = 1 << 31
X, W = np.full((2, 6), 0.1), np.full((6, 6), 0.1)


def test_sizes_beyond_cublas_are_refused_or_copied(library: StandIn) -> None:
    """A number of more than 31 bits would come to it without its upper ones."""
    row = np.broadcast_to(np.float32(1), (1, HUGE))
    for a, b, what in (
        (row, row.T, "elements in a sum"),
        (row.T, np.ones((1, 1), np.float32), "rows"),
        (np.ones((1, 1), np.float32), row, "columns"),
    ):
        with pytest.raises(ValueError, match=f"a product with 2147483648 {what}, of which cuBLAS takes 2147483647"):
            product(library, a, b, "ieee")
    assert too_large((1, 1), (1, 1), HUGE) is not None and too_large((1, 1), (1, 1), HUGE - 1) is None
    assert not library.driver._cublas.computed
    # Where only the distance is too large, a copy is multiplied.
    assert layout((2, 3), (4 * HUGE, 4), 4) is None and layout((3, 2), (4, 4 * HUGE), 4) is None
    assert layout((2, 3), (4 * HUGE - 4, 4), 4) == (0, HUGE - 1)


def test_more_rows_than_cublas_counts_are_a_batch(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = array(2, 3, 4), array(4, 5)
    monkeypatch.setattr(products, "MOST_COUNTED", 5)
    np.testing.assert_allclose(product(library, a, b, "ieee"), np.asarray(a) @ np.asarray(b), rtol=1e-5)


def test_a_product_that_cublas_cannot_count_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count above cuBLAS's limit would be truncated. The loop is not prepared, and its step raises an error."""
    graph = cg.function(lambda x, w: cg.fori_loop(0, 20, lambda i, h: np.tanh(h @ w), x)).graph(X, W)
    monkeypatch.setattr(products, "MOST_COUNTED", 6)
    found = on_stand_in(graph, [X, W])
    assert_same(found.results, on_reference(graph, [X, W]), 1e-9)
    assert found.counts.graphs
    monkeypatch.setattr(products, "MOST_COUNTED", 5)
    with pytest.raises(ExecutionError, match="a product with 6 columns, of which cuBLAS takes 5 at most"):
        on_stand_in(graph, [X, W])


def test_a_list_leaves_the_algorithm_of_a_product_to_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word for that once had the number that stood for the place of the result: cuBLAS was given an address."""
    seen: list[int] = []
    multiply = Cublas.gemmStridedBatchedEx
    monkeypatch.setattr(Cublas, "gemmStridedBatchedEx", lambda *given: (seen.append(given[-1]), multiply(*given))[1])
    graph = cg.function(lambda x, w: cg.fori_loop(0, 3, lambda i, h: np.tanh(h @ w), x)).graph(X, W)
    assert on_stand_in(graph, [X, W]).counts.products == 3
    assert seen == [-1] * 3


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Requests to a stand-in for the first device: products with their precision, contractions."""
    card = StandIn()
    found: list[Any] = []
    multiply, launch = card.multiply, card.launch
    roundings = {69: "ieee", 77: "tf32", 75: "bf16"}
    monkeypatch.setattr(card, "multiply", lambda given: (found.append(roundings[given[-2]]), multiply(given))[1])
    monkeypatch.setattr(card, "launch", lambda its, contracts: (found.append(contracts), launch(its, contracts))[1])
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: card)
    return found


def test_the_option_decides_for_products_and_kernels(asked: list[Any]) -> None:
    f = cg.function(lambda x: np.sin(x @ x), engine="cuda")
    x = np.eye(2, dtype="float32")
    f(x)
    for precision in ("tf32", "bf16", "ieee"):
        with cg.options(precision=precision):
            f(x)
    assert asked == ["ieee", False, "tf32", True, "bf16", True, "ieee", False]


def test_a_precision_that_there_is_not() -> None:
    with pytest.raises(UserInputError, match="no such precision") as error, cg.options(precision="fp8"):
        pass
    assert "'ieee' or 'tf32' or 'bf16'" in str(error.value) and "got: 'fp8'" in str(error.value)
    with cg.options() as now:
        assert now.precision == "ieee"
