"""The cases of the small programs: how fast they are, and how long a first call takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.case import Case, Entry, Goal

CTRLGRAD, JAX = "benchmarks.small.with_ctrlgrad:gradient", "benchmarks.small.with_jax:gradient"
NEVER_BEHIND = Goal("ratio", "at least", 1.0)


@dataclass(frozen=True)
class Small:
    """A program of `programs.py`, by its name with hyphens, with its size and one for tests."""

    name: str
    what: str
    size: dict[str, int]
    tiny: dict[str, int]


STEADY = (
    Small(
        "matrix-vector",
        "a loop of products of a 64 x 64 matrix and a vector",
        {"n": 64, "steps": 200},
        {"n": 3, "steps": 4},
    ),
    Small(
        "alignment",
        "a loop over vectors of about 100 log-probabilities",
        {"n": 101, "steps": 200},
        {"n": 5, "steps": 4},
    ),
    Small("many-scalars", "vmap of a loop over 1,000 scalars", {"n": 1000, "steps": 200}, {"n": 5, "steps": 4}),
    Small(
        "slow-lane",
        "each of 2,000 loops under vmap, of which one takes 1,000 iterations and all others 5",
        {"n": 2000, "steps": 1000},
        {"n": 4, "steps": 7},
    ),
    Small("kalman", "a Kalman filter with a 4 x 4 solve in each step", {"n": 4, "steps": 200}, {"n": 2, "steps": 4}),
    Small(
        "hidden-markov",
        "1,000 steps of a hidden Markov model of 50 states",
        {"n": 50, "steps": 1000},
        {"n": 3, "steps": 5},
    ),
    Small("sinkhorn", "100 Sinkhorn iterations on a 200 x 200 matrix", {"n": 200, "steps": 100}, {"n": 4, "steps": 3}),
    Small(
        "updates",
        "an array that changes by one number in each of 10,000 iterations",
        {"n": 100, "steps": 10000},
        {"n": 4, "steps": 9},
    ),
    Small(
        "swaps",
        "5,000 exchanges of two of 1,000 numbers",
        {"n": 1000, "steps": 5000},
        {"n": 5, "steps": 4},
    ),
    Small("integrator", "5,000 steps of an explicit integrator of three numbers", {"steps": 5000}, {"steps": 5}),
    Small("stencil", "500 steps of a stencil on 1,000 numbers", {"n": 1000, "steps": 500}, {"n": 6, "steps": 4}),
    Small(
        "decoder",
        "a vmapped two-layer decoder with caches that grow row by row",
        {"layers": 2, "width": 32, "length": 32, "batch": 8},
        {"layers": 2, "width": 3, "length": 4, "batch": 2},
    ),
)
GENERAL = (
    Small(
        "mlp",
        "a perceptron of 4 layers",
        {"layers": 4, "width": 256, "batch": 128},
        {"layers": 2, "width": 3, "batch": 2},
    ),
    Small(
        "transformer",
        "a causal transformer of 6 layers",
        {"layers": 6, "width": 64, "length": 128},
        {"layers": 2, "width": 4, "length": 5},
    ),
    Small("convnet", "two convolutions", {"n": 32, "channels": 16, "batch": 16}, {"n": 6, "channels": 2, "batch": 2}),
    Small(
        "tagger",
        "a GRU that tags sequences",
        {"n": 64, "steps": 50, "batch": 32, "tags": 12},
        {"n": 3, "steps": 4, "batch": 2, "tags": 3},
    ),
    Small("state-space", "a diagonal state-space layer", {"n": 64, "steps": 2000}, {"n": 3, "steps": 5}),
    Small(
        "alignments",
        "a batch of alignments",
        {"n": 61, "steps": 200, "batch": 8},
        {"n": 4, "steps": 5, "batch": 2},
    ),
    Small("cartpole", "a rollout of a cart with a pole", {"n": 32, "steps": 500}, {"n": 3, "steps": 4}),
    Small("particle-filter", "a particle filter", {"n": 200, "steps": 100}, {"n": 5, "steps": 3}),
    Small("neural-ode", "a neural ODE", {"n": 16, "steps": 50, "batch": 32}, {"n": 2, "steps": 3, "batch": 2}),
    Small("adaptive", "an adaptive solver of an oscillator", {"most": 1000}, {"most": 20}),
    Small("ray-marching", "ray marching", {"n": 32, "most": 100}, {"n": 3, "most": 30}),
    Small("lennard-jones", "descent of 64 particles", {"n": 64, "steps": 50}, {"n": 8, "steps": 3}),
    Small("tridiagonal", "Thomas's algorithm", {"n": 2000}, {"n": 6}),
    Small(
        "unrolled-descent",
        "200 steps of gradient descent",
        {"n": 20, "steps": 200, "batch": 200},
        {"n": 3, "steps": 4, "batch": 5},
    ),
    Small("fourier-convolution", "a convolution by real FFT", {"n": 4096, "batch": 32}, {"n": 8, "batch": 2}),
    Small("mixture", "a mixture of normal distributions", {"n": 10_000, "parts": 25}, {"n": 7, "parts": 3}),
    Small("equilibrium", "a deep equilibrium layer", {"n": 64, "most": 200}, {"n": 3, "most": 60}),
    Small("dynamic-time-warping", "soft dynamic time warping", {"n": 60}, {"n": 4}),
    Small(
        "log-sinkhorn",
        "100 Sinkhorn iterations in logarithms on a 200 x 200 matrix",
        {"n": 200, "steps": 100},
        {"n": 4, "steps": 3},
    ),
    Small("tridiagonal-batch", "Thomas's algorithm on 64 systems", {"n": 500, "batch": 64}, {"n": 6, "batch": 2}),
    Small(
        "attention-cache",
        "batched attention with caches that grow in a loop",
        {"batch": 8, "heads": 4, "length": 64, "width": 16},
        {"batch": 2, "heads": 2, "length": 4, "width": 3},
    ),
    Small("complex-solves", "200 complex solves of 16 x 16", {"n": 16, "steps": 200}, {"n": 3, "steps": 4}),
    Small("complex-factors", "50 complex QR factorisations of 16 x 8", {"n": 16, "steps": 50}, {"n": 4, "steps": 3}),
    Small("systems", "a linear system of 300 unknowns", {"n": 300, "columns": 8}, {"n": 4, "columns": 2}),
)
"""Programs of other fields; no decision of the engine was made on them."""
DEPTHS = (2, 4, 6, 8)
WIDE = (
    Small("scalar-chain", "thousands of operations on numbers", {"operations": 4000}, {"operations": 12}),
    Small("reduced-vectors", "thousands of operations on vectors", {"operations": 4000}, {"operations": 10}),
    Small("small-matrices", "thousands of operations that are not fused", {"operations": 2000}, {"operations": 12}),
    Small("unrolled-cells", "96 layers, unrolled", {"layers": 96, "width": 16}, {"layers": 2, "width": 3}),
    Small("scan-inputs", "a scan of 75 arrays", {"inputs": 75, "steps": 10}, {"inputs": 3, "steps": 2}),
    Small("loop-carries", "a loop of 300 carries", {"carries": 300, "steps": 10}, {"carries": 3, "steps": 2}),
    Small("branch-outputs", "a branch of 300 results", {"outputs": 300}, {"outputs": 3}),
    Small("small-loops", "100 loops in a row", {"loops": 100}, {"loops": 3}),
)
"""Long and wide programs, whose first call is measured; JAX takes minutes for some that are larger."""


def _entries(engine: str, program: str, size: dict[str, int], goal: Goal | None) -> tuple[Entry, Entry]:
    arguments: dict[str, Any] = {"name": program, "size": size}
    return (
        Entry("ctrlgrad", "ctrlgrad", CTRLGRAD, arguments | {"engine": engine}),
        Entry("jax", "jax", JAX, arguments, goal=goal),
    )


def _entries_of(small: Small, engine: str, tiny: bool) -> tuple[Entry, Entry]:
    program = small.name.replace("-", "_")
    return _entries(engine, program, small.tiny if tiny else small.size, NEVER_BEHIND)


def small_cases(engine: str, tiny: bool) -> Iterator[Case]:
    """Gradients of small programs, and what a call costs."""
    for small in STEADY + GENERAL:
        entries = _entries_of(small, engine, tiny)
        yield Case(small.name, f"gradient of {small.what}", "call", entries, tolerance=1e-8)
    overhead = _entries(engine, "ten_operations", {}, Goal("ratio", "at least", 1 / 1.5))
    title = "call of the gradient of ten operations on three numbers"
    yield Case("call-overhead", title, "call", overhead, tolerance=1e-10)
    yield _scaling(engine, tiny)


def _scaling(engine: str, tiny: bool) -> Case:
    """A long loop costs per iteration what a short one does. The longest one's results are compared with JAX's."""
    counts, width = ((3, 6), 3) if tiny else ((1_000, 10_000), 64)
    entries = []
    for n in counts:
        ours, peer = _entries(engine, "matrix_vector", {"n": width, "steps": n}, None)
        goal = Goal("ratio", "at most", 1.2) if entries else None
        label = f"{n:,} iterations"
        entries.append(replace(ours, label=label, units=n, goal=goal, is_compared=n == counts[-1]))
    entries.append(replace(peer, label=f"jax, {label}", units=n))
    title = "ctrlgrad: cost per iteration by the number of iterations, gradient of matrix-vector products"
    return Case("scaling-matrix-vector", title, "iteration", tuple(entries), tolerance=1e-8)


def first_call_cases(engine: str, tiny: bool) -> Iterator[Case]:
    """Tracing, differentiation, compilation and one run, from an empty cache; the notes tell the processor's time."""
    for small in STEADY + GENERAL + WIDE:
        title = f"first call in a new process, imports not counted: {small.what}"
        entries = _entries_of(small, engine, tiny)
        yield Case(f"first-call-{small.name}", title, "call", entries, "first run", tolerance=1e-8)
    entries_by_depth = []
    for depth in (1, 2) if tiny else DEPTHS:
        ours, peer = _entries(engine, "nested", {"depth": depth, "batch": 3 if tiny else 16}, None)
        for entry in (ours, peer):
            label = f"{entry.label}, depth {depth}"
            entries_by_depth.append(Entry(label, entry.system, entry.program, entry.arguments, is_compared=False))
    title = "first call of the gradient of a vmapped nest of loops and branches, by depth"
    yield Case("first-call-nested", title, "call", tuple(entries_by_depth), "first run")
