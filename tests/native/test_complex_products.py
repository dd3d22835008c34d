"""Products of complex matrices, computed as four real products, agree with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from native.matrices import dense

from ctrlgrad.engines.native import engine
from ctrlgrad.ir import Builder, TensorType

TOLERANCE = {"complex64": 8e-4, "complex128": 4e-11}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("is_known", [True, False])
def test_complex_matrices_by_real_ones(dtype: str, is_known: bool) -> None:
    rng = np.random.default_rng(5)
    shapes = [((1, 1), (1, 1)), ((3, 6), (6, 4)), ((7, 30), (30, 2)), ((2, 0), (0, 2)), ((40, 70), (70, 33))]
    shapes += [((2, 1, 3, 5), (3, 5, 4)), ((1, 20), (4, 20, 9)), ((5, 20), (20, 1))]
    for left, right in shapes:
        a, b = (dense(rng, int(np.prod(s[:-1])), s[-1], dtype).reshape(s) for s in (left, right))
        builder = Builder()
        inputs = [builder.input(TensorType(x.dtype, x.shape if is_known else (None,) * x.ndim)) for x in (a, b)]
        graph = builder.finish([builder.emit("matmul", inputs, {})])
        for x, y in ((a, b), (np.swapaxes(np.swapaxes(a, -1, -2).copy(), -1, -2), b)):
            (found,) = engine.run(graph, (x, y))
            assert found.dtype == a.dtype
            np.testing.assert_allclose(found, x @ y, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
