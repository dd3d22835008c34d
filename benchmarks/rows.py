"""Cost per iteration of reading rows, of the gradient of that, and of collecting rows, by the number of rows.

    python -m benchmarks.rows

A loop that reads or writes one row per iteration must cost one row per iteration: the last column, the cost at
100,000 rows over that at 1,000, stays near 1. A copy of the whole array per iteration would make it about 100.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.machine import header

ROWS = (1_000, 10_000, 100_000)
WIDTH = 8
SPEC = cg.TensorSpec((None, WIDTH), np.float64)


def read_rows(xs: Any) -> Any:
    """A loop that reads `xs[t]` and keeps a state of one row."""
    return cnp.sum(cg.fori_loop(0, xs.shape[0], lambda t, h: 0.9 * h + cnp.sin(xs[t]), cnp.zeros(WIDTH)))


def collect_rows(xs: Any) -> Any:
    """`scan`: one new row per iteration."""
    return cg.scan(lambda h, x: (0.9 * h + x, h), cnp.zeros(WIDTH), xs)[1]


def write_rows(xs: Any) -> Any:
    """`ys.at[t].set` on an array as long as `xs`."""
    return cg.fori_loop(0, xs.shape[0], lambda t, ys: ys.at[t].set(xs[t] * 2.0), cnp.zeros_like(xs))


def tensor_array(xs: Any) -> Any:
    """Writes to a `TensorArray` that grows."""
    rows = cg.TensorArray(np.float64, element_shape=(WIDTH,))
    return cg.fori_loop(0, xs.shape[0], lambda t, rows: rows.write(t, xs[t] * 2.0), rows).stack()


def gradient_of(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return cg.grad(lambda xs: cnp.sum(cnp.sin(fn(xs))))


WHAT: dict[str, Callable[[Any], Any]] = {
    "xs[t]": read_rows,
    "xs[t], gradient": gradient_of(read_rows),
    "scan collecting rows": collect_rows,
    "scan collecting rows, gradient": gradient_of(collect_rows),
    "ys.at[t].set": write_rows,
    "ys.at[t].set, gradient": gradient_of(write_rows),
    "TensorArray": tensor_array,
    "TensorArray, gradient": gradient_of(tensor_array),
}


def microseconds_per_row(fn: Callable[[Any], Any], rows: int, repeats: int) -> float:
    """The best of repeated runs, in processor time, so that other work on the machine counts little.

    The function is compiled before the first.
    """
    xs = np.random.default_rng(0).standard_normal((rows, WIDTH))
    fn(xs[:2])
    times = []
    for _ in range(repeats):
        start = time.process_time()
        fn(xs)
        times.append(time.process_time() - start)
    return min(times) / rows * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="cost per row by the number of rows")
    parser.add_argument("--repeats", type=int, default=3, help="runs per figure; the best is shown (default 3)")
    parser.add_argument("--engine", default="native", help="ctrlgrad's engine (default native)")
    options = parser.parse_args()
    table = Table(title=f"processor microseconds per row of {WIDTH} float64, best of {options.repeats} runs")
    table.add_column("what")
    for rows in ROWS:
        table.add_column(f"{rows:,} rows", justify="right")
    table.add_column("last / first", justify="right")
    for name, fn in WHAT.items():
        traced = cg.function(fn, engine=options.engine, signature=(SPEC,))
        figures = [microseconds_per_row(traced, rows, options.repeats) for rows in ROWS]
        table.add_row(escape(name), *(f"{x:.2f}" for x in figures), f"{figures[-1] / figures[0]:.2f}")
    console = Console(width=120)
    console.print(header(options.engine))
    console.print(table)


if __name__ == "__main__":
    main()
