"""A system's part of a comparison: one run of a program, and the reading of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Results = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Program:
    """A program with its inputs, in one system, ready to run.

    Building it neither traces nor compiles: whatever the system does at its first run belongs to that run.
    """

    # One run to the end: returns when the results are there, in the system's own types.
    step: Callable[[], Any]
    # What `step` returned as NumPy arrays, under names and in layouts that all systems share.
    read: Callable[[Any], Results]
    # How many units of work (iterations, steps) a run did, where only the run knows.
    units: Callable[[Any], float] | None = None
    # The bytes kept for the backward pass per iteration.
    kept_bytes: Callable[[], float] | None = None
    # So many runs of a system that times them itself: what the last one returned, and the seconds of each.
    timed_runs: Callable[[int], tuple[Any, list[float]]] | None = None
