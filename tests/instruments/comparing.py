"""Results side by side: of the same dtypes and shapes, and the same within rounding or to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad import tree


def assert_same(found: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-11) -> None:
    """Relative to each element, or to the largest finite one of an array that holds smaller ones; integers exactly."""
    for a, b in zip(found, expected, strict=True):
        assert isinstance(a, np.ndarray | np.generic)
        assert (a.dtype, a.shape) == (np.asarray(b).dtype, np.shape(b))
        if np.asarray(b).dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
            continue
        largest = np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1.0, largest))


def assert_same_trees(found: Any, expected: Any, rtol: float = 1e-11, atol: float = 1e-12) -> None:
    """The same structure around arrays or numbers of the same shapes and kinds."""
    leaves, structure = tree.flatten(found)
    expected_leaves, expected_structure = tree.flatten(expected)
    assert structure == expected_structure
    for a, b in zip(leaves, expected_leaves, strict=True):
        assert (np.asarray(a).dtype.kind, np.shape(a)) == (np.asarray(b).dtype.kind, np.shape(b))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def assert_same_bits(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Arrays, or lists of them for stacks."""
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, list):
            assert_same_bits(a, b)
        elif b is None:
            assert a is None
        else:
            assert (np.asarray(a).dtype, np.shape(a)) == (np.asarray(b).dtype, np.shape(b))
            np.testing.assert_array_equal(a, b)
