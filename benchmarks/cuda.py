"""The CUDA engine on a card: an LSTM's training step against its peers, and long sequences under a device budget.

    python -m benchmarks.cuda --output STEM

writes STEM.json and STEM.txt. Inputs and weights lie on the device before the clock starts; a step of ctrlgrad ends
when its loss and gradients are on the host, one of a peer when the device is done. Products are in float32 everywhere:
TF32 is switched off. A peer that is not installed, or sees no GPU, is a row that says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.machine import description
from benchmarks.recurrent.inputs import pack, sequence, weights
from benchmarks.recurrent.with_ctrlgrad import lstm_concat
from ctrlgrad import memory, tree
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.context import Context, Counts
from ctrlgrad.engines.cuda.cupy_library import cupy_library
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.memory.devices.device import Device

SIZE, TINY = (200, 64, 128, 256), (40, 4, 8, 8)
LENGTHS, TINY_LENGTHS = (100, 200, 500, 1000, 2000, 4000), (10, 60)
WARM_UP = 2
MICRO = 1e6

# How a loop is asked to keep what it saves, by the name of the row: a budget or none, and `swap_memory`.
WAYS: Mapping[str, tuple[bool, bool | None]] = {
    "no budget": (False, None),
    "budget, as the planner likes": (True, None),
    "budget, swapped": (True, True),
    "budget, kept on the device": (True, False),
}


# How launches are put on the stream, by the name of the row: what the engine does by itself is the first.
LAUNCHING: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "in graphs": nullcontext,
    "from lists": lambda: patch.object(runner, "LEAST_IN_GRAPH", 1 << 62),
    "step by step": lambda: patch.object(runner.Body, "form", lambda *_: "it was asked for"),
}


@dataclass
class Row:
    """One measurement; None where there is none."""

    name: str
    length: int
    # Microseconds per iteration: the median of the repeats, and the least.
    median: float | None = None
    least: float | None = None
    loss: float | None = None
    launches: float | None = None
    graphs: int | None = None
    reads: int | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    copied_bytes: int | None = None
    recomputed_chunks: int | None = None
    note: str = ""


@dataclass
class Results:
    """All rows of a run, and where it ran."""

    machine: dict[str, Any]
    device: str
    budget: str
    size: Sequence[int]
    step: list[Row] = field(default_factory=list)
    lengths: list[Row] = field(default_factory=list)


class Layer:
    """The gradient of an LSTM layer's loss by its weights, for any length of the sequence."""

    def __init__(self, library: ArrayLibrary, size: Sequence[int], swap: bool | None) -> None:
        self.library, self.swap, self.hidden = library, swap, size[3]
        self.params = pack("lstm", "concat", weights("lstm", size))
        self.step = cg.function(cg.value_and_grad(self.loss))

    def loss(self, params: Any, xs: Any) -> Any:
        """The mean square of the hidden states."""

        def body(carry: Any) -> Any:
            t, state, total = carry
            state = lstm_concat(params, xs[t], state)
            return t + 1, state, total + cnp.sum(state[0] * state[0])

        start = (np.zeros((xs.shape[1], self.hidden), np.float32),) * 2
        cond = lambda carry: carry[0] < xs.shape[0]
        total = cg.while_loop(cond, body, (0, start, np.float32(0)), swap_memory=self.swap)[2]
        return total / np.float32(xs.shape[0] * xs.shape[1] * self.hidden)

    def prepared(self, xs: np.ndarray) -> Callable[[], tuple[list[Any], Counts]]:
        """One training step, its inputs on the device; gives the results and what the engine did."""
        graph = optimised_graph(self.step.graph(self.params, xs))
        with self.library.running():
            leaves = [self.library.upload(x) for x in tree.leaves((self.params, xs))]
            # So that they are there on whatever stream comes.
            self.library.read(leaves[:1])

        def step() -> tuple[list[Any], Counts]:
            context = Context(self.library)
            return run_with(context, graph, leaves), context.counts

        return step


def timed(step: Callable[[], Any], repeats: int) -> tuple[list[float], Any]:
    """Seconds of each repeat after the first runs, and what the last one gave."""
    for _ in range(WARM_UP):
        step()
    seconds: list[float] = []
    found = None
    for _ in range(repeats):
        start = time.perf_counter()
        found = step()
        seconds.append(time.perf_counter() - start)
    return seconds, found


def of_ctrlgrad(
    library: ArrayLibrary,
    size: Sequence[int],
    name: str,
    budget: str,
    repeats: int,
    devices: Mapping[str, Device] | None = None,
) -> Row:
    """A training step of ctrlgrad, its saved values kept in one of `WAYS`."""
    has_budget, swap = WAYS[name]
    steps = size[0]
    row = Row(name, steps)
    session = memory.budget(device=budget, devices=devices) if has_budget else nullcontext()
    layer, xs = Layer(library, size, swap), sequence(size)
    with session as found:
        try:
            seconds, (results, counts) = timed(layer.prepared(xs), repeats)
        except MemoryBudgetError as error:
            row.note = f"out of memory: {error.problem}"
            return row
        _take(row, seconds, float(results[0]))
        row.graphs = counts.graphs
        row.launches, row.reads = counts.launches / steps, counts.reads + counts.predicate_reads + counts.results
        if found is not None:
            stats = found.manager(library.name).stats
            row.device_bytes, row.host_bytes = (stats.peak_bytes[tier] for tier in ("device", "host"))
            runs = repeats + WARM_UP
            row.copied_bytes = (stats.bytes_out + stats.bytes_in) // runs
            row.recomputed_chunks = stats.recomputed_chunks // runs
    return row


