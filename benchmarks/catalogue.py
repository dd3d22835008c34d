"""All cases, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.case import Case, Entry, Goal
from benchmarks.dataflow.cases import dataflow_cases
from benchmarks.gradbench.cases import gradbench_cases
from benchmarks.small.cases import first_call_cases, small_cases

PEERS = ("jax", "equinox", "diffrax", "torch", "tensorflow", "numpy")

# (T, batch, input, hidden)
LARGE, SMALL, WIDE, SINGLE = (200, 64, 128, 256), (200, 32, 64, 128), (100, 128, 512, 512), (50, 1, 32, 64)
TINY = (6, 3, 4, 5)

# What the LSTM that is written with a concatenation is meant to show: the least ratio of a peer's cost to ctrlgrad's.
RECURRENT_GOALS: dict[tuple[int, ...], dict[str, float]] = {
    LARGE: {
        "torch nn": 1.4,
        "jax scan": 1.4,
        "jax scan, checkpoint": 1.4,
        "tensorflow while_loop": 1.5,
        "products alone": 1.0,
    },
    WIDE: {"torch nn": 1.15, "jax scan": 1.15, "tensorflow while_loop": 1.15},
    SMALL: {"torch nn": 1.25, "jax scan": 1.6, "tensorflow while_loop": 1.4},
    SINGLE: {"torch nn": 1.5, "jax scan": 1.0},
}


def cases(engine: str, tiny: bool = False, tools: Mapping[str, str] | None = None) -> list[Case]:
    """Every case, with ctrlgrad's engine named; `tiny` makes all of them small enough for a test, without goals.

    `tools`: the commands of tools for GradBench, by the names that they go by in its cases.
    """
    made = [
        *_recurrent(engine, tiny),
        *_products(engine, tiny),
        *_loops(engine, tiny),
        _runge_kutta(engine, tiny),
        _lengths(engine, tiny),
        *_scaling(engine, tiny),
        _memory(engine, tiny),
        _memory_peers(engine, tiny),
        _compilation(engine, tiny),
        *first_call_cases(engine, tiny),
        _kept_bytes(engine, tiny),
        _busy(engine, tiny),
        *small_cases(engine, tiny),
        *gradbench_cases(engine, tiny, tools or {}),
        *dataflow_cases(engine, tiny),
    ]
    return [_without_goals(case) for case in made] if tiny else made


def _without_goals(case: Case) -> Case:
    return replace(case, entries=tuple(replace(entry, goal=None) for entry in case.entries))


def _at_least(ratio: float | None) -> Goal | None:
    return None if ratio is None else Goal("ratio", "at least", ratio)


def _recurrent(engine: str, tiny: bool) -> Iterator[Case]:
    for cell in ("lstm", "gru"):
        for form in ("concat", "separate"):
            for size in (LARGE, SMALL, WIDE, SINGLE):
                name = f"{cell}-{form}-{'x'.join(map(str, size))}"
                title = f"{cell.upper()} training step, {form}, (T, batch, input, hidden) = {TINY if tiny else size}"
                entries = _recurrent_entries(engine, cell, form, size, tiny)
                yield Case(name, title, "step", tuple(entries), tolerance=1e-4)
    size = TINY if tiny else LARGE
    again: dict[str, Any] = {"cell": "lstm", "form": "concat", "size": size, "checkpoint": True}
    entries = [
        Entry("ctrlgrad", "ctrlgrad", "benchmarks.recurrent.with_ctrlgrad:loop", again | {"engine": engine}),
        Entry("jax scan", "jax", "benchmarks.recurrent.with_jax:scan", again),
    ]
    title = f"LSTM training step whose body is computed again backwards, (T, batch, input, hidden) = {size}"
    yield Case("lstm-checkpoint", title, "step", tuple(entries), tolerance=1e-4)


def _recurrent_entries(engine: str, cell: str, form: str, size: tuple[int, ...], tiny: bool) -> Iterator[Entry]:
    goals = RECURRENT_GOALS.get(size, {}) if cell == "lstm" and form == "concat" else {}
    shown = TINY if tiny else size
    same: dict[str, Any] = {"cell": cell, "form": form, "size": shown}
    short: dict[str, Any] = {"cell": cell, "size": shown}

    def peer(label: str, program: str, arguments: dict[str, Any], is_compared: bool = True) -> Entry:
        system = program.partition("with_")[2].partition(":")[0]
        goal = _at_least(goals.get(label))
        return Entry(label, system, f"benchmarks.recurrent.{program}", arguments, goal=goal, is_compared=is_compared)

    yield Entry("ctrlgrad", "ctrlgrad", "benchmarks.recurrent.with_ctrlgrad:loop", same | {"engine": engine})
    if cell == "lstm" and form == "concat" and size != WIDE:
        unrolled = "benchmarks.recurrent.with_ctrlgrad:unrolled"
        yield Entry("ctrlgrad, unrolled", "ctrlgrad", unrolled, same | {"engine": engine}, goal=_at_least(1.0))
    yield peer("jax scan", "with_jax:scan", same)
    yield peer("jax scan, checkpoint", "with_jax:scan", same | {"checkpoint": True})
    yield peer("torch nn", "with_torch:layer", short)
    yield peer("torch eager", "with_torch:eager", same)
    yield peer("tensorflow while_loop", "with_tensorflow:loop", same)
    yield peer("products alone", "with_numpy:products", short, is_compared=False)


def _products(engine: str, tiny: bool) -> Iterator[Case]:
    """Cost and gain of packing the weights once before a loop."""
    for size in (LARGE, WIDE):
        shown = TINY if tiny else size
        same = {"cell": "lstm", "size": shown}
        entries = (
            Entry("ctrlgrad", "ctrlgrad", "benchmarks.recurrent.with_ctrlgrad:products", same | {"engine": engine}),
            Entry("openblas", "numpy", "benchmarks.recurrent.with_numpy:products", same, goal=_at_least(1.0)),
        )
        title = f"products alone of an LSTM training step, (T, batch, input, hidden) = {shown}"
        yield Case(f"products-{'x'.join(map(str, size))}", title, "step", entries, tolerance=1e-3)


def _loops(engine: str, tiny: bool) -> Iterator[Case]:
    long, short = (60, 30) if tiny else (100_000, 10_000)
    check = {"n": 30 if tiny else 10_000}
    scalar = {"jax": 1.2, "equinox": 50.0, "tensorflow": 200.0, "torch": 500.0}
    vector = {"jax": 1.0, "equinox": 12.0}
    every = ("jax", "equinox", "tensorflow", "torch")
    counts = {"ctrlgrad": long, "jax": long, "equinox": long, "tensorflow": short, "torch": short}

    def case(
        name: str, title: str, program: str, systems: tuple[str, ...], goals: dict[str, float], **more: Any
    ) -> Case:
        entries = [
            _loop_entry(system, program, counts[system], engine, _at_least(goals.get(system)), more)
            for system in ("ctrlgrad", *systems)
        ]
        return Case(name, title, "iteration", tuple(entries), tolerance=1e-10, check=check)

    yield case("loop-scalar", "gradient of a data-dependent loop on a scalar", "mapped", every, scalar)
    yield case("loop-vector", "gradient of a data-dependent loop on 64 numbers", "mapped", every, vector, width=64)
    yield case("branch", "gradient of a loop with a branch in every iteration", "branching", every, {})
    counts = dict.fromkeys(counts, 20 if tiny else 10_000) | {"torch": 20 if tiny else 2_000}
    check = {"n": 20 if tiny else 500}
    yield case("nested", "gradient of a data-dependent loop in a data-dependent loop", "nested", every[1:], {})


LOOP_LABELS = {
    "ctrlgrad": "ctrlgrad",
    "jax": "jax scan (static length)",
    "equinox": "equinox checkpointed",
    "tensorflow": "tensorflow while_loop",
    "torch": "torch eager",
}


def _loop_entry(system: str, program: str, n: int, engine: str, goal: Goal | None, more: dict[str, Any]) -> Entry:
    arguments = {"n": n, **more} | ({"engine": engine} if system == "ctrlgrad" else {})
    return Entry(
        LOOP_LABELS[system], system, f"benchmarks.loops.with_{system}:{program}", arguments, units=n, goal=goal
    )


def _runge_kutta(engine: str, tiny: bool) -> Case:
    end = 3.0 if tiny else 60.0
    entries = (
        Entry("ctrlgrad", "ctrlgrad", "benchmarks.runge_kutta.with_ctrlgrad:solve", {"end": end, "engine": engine}),
        Entry("diffrax", "diffrax", "benchmarks.runge_kutta.with_diffrax:solve", {"end": end}, goal=_at_least(12.0)),
    )
    return Case("runge-kutta", "gradient of an adaptive Runge-Kutta solution", "step", entries, tolerance=1e-9)


def _lengths(engine: str, tiny: bool) -> Case:
    some = {"size": LARGE, "count": 20, "shortest": 50, "longest": 400}
    if tiny:
        some = {"size": TINY, "count": 3, "shortest": 3, "longest": 9}
    name = "benchmarks.recurrent.with_{}:many_lengths"
    entries = (
        Entry("ctrlgrad", "ctrlgrad", name.format("ctrlgrad"), some | {"engine": engine}),
        Entry("jax scan", "jax", name.format("jax"), some, goal=_at_least(2.5)),
        Entry("jax scan, padded and masked", "jax", "benchmarks.recurrent.with_jax:padded_lengths", some),
        Entry("torch nn", "torch", name.format("torch"), some, goal=_at_least(0.7)),
        Entry("tensorflow while_loop", "tensorflow", name.format("tensorflow"), some),
    )
    count = some["count"]
    title = f"{count} LSTM batches of {count} lengths in a new process, compilation included, imports not"
    return Case("lengths", title, f"{count} batches", entries, measure="first run")


def _scaling(engine: str, tiny: bool) -> Iterator[Case]:
    """The longest loop's results are compared with JAX's."""
    counts = (30, 60, 120) if tiny else (10_000, 100_000, 1_000_000)
    longest = max(counts)
    bound = Goal("ratio", "at most", 1.3)
    for name, what, more in (("scalar", "a scalar", {}), ("vector", "64 numbers", {"width": 64})):
        entries = []
        for n in counts:
            entry = _loop_entry("ctrlgrad", "mapped", n, engine, bound if n == longest else None, more)
            entries.append(replace(entry, label=f"{n:,} iterations", is_compared=n == longest))
        peer = _loop_entry("jax", "mapped", longest, engine, None, more)
        entries.append(replace(peer, label=f"jax scan, {longest:,} iterations"))
        title = f"ctrlgrad: cost per iteration by the number of iterations, gradient of a loop on {what}"
        yield Case(f"scaling-{name}", title, "iteration", tuple(entries), tolerance=1e-9)


def _memory(engine: str, tiny: bool) -> Case:
    """As the published table of TensorFlow's swapping (arXiv 1805.01772, table 1): time per iteration by length."""
    lengths, size, limit = (100, 500, 1000, 2000, 4000), LARGE, 64 << 20
    if tiny:
        lengths, size, limit = (6, 12), TINY, 64 << 10
    program = "benchmarks.recurrent.with_ctrlgrad:within_budget"
    entries = []
    for budget, label in ((None, "no budget"), (limit, "64 MiB")):
        for n in lengths:
            arguments = {"cell": "lstm", "form": "concat", "size": (n, *size[1:]), "budget": budget, "engine": engine}
            # Entries of one length would be compared; all times are relative to those of the first entry.
            name = f"T = {n:,}, {label}"
            entries.append(Entry(name, "ctrlgrad", program, arguments, units=n, is_compared=False))
    title = "LSTM training step by length, with and without a budget of 64 MiB for saved values"
    return Case("memory", title, "iteration", tuple(entries))


