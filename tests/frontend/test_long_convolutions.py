"""Convolutions whose terms go round a loop: around the number of terms that are written out, and long ones."""

from __future__ import annotations

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.frontend.array.numerics import _TERMS
from ctrlgrad.ir import walk

MODES = ("full", "same", "valid")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, _TERMS, 2 * _TERMS - 1, 2 * _TERMS, 2 * _TERMS + 1, 3 * _TERMS, 3 * _TERMS + 1])
def test_values_and_gradients(size: int, mode: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=50), rng.normal(size=size)
    convolved = cg.function(lambda x, y: np.convolve(x, y, mode))
    np.testing.assert_allclose(convolved(x, y), np.convolve(x, y, mode), rtol=1e-11, atol=1e-12)
    correlated = cg.function(lambda x, y: np.correlate(x, y, mode))
    np.testing.assert_allclose(correlated(x, y), np.correlate(x, y, mode), rtol=1e-11, atol=1e-12)
    ct = rng.normal(size=np.convolve(x, y, mode).shape)
    by_x, by_y = cg.grad(lambda x, y: (ct * np.convolve(x, y, mode)).sum(), argnums=(0, 1))(x, y)
    # The map is linear in each argument: its transpose has these columns.
    np.testing.assert_allclose(by_x, [ct @ np.convolve(e, y, mode) for e in np.eye(50)], rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(by_y, [ct @ np.convolve(x, e, mode) for e in np.eye(size)], rtol=1e-10, atol=1e-11)


def test_the_graph_does_not_grow_with_the_terms() -> None:
    counts = [
        len(list(walk(cg.function(lambda x, y: np.convolve(x, y)).graph(np.ones(5000), np.ones(size)))))
        for size in (10 * _TERMS, 100 * _TERMS)
    ]
    assert counts[0] == counts[1]
