"""Memory of the gradient of a scalar loop of a million iterations that cuts all but one value.

    python -m benchmarks.scalar_loop

The loop's body computes with a vector of 100 numbers, all behind `stop_gradient` but one mean. Its gradient pushes
that one number per iteration and nothing else: 8 bytes, whatever the body does besides. The process grows by more,
because the reference engine keeps each pushed number as a Python object; a pushed vector would cost 900 bytes.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.machine import header
from ctrlgrad.engines.reference import Run, run_graph


def mostly_cut(w: Any, v: Any, n: Any) -> Any:
    """A scalar recurrence in w, driven by a vector that evolves behind `stop_gradient`."""

    def step(carry: Any) -> Any:
        i, y, v = carry
        v = cg.stop_gradient(cnp.sin(v * 3.0) * cnp.cos(v) + 0.1)
        return i + 1, 0.9 * y + w * cnp.mean(v), v

    return cg.while_loop(lambda c: c[0] < n, step, (0, 0.0, v))[1]


def peak_bytes() -> int:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def row(n: int) -> tuple[str, ...]:
    """One line of the table; run in a process of its own, whose peak is that of this run."""
    v = np.linspace(0.0, 1.0, 100)
    gradient = cg.function(cg.grad(mostly_cut)).graph(np.float64(0.5), v, np.int64(1))
    run_graph(gradient, [np.float64(0.5), v, np.int64(10)])
    before = peak_bytes()
    run = Run()
    start = time.perf_counter()
    run_graph(gradient, [np.float64(0.5), v, np.int64(n)], run)
    seconds = time.perf_counter() - start
    counters, grown = run.counters, peak_bytes() - before
    return (
        f"{n:,}",
        f"{seconds:.1f}",
        f"{counters.pushes / n:.3f}",
        f"{counters.pushed_bytes / n:.3f}",
        f"{grown / 2**20:.1f}",
        f"{grown / n:.0f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="memory of the gradient of a loop that cuts all but one value")
    parser.add_argument("--iterations", type=int, default=1_000_000, help="of the longest run (default 1,000,000)")
    longest = parser.parse_args().iterations
    table = Table(title="gradient of a scalar loop over a vector of 100 float64, all but one value cut")
    columns = ("iterations", "seconds", "pushes / iteration", "pushed bytes / iteration", "process grows by MiB")
    for column in (*columns, "bytes / iteration"):
        table.add_column(column, justify="right")
    for n in (longest // 100, longest // 10, longest):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            table.add_row(*process.submit(row, n).result())
    console = Console(width=120)
    console.print(header("reference"))
    console.print(table)


if __name__ == "__main__":
    main()
