"""Measures one case: builds every entry in a process of its own, checks that they agree, and times them in turn.

In every round each entry runs once, one after another, beginning with another one each time; the figures of a round
are paired, so that what slows the whole machine for a while slows both sides of a ratio.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.agreement import load, require_agreement
from benchmarks.case import Case, Entry
from benchmarks.process import Failure, Surroundings, Worker

# A system's threads may spin for a while after its turn; the next one starts when they sleep.
PAUSE = 0.3
# Seconds that one turn takes at least, by repeating short runs.
TURN = 0.2
MOST_RUNS = 200

Arrays = Mapping[str, np.ndarray]


@dataclass
class Outcome:
    """What was found for one entry: costs per unit of work, round by round, or why there are none."""

    entry: Entry
    failure: Failure | None = None
    costs: list[float] = field(default_factory=list)
    # Cost over the first entry's cost, of the rounds that both have.
    ratios: list[float] = field(default_factory=list)
    first_seconds: float | None = None
    import_seconds: list[float] = field(default_factory=list)
    # The largest relative difference from the entry named, by the check of the results.
    difference: float | None = None
    compared_with: str | None = None

    @property
    def cost(self) -> float | None:
        return statistics.median(self.costs) if self.costs else None

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None


def measure(case: Case, surroundings: Surroundings, rounds: int, tell: Callable[[str], None]) -> list[Outcome]:
    """The outcomes of a case's entries, in their order."""
    outcomes = [Outcome(entry) for entry in case.entries]
    with tempfile.TemporaryDirectory() as folder:
        how = {"steady": _steady, "kept bytes": _kept_bytes, "first run": _in_new_processes}
        how.get(case.measure, _in_new_processes)(case, outcomes, surroundings, rounds, Path(folder), tell)
    base = outcomes[0]
    for outcome in outcomes[1:]:
        outcome.ratios = [cost / first for cost, first in zip(outcome.costs, base.costs, strict=False)]
    return outcomes


def _attempt(outcome: Outcome, work: Callable[[], None]) -> None:
    """Do something for an entry that has not failed; keep the failure if it does now."""
    if outcome.failure is None:
        try:
            work()
        except Failure as failure:
            outcome.failure = failure
            outcome.costs.clear()


def _start(entry: Entry, surroundings: Surroundings, folder: Path, arguments: dict[str, object]) -> Worker:
    """A process with the entry's program built."""
    worker = Worker(surroundings, entry.system, folder, entry.has_cache)
    try:
        worker.ask("build", program=entry.program, arguments={**entry.arguments, **arguments})
    except Failure:
        worker.close()
        raise
    return worker


def _agree(case: Case, outcomes: Iterable[Outcome], workers: dict[str, Worker], folder: Path) -> None:
    """Compare what the last runs returned. The first peer that has results is what all are compared with."""
    saved = []
    for outcome in outcomes:
        path = folder / f"{len(saved)}.npz"
        if outcome.entry.is_compared and outcome.failure is None:
            _attempt(outcome, lambda o=outcome, p=path: workers[o.entry.label].ask("save", path=str(p)))
            if outcome.failure is None:
                saved.append((outcome, load(path)))
    if len(saved) < 2:
        return
    judge, expected = next((s for s in saved if s[0].entry.system != "ctrlgrad"), saved[0])
    for outcome, results in saved:
        if outcome is not judge:
            _attempt(outcome, lambda o=outcome, r=results: _compare(case, o, r, expected, judge.entry.label))


def _compare(case: Case, outcome: Outcome, results: Arrays, expected: Arrays, whose: str) -> None:
    outcome.compared_with = whose
    outcome.difference = require_agreement(results, expected, whose, case.tolerance)


