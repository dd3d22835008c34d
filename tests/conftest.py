"""Shared by all tests: where the corpus lies, how JAX compiles, and `--update-golden`."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# pytest's importlib mode does not put the tests' folder on the path; the corpus is imported by name.
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from quick_jax import set_flags  # noqa: E402

# Before any test imports JAX; pytest-xdist's workers inherit them.
set_flags()
# Compiled loops of the tests stay out of the user's cache; the workers share one folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = tempfile.mkdtemp(prefix="ctrlgrad-tests-")
    os.environ["CTRLGRAD_CACHE_DIR"] = _cache
    atexit.register(shutil.rmtree, _cache, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.txt anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