def _take(row: Row, seconds: Sequence[float], loss: float) -> None:
    row.median = statistics.median(seconds) / row.length * MICRO
    row.least, row.loss = min(seconds) / row.length * MICRO, loss


def of_torch(size: Sequence[int], repeats: int) -> Row:
    """A training step of `torch.nn.LSTM`, which is cuDNN's."""
    row = Row("torch.nn.LSTM", size[0])
    try:
        import torch
    except ImportError:
        row.note = "not installed"
        return row
    if not torch.cuda.is_available():
        row.note = "sees no GPU"
        return row
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net, shared = torch.nn.LSTM(size[2], size[3]), weights("lstm", size)
    with torch.no_grad():
        net.weight_ih_l0.copy_(torch.from_numpy(shared["wx"].T))
        net.weight_hh_l0.copy_(torch.from_numpy(shared["wh"].T))
        net.bias_ih_l0.copy_(torch.from_numpy(shared["b"]))
        net.bias_hh_l0.zero_()
    net, xs = net.cuda(), torch.from_numpy(sequence(size)).cuda()

    def step() -> Any:
        net.zero_grad()
        value = net(xs)[0].pow(2).mean()
        value.backward()
        torch.cuda.synchronize()
        return value

    seconds, value = timed(step, repeats)
    _take(row, seconds, float(value))
    row.note = f"torch {torch.__version__}"
    return row


def of_jax(size: Sequence[int], repeats: int) -> Row:
    """A training step of a JAX `scan`."""
    row = Row("jax.lax.scan", size[0])
    try:
        import jax
    except ImportError:
        row.note = "not installed"
        return row
    if jax.default_backend() != "gpu":
        row.note = "sees no GPU"
        return row
    from benchmarks.recurrent.with_jax import scan

    with jax.default_matmul_precision("highest"):
        seconds, (value, _) = timed(scan("lstm", "concat", size).step, repeats)
    _take(row, seconds, float(value))
    row.note = f"jax {jax.__version__}"
    return row


def table(title: str, rows: Sequence[Row]) -> Table:
    """Rows as text."""
    found = Table(title=title, title_justify="left")
    found.add_column("")
    heads = (
        "iterations",
        "us/iteration",
        "least",
        "launches/iteration",
        "graphs/step",
        "waits/step",
        "device MiB",
        "host MiB",
    )
    for head in (*heads, "copied MiB/step", "chunks again/step", "loss"):
        found.add_column(head, justify="right")
    found.add_column("")
    for row in rows:
        numbers = (row.median, row.least, row.launches)
        sizes = (row.device_bytes, row.host_bytes, row.copied_bytes)
        found.add_row(
            row.name,
            str(row.length),
            *(_number(x, ".1f") for x in numbers),
            _number(row.graphs, "d"),
            _number(row.reads, "d"),
            *(_number(None if x is None else x / 2**20, ".1f") for x in sizes),
            _number(row.recomputed_chunks, "d"),
            _number(row.loss, ".6f"),
            row.note,
        )
    return found


def _number(x: float | None, how: str) -> str:
    return "" if x is None else format(x, how)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, metavar="STEM", help="write STEM.json and STEM.txt")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="timed runs of each (default 7)")
    parser.add_argument("--budget", default="128 MiB", metavar="SIZE", help="of the device (default 128 MiB)")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="T", help=f"iterations (default {LENGTHS})")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that everything runs")
    return parser.parse_args(arguments)


def device_name(library: ArrayLibrary) -> str:
    """What the card is called."""
    runtime = getattr(getattr(library.xp, "cuda", None), "runtime", None)
    return library.name if runtime is None else str(runtime.getDeviceProperties(0)["name"].decode())


def main(
    arguments: Sequence[str] | None = None,
    library: ArrayLibrary | None = None,
    devices: Callable[[], Mapping[str, Device]] | None = None,
) -> int:
    """Measure and print. A test gives a library and devices in the place of the card's."""
    options = parse(arguments)
    library = library or cupy_library()
    size = TINY if options.tiny else SIZE
    with library.running():
        name = device_name(library)
    results = Results(description(), name, options.budget, size)
    console = Console(width=210, record=True)
    console.print(f"{results.machine['date']}, {name}, ctrlgrad {results.machine['ctrlgrad']}")

    def measured(length: int, way: str) -> Row:
        given = None if devices is None else devices()
        return of_ctrlgrad(library, (length, *size[1:]), way, options.budget, options.repeats, given)

    for name, launching in LAUNCHING.items():
        with launching():
            row = measured(size[0], "no budget")
        row.name = f"{row.name}, {name}"
        results.step.append(row)
    results.step.append(measured(size[0], "budget, as the planner likes"))
    results.step += [of_torch(size, options.repeats), of_jax(size, options.repeats)]
    console.print(table(f"LSTM training step, (T, batch, input, hidden) = {size}", results.step))
    for length in options.lengths or (TINY_LENGTHS if options.tiny else LENGTHS):
        results.lengths += [measured(length, way) for way in WAYS]
    console.print(table(f"time per iteration by length, device budget {options.budget}", results.lengths))
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.with_suffix(".json").write_text(json.dumps(asdict(results), indent=1) + "\n")
        options.output.with_suffix(".txt").write_text(console.export_text())
        print(f"wrote {options.output}.json and .txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
