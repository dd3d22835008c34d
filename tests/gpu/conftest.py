"""Tests that need a CUDA device; `pytest tests/gpu` runs them, and without a device each is skipped with the reason."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Generator

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


def _error_that_stays() -> str | None:
    """The error that CUDA reports for every later call, such as after an out-of-bounds read in a kernel; else None."""
    cupy = sys.modules.get("cupy")
    if cupy is None or reason_to_skip() is not None:
        return None
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No test is told of another one's error: pytest-xdist starts another process, which goes on."""
    result = yield
    error = _error_that_stays()
    if error is not None:
        print(f"{item.nodeid}: the card is of no use to this process any more: {error}", file=sys.stderr, flush=True)
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)
        pytest.exit(error, returncode=1)
    return result
