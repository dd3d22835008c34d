"""Copies beside the computation by CuPy's rules: addresses, streams as threads, and memory that is freed with its
array.

The fake notes every copy that touches freed memory. `test_cuda_values` shows the purpose of the copies.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from instruments.fake_cupy import Card, install_with_arrays

from ctrlgrad.engines.cuda.copies import Copies
from ctrlgrad.engines.cuda.cupy_library import CupyLibrary

FLOAT = np.dtype(np.float64)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return install_with_arrays(monkeypatch)


@pytest.fixture
def library(card: Card) -> Iterator[CupyLibrary]:
    cupy: Any = sys.modules["cupy"]
    cupy.ascontiguousarray = lambda x: x
    found = CupyLibrary(cupy, 0)
    cupy.cuda.get_current_stream = lambda: found.copier().compute.raw
    card.delay = 2e-3
    with found.running():
        yield found
    found.copier().close()
    assert card.broken == []


def held(library: CupyLibrary) -> tuple[int, int]:
    """Bytes of device memory and of pinned memory that are still held."""
    gc.collect()
    Copies(library).settle()
    copier = library.copier()
    free = sum(slab.free.nbytes for slab in copier.pinned.slabs)
    return copier.memory.cache.used, sum(slab.array.nbytes for slab in copier.pinned.slabs) - free


def test_there_and_back(library: CupyLibrary) -> None:
    copies = Copies(library)
    draw = np.random.default_rng(0)
    going = []
    for number in range(30):
        x = draw.normal(size=(1 + number % 5, 7))
        landed = copies.landed(copies.into(x.shape, FLOAT, lambda target, x=x: np.copyto(target, x)))
        # The copy out is the only holder of the array that landed.
        going.append((x, copies.out([landed])))
        del landed
        if number % 3 == 2:
            for expected, copy in going:
                np.testing.assert_array_equal(copy.arrays()[0], expected)
            going.clear()
    copies.close()
    assert held(library) == (0, 0)


def test_unawaited_copies_end_at_close(library: CupyLibrary) -> None:
    copies = Copies(library)
    for number in range(10):
        x = np.full(1000, float(number))
        landed = copies.landed(copies.into(x.shape, FLOAT, lambda target, x=x: np.copyto(target, x)))
        copies.out([landed])
        copies.into(x.shape, FLOAT, lambda target, x=x: np.copyto(target, x))
        del landed
    copies.close()
    assert not copies.leaving
    assert held(library) == (0, 0)


def test_one_device_for_all_runs(library: CupyLibrary, card: Card) -> None:
    first = library.copier()
    assert library.copier() is first
    for _ in range(5):
        copies = Copies(library)
        copies.into((100,), FLOAT, lambda target: target.fill(1.0))
        copies.close()
    # One slab, whatever the number of runs.
    assert len(card.pinned) == 1
