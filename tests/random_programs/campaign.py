"""Runs any number of random programs, batch by batch, and says what was found.

A batch is some runs of Hypothesis with seeds of their own: a run generates, and shrinks the first program that fails.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from random_programs.checks import ProgramMismatch, Rotation, UnsuitableError, examine
from random_programs.program import Program
from random_programs.strategy import programs


@dataclass(frozen=True)
class Batch:
    """Some programs, and who judges them."""

    seed: int
    count: int
    rotation: Rotation


@dataclass
class Outcome:
    """`examined` counts programs that were judged to the end, shrinking left out; `failures` are shrunk."""

    examined: int = 0
    unsuitable: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    contents: Counter[str] = field(default_factory=Counter)
    depths: Counter[int] = field(default_factory=Counter)
    iterations: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.examined += other.examined
        for mine, its in (
            (self.unsuitable, other.unsuitable),
            (self.compared, other.compared),
            (self.contents, other.contents),
        ):
            mine.update(its)
        self.depths.update(other.depths)
        self.iterations += other.iterations
        self.seconds += other.seconds
        self.failures += other.failures


# After ten examples Hypothesis goes on with small changes of those it has: a new run gives new programs.
ROUND = 10


def run_batch(batch: Batch) -> Outcome:
    """Judge a batch; it ends at its first failure, which is then shrunk."""
    outcome = Outcome()
    began = time.process_time()
    for number, start in enumerate(range(0, batch.count, ROUND)):
        _run_round(batch, batch.seed * 1000 + number, min(ROUND, batch.count - start), outcome)
        if outcome.failures:
            break
    outcome.seconds = time.process_time() - began
    return outcome


def _run_round(batch: Batch, number: int, count: int, outcome: Outcome) -> None:
    """One run of Hypothesis."""

    def judge(program: Program) -> None:
        failed = bool(outcome.failures)
        share = batch.rotation.everything() if failed else batch.rotation.share(outcome.examined)
        try:
            verdict = examine(program, share)
        except UnsuitableError as error:
            outcome.unsuitable[str(error)] += 1
            assume(False)
            return
        except ProgramMismatch as mismatch:
            # From here on Hypothesis shrinks: what it tries is not counted.
            outcome.failures = [str(mismatch)]
            raise
        if not failed:
            contents = program.contents()
            outcome.depths[contents.pop("depth", 0)] += 1
            outcome.contents.update(contents.keys())
            outcome.compared.update(verdict.compared)
            outcome.iterations += verdict.iterations
            outcome.examined += 1

    run = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    try:
        seed(number)(run(given(programs())(judge)))()
    except ProgramMismatch as mismatch:
        outcome.failures = [f"run {number}: {mismatch}"]


def run_batches(batches: list[Batch], jobs: int) -> Iterator[Outcome]:
    """Each batch's outcome as it ends."""
    if jobs <= 1:
        yield from map(run_batch, batches)
        return
    # Spawned: JAX has threads, which a fork would leave in an unknown state.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_batch, batches)
