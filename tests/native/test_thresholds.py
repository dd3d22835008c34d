"""Every comparison of a size, a count or a number of threads with a constant runs just below, at and just above it.

The table has an entry for each threshold that `instruments.thresholds` finds: the programs of `at_thresholds` that meet
it, the tests about it, or the reason why it concerns no size. A missing or superfluous entry fails.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from instruments.machines import THREADS, VECTOR_BITS
from instruments.tables import in_turn, some
from instruments.thresholds import ROOT, thresholds
from native.at_thresholds import MOST, PROGRAMS

JUDGE = "a judge of plans, which tests run: no size of what a user computes"
NUMBERS = "numbers of a formula, tested by tests/plan/test_elementwise.py: no size"
DRAWING = "how a profile is drawn: no size of what a user computes"
POLICY = "what a memory session decides for a budget: tests/memory has budgets of every size"
MEMORY = "memory of a session: tests/memory"
TEXTS = "a size in an error or in an option: tests/memory/test_policies.py"

TABLE = {
    "ctrlgrad/engines/native/ahead.py": {
        "MOST_THREADS": "threads that compile: no number of any result",
    },
    "ctrlgrad/engines/native/cumulative.py": {
        "HELD": "cumulative",
        "MOST_LANES": "cumulative",
        "STRIP": "cumulative",
    },
    "ctrlgrad/engines/native/elements.py": {
        "2": "lanes of a pair of vectors: no size",
    },
    "ctrlgrad/engines/native/engine.py": {
        "2": "nests",
    },
    "ctrlgrad/engines/native/entry.py": {
        "MOST": "calls from outside at the same time: tests/interop/test_compiled_calls.py",
    },
    "ctrlgrad/engines/native/expressions.py": {
        "4": "bytes of a dtype",
    },
    "ctrlgrad/engines/native/factor_calls.py": {
        "threads.WORK_TO_SHARE": "factor_batches",
    },
    "ctrlgrad/engines/native/frame_memory.py": {
        "2": "memory that grows by doubling: tests/native/test_memory_between_runs.py",
        "IDLE_BYTES": "nests",
    },
    "ctrlgrad/engines/native/objects.py": {
        "_ABANDONED": "an age, no size",
        "_UNLOOKED_BYTES": "bytes on disk: tests/native/test_objects.py",
    },
    "ctrlgrad/engines/native/plan_text.py": {
        "MOST_APART": "numbers and arrays of a function of a long plan: tests/native/test_long_plans.py",
        "MOST_LOADED": "numbers of a function of a long plan: tests/native/test_long_plans.py",
    },
    "ctrlgrad/engines/native/sections.py": {
        "SECTION": "weight of a section: tests/native/test_long_plans.py",
        "SECTION MEMORY_WEIGHT": "writes of a function: tests/native/test_long_plans.py",
    },
    "ctrlgrad/engines/native/product_calls.py": {
        "threads.WORK_TO_SHARE": "products",
    },
    "ctrlgrad/engines/native/products/blocks.py": {
        "BLOCK_BYTES": "products",
        "FEW_LONG_ROWS": "products",
        "FEW_ROWS": "products",
        "PACKED_COLUMNS": "products",
        "PACK_A_COLUMNS": "products",
        "IN_ORDER": "a flag: tests/native/test_products.py",
        "READ_WHERE_IT_LIES": "products",
    },
    "ctrlgrad/engines/native/products/cholesky.py": {
        "BLOCK": "factors",
        "STRIP": "factors",
    },
    "ctrlgrad/engines/native/products/library.py": {
        "MOST_THREADS": "numbers of threads: tests/native/test_products.py",
    },
    "ctrlgrad/engines/native/products/lu.py": {
        "BLOCK": "factors",
    },
    "ctrlgrad/engines/native/products/pool.py": {
        "5": "a word of a job, no size",
        "MOST_THREADS": "numbers of threads: tests/native/test_products.py",
    },
    "ctrlgrad/engines/native/products/real.py": {
        "8": "bytes of a dtype",
    },
    "ctrlgrad/engines/native/products/shared.py": {
        "LONG_PART 2": "products",
        "WORK_TO_SHARE": "products",
    },
    "ctrlgrad/engines/native/products/tiles.py": {
        "4": "rows of a tile: tests/native/test_products.py has each",
        "6": "rows of a tile: tests/native/test_products.py has each",
        "ADDED": "a flag, no size: tests/native/test_products.py",
        "ADDED IN_ORDER": "two flags, no size: tests/native/test_products.py",
    },
    "ctrlgrad/engines/native/products/times.py": {
        "HELD_BYTES": "products",
    },
    "ctrlgrad/engines/native/products/transforms.py": {
        "2": "transforms",
        "4": NUMBERS,
        "FEWEST_LANES": "lanes of a vector: each width runs",
    },
    "ctrlgrad/engines/native/products/triangular.py": {
        "BLOCK": "factors",
    },
    "ctrlgrad/engines/native/stacks.py": {
        "CHUNK_BYTES": "stacks",
        "LEAST_ROWS": "stacks",
        "LEAST_ROWS MOST_AHEAD": "rows of a block: tests/native/test_stack_memory.py",
        "MOST_AHEAD": "rows of a block: tests/native/test_stack_memory.py",
        "MOST_KEPT": "stacks",
        "SHARE": "stacks",
    },
    "ctrlgrad/engines/native/sum_blocks.py": {
        "4": "bytes of a dtype",
    },
    "ctrlgrad/engines/native/outside_text.py": {
        "1e-06": "times between turns, and iterations that follow from them",
        "40": "times between turns, and iterations that follow from them",
        "BETWEEN 16.0": "times between turns, and iterations that follow from them",
    },
    "ctrlgrad/plan/axes.py": {
        "2": "vectors",
        "8": "bytes of an element, of which there are four",
    },
    "ctrlgrad/plan/checker.py": {
        "0.3": JUDGE,
        "MOST_STEPS": JUDGE,
    },
    "ctrlgrad/plan/checking/decisions.py": {
        "4": "bytes of a dtype",
        "MOST_LOCAL": JUDGE,
    },
    "ctrlgrad/plan/checking/steps.py": {
        "MOST_POINTS": JUDGE,
    },
    "ctrlgrad/plan/decisions.py": {
        "MOST_INLINED": "calls",
    },
    "ctrlgrad/plan/vectors.py": {
        "16": "bytes of a vector: each width runs",
        "2": "vectors",
        "2 UNROLL": "vectors",
        "4": "bytes of a dtype",
        "FLAT_INSTRUCTIONS": "chains",
        "FLAT_VECTORS": "vectors",
        "MANY": "nests",
        "MEMORY_WEIGHT MOST_IN_ONE": "weight of a kernel in one function: tests/native/test_long_plans.py",
        "MOST_INSTRUCTIONS": "chains",
        "MOST_OF_AN_ELEMENT": "chains",
        "MOST_OF_A_TURN": "chains",
        "MOST_POINTS": "nests",
        "MOST_SINGLE": "nests",
        "MOST_TOGETHER": "chains",
        "MOST_VECTORS": "vectors",
        "ROWS": "vectors",
        "TOGETHER": "nests",
    },
    "ctrlgrad/plan/columns.py": {
        "2": "a number of axes",
        "FEWEST_ROWS": "columns",
        "LONGEST": "columns",
        "MOST_ELEMENTS": "columns",
    },
    "ctrlgrad/plan/elementary/table.py": {
        "0.5": NUMBERS,
        "FEW_BITS": NUMBERS,
    },
    "ctrlgrad/plan/elementary/complex.py": {
        "0.25": NUMBERS,
        "0.5": NUMBERS,
        "0.75": NUMBERS,
        "1.5": NUMBERS,
        "100.0": NUMBERS,
        "2.0": NUMBERS,
        "4": NUMBERS,
    },
    "ctrlgrad/plan/printer.py": {
        "WIDEST": "width of a line of text",
    },
    "ctrlgrad/plan/lowering/broadcasting.py": {
        "2": "a number of operands",
    },
    "ctrlgrad/engines/native/products/spectra.py": {
        "100000000.0": NUMBERS,
        "2": NUMBERS,
        "_SWEEPS": NUMBERS,
    },
    "ctrlgrad/plan/lowering/fourier.py": {
        "MOST_ACROSS": "transforms",
        "MOST_ALONE": "transforms",
        "MOST_POINTS": "transforms",
    },
    "ctrlgrad/plan/lowering/linalg.py": {
        "2": "a number of axes",
        "FEW_ROWS": "factors",
        "LARGEST": "factors",
        "MOST_COLUMNS": "products",
        "MOST_OF_A_SIDE": "products",
    },
    "ctrlgrad/plan/lowering/sorting.py": {
        "4": "bytes of a dtype",
        "8": "bytes of a dtype",
        "BLOCK": "sorts",
        "FEW": "sorts",
        "MANY": "sorts",
    },
    "ctrlgrad/plan/outlining.py": {
        "MOST_NEAR": "stacks",
        "MOST_SMALL": "buffers",
        "PIECE": "weight of a function of a long plan: tests/native/test_long_plans.py",
        "SMALL": "nests",
        "WHOLE": "weight of a plan that is one function: tests/native/test_long_plans.py",
    },
    "ctrlgrad/plan/packing.py": {
        "LEAST_ELEMENTS": "products",
    },
    "ctrlgrad/plan/sharing.py": {
        "threads.WORK_TO_SHARE": "beside_products",
        "LANES": "transforms",
        "MOST_RESULTS RESULT_BYTES": "nests",
    },
    "ctrlgrad/plan/tiling.py": {
        "2": "nests",
        "FEWEST": "calls",
        "TILE_BYTES POINTS": "nests",
    },
    "ctrlgrad/runtime/chunks.py": {
        "2": "lengths of chunks: tests/memory/test_chunk_driver.py",
        "2 SHARE": "lengths of chunks: tests/memory/test_smallest_budgets.py",
        "CHUNK_BYTES": "lengths of chunks: tests/memory/test_chunk_driver.py",
    },
    "ctrlgrad/engines/block_kernels.py": {
        "2": "stacks of blocks: tests/memory",
        "FIRST_ROWS FIRST_BYTES 2": "stacks of blocks: tests/memory/test_stacks_of_blocks.py",
    },
    "ctrlgrad/runtime/stack.py": {
        "2": "memory that grows by doubling: tests/native/test_stack_memory.py",
    },
    "memory/arena.py": {
        "WINDOW": POLICY,
    },
    "memory/devices/cpu.py": {
        "SHORT_BYTES": "a copy in the caller's thread: tests/memory/test_devices.py",
    },
    "memory/devices/cuda.py": {
        "2 LONGEST_PAUSE": MEMORY,
        "MOST_SECONDS": MEMORY,
    },
    "memory/manager.py": {
        "2": "longer chunks: tests/memory/test_smallest_budgets.py",
    },
    "memory/planner.py": {
        "1e-09": POLICY,
        "COST_OF_CORES": POLICY,
        "FIRST_COPIES": POLICY,
        "FRESHNESS": POLICY,
        "MOST_RUNS RUNS_FOR_STATES": "a state's share of its chunk: tests/memory/test_planner.py",
        "2 3": POLICY,
    },
    "memory/pool.py": {
        "4 4096": MEMORY,
        "LEAST_BYTES": "nests",
        "_FREE": MEMORY,
    },
    "memory/profile/pictures.py": {
        "1e-09": DRAWING,
        "0.002": DRAWING,
        "2.0": DRAWING,
        "4": DRAWING,
        "SHORT": DRAWING,
    },
    "memory/profile/summary.py": {
        "0.001": DRAWING,
        "10": DRAWING,
    },
    "memory/residency.py": {
        "TRIES": POLICY,
        "2": POLICY,
        "3": POLICY,
    },
    "ctrlgrad/plan/fusion.py": {
        "MOST_READ": "operands of a kernel: tests/native/test_long_plans.py",
    },
    "memory/schedule.py": {
        "8": POLICY,
        "2": MEMORY,
    },
    "memory/session.py": {
        "16": POLICY,
    },
    "memory/sizes.py": {
        "10": TEXTS,
        "200": TEXTS,
        "60": TEXTS,
        "MOST": TEXTS,
    },
}


def test_every_threshold_has_an_entry() -> None:
    found = {threshold.key for threshold in thresholds()}
    told = {(file, constants) for file, entries in TABLE.items() for constants in entries}
    assert found - told == set(), "a new threshold: which programs run just below, at and just above it?"
    assert told - found == set(), "no such threshold any more"


def test_entries_without_a_program_give_a_reason() -> None:
    for entries in TABLE.values():
        for told in entries.values():
            assert told in PROGRAMS or len(told.split()) > 2
            for name in (part.rstrip(":,") for part in told.split() if part.startswith("tests/")):
                assert (ROOT / name).exists(), name


def numbers() -> dict[str, list[int]]:
    """The constants that each group of programs is run at."""
    found: dict[str, set[int]] = {}
    for threshold in thresholds():
        name = TABLE.get(threshold.file, {}).get(" ".join(dict.fromkeys(threshold.constants)), "")
        if name in PROGRAMS:
            found.setdefault(name, set()).update(n for n in threshold.numbers() if n <= MOST)
    return {name: sorted(values) for name, values in found.items()}


SCRIPT = """
import sys
from native.at_thresholds import judge
for told in sys.argv[1:]:
    name, number = told.split()
    for n in (int(number) - 1, int(number), int(number) + 1):
        print(name, n, flush=True)
        judge(name, n)
"""


@in_turn("threads, bits", THREADS, VECTOR_BITS)
def test_just_below_at_and_just_above(threads: int, bits: int, request: pytest.FixtureRequest) -> None:
    """The programs of a group run at each number in a process of their own; after a crash the last line names the
    program."""
    told = [f"{name} {n}" for name, values in sorted(numbers().items()) for n in values]
    told = some(told, -(-len(told) // len(THREADS)), request.config, THREADS.index(threads))
    variables = {**os.environ, "CTRLGRAD_THREADS": str(threads), "CTRLGRAD_VECTOR_BITS": str(bits)}
    variables["PYTHONPATH"] = "tests"
    command = [sys.executable, "-c", SCRIPT, *told]
    found = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=1800)
    last = found.stdout.splitlines()[-1:]
    assert found.returncode == 0, f"{threads} threads, {bits} bits, at {last}: {found.returncode} {found.stderr}"
