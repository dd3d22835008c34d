"""Time of each kind of kernel for 1 to 64 threads, predicted by a simulation of the thread pool.

    python -m benchmarks.cores [--write]

First it measures the costs of the pool on this machine: `claim`, the cost of a part beside its work; `wake`, the time
that waking a thread takes the thread that does it; `late`, the time from there until the woken thread begins; and the
bandwidth of memory of one thread. Then it measures each kind of kernel with one thread and with all processors, the
best of many rounds, asks the pool how many parts the kernel had, and simulates the pool for other numbers of threads
(see `engines.native.products.pool`). The prediction for the processors at hand stands beside the measured time.
`--write` keeps all of it in `benchmarks/results/cores.json` and `cores.txt`.

A prediction for more threads than there are processors assumes that all of them together have `MOST_BANDWIDTH` times
the bandwidth of one: no measurement here says that. A kernel whose arrays fit into `CACHE` bytes needs none. Rows of a
sort are shared by threads of Python, which the caller starts one after the other; that is predicted by its own formula.
"""

from __future__ import annotations

import argparse
import ctypes
import heapq
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.machine import description, header
from ctrlgrad import threads
from ctrlgrad.engines.native.products.library import products
from ctrlgrad.engines.reference.array_kernels import START, most_sorters

THREADS = (1, 2, 4, 8, 16, 64)
MOST_BANDWIDTH, CACHE = 16, 2 << 20
RESULTS = Path(__file__).parent / "results"
# A sort whose rows threads of Python share, not those of the pool; starting one takes `START` units of work.
SORTED = 64, 10_000
SORT = "sort of 64 x 10,000"
# Words of `cg_pool_job`.
PARTS, WORK, JOBS = 2, 4, 5


@dataclass(frozen=True)
class Costs:
    """Costs of the pool in nanoseconds, and bytes per nanosecond that one thread reads and writes."""

    claim: float
    wake: float
    late: float
    bandwidth: float


def predicted(costs: Costs, alone: float, parts: int, work: int, threads_: int, nbytes: int = 0) -> float:
    """Nanoseconds of a job that takes `alone` by one thread, by so many threads, of which all but the caller sleep.

    The caller and each woken thread wake `WAKES_EACH` threads and then claim parts one by one, as those of the pool do.
    `nbytes` of memory are moved by all parts together.
    """
    if parts < 2 or threads_ < 2:
        return alone
    to_wake = threads.woken(work, parts, threads_ - 1)
    workers = min(to_wake + 1, parts)
    wanted = workers * min(nbytes / alone, costs.bandwidth) if nbytes > CACHE else 0.0
    part = alone / parts * max(1.0, wanted / (costs.bandwidth * MOST_BANDWIDTH))
    ready, claimed, free, end = [0.0], 0, 0.0, 0.0
    begun: list[float] = []
    while ready:
        now = heapq.heappop(ready)
        for _ in range(min(threads.WAKES_EACH, to_wake)):
            now += costs.wake
            heapq.heappush(ready, now + costs.late)
            to_wake -= 1
        begun.append(now)
    heapq.heapify(begun)
    while claimed < parts:
        now = max(heapq.heappop(begun), free) + costs.claim
        free, claimed = now, claimed + 1
        heapq.heappush(begun, now + part)
        end = max(end, now + part)
    return end


# Measured costs.


def best(fn: Callable[[], object], repeats: int) -> float:
    """Nanoseconds of the fastest of many runs."""
    found = float("inf")
    for _ in range(repeats):
        start = time.perf_counter_ns()
        fn()
        found = min(found, time.perf_counter_ns() - start)
    return found


