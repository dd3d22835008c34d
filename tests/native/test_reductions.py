"""Reductions of bools and integers by whole vectors agree with NumPy, at every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

LENGTHS = (1, 3, 8, 16, 33, 64, 100)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def reduced(names: tuple[str, ...], x: np.ndarray) -> Any:
    fn = lambda x: tuple(getattr(cnp, name)(x) for name in names)
    return cg.function(fn, engine="native")(x)


@pytest.mark.parametrize("length", LENGTHS)
def test_bools(length: int) -> None:
    for share in (0.0, 0.05, 0.5, 0.95, 1.0):
        x = np.random.default_rng(length).random(length) < share
        for name, found in zip(("any", "all"), reduced(("any", "all"), x), strict=True):
            assert found == getattr(np, name)(x) and found.dtype == bool, (name, share)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str) -> None:
    names, limits = ("sum", "prod", "max", "min"), np.iinfo(dtype)
    for length in LENGTHS:
        rng = np.random.default_rng(length)
        some = rng.integers(max(limits.min, -3), 4, length).astype(dtype)
        for x in (some, rng.integers(limits.min, limits.max, length, dtype=dtype, endpoint=True)):
            for name, found in zip(names, reduced(names, x), strict=True):
                expected = getattr(np, name)(x)
                assert found == expected and found.dtype == expected.dtype, (name, length)
