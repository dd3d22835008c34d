"""Programs that behave in the ways that a comparison must cope with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.program import Program


class Clock:
    """Replace the process's clock by one that advances only by the durations that programs state."""

    def __init__(self) -> None:
        self.seconds = 0.0
        time.perf_counter = self

    def __call__(self) -> float:
        # To read it takes time too: nothing takes none.
        self.take(1e-9)
        return self.seconds

    def take(self, seconds: float) -> None:
        self.seconds += seconds


def steady(value: float = 1.0, seconds: float = 0.0, units: float | None = None, kept: float | None = None) -> Program:
    """Takes some time and returns a number."""
    clock = Clock()

    def step() -> Any:
        clock.take(seconds)
        return value

    def read(result: Any) -> dict[str, np.ndarray]:
        return {"value": np.asarray(result)}

    return Program(
        step,
        read,
        units=None if units is None else lambda result: units,
        kept_bytes=None if kept is None else lambda: kept,
    )


def waiting(seconds: float) -> Program:
    """Really takes some time."""
    return Program(lambda: time.sleep(seconds), lambda result: {})


def talkative() -> Program:
    """Prints where answers go."""
    print("built")
    os.write(1, b"written past Python\n")
    return steady()


def not_installed() -> Program:
    import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401

    raise AssertionError


def failing() -> Program:
    def step() -> Any:
        raise ValueError("no such thing\n  and more about it")

    return Program(step, lambda result: {})


def dying() -> Program:
    def step() -> Any:
        os.write(2, b"last words")
        os._exit(3)

    return Program(step, lambda result: {})


def warming() -> Program:
    """Slow at its first run in a process: it takes 0.5 s, and a later one 0.2 s."""
    clock, runs = Clock(), list[int]()

    def step() -> Any:
        clock.take(0.2 if runs else 0.5)
        runs.append(1)
        return 1.0

    return Program(step, lambda result: {"value": np.asarray(result)})


def caching() -> Program:
    """Takes 0.5 s where an earlier process has left something in its cache, and else 0.1 s."""
    clock = Clock()
    mark = os.path.join(os.environ["XDG_CACHE_HOME"], "mark")

    def step() -> Any:
        found = os.path.exists(mark)
        with open(mark, "w"):
            pass
        clock.take(0.5 if found else 0.1)
        return 1.0

    return Program(step, lambda result: {"value": np.asarray(result)})


def counting_cores() -> Program:
    """Its units are the cores that it may use, as far as the system tells."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return Program(lambda: None, lambda result: {}, units=lambda result: float(cores))


def counting_runners() -> Program:
    """Its units are the processes that run beside it, started by the one that it runs in."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")

    def step() -> Any:
        # A process that was woken takes a while to run.
        time.sleep(0.2)
        return [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children.read_text().split()
        ]

    return Program(step, lambda result: {}, units=lambda states: float(sum(state == "R" for state in states)))
