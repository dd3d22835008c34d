"""The bytes that ctrlgrad keeps for the backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.engines.reference import Run, run_graph


def bytes_per_iteration(function: Any, *args: Any, iterations: int) -> float:
    """The bytes of all pushes of one run, per iteration of its loop."""
    run = Run()
    run_graph(function.graph(*args), [np.asarray(x) for x in tree.leaves((args, {}))], run)
    return run.counters.pushed_bytes / iterations
