"""Products as cuBLAS is asked for them: by a cuBLAS that reads memory by its own rules, and as the options say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.cublas import NAMES, Cublas
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
from ctrlgrad.dtypes import computed_dtype, finfo
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import cupy_library, products
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.products import layout, product, too_large
from ctrlgrad.engines.precision import PRECISIONS
from ctrlgrad.errors import UserInputError


class Array(np.ndarray):
    """With the address of its first element where CuPy's arrays have it."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


@pytest.fixture
def cupy() -> Any:
    """As much of CuPy as products need."""
    cublas = Cublas()
    found = SimpleNamespace(cuda=SimpleNamespace(cublas=cublas, get_cublas_handle=lambda: 7))
    for name in ("empty", "zeros", "matmul"):
        setattr(found, name, lambda *args, name=name: getattr(np, name)(*args).view(Array))
    found.ascontiguousarray = lambda x: np.ascontiguousarray(x).view(Array)
    found.broadcast_to = lambda x, shape: np.broadcast_to(x, shape).view(Array)
    return found


def array(*shape: int, dtype: str = "float32") -> Array:
    rng = np.random.default_rng(sum(shape))
    imaginary = 1j * rng.normal(size=shape) if dtype.startswith("complex") else 0.0
    return (rng.normal(size=shape) + imaginary).astype(dtype).view(Array)