def measured_costs() -> Costs:
    """The pool's costs on this machine, by jobs whose parts do nothing, or sleep."""
    native = products()
    before = native.threads
    native.set_threads(2)
    parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        native.address("cg_parallel")
    )
    nothing, sleep = native.address("cg_pool_threads"), ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    much, parts = 1 << 40, 10_000

    def rested(parts: int, work: int, routine: Any = nothing, context: int | None = None) -> float:
        """Nanoseconds of a job that finds the other thread asleep; but for a tenth, which find it awake, the best."""
        found = []
        for _ in range(400):
            time.sleep(5e-4)
            start = time.perf_counter_ns()
            parallel(routine, context, parts, work)
            found.append(time.perf_counter_ns() - start)
        return float(np.quantile(found, 0.1))

    time.sleep(1e-3)
    claim = (
        best(lambda: parallel(nothing, None, parts, 0), 50) - best(lambda: parallel(nothing, None, 1, 0), 50)
    ) / parts
    wake = rested(2, much) - rested(2, 0)
    late = rested(2, much, sleep, 100) - rested(1, 0, sleep, 100) - wake
    native.set_threads(before)
    source, target = np.ones(1 << 25), np.zeros(1 << 25)
    copied = best(lambda: np.copyto(target, source), 10)
    return Costs(round(claim, 1), round(max(wake, 0.0)), round(max(late, 0.0)), round(2 * source.nbytes / copied, 2))


# Kinds of kernels.


def kinds() -> Iterator[tuple[str, Callable[..., Any], list[np.ndarray]]]:
    """Programs of one kernel each: name, function and arguments."""
    rng = np.random.default_rng(0)

    def given(*shape: int) -> np.ndarray:
        return rng.random(shape, "f4")

    x, y = given(2048, 1024), given(2048, 1024)
    yield "add, 2,048 x 1,024", lambda x, y: x + y, [x, y]
    yield "add, 64 x 1,024", lambda x, y: x + y, [x[:64], y[:64]]
    yield "tanh, 2,048 x 1,024", cnp.tanh, [x]
    yield "tanh, 32 x 1,024", cnp.tanh, [x[:32]]
    yield "sum of all", cnp.sum, [x]
    yield "sum of rows", lambda x: cnp.sum(x, axis=1), [x]
    yield "sum of columns", lambda x: cnp.sum(x, axis=0), [x]
    yield "sum of 8 columns", lambda x: cnp.sum(x, axis=0), [x.reshape(-1, 8)]
    yield "largest of columns", lambda x: cnp.max(x, axis=0), [x]
    yield "position in columns", lambda x: cnp.argmax(x, axis=0), [x]
    yield "position in all", cnp.argmax, [x]
    yield "gather of rows", lambda x: x[np.arange(2047, -1, -1)] * 2, [x]
    yield "product, 512 x 1,024 x 512", lambda x, y: x @ y, [x[:512], given(1024, 512)]
    yield "product, 64 x 64 x 64", lambda x, y: x @ y, [x[:64, :64], y[:64, :64]]
    yield "matrix and vector", lambda x, y: x @ y, [x, y[0]]
    yield "512 products, 64 x 64 x 64", lambda x: x @ x, [given(512, 64, 64)]
    yield "10,000 products, 4 x 4 x 4", lambda x: x @ x, [given(10_000, 4, 4)]
    yield "200,000 products, 4 x 4 x 4", lambda x: x @ x, [given(200_000, 4, 4)]
    yield "8,000 systems of 4", cnp.linalg.solve, [given(8000, 4, 4) + 4 * np.eye(4, dtype="f4"), given(8000, 4, 1)]
    yield "1,000 eigenvectors of 8 x 8", lambda x: cnp.linalg.eigh(x)[1], [given(1000, 8, 8)]
    yield SORT, lambda x: cnp.sort(x, axis=1), [given(*SORTED)]
    yield "sums so far, 200 x 10,000", lambda x: cnp.cumsum(x, axis=0), [given(200, 10_000)]


@dataclass
class Row:
    """A kind of kernel: jobs of a call, parts and work of the last one, and microseconds by number of threads."""

    name: str
    jobs: int
    parts: int
    work: int
    measured: dict[int, float]
    predicted: dict[int, float]


