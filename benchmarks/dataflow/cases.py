"""The cases of the dataflow runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.case import Case, Entry, Goal

PROGRAMS = "benchmarks.dataflow.with_ctrlgrad"
WINDOWS = (1, 2, 4, 8, 16, 32)
BATCHES = (32, 64, 128, 256, 512)


def dataflow_cases(engine: str, tiny: bool) -> Iterator[Case]:
    """Every case; `engine` runs what is compared with the dataflow engine."""
    yield from _devices(tiny)
    yield from _windows(tiny)
    yield from (_unrolling(batch, engine, tiny) for batch in BATCHES)
    yield from _layers(engine, tiny)
    yield _learning(engine, tiny)


def _entry(label: str, program: str, goal: Goal | None = None, units: float = 1.0, **arguments: Any) -> Entry:
    return Entry(label, "ctrlgrad", f"{PROGRAMS}:{program}", arguments, units=units, goal=goal)


def _at_rate(units_a_second: int | None) -> Goal | None:
    return None if units_a_second is None else Goal("cost", "at most", 1 / units_a_second)


def _devices(tiny: bool) -> Iterator[Case]:
    n = 40 if tiny else 10_000
    # Iterations a second, by devices in one process and by ranks.
    goals = {1: 30_000, 2: None, 4: None}
    rank_goals = {2: 10_000, 4: None, 8: 2_500}
    for dependent in (False, True):
        entries = []
        more: dict[str, Any] = {"n": n, "dependent": dependent, "units": n}
        for devices, rate in goals.items():
            label = "1 device" if devices == 1 else f"{devices} devices"
            entries.append(_entry(label, "cells", _at_rate(rate), devices=devices, **more))
        for ranks, rate in rank_goals.items():
            goal = None if dependent else _at_rate(rate)
            entries.append(_entry(f"{ranks} ranks", "cells_over_ranks", goal, ranks=ranks, **more))
        what = "each takes its neighbour's last value" if dependent else "independent of each other"
        name = f"dataflow-devices-{'dependent' if dependent else 'independent'}"
        yield Case(
            name,
            f"a loop over devices of one process and over ranks, {what}",
            "iteration",
            tuple(entries),
            tolerance=1e-12,
        )


def _windows(tiny: bool) -> Iterator[Case]:
    for latency, name in ((None, "dataflow-window"), (1e-3, "dataflow-window-latency")):
        n, width = (12, 8) if tiny else (300, 256 if latency is None else 32)
        entries = [
            _entry(f"window {w}", "pipeline", units=n, n=n, width=width, window=w, latency=latency) for w in WINDOWS
        ]
        where = "two devices" if latency is None else "two simulated devices, 1 ms apart"
        title = f"a product on each of {where}, by how many iterations may be in flight"
        yield Case(name, title, "iteration", tuple(entries), tolerance=1e-12)


def _unrolling(batch: int, engine: str, tiny: bool) -> Case:
    size = (6, batch // 16, 4, 5) if tiny else (100, batch, 128, 256)
    arguments = {"cell": "lstm", "form": "concat", "size": size, "engine": engine}
    program = "benchmarks.recurrent.with_ctrlgrad"
    entries = (
        Entry("static", "ctrlgrad", f"{program}:unrolled", arguments),
        # The paper's loops were up to 9 % slower than their unrolled form.
        Entry("dynamic", "ctrlgrad", f"{program}:loop", arguments, goal=Goal("ratio", "at most", 1.09)),
    )
    title = f"LSTM training step, unrolled and as a loop, (T, batch, input, hidden) = {size}"
    return Case(f"dataflow-unrolling-{batch}", title, "step", entries)


def _layers(engine: str, tiny: bool) -> Iterator[Case]:
    # With so many inputs both layers of the first do the same work: the lower one needs no gradient of its input. The
    # threads of the native engine share its products; those of the second are too small for that.
    for name, size in (("dataflow-layers", (100, 64, 384, 256)), ("dataflow-layers-small", (500, 16, 96, 96))):
        size = (6, 3, 6, 4) if tiny else size
        entries = (
            _entry(f"{engine} engine", "layers", size=size, devices=1, engine=engine),
            _entry("one device", "layers", size=size, devices=1),
            _entry("two devices", "layers", Goal("ratio", "at most", 1.0), size=size, devices=2),
            _entry("one device, lowered", "layers", size=size, devices=1, loops="lowered"),
            _entry("two devices, lowered", "layers", size=size, devices=2, loops="lowered"),
        )
        title = f"training step of a two-layer LSTM over one and two devices, (T, batch, input, hidden) = {size}"
        yield Case(name, title, "step", entries)


def _learning(engine: str, tiny: bool) -> Case:
    steps, warmup = (30, 20) if tiny else (3000, 200)
    more = {"units": steps, "steps": steps, "warmup": warmup}
    entries = (
        _entry(f"in graph, {engine} engine", "learning", way="in graph", engine=engine, **more),
        _entry("from Python", "learning", Goal("ratio", "at least", 1.5), way="from Python", engine=engine, **more),
        _entry("in graph, dataflow engine", "learning", way="in graph", engine="dataflow", **more),
        _entry("in graph, lowered", "learning", way="in graph", engine="dataflow", loops="lowered", **more),
    )
    title = "deep Q-learning with the whole loop in the graph, and driven from Python: the same rewards"
    # Rewards are 0 and 1: the same to the bit, or not at all.
    return Case("dataflow-learning", title, "step", entries, tolerance=0.0)