def _memory_peers(engine: str, tiny: bool) -> Case:
    """Ways to compute a gradient with less memory than all saved values take; the notes show each peak.

    With the largest budget the peak is about that of PyTorch's checkpoint. On a CPU, PyTorch's `save_on_cpu` copies
    saved values into the same memory.
    """
    size, segment, limits = (4000, 32, 64, 128), 80, (144 << 20, 48 << 20, 16 << 20)
    if tiny:
        size, segment, limits = (12, *TINY[1:]), 4, (64 << 10,)
    ours = {"cell": "lstm", "form": "concat", "size": size, "engine": engine}
    budgets = [(f"ctrlgrad, {limit / 2**20:.3g} MiB", limit) for limit in limits] + [("ctrlgrad, no budget", None)]
    entries = [
        Entry(label, "ctrlgrad", "benchmarks.recurrent.with_ctrlgrad:within_budget", ours | {"budget": limit}, size[0])
        for label, limit in budgets
    ]
    for label, how, length in (
        ("torch nn", "nothing", 0),
        (f"torch nn, checkpoint, {segment} steps", "checkpoint", segment),
        (f"torch nn, save_on_cpu, {segment} steps", "save_on_cpu", segment),
    ):
        same = {"size": size, "how": how, "segment": length}
        goal = _at_least(1.5) if length else None
        entries.append(Entry(label, "torch", "benchmarks.recurrent.with_torch:within_memory", same, size[0], goal))
    for policy in ("everything_saveable", "dots_saveable", "nothing_saveable"):
        same = {"size": size, "segment": segment, "policy": policy}
        program = "benchmarks.recurrent.with_jax:scan_in_pieces"
        entries.append(Entry(f"jax checkpoint, {policy}, {segment} steps", "jax", program, same, size[0]))
    title = f"LSTM training step in little memory, (T, batch, input, hidden) = {size}"
    return Case("memory-peers", title, "iteration", tuple(entries))


