"""The programs in ctrlgrad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.dataflow.ranks import Ranks
from benchmarks.program import Program, Results
from benchmarks.recurrent.inputs import sequence, weights
from benchmarks.recurrent.with_ctrlgrad import lstm_separate
from ctrlgrad import dataflow
from ctrlgrad.dataflow.devices import single_threaded_products
from examples.deep_q_learning import Task, first_params, from_python, in_graph


def cells(n: int, devices: int, dependent: bool, place: str = "cpu:{}") -> Program:
    """`n` iterations of a loop with a scalar cell on each device.

    A cell depends on its last value alone or, `dependent`, on its left neighbour's too. All cells begin alike, so they
    stay alike, and a run on any number of devices ends with the same number.
    """

    @cg.function(engine="dataflow")
    def run(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, xs = carry
            following = []
            for number, own in enumerate(xs):
                with cg.device(place.format(number)):
                    following.append(0.5 * own + 0.4 * (xs[number - 1] if dependent else own))
            return i + 1, tuple(following)

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, (x,) * devices))[1]

    return Program(step=lambda: run(1.0, np.int64(n)), read=_alike)


def cells_over_ranks(n: int, ranks: int, dependent: bool) -> Program:
    """The same with a process for each cell, which MPI starts at the first run."""
    import mpi4py  # noqa: F401  # what the other processes need; missing, it is named as such

    started = cache(partial(Ranks, ranks, n, dependent))
    return Program(step=lambda: started().run(), read=_alike)


def _alike(found: Sequence[Any]) -> Results:
    values = np.array([float(x) for x in found])
    return {"cell": values[:1], "one more than the spread": np.array([1.0 + np.ptp(values)])}


def pipeline(n: int, width: int, window: int, latency: float | None = None) -> Program:
    """`n` iterations of two stages, on two devices: one carries a state, the other sums up what it makes of each.

    The executor runs it, which has a message for each value and iteration. With a `latency`, in seconds, the devices
    are simulated ones, and a message takes so long.
    """
    kind = "cpu" if latency is None else "sim"

    @cg.function(engine="dataflow")
    def run(x: Any, w: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, x, total = carry
            with cg.device(f"{kind}:0"):
                x = cnp.tanh(x @ w)
            with cg.device(f"{kind}:1"):
                total = total + cnp.tanh(x @ w)
            return i + 1, x, total

        start = (0, x, cnp.zeros_like(x))
        return cg.while_loop(lambda carry: carry[0] < n, body, start, parallel_iterations=window)[2]

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((width, width)), rng.standard_normal((width, width)) / np.sqrt(width)

    def step() -> Any:
        with single_threaded_products(), dataflow.settings(latency=latency or 0.0, loops="lowered"):
            return run(x, w, np.int64(n))

    return Program(step, read=lambda total: {"total": total})


def layers(size: Sequence[int], devices: int, engine: str = "dataflow", loops: str | None = None) -> Program:
    """A training step of a two-layer LSTM for a size (T, batch, input, hidden), on one device or on two.

    `loops`: the setting of the dataflow engine for loops. Without one a graph on one device runs as one plan, and so
    does one on two, unless it is faster for them to hand each other the values of a chunk of iterations.
    """
    _, batch, inputs, hidden = size
    place = _place(devices)

    def loss(params: Any, xs: Any) -> Any:
        def body(carry: Any) -> Any:
            t, below, above, total = carry
            with place(0):
                below = lstm_separate(params[0], xs[t], below)
            with place(1):
                above = lstm_separate(params[1], below[0], above)
                total = total + cnp.sum(above[0] * above[0])
            return t + 1, below, above, total

        state = (np.zeros((batch, hidden), np.float32),) * 2
        start = (0, state, state, np.float32(0))
        total = cg.while_loop(lambda carry: carry[0] < xs.shape[0], body, start)[3]
        return total / cnp.asarray(xs.shape[0] * batch * hidden, dtype=np.float32)

    params = [weights("lstm", size), weights("lstm", (0, 0, hidden, hidden), seed=1)]
    xs = sequence((*size[:2], inputs, hidden))
    run = cg.function(cg.value_and_grad(loss), engine=engine)

    def step() -> Any:
        with dataflow.settings(loops=loops) if loops else nullcontext():
            return run(params, xs)

    return Program(step, _layers_read)


def _place(devices: int) -> Callable[[int], AbstractContextManager[None]]:
    """Return the function from a layer to its device context."""
    if devices == 1:
        return lambda layer: nullcontext()
    if devices == 2:
        return lambda layer: cg.device(f"cpu:{layer}")
    raise ValueError(f"two layers are on one device or on two, not on {devices}")


def _layers_read(result: Any) -> dict[str, np.ndarray]:
    loss, gradients = result
    named = {f"{name}{layer}": g for layer, found in enumerate(gradients) for name, g in found.items()}
    return {"loss": np.asarray(loss)} | named


WAYS: Mapping[str, Callable[..., Any]] = {"in graph": in_graph, "from Python": from_python}


def learning(steps: int, warmup: int, way: str, engine: str = "auto", loops: str | None = None) -> Program:
    """Deep Q-learning for so many steps, of which the first ones only fill the memory.

    `loops`: the setting of the dataflow engine for loops that are on one device.
    """
    if loops is not None and engine != "dataflow":
        raise ValueError(f"loops={loops!r} is a setting of the dataflow engine, not of {engine!r}")
    task = Task(steps=steps, warmup=warmup)
    run, key, params = WAYS[way](task, engine), cg.random.key(7), first_params(0, task.hidden)

    def step() -> Any:
        with dataflow.settings(loops=loops) if loops else nullcontext():
            return run(key, params)

    return Program(step, read=lambda result: {"rewards": result[0]})
