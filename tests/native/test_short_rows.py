"""Rows that are reduced several at a time give the bits that each gives alone."""

from __future__ import annotations

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

REDUCTIONS = {
    "sum": lambda x: cnp.sum(x * x, axis=1),
    "product": lambda x: cnp.prod(x, axis=1),
    "max": lambda x: cnp.max(x, axis=1),
    "sum of columns": lambda x: cnp.sum(cnp.transpose(x) * 3.0, axis=0),
    "two": lambda x: cnp.sum(x, axis=1) - cnp.min(x, axis=1),
    "position": lambda x: cnp.argmax(x, axis=1),
}


def _by_few(function, x: np.ndarray) -> np.ndarray:
    """The results of two rows at a time, which are too few to be taken together."""
    return np.concatenate([function(x[i : i + 2])[: 1 + (i == len(x) - 2)] for i in range(len(x) - 1)])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, t) for n in sorted(REDUCTIONS) for t in ("float32", "float64")] + [("sum", "complex128")],
)
def test_rows_together_have_the_bits_of_each_alone(name: str, dtype: str) -> None:
    reduce = REDUCTIONS[name]
    function = cg.function(reduce, signature=(cg.TensorSpec((None, None), dtype),), engine="native")
    rng = np.random.default_rng(0)
    for rows in (2, 3, 4, 5, 8, 11):
        for columns in (2, 3, 4, 5, 8, 9, 15, 16, 17, 35, 66):
            x = rng.normal(size=(rows, columns)).astype(dtype)
            if rows > 2:
                x[2, columns // 2], x[1, 0] = np.nan, -0.0
            found = function(x)
            np.testing.assert_array_equal(found, _by_few(function, x))
            with cg.options(engine="reference"):
                tolerance = 2e-5 if dtype == "float32" else 1e-12
                with cg.options(engine="reference"):
                    np.testing.assert_allclose(found, reduce(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(6, 3), (9, 8), (5, 31), (7, 64)])
def test_rows_of_a_known_size_as_of_an_unknown_one(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).normal(size=shape)
    reduce = REDUCTIONS["sum"]
    unknown = cg.function(reduce, signature=(cg.TensorSpec((None, shape[1]), "float64"),), engine="native")
    known = cg.function(reduce, engine="native")
    np.testing.assert_array_equal(known(x), _by_few(unknown, x))
    np.testing.assert_allclose(known(x), np.sum(x * x, axis=1), rtol=1e-13)