def _steady(
    case: Case,
    outcomes: list[Outcome],
    surroundings: Surroundings,
    rounds: int,
    folder: Path,
    tell: Callable[[str], None],
) -> None:
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        turns: dict[str, int] = {}

        def prepare(outcome: Outcome) -> None:
            entry = outcome.entry
            worker = stack.enter_context(_start(entry, surroundings, folder, dict(case.check)))
            workers[entry.label] = worker
            outcome.first_seconds = worker.ask("run", times=1)["seconds"][0]

        def warm_up(outcome: Outcome) -> None:
            entry, worker = outcome.entry, workers[outcome.entry.label]
            if case.check:
                worker.ask("build", program=entry.program, arguments=dict(entry.arguments))
                outcome.first_seconds = worker.ask("run", times=1)["seconds"][0]
            seconds = min(worker.ask("run", times=2)["seconds"])
            turns[entry.label] = min(MOST_RUNS, math.ceil(TURN / max(seconds, 1e-6)))

        def take_turn(outcome: Outcome) -> None:
            time.sleep(PAUSE)
            entry = outcome.entry
            reply = workers[entry.label].ask("run", times=turns[entry.label])
            outcome.costs.append(statistics.mean(reply["seconds"]) / (reply["units"] or entry.units))

        for outcome in outcomes:
            tell(f"{case.name}: {outcome.entry.label} prepares")
            _attempt(outcome, lambda o=outcome: prepare(o))
        _agree(case, outcomes, workers, folder)
        for outcome in outcomes:
            tell(f"{case.name}: {outcome.entry.label} warms up")
            _attempt(outcome, lambda o=outcome: warm_up(o))
        for number in range(rounds):
            tell(f"{case.name}: round {number + 1} of {rounds}")
            for outcome in _rotated(outcomes, number):
                _attempt(outcome, lambda o=outcome: take_turn(o))


def _rotated(outcomes: list[Outcome], number: int) -> list[Outcome]:
    start = number % len(outcomes)
    return outcomes[start:] + outcomes[:start]


def _in_new_processes(
    case: Case,
    outcomes: list[Outcome],
    surroundings: Surroundings,
    rounds: int,
    folder: Path,
    tell: Callable[[str], None],
) -> None:
    """Every turn in a process of its own. Where an entry has a cache, a process before the first turn fills it."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}

        def take_turn(outcome: Outcome, number: int) -> None:
            entry = outcome.entry
            place = f"{case.entries.index(entry)}" if entry.has_cache else f"{case.entries.index(entry)} {number}"
            cache = folder / place
            cache.mkdir(mode=0o700, exist_ok=True)
            worker = Worker(surroundings, entry.system, cache, entry.has_cache)
            workers[entry.label] = stack.enter_context(worker)
            built = worker.ask("build", program=entry.program, arguments=dict(entry.arguments))
            reply = worker.ask("run", times=1)
            seconds = reply["seconds"][0]
            if case.measure == "compilation":
                seconds -= min(worker.ask("run", times=3)["seconds"])
            outcome.import_seconds.append(built["import_seconds"])
            outcome.costs.append(seconds / (reply["units"] or entry.units))

        def fill_cache(outcome: Outcome) -> None:
            if outcome.entry.has_cache:
                take_turn(outcome, 0)
                outcome.costs.clear()
                outcome.import_seconds.clear()
                workers[outcome.entry.label].close()

        for outcome in outcomes:
            _attempt(outcome, lambda o=outcome: fill_cache(o))
        for number in range(rounds):
            tell(f"{case.name}: round {number + 1} of {rounds}, each in a new process")
            for outcome in _rotated(outcomes, number):
                time.sleep(PAUSE)
                _attempt(outcome, lambda o=outcome, n=number: take_turn(o, n))
            if number == 0:
                _agree(case, outcomes, workers, folder)
            for worker in workers.values():
                worker.close()


def _kept_bytes(
    case: Case,
    outcomes: list[Outcome],
    surroundings: Surroundings,
    rounds: int,
    folder: Path,
    tell: Callable[[str], None],
) -> None:
    def count(outcome: Outcome) -> None:
        tell(f"{case.name}: {outcome.entry.label}")
        with _start(outcome.entry, surroundings, folder, {}) as worker:
            outcome.costs.append(worker.ask("kept_bytes")["bytes"])

    for outcome in outcomes:
        _attempt(outcome, lambda o=outcome: count(o))