def _compilation(engine: str, tiny: bool) -> Case:
    same = {"cell": "lstm", "form": "concat", "size": TINY if tiny else LARGE}
    ours = same | {"engine": engine}
    loop, scan = "benchmarks.recurrent.with_ctrlgrad:loop", "benchmarks.recurrent.with_jax:scan"
    quick = Goal("cost", "at most", 0.15)
    entries = (
        Entry("ctrlgrad, cold", "ctrlgrad", loop, ours, goal=Goal("cost", "at most", 0.6)),
        Entry("ctrlgrad, from its cache", "ctrlgrad", loop, ours, goal=quick, has_cache=True),
        Entry("jax, cold", "jax", scan, same, goal=_at_least(1.0)),
        Entry("jax, from its cache", "jax", scan, same, has_cache=True),
        Entry("tensorflow, cold", "tensorflow", "benchmarks.recurrent.with_tensorflow:loop", same),
    )
    title = "first LSTM step in a new process beyond a later one: tracing and compilation"
    return Case("compilation", title, "program", entries, measure="compilation")


def _busy(engine: str, tiny: bool) -> Case:
    """Beside processes that take the processor from threads that wait for each other."""
    same: dict[str, Any] = {"cell": "lstm", "form": "concat", "size": TINY if tiny else SMALL}
    systems = (
        ("ctrlgrad", "ctrlgrad", "with_ctrlgrad:loop", same | {"engine": engine}),
        ("jax scan", "jax", "with_jax:scan", same),
        ("torch nn", "torch", "with_torch:layer", {"cell": "lstm", "size": same["size"]}),
    )
    entries = []
    for label, system, program, arguments in systems:
        entry = Entry(label, system, f"benchmarks.recurrent.{program}", arguments)
        goal = Goal("ratio", "at most", 2.5) if system == "ctrlgrad" else None
        entries += [entry, replace(entry, label=f"{label}, busy", busy=2, goal=goal)]
    title = "LSTM training step alone, and with two busy processes beside it"
    return Case("busy", title, "step", tuple(entries))


def _kept_bytes(engine: str, tiny: bool) -> Case:
    same = {"cell": "lstm", "form": "concat", "size": TINY if tiny else LARGE}
    ours = same | {"engine": engine}
    most, least = Goal("cost", "at most", 400e3), Goal("cost", "at most", 140e3)
    loop, scan = "benchmarks.recurrent.with_ctrlgrad:loop", "benchmarks.recurrent.with_jax:scan"
    entries = (
        Entry("ctrlgrad", "ctrlgrad", loop, ours, goal=most),
        Entry("ctrlgrad, checkpoint", "ctrlgrad", loop, ours | {"checkpoint": True}, goal=least),
        Entry("jax scan", "jax", scan, same),
        Entry("jax scan, checkpoint", "jax", scan, same | {"checkpoint": True}),
        Entry("torch nn", "torch", "benchmarks.recurrent.with_torch:layer", {"cell": "lstm", "size": same["size"]}),
        Entry("torch eager", "torch", "benchmarks.recurrent.with_torch:eager", same),
    )
    title = "bytes kept for the backward pass per iteration of an LSTM, inputs and weights not counted"
    return Case("kept-bytes", title, "iteration", entries, measure="kept bytes")