def measure(fn: Callable[..., Any], given: list[np.ndarray], counts: tuple[int, ...], into: dict[int, float]) -> None:
    """Put the best microseconds of a round into a table by number of threads."""
    for count in counts:
        products().set_threads(count)
        os.environ["CTRLGRAD_THREADS"] = str(count)  # for sorts
        fn(*given)
        repeats = 3 if into.get(count, 0) > 20_000 else 60
        into[count] = min(into.get(count, float("inf")), best(lambda: fn(*given), repeats) / 1e3)


def row(
    name: str,
    function: Callable[..., Any],
    given: list[np.ndarray],
    measured: dict[int, float],
    costs: Costs,
    entry: float,
) -> Row:
    native = products()
    word = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(native.address("cg_pool_job"))
    nbytes = sum(x.nbytes for x in given) + np.asarray(function(*given)).nbytes
    shown = Row(name, 0, 1, 0, {k: round(v, 1) for k, v in measured.items()}, {})
    alone = max(measured[1] * 1e3 - entry, 1.0)
    for count in THREADS:
        if name == SORT:
            shown.parts = most_sorters(*SORTED)
            used = min(count, shown.parts)
            shown.predicted[count] = round((alone / used + (used - 1) * START * threads.UNIT + entry) / 1e3, 1)
            continue
        native.set_threads(count)
        before = word(JOBS)
        function(*given)
        shown.jobs = word(JOBS) - before
        if shown.jobs:
            shown.parts, shown.work = word(PARTS), word(WORK)
            share = alone / shown.jobs
            found = shown.jobs * predicted(costs, share, shown.parts, shown.work, count, nbytes // shown.jobs)
        else:
            found = alone
        shown.predicted[count] = round((found + entry) / 1e3, 1)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all kernels (default 5)")
    options = parser.parse_args()
    cores = threads.default_threads()
    small = cg.function(lambda x: x + 1)
    one = np.ones(4, "f4")
    small(one)
    entry = best(lambda: small(one), 2000)
    programs = [(name, cg.function(fn), given) for name, fn, given in kinds()]
    measured: list[dict[int, float]] = [{} for _ in programs]
    quietest: list[Costs] = []
    for _ in range(options.rounds):
        quietest.append(measured_costs())
        for (_, function, given), into in zip(programs, measured, strict=True):
            measure(function, given, (1, cores), into)
    # Another program on the machine makes all costs larger: those of the quietest round count.
    costs = min(quietest, key=lambda costs: costs.wake + costs.late)
    costs = replace(costs, bandwidth=max(each.bandwidth for each in quietest))
    found = [row(*program, into, costs, entry) for program, into in zip(programs, measured, strict=True)]
    table = Table(title="microseconds of a call: measured, and predicted with all threads but one asleep")
    for column in ("kernel", "parts", "1, measured", f"{cores}, measured", *map(str, THREADS[1:]), "efficiency of 8"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for r in found:
        parts = str(r.parts) if r.jobs else f"{r.parts} in Python" if r.name == SORT else "not by the pool"
        times = [r.measured[1], r.measured[cores], *(r.predicted[count] for count in THREADS[1:])]
        efficiency = r.measured[1] / (8 * r.predicted[8])
        table.add_row(r.name, parts, *(f"{t:,.0f}" for t in times), f"{efficiency:.2f}")
    console = Console(width=132, record=True)
    console.print(header("native"))
    console.print(f"costs in ns: {asdict(costs)}, a call's own {entry:.0f}")
    console.print(table)
    if options.write:
        machine = description()
        told = {"machine": machine, "costs": asdict(costs), "entry": entry, "rows": [asdict(r) for r in found]}
        (RESULTS / "cores.json").write_text(json.dumps(told, indent=1) + "\n")
        (RESULTS / "cores.txt").write_text(console.export_text())


if __name__ == "__main__":
    main()
