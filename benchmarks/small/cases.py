"""The cases of the small programs: how fast they are, and how long a first call takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.case import Case, Entry, Goal

CTRLGRAD, JAX = "benchmarks.small.with_ctrlgrad:gradient", "benchmarks.small.with_jax:gradient"
NEVER_BEHIND = Goal("ratio", "at least", 1.0)

# Name, what it is, the program, its size, and a size for tests.
STEADY: tuple[tuple[str, str, str, dict[str, int], dict[str, int]], ...] = (
    (
        "matrix-vector",
        "a loop of products of a 64 x 64 matrix and a vector",
        "matrix_vector",
        {"n": 64, "steps": 200},
        {"n": 3, "steps": 4},
    ),
    (
        "alignment",
        "a loop over vectors of about 100 log-probabilities",
        "alignment",
        {"n": 101, "steps": 200},
        {"n": 5, "steps": 4},
    ),
    (
        "many-scalars",
        "vmap of a loop over 1,000 scalars",
        "many_scalars",
        {"n": 1000, "steps": 200},
        {"n": 5, "steps": 4},
    ),
    (
        "kalman",
        "a Kalman filter with a 4 x 4 solve in each step",
        "kalman",
        {"n": 4, "steps": 200},
        {"n": 2, "steps": 4},
    ),
    (
        "hidden-markov",
        "1,000 steps of a hidden Markov model of 50 states",
        "hidden_markov",
        {"n": 50, "steps": 1000},
        {"n": 3, "steps": 5},
    ),
    (
        "sinkhorn",
        "100 Sinkhorn iterations on a 200 x 200 matrix",
        "sinkhorn",
        {"n": 200, "steps": 100},
        {"n": 4, "steps": 3},
    ),
    (
        "updates",
        "an array that changes by one number in each of 10,000 iterations",
        "updates",
        {"n": 100, "steps": 10_000},
        {"n": 4, "steps": 9},
    ),
    (
        "integrator",
        "5,000 steps of an explicit integrator of three numbers",
        "integrator",
        {"steps": 5000},
        {"steps": 5},
    ),
    ("stencil", "500 steps of a stencil on 1,000 numbers", "stencil", {"n": 1000, "steps": 500}, {"n": 6, "steps": 4}),
    (
        "decoder",
        "a vmapped two-layer decoder with caches that grow row by row",
        "decoder",
        {"layers": 2, "width": 32, "length": 32, "batch": 8},
        {"layers": 2, "width": 3, "length": 4, "batch": 2},
    ),
)
DEPTHS = (2, 4, 6, 8)


def _entries(engine: str, program: str, size: dict[str, int], goal: Goal | None) -> tuple[Entry, Entry]:
    arguments: dict[str, Any] = {"name": program, "size": size}
    return (
        Entry("ctrlgrad", "ctrlgrad", CTRLGRAD, arguments | {"engine": engine}),
        Entry("jax", "jax", JAX, arguments, goal=goal),
    )


def small_cases(engine: str, tiny: bool) -> Iterator[Case]:
    """Gradients of small programs, and what a call costs."""
    for name, what, program, size, least in STEADY:
        entries = _entries(engine, program, least if tiny else size, NEVER_BEHIND)
        yield Case(name, f"gradient of {what}", "call", entries, tolerance=1e-8)
    overhead = _entries(engine, "ten_operations", {}, Goal("ratio", "at least", 1 / 1.5))
    title = "call of the gradient of ten operations on three numbers"
    yield Case("call-overhead", title, "call", overhead, tolerance=1e-10)


def first_call_cases(engine: str, tiny: bool) -> Iterator[Case]:
    """Tracing, differentiation, compilation and one run, from an empty cache; the notes tell the processor's time."""
    for name, what, program, size, least in STEADY:
        title = f"first call in a new process, imports not counted: {what}"
        entries = _entries(engine, program, least if tiny else size, NEVER_BEHIND)
        yield Case(f"first-call-{name}", title, "call", entries, "first run", tolerance=1e-8)
    entries_by_depth = []
    for depth in (1, 2) if tiny else DEPTHS:
        ours, peer = _entries(engine, "nested", {"depth": depth, "batch": 3 if tiny else 16}, None)
        for entry in (ours, peer):
            label = f"{entry.label}, depth {depth}"
            entries_by_depth.append(Entry(label, entry.system, entry.program, entry.arguments, is_compared=False))
    title = "first call of the gradient of a vmapped nest of loops and branches, by depth"
    yield Case("first-call-nested", title, "call", tuple(entries_by_depth), "first run")
