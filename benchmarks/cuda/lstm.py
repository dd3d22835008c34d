"""An LSTM's training step against its peers, and the time of an iteration by the length of the sequence.

Inputs and weights lie on the device before the clock starts; a step of ctrlgrad ends when its loss and gradients are on
the host, one of a peer when the device is done. Products are in float32 everywhere: TF32 is switched off. A peer that
is not installed, or sees no GPU, is a row that says so.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.cuda.results import Row
from benchmarks.recurrent.inputs import pack, sequence, weights
from benchmarks.recurrent.with_ctrlgrad import lstm_concat
from ctrlgrad import memory, tree
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.engines.cuda.program import Context, Counts
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.execution import run_on
from ctrlgrad.memory.devices.device import Device

# (T, batch, input, hidden): much to compute in each step, and little.
SIZES, TINY = ((200, 64, 128, 256), (512, 16, 512, 512)), ((40, 4, 8, 8),)
LENGTHS, TINY_LENGTHS = (100, 500, 1000, 4000, 16_000, 64_000), (10, 60)
WARM_UP = 2
# Iterations of all repeats together: long sequences run less often.
ENOUGH = 30_000
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


class Layer:
    """The gradient of an LSTM layer's loss by its weights, for any length of the sequence."""

    def __init__(self, size: Sequence[int], swap: bool | None = None) -> None:
        self.swap, self.hidden = swap, size[3]
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

    def prepared(self, library: ArrayLibrary, xs: np.ndarray) -> Callable[[], tuple[list[Any], Counts]]:
        """One training step, its inputs on the device; gives the results and what the engine did."""
        graph = optimised_graph(self.step.graph(self.params, xs))
        with library.running():
            leaves = [library.upload(x) for x in tree.leaves((self.params, xs))]
            # So that they are there on whatever stream comes.
            library.read(leaves[:1])

        def step() -> tuple[list[Any], Counts]:
            context = Context(library)
            return run_with(context, graph, leaves), context.counts

        return step

    def on_the_processor(self, xs: np.ndarray) -> list[Any]:
        """The loss and the gradients, by the native engine."""
        return run_on("native", self.step.graph(self.params, xs), tree.leaves((self.params, xs)))


def timed(step: Callable[[], Any], repeats: int, warm_up: int = WARM_UP) -> tuple[list[float], Any]:
    """Seconds of each repeat after the first runs, and what the last one gave."""
    for _ in range(warm_up):
        step()
    seconds: list[float] = []
    found = None
    for _ in range(repeats):
        start = time.perf_counter()
        found = step()
        seconds.append(time.perf_counter() - start)
    return seconds, found


def of_ctrlgrad(
    row: Row,
    library: ArrayLibrary,
    size: Sequence[int],
    way: str,
    budget: str,
    repeats: int,
    devices: Mapping[str, Device] | None,
) -> list[Any]:
    """A training step of ctrlgrad, its saved values kept in one of `WAYS`; the loss and the gradients, none where there
    was no memory."""
    has_budget, swap = WAYS[way]
    session = memory.budget(device=budget, devices=devices) if has_budget else nullcontext()
    layer, xs = Layer(size, swap), sequence(size)
    repeats = max(1, min(repeats, ENOUGH // row.length))
    with session as found:
        try:
            step = layer.prepared(library, xs)
            seconds, (results, counts) = timed(step, repeats)
        except MemoryBudgetError as error:
            row.note = f"out of memory: {error.problem}"
            return []
        take(row, seconds, float(results[0]))
        row.graphs = counts.graphs
        row.launches, row.reads = counts.launches / row.length, counts.reads + counts.predicate_reads + counts.results
        if found is not None:
            stats = found.manager(library.name).stats
            row.device_bytes, row.host_bytes = (stats.peak_bytes[tier] for tier in ("device", "host"))
            runs = repeats + WARM_UP
            row.copied_bytes = (stats.bytes_out + stats.bytes_in) // runs
            row.recomputed_chunks = stats.recomputed_chunks // runs
            row.stalled, row.hidden = _waits(step)
    return results


def _waits(step: Callable[[], Any]) -> tuple[float | None, float | None]:
    """The share of a step in which the card waited, and the share of its copies' time that computation hid."""
    with memory.profile() as recording:
        step()
    summary = recording.summary()
    timed = [route for route in summary.routes if route.seconds]
    copying = sum(route.seconds or 0.0 for route in timed)
    hidden = sum(route.hidden_seconds or 0.0 for route in timed) / copying if copying else None
    stalled = summary.stalled("forward") + summary.stalled("backward")
    return (stalled / summary.seconds if summary.seconds else None), hidden


def take(row: Row, seconds: Sequence[float], loss: float) -> None:
    """Note the times of a row, and its loss."""
    row.median = statistics.median(seconds) / row.length * MICRO
    row.least, row.loss = min(seconds) / row.length * MICRO, loss


def of_torch(row: Row, size: Sequence[int], repeats: int) -> None:
    """A training step of `torch.nn.LSTM`, which is cuDNN's."""
    try:
        import torch
    except ImportError:
        row.note = "not installed"
        return
    if not torch.cuda.is_available():
        row.note = "sees no GPU"
        return
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
    take(row, seconds, float(value))
    row.note = f"torch {torch.__version__}"


def jax_on_card(row: Row) -> Any:
    """JAX, where it is there and sees a card; else the row says what is missing."""
    # By itself JAX takes three quarters of the card when it first sees it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError:
        row.note = "not installed"
        return None
    if jax.default_backend() != "gpu":
        row.note = "sees no GPU"
        return None
    return jax


def of_jax(row: Row, size: Sequence[int], repeats: int) -> None:
    """A training step of a JAX `scan`."""
    jax = jax_on_card(row)
    if jax is None:
        return
    from benchmarks.recurrent.with_jax import scan

    with jax.default_matmul_precision("highest"):
        seconds, (value, _) = timed(scan("lstm", "concat", size).step, repeats)
    take(row, seconds, float(value))
    row.note = f"jax {jax.__version__}"


__all__ = [
    "LAUNCHING",
    "LENGTHS",
    "SIZES",
    "TINY",
    "TINY_LENGTHS",
    "WAYS",
    "Layer",
    "jax_on_card",
    "of_ctrlgrad",
    "of_jax",
    "of_torch",
    "take",
    "timed",
]
