"""Measures one case: builds every entry in a process of its own, checks that they agree, and times them in turn.

In every round each entry runs once, one after another, beginning with another one each time; the figures of a round
are paired, so that what slows the whole machine for a while slows both sides of a ratio.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import load, require_agreement
from benchmarks.case import Case, Entry
from benchmarks.outcome import Outcome, still_going
from benchmarks.process import Surroundings, Worker

# A system's threads may spin for a while after its turn; the next one starts when they sleep.
PAUSE = 0.3
# Seconds that one turn takes at least, by repeating short runs.
TURN = 0.2
MOST_RUNS = 200
# Bytes of memory that are touched before a first call is measured.
TOUCHED = 1 << 29

Workers = Mapping[str, Worker]


def measure(case: Case, surroundings: Surroundings, rounds: int, tell: Callable[[str], None]) -> list[Outcome]:
    """The outcomes of a case's entries, in their order; `tell` hears what is being done."""
    outcomes = [Outcome(entry) for entry in case.entries]
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest(case, outcomes, surroundings, rounds, Path(folder), lambda x: tell(f"{case.name}: {x}"))
        if case.measure == "steady":
            contest.steady()
        elif case.measure == "kept bytes":
            contest.kept_bytes()
        else:
            contest.in_new_processes()
    for outcome in outcomes[1:]:
        pairs = zip(outcome.costs, outcomes[0].costs, strict=False)
        outcome.ratios = [cost / first for cost, first in pairs if first]
    return outcomes


@dataclass(frozen=True)
class Contest:
    """One case while it is measured. `folder` holds results, and compiled code of processes; it is empty at first."""

    case: Case
    outcomes: list[Outcome]
    surroundings: Surroundings
    rounds: int
    folder: Path
    tell: Callable[[str], None]

    def steady(self) -> None:
        """Processes that live through all rounds; their first runs do not count."""
        with ExitStack() as stack:
            workers: dict[str, Worker] = {}
            for outcome in self.outcomes:
                self.tell(f"{outcome.entry.label} prepares")
                with outcome.failure_kept():
                    worker = stack.enter_context(Worker(self.surroundings, outcome.entry.system, self.folder))
                    workers[outcome.entry.label] = worker
                    outcome.first_seconds = _first_run(worker, outcome.entry, self.case.check)
            self.check_agreement(workers)
            turns: dict[str, int] = {}
            for outcome in still_going(self.outcomes):
                self.tell(f"{outcome.entry.label} warms up")
                with outcome.failure_kept():
                    worker = workers[outcome.entry.label]
                    if self.case.check:
                        _first_run(worker, outcome.entry, {})
                    seconds = min(worker.ask("run", times=2)["seconds"])
                    turns[outcome.entry.label] = min(MOST_RUNS, math.ceil(TURN / max(seconds, 1e-6)))
            for number in range(self.rounds):
                for outcome in self.round(number):
                    with outcome.failure_kept():
                        reply = workers[outcome.entry.label].ask("run", times=turns[outcome.entry.label])
                        outcome.costs.append(_per_unit(outcome.entry, reply, statistics.mean(reply["seconds"])))
                        outcome.peak_bytes = max(outcome.peak_bytes or 0, reply["peak_bytes"])

    def in_new_processes(self) -> None:
        """Every turn in a process of its own. Where an entry has a cache, a process before the first turn fills it."""
        for outcome in self.outcomes:
            if outcome.entry.has_cache:
                with outcome.failure_kept(), self.new_worker(outcome.entry, 0) as worker:
                    self.tell(f"{outcome.entry.label} fills its cache")
                    _first_run(worker, outcome.entry, {})
        for number in range(self.rounds):
            with ExitStack() as stack:
                workers: dict[str, Worker] = {}
                for outcome in self.round(number):
                    with outcome.failure_kept():
                        worker = stack.enter_context(self.new_worker(outcome.entry, number))
                        workers[outcome.entry.label] = worker
                        self.first_turn(outcome, worker)
                if number == 0:
                    self.check_agreement(workers)

    def new_worker(self, entry: Entry, number: int) -> Worker:
        """A process that finds compiled code of earlier rounds if the entry has a cache, and none otherwise."""
        place = self.case.entries.index(entry)
        cache = self.folder / (f"cache {place}" if entry.has_cache else f"cache {place} {number}")
        cache.mkdir(mode=0o700, exist_ok=True)
        _touch_memory()
        return Worker(self.surroundings, entry.system, cache, entry.has_cache)

    def first_turn(self, outcome: Outcome, worker: Worker) -> None:
        """The first run in a new process and, for `compilation`, less what a later one takes."""
        entry = outcome.entry
        built = worker.ask("build", program=entry.program, arguments=dict(entry.arguments), busy=entry.busy)
        reply = worker.ask("run", times=1)
        seconds = reply["seconds"][0]
        if self.case.measure == "compilation":
            seconds -= min(worker.ask("run", times=3)["seconds"])
        outcome.import_seconds.append(built["import_seconds"])
        outcome.processor_seconds.append(reply["processor_seconds"][0])
        outcome.costs.append(_per_unit(entry, reply, seconds))

    def kept_bytes(self) -> None:
        """Counted once, after a run: it is the same in every round."""
        for outcome in self.outcomes:
            entry = outcome.entry
            self.tell(entry.label)
            with outcome.failure_kept(), Worker(self.surroundings, entry.system, self.folder) as worker:
                _first_run(worker, entry, {})
                outcome.costs.append(worker.ask("kept_bytes")["bytes"])

    def round(self, number: int) -> Iterator[Outcome]:
        """Whose turn it is, one after another, beginning with another one each round."""
        self.tell(f"round {number + 1} of {self.rounds}")
        start = number % len(self.outcomes)
        for outcome in still_going(self.outcomes[start:] + self.outcomes[:start]):
            time.sleep(PAUSE)
            yield outcome

    def check_agreement(self, workers: Workers) -> None:
        """Compare what the last runs returned with the results of the first peer that has some."""
        saved: list[tuple[Outcome, Path]] = []
        for outcome in still_going(self.outcomes):
            path = self.folder / f"{len(saved)}.npz"
            if outcome.entry.is_compared:
                with outcome.failure_kept():
                    workers[outcome.entry.label].ask("save", path=str(path))
                    saved.append((outcome, path))
        if len(saved) < 2:
            return
        judge, expected = next((s for s in saved if s[0].entry.system != "ctrlgrad"), saved[0])
        for outcome, path in saved:
            if outcome is not judge:
                outcome.compared_with = judge.entry.label
                with outcome.failure_kept():
                    whose, tolerance = judge.entry.label, self.case.tolerance
                    outcome.difference = require_agreement(load(path), load(expected), whose, tolerance)


def _first_run(worker: Worker, entry: Entry, changes: Mapping[str, Any]) -> float:
    """The seconds of the first run after the program was built."""
    worker.ask("build", program=entry.program, arguments={**entry.arguments, **changes}, busy=entry.busy)
    return float(worker.ask("run", times=1)["seconds"][0])


def _touch_memory() -> None:
    """Have the machine own memory that is free.

    A virtual machine gets a page from its host when it is first touched. Which process meets such pages is chance, and
    0.2 s of an LSTM's first step were seen to go there.
    """
    np.ones(TOUCHED, np.uint8)


def _per_unit(entry: Entry, reply: Mapping[str, Any], seconds: float) -> float:
    return seconds / (reply["units"] or entry.units)
