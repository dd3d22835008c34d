"""Judges any number of random programs and says what was found; a program that fails is shrunk."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from random_programs.checks import Rotation, examine
from random_programs.choices import Choices, shrunk
from random_programs.engines import Settings, judge
from random_programs.expected import ProgramMismatch, UnsuitableError
from random_programs.generate import write
from random_programs.program import Program
from random_programs.writer import FEATURES

# Of attempts to simplify a program that fails.
ATTEMPTS = 150


@dataclass(frozen=True)
class Batch:
    """Some programs, and who judges them: the engine of the settings, or all judges of the reference engine."""

    seed: int
    first: int
    count: int
    settings: Settings = field(default_factory=lambda: Settings("reference"))
    rotation: Rotation = field(default_factory=Rotation)
    features: frozenset[str] = frozenset(FEATURES)
    attempts: int = ATTEMPTS


@dataclass
class Outcome:
    """`examined` counts programs that were judged to the end; `failures` are shrunk."""

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


def run_batch(batch: Batch) -> Outcome:
    """Judge a batch to its end, whatever fails in it."""
    outcome = Outcome()
    began = time.process_time()
    for number in range(batch.first, batch.first + batch.count):
        choices = Choices(random.Random(f"{batch.seed} {number}"))
        program = write(choices, batch.features)
        try:
            compared, iterations = _judged(batch, program, number)
        except UnsuitableError as error:
            outcome.unsuitable[str(error)] += 1
        except ProgramMismatch:
            outcome.failures.append(_shrunk(batch, choices, number))
        else:
            contents = program.contents()
            outcome.depths[contents.pop("depth", 0)] += 1
            outcome.contents.update(contents.keys())
            outcome.compared.update(compared)
            outcome.iterations += iterations
            outcome.examined += 1
    outcome.seconds = time.process_time() - began
    return outcome


def _judged(batch: Batch, program: Program, number: int) -> tuple[Counter[str], int]:
    if batch.settings.engine != "reference":
        return judge(program, batch.settings, number), 0
    verdict = examine(program, batch.rotation.share(number))
    return verdict.compared, verdict.iterations


def _shrunk(batch: Batch, choices: Choices, number: int) -> str:
    """Failure of the simplest program that fails."""

    def failure(program: Program) -> str | None:
        try:
            _judged(batch, program, number)
        except ProgramMismatch as mismatch:
            return str(mismatch)
        except UnsuitableError:
            pass
        return None

    simplest = shrunk(choices, lambda c: write(c, batch.features), lambda p: failure(p) is not None, batch.attempts)
    return f"program {number} of seed {batch.seed}, shrunk: {failure(simplest)}"


def run_batches(batches: list[Batch], jobs: int) -> Iterator[Outcome]:
    """Each batch's outcome as it ends."""
    if jobs <= 1:
        yield from map(run_batch, batches)
        return
    # Spawned: JAX has threads, which a fork would leave in an unknown state.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_batch, batches)
