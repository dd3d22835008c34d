"""Python's garbage collector while graphs are made: full collections wait, and thresholds come back."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad import engines
from ctrlgrad.collector import kept_objects, only_new_objects
from ctrlgrad.engines.native import engine


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    """Whatever a test does, the next one finds what was there."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_tracing_and_compiling_wait_for_no_full_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.set_threshold(500, 5, 5)
    compiled, seen = engine.compiled, []

    def compiling(*args: Any) -> Any:
        seen.append(("code", gc.get_threshold()))
        return compiled(*args)

    def optimising(*args: Any) -> Any:
        seen.append(("passes", gc.get_threshold()))
        return optimise(*args)

    def traced(x: Any) -> Any:
        seen.append(("trace", gc.get_threshold()))
        return cg.while_loop(lambda x: x < 100.0, lambda x: x * x, x)

    optimise = engines.optimise
    monkeypatch.setattr(engine, "compiled", compiling)
    monkeypatch.setattr(engines, "optimise", optimising)
    cg.function(cg.grad(traced), engine="native")(1.5)
    assert {what for what, _ in seen} == {"trace", "passes", "code"}
    assert all(found[:2] == (500, 5) and found[2] > 1 << 30 for _, found in seen)
    assert gc.get_threshold() == (500, 5, 5)


def test_thresholds_come_back_after_an_error() -> None:
    before = gc.get_threshold()

    @cg.function
    def wrong(x: Any) -> Any:
        raise LookupError

    with pytest.raises(LookupError):
        wrong(np.ones(3))
    assert gc.get_threshold() == before


def test_blocks_inside_each_other_and_in_threads_end_together() -> None:
    before = gc.get_threshold()
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with only_new_objects():
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=other)
    with only_new_objects(), only_new_objects():
        thread.start()
        inside.wait(10)
    assert gc.get_threshold() != before
    done.set()
    thread.join()
    assert gc.get_threshold() == before


def test_thresholds_set_meanwhile_by_the_user_stay() -> None:
    with only_new_objects():
        gc.set_threshold(500, 7, 7)
    assert gc.get_threshold() == (500, 7, 7)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_begins_anew() -> None:
    before = gc.get_threshold()
    with only_new_objects():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.get_threshold() == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.get_threshold() == before


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """As in most programs; what the tests themselves have frozen is frozen again."""
    gc.unfreeze()
    yield
    gc.enable()
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_no_garbage_is_looked_for_during_imports_nor_in_what_they_leave() -> None:
    seen: list[int] = []

    def watch(phase: str, info: Any) -> None:
        seen.append(info["generation"])

    gc.callbacks.append(watch)
    try:
        with kept_objects():
            kept: list[list[int]] = [[] for _ in range(10 * gc.get_threshold()[0])]
        count = len(seen)
    finally:
        gc.callbacks.remove(watch)
    assert count == 0 and gc.isenabled() and gc.get_freeze_count() == 0
    gc.collect(1)
    assert any(x is kept for x in gc.get_objects(2)) and not any(x is kept for x in gc.get_objects(1))


@pytest.mark.usefixtures("nothing_frozen")
def test_a_collector_that_is_off_stays_off_and_what_is_frozen_stays_frozen() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with kept_objects():
        pass
    assert gc.get_freeze_count() > before // 2 > 100
    gc.disable()
    with pytest.raises(LookupError), kept_objects():
        raise LookupError
    assert not gc.isenabled()
