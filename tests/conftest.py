"""Shared by all tests: how JAX compiles, which suite runs (`suites`), and `--update-golden`."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import suites
from quick_jax import set_flags, share_contexts

TESTS = Path(__file__).parent

# Before any test imports JAX; pytest-xdist's workers inherit them.
set_flags()
# Before any test imports NumPy: arrays are small, and threads of the linear algebra library only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Most tests run what they compile once; `native` looks at machine code as users get it too.
os.environ.setdefault("CTRLGRAD_QUICK_CODE", "1")
# Processes that tests start import the same modules over and over: what Python makes of them is kept, as is its custom.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Compiled loops of the tests stay out of the user's cache; the workers share one folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = tempfile.mkdtemp(prefix="ctrlgrad-tests-")
    os.environ["CTRLGRAD_CACHE_DIR"] = _cache
    atexit.register(shutil.rmtree, _cache, ignore_errors=True)


# Python looks for garbage among what the tests of a module make, and not so often.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def _earlier_modules_are_not_looked_through() -> None:
    gc.collect(1)
    gc.freeze()


@pytest.fixture(autouse=True)
def _plans_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of earlier tests, and their plans, are not found again: tests replace the code that makes them."""
    from ctrlgrad.ir import interning
    from ctrlgrad.ir.caching import Recent

    monkeypatch.setattr(interning, "_FAMILIES", Recent(interning.MOST))


@pytest.fixture(autouse=True, scope="session")
def _the_dataflow_engine_has_its_executor() -> Iterator[None]:
    """Tests of the dataflow engine are about its executor, which by default one device does without."""
    from ctrlgrad import dataflow

    with dataflow.settings(loops="lowered"):
        yield


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The plans that machine code is asked for during a test."""
    from ctrlgrad.engines.native import engine

    found: list[Any] = []
    compiled = engine.compiled
    monkeypatch.setattr(engine, "compiled", lambda plan: (found.append(plan), compiled(plan))[1])
    yield found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("in_turn"):
        from instruments.tables import parametrize_in_turn

        parametrize_in_turn(metafunc)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are left out are not even imported."""
    if suites.suite_of(config) != "short" or not collection_path.is_relative_to(TESTS):
        return None
    return suites.is_left_out(collection_path.relative_to(TESTS).as_posix()) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suite = suites.suite_of(config)
    if suite != "whole":
        kept = [short == (suite == "short") for short in suites.are_short(items)]
        config.hook.pytest_deselected(items=list(compress(items, [not k for k in kept])))
        items[:] = compress(items, kept)


def pytest_collection() -> None:
    # Tests stay until the end: nothing among them is garbage, and looking takes a quarter of the time of collecting.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    # By now the modules of the tests have imported it, or none will.
    if "jax" in sys.modules:
        share_contexts()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", choices=suites.SUITES, help="short (without paths), what that leaves out, or both")
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.txt anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
