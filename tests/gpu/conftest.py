"""Tests that need a CUDA device; `pytest tests/gpu` runs them, and without a device each is skipped with the reason."""

from __future__ import annotations

import functools
import warnings

import pytest


@functools.cache
def reason_to_skip() -> str | None:
    """Why there is no device to be used, or None."""
    try:
        with warnings.catch_warnings():
            # It warns where it finds no CUDA, and tests take warnings for errors.
            warnings.simplefilter("ignore")
            import cupy
    except ImportError as cause:
        return f"CuPy cannot be imported: {cause}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as cause:
        return f"CUDA cannot be used: {cause}"
    return None if count else "there is no CUDA device"


def pytest_itemcollected(item: pytest.Item) -> None:
    # Called for the tests of this folder only.
    if (reason := reason_to_skip()) is not None:
        item.add_marker(pytest.mark.skip(reason=reason))