CASES = {
    "matrices": lambda d: (array(3, 4, dtype=d), array(4, 5, dtype=d)),
    "transposed": lambda d: (array(4, 3, dtype=d).T, array(5, 4, dtype=d).T),
    "parts": lambda d: (array(6, 9, dtype=d)[:3, 2:6], array(7, 9, dtype=d).T[1:5, 1:6]),
    "every second": lambda d: (array(3, 8, dtype=d)[:, ::2], array(4, 5, dtype=d)[::-1]),
    "a row and a column": lambda d: (array(1, 4, dtype=d), array(4, 1, dtype=d)),
    "a column and a row": lambda d: (array(3, 1, dtype=d), array(1, 5, dtype=d)),
    "part of a column": lambda d: (array(3, 6, dtype=d)[:, 2:3], array(5, 6, dtype=d)[:, 1:2].T),
    "vectors": lambda d: (array(4, dtype=d), array(4, dtype=d)),
    "a vector first": lambda d: (array(4, dtype=d), array(2, 4, 5, dtype=d)),
    "a vector last": lambda d: (array(2, 3, 4, dtype=d), array(4, dtype=d)),
    "batches": lambda d: (array(2, 3, 4, dtype=d), array(2, 4, 5, dtype=d)),
    "batches, transposed": lambda d: (array(2, 4, 3, dtype=d).swapaxes(1, 2), array(2, 5, 4, dtype=d).swapaxes(1, 2)),
    "batches that broadcast": lambda d: (array(6, 1, 3, 4, dtype=d), array(2, 4, 5, dtype=d)),
    "a batch and a matrix": lambda d: (array(2, 3, 4, dtype=d), array(4, 5, dtype=d)),
    "a matrix and a batch": lambda d: (array(3, 4, dtype=d), array(2, 4, 5, dtype=d)),
    "one repeated": lambda d: (np.broadcast_to(array(1, 4, dtype=d), (3, 4)).view(Array), array(4, 5, dtype=d)),
    "nothing to sum": lambda d: (array(3, 0, dtype=d), array(0, 5, dtype=d)),
    "nothing": lambda d: (array(0, 4, dtype=d), array(4, 5, dtype=d)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", NAMES.values())
def test_a_product_is_what_it_is_in_numpy(cupy: Any, case: str, dtype: str) -> None:
    a, b = CASES[case](dtype)
    computed = computed_dtype(np.dtype(dtype))
    expected = np.matmul(np.asarray(a, computed), np.asarray(b, computed)).astype(dtype)
    found = np.asarray(product(cupy, a, b, "ieee"))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    rtol = 1e-5 if computed == dtype else 2 * float(finfo(dtype).eps)
    np.testing.assert_allclose(found.astype(computed), expected.astype(computed), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("case", ["matrices", "transposed", "nothing to sum"])
def test_a_product_is_added_in_place(cupy: Any, case: str, order: Any) -> None:
    a, b = CASES[case]("float64")
    total = np.asarray(array(3, 5, dtype="float64"), order=order).view(Array)
    expected = np.asarray(total + np.asarray(a) @ np.asarray(b))
    assert product(cupy, a, b, "ieee", total) is total
    np.testing.assert_allclose(np.asarray(total), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        *[("float32", [69, 77, 75]), ("complex64", [69, 77, 75]), ("float64", [70] * 3), ("complex128", [70] * 3)],
        *[("float16", [68] * 3), ("bfloat16", [68] * 3)],
    ],
)
def test_the_precision_is_said_to_every_product(cupy: Any, dtype: str, expected: list[int]) -> None:
    """Of float32 and complex64 alone cuBLAS takes another one than the dtype's own; where they are not to be rounded,
    the pedantic one, which no math mode of the handle's changes."""
    for precision in PRECISIONS:
        product(cupy, *CASES["matrices"](dtype), precision)
        product(cupy, *CASES["matrices"](dtype), precision, array(3, 5, dtype=dtype))
    assert cupy.cuda.cublas.computed == [n for n in expected for _ in range(2)]


HUGE = 1 << 31
X, W = np.full((2, 6), 0.1), np.full((6, 6), 0.1)


def test_what_cublas_cannot_count_is_refused_or_copied(cupy: Any) -> None:
    """A number of more than 31 bits would come to it without its upper ones."""
    row = np.broadcast_to(np.float32(1), (1, HUGE)).view(Array)
    for a, b, what in (
        (row, row.T, "elements in a sum"),
        (row.T, np.ones((1, 1), np.float32).view(Array), "rows"),
        (np.ones((1, 1), np.float32).view(Array), row, "columns"),
    ):
        with pytest.raises(ValueError, match=f"a product with 2147483648 {what}, of which cuBLAS takes 2147483647"):
            product(cupy, a, b, "ieee")
    assert too_large((1, 1), (1, 1), HUGE) is not None and too_large((1, 1), (1, 1), HUGE - 1) is None
    assert not cupy.cuda.cublas.computed
    # Where only the distance is too large, a copy is multiplied.
    assert layout((2, 3), (4 * HUGE, 4), 4) is None and layout((3, 2), (4, 4 * HUGE), 4) is None
    assert layout((2, 3), (4 * HUGE - 4, 4), 4) == (0, HUGE - 1)


def test_more_rows_than_cublas_counts_are_a_batch(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = array(2, 3, 4), array(4, 5)
    monkeypatch.setattr(products, "MOST_COUNTED", 5)
    np.testing.assert_allclose(np.asarray(product(cupy, a, b, "ieee")), np.asarray(a) @ np.asarray(b), rtol=1e-5)


def test_a_list_has_no_product_that_cublas_cannot_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers would lose their upper bits; step by step they are refused."""
    graph = cg.function(lambda x, w: cg.fori_loop(0, 20, lambda i, h: np.tanh(h @ w), x)).graph(X, W)
    for most, reason in ((6, ""), (5, "one by one (a product with 6 columns, of which cuBLAS takes 5 at most)")):
        monkeypatch.setattr(products, "MOST_COUNTED", most)
        library = StandIn()
        found = on_stand_in(graph, [X, W], library=library)
        assert_same(found.results, on_reference(graph, [X, W]), 1e-9)
        assert bool(found.counts.graphs) == (not reason)
        (loop,) = explain_on(library, optimised_graph(graph, is_for_gpu=True), [X, W]).all_loops()
        assert loop.launching.startswith(reason or "from a list")


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
    """What a stand-in in the place of the first device is asked for: products with their precision, contractions."""
    card = StandIn()
    found: list[Any] = []
    matmul, launch = card.matmul, card.launch
    monkeypatch.setattr(card, "matmul", lambda a, b, p: (found.append(p), matmul(a, b, p))[1])
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
    with pytest.raises(UserInputError, match="no precision 'fp8'") as error, cg.options(precision="fp8"):
        pass
    assert "'ieee' or 'tf32' or 'bf16'" in str(error.value)
    with cg.options() as now:
        assert now.precision == "ieee"
