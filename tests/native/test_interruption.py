"""Signals in machine code: Ctrl-C ends a long inner loop, and says in which loop, line and iteration it was."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.engines.native import looking
from ctrlgrad.engines.native.checked import checked

# Long enough to be interrupted, short enough to end by itself where that fails.
LONG = 3_000_000_000


def slow(x: Any, n: Any) -> Any:
    def outer(i: Any, c: Any) -> Any:
        return cg.fori_loop(0, n, lambda j, d: d * 0.999 + 1e-3 * j, c)

    return cg.fori_loop(0, 2, outer, x)


def interrupted(run: Any) -> list[str]:
    """What is noted on the Ctrl-C that comes while `run` runs."""
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            run()
    finally:
        timer.join()
    return [note.split(" at ")[0] for note in caught.value.__notes__]


def test_ctrl_c_ends_a_long_inner_loop_and_says_where_it_was() -> None:
    f = cg.function(slow, engine="native")
    f(1.0, 10)  # compiles
    place, inner, outer = interrupted(lambda: f(1.0, LONG))
    assert place.startswith("in while, at: ")
    assert inner.startswith("in iteration ") and inner.endswith(" of the fori_loop")
    assert int(inner.split()[2]) >= looking.FIRST - 1
    assert outer == "in iteration 0 of the fori_loop"
    assert float(f(1.0, 10)) == pytest.approx(float(slow(1.0, 10)), rel=1e-12)


def test_ctrl_c_between_chunks_says_how_far_the_loop_was() -> None:
    f = cg.function(lambda x, n: cg.fori_loop(0, n, lambda i, c: c * 0.999, x), engine="native")
    f(1.0, 10)
    notes = interrupted(lambda: f(1.0, LONG))
    assert len(notes) == 2 and notes[1].endswith(" of the fori_loop") and int(notes[1].split()[2]) > 0


def test_a_handler_that_does_not_raise_lets_the_loop_go_on() -> None:
    f, seen = cg.function(slow, engine="native"), []
    f(1.0, 10)
    n = 30_000_000
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        found = f(1.0, n)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen and found == f(1.0, n)


def test_a_run_looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many iterations before each look, as long as looks are close together."""
    made: list[Any] = []
    init = looking.Looking.__init__
    monkeypatch.setattr(looking.Looking, "__init__", lambda self: (init(self), made.append(self))[0])
    monkeypatch.setattr(looking, "SECONDS", 1e9)
    f = cg.function(slow, engine="native")
    f(1.0, 100 * looking.FIRST)
    looks = [x.looks for x in made]
    # 2 * 100 * FIRST iterations: looks after 1, 3, 7, .., 127 times FIRST.
    assert looks == [7]


def test_the_checked_form_looks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Any) -> Any:
        yield looking.FIRST
        self.error = TimeoutError("late")
        yield 0

    monkeypatch.setattr(looking.Looking, "_looks", stop)
    with checked(), pytest.raises(TimeoutError, match="late") as caught:
        cg.function(slow, engine="native")(np.float64(1.0), 1000)
    inner, outer = caught.value.__notes__[1:]
    # 1000 of the first iteration of the outer loop, 23 of the second.
    assert inner.startswith("in iteration 23 of") and outer.startswith("in iteration 1 of")
