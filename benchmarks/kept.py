"""The bytes that ctrlgrad keeps for the backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.engines.reference import Run, run_graph


def bytes_per_iteration(function: Any, engine: str, *args: Any, iterations: int) -> float:
    """The bytes of all pushes of one run by an engine, per iteration of its one loop.

    On a compiling engine, those of the loop itself: what its gradient pushes to batch products lives for one chunk.
    """
    if engine == "reference":
        run = Run()
        run_graph(function.graph(*args), [np.asarray(x) for x in tree.leaves((args, {}))], run)
        return run.counters.pushed_bytes / iterations
    loops = list(function.explain(*args).all_loops())
    for loop in loops:
        if loop.engine == "reference":
            raise RuntimeError(f"{loop.name} is not compiled, so its bytes are not reported: {loop.reason}")
    return float(sum(loop.bytes_per_iteration for loop in loops if not loop.name.endswith("(its gradient)")))
