"""The run: steps with checkpoints in between, validation, and what is left on disk.

Every step is a function of the state and the step's number, so a run that is stopped after any step and resumed from
its checkpoint ends in the same numbers as an unbroken one. On several ranks each goes through every step, with its
share of the data; after each step all have the same state, and it is the one a single process has, within rounding.

`ctrlgrad.train.own` makes a `Job` of a user's loss, and `ctrlgrad.train.text` of a text.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ctrlgrad import memory, optim, tree
from ctrlgrad.errors import ExecutionError, MemoryBudgetError
from ctrlgrad.memory.profile.pictures import Profile
from ctrlgrad.mpi.launch import STOPPED, Ending
from ctrlgrad.train import metrics
from ctrlgrad.train.checkpoint import Identity, State
from ctrlgrad.train.folder import CHECKPOINT, RunFiles
from ctrlgrad.train.metrics import Metrics, Step, Summary
from ctrlgrad.train.ranks import Pressed, Ranks
from ctrlgrad.train.settings import LOG_INTERVAL, VALIDATIONS


class Interrupted(Exception):
    """Ctrl-C was pressed in training; the checkpoint holds everything up to the last whole step."""

    def __init__(self, job: Job, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.job = job
        self.step = step

    @property
    def ending(self) -> Ending:
        """Last message and exit code of the command: the last step, and how to resume from the checkpoint, if any."""
        if not self.job.checkpoint.exists():
            return Ending("Stopped", "before the end of the first step; nothing was written", STOPPED)
        told = f"after step {self.step}; the checkpoint is {self.job.checkpoint}\n  try: {self.job.advice}"
        return Ending("Stopped", told, STOPPED)


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's data of one step: the loss's arguments beside the parameters, and the size of the whole batch."""

    arguments: tuple[Any, ...]
    characters: int


class Task(Protocol):
    """Loss and data of a run."""

    @property
    def value_and_grad(self) -> Callable[..., tuple[Any, Any]]:
        """The loss of a share and its gradient in the parameters."""

    def share_at(self, step: int) -> Share:
        """The data of a step: a function of its number alone."""

    def validate(self, params: Any, pressed: Pressed) -> float | None:
        """A figure of which less is better; None if stopped."""

    def levels(self) -> tuple[float | None, float | None]:
        """Figures to compare the validation with; None where there are none."""


OnStep = Callable[[Step], None]


@dataclass(frozen=True)
class Job:
    """A run before it starts: nothing has been written yet."""

    task: Any
    optimiser: optim.GradientTransformation
    out: Path
    state: State
    identity: Identity
    steps: int
    log_interval: int = LOG_INTERVAL
    # None for `VALIDATIONS` times in a run.
    validation_interval: int | None = None
    checkpoint_interval: int = 50
    # Validations without a better one that end the run; 0 for all steps.
    patience: int = 0
    memory_budget: int | None = None
    # True if a few steps are recorded (`StepProfile`).
    is_profiled: bool = False
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def checkpoint(self) -> Path:
        return self.out / CHECKPOINT

    @property
    def is_own(self) -> bool:
        """Return true if the loss is the user's, who writes Python and no options of the command."""
        return isinstance(self.identity.settings, dict)

    @property
    def advice(self) -> str:
        """Advice on how to resume the run, whose folder has the other options."""
        if self.is_own:
            return "the same Trainer with resume=True"
        processes = f"mpirun -n {self.ranks.size} " if self.ranks.size > 1 else ""
        return f"{processes}ctrlgrad train --resume --out {shlex.quote(str(self.out))}"

    def with_verified(self, verified: bool) -> Job:
        return dataclasses.replace(self, identity=dataclasses.replace(self.identity, verified=verified))

    def is_validated_at(self, step: int) -> bool:
        """Return true if a step is validated: the last of an interval, or the first metrics of a part of the run."""
        if self.validation_interval is not None:
            return step % self.validation_interval == 0 or step == self.steps
        if step % self.log_interval and step != self.steps:
            return False
        before = (step - 1) // self.log_interval * self.log_interval  # the line before
        return step * VALIDATIONS // self.steps > before * VALIDATIONS // self.steps


def run(job: Job, on_step: OnStep) -> tuple[Summary, State]:
    """Train to the last step, validating on the way and at its end, and write the summary and the figure.

    `on_step` gets each step's own figures. Raises `Interrupted` on Ctrl-C, after it has written a checkpoint; where
    there are several ranks, Ctrl-C ends the processes instead.
    """
    files = None
    if job.ranks.rank == 0:
        files = RunFiles(job.out, job.identity, job.state, job.advice, job.checkpoint_interval)
    state = job.state
    with (
        job.ranks.stopping(None if files is None else lambda: Interrupted(job, files.save().step).ending) as pressed,
        within(job.memory_budget),
        ExitStack() as recording,
    ):
        recorded = None
        if job.is_profiled and files is not None:
            recorded = recording.enter_context(StepProfile(job.out, files.writing))
        rate, validation = 0.0, None
        for state, line in steps(job, on_step, recorded.before_step if recorded is not None else _nothing, pressed):
            if state is None:  # its validation was stopped: the run that goes on makes this step again
                assert files is not None
                raise Interrupted(job, files.save().step)
            is_better = False
            if line is not None:
                rate = line.characters_per_second
                if line.validation_bits_per_char is not None:
                    validation, is_better = line.validation_bits_per_char, state.waited == 0
            if files is not None:
                files.keep(state, line)
                if is_better and job.steps > state.step:
                    files.keep_best()
            job.ranks.advise(job.advice)  # there is a checkpoint from now on
            if state.step % job.checkpoint_interval == 0:
                _check_same(job.ranks, state)
            if pressed():
                assert files is not None
                files.save()
                raise Interrupted(job, state.step)
        if job.state.step == state.step:  # no step was left to make
            validation = job.task.validate(state.params, pressed)
            if validation is None and pressed():
                raise Interrupted(job, state.step)
        unigram, bigram = job.task.levels()
        summary = Summary(
            validation_bits_per_char=validation,
            unigram_bits_per_char=unigram,
            bigram_bits_per_char=bigram,
            steps=state.step,
            seconds=state.seconds,
            # Where no step was timed, there was one, which the line of metrics is about.
            characters_per_second=state.timed_characters / state.timed_seconds if state.timed_seconds else rate,
            peak_memory_bytes=metrics.peak_memory_bytes(),
            verified=job.identity.verified,
        )
        if files is not None:
            if state.waited == 0 and validation is not None and job.state.step != state.step:
                files.keep_best()
            files.end(summary)
    return summary, state


def _nothing() -> None:
    """Before each step of a run that is not profiled."""


def _check_same(ranks: Ranks, state: State) -> None:
    """Every rank makes the step by itself; ranks whose parameters drift apart would go unnoticed."""
    if ranks.size > 1:
        ranks.check_same(
            f"parameters after step {state.step}", b"".join(np.asarray(p).tobytes() for p in tree.leaves(state.params))
        )


def steps(job: Job, on_step: OnStep, before: Callable[[], None], pressed: Pressed) -> Iterator[tuple[Any, Any]]:
    """The states after each step, with a line of metrics at the end of each interval and of the run.

    `before` is called before each step. A state of None says that a validation was stopped.
    """
    state = job.state
    interval = _Clock()
    mine = job.task.share_at(state.step)
    while state.step < job.steps and not (job.patience and state.waited >= job.patience):
        before()
        start = time.perf_counter()
        finish_sum = job.ranks.begin_sum(*job.task.value_and_grad(state.params, *mine.arguments))
        following = job.task.share_at(state.step + 1)
        bits, grads = finish_sum()
        # All ranks have the same loss; rank 0 speaks for them, and its end is theirs.
        if not np.isfinite(bits) and job.ranks.rank == 0:
            kept = f"the last checkpoint is {job.checkpoint}; " if job.checkpoint.exists() else ""
            remedy = "try a smaller --learning-rate or --clip, another --seed, --cell, --hidden or --layers"
            if job.is_own:
                remedy = (
                    "try a smaller learning rate, or ctrlgrad.optim.clip_by_global_norm in front of the optimiser;\n"
                    "ctrlgrad.options(check_nans=True) names the operation that gives the first NaN"
                )
            raise ExecutionError(
                f"training has diverged: the loss is {bits} at step {state.step + 1}", hint=kept + remedy
            )
        updates, optimiser = job.optimiser.update(grads, state.optimiser, state.params)
        params = optim.apply_updates(state.params, updates)
        seconds = time.perf_counter() - start
        is_timed = state.step > job.state.step
        interval.add(mine.characters, seconds, is_timed)
        state = dataclasses.replace(
            state,
            step=state.step + 1,
            params=params,
            optimiser=optimiser,
            bits=state.bits + bits * mine.characters,
            characters=state.characters + mine.characters,
            timed_characters=state.timed_characters + is_timed * mine.characters,
            timed_seconds=state.timed_seconds + is_timed * seconds,
            seconds=state.seconds + seconds,
        )
        peak = metrics.peak_memory_bytes()
        on_step(Step(state.step, bits, mine.characters, seconds, is_timed, peak))
        line = validation = None
        if job.is_validated_at(state.step):
            validation = job.task.validate(state.params, pressed)
            if validation is None and pressed():
                yield None, None
            if validation is not None:
                is_better = validation < state.best
                state = dataclasses.replace(
                    state, best=min(validation, state.best), waited=0 if is_better else state.waited + 1
                )
        is_last = state.step == job.steps or (job.patience and state.waited >= job.patience)
        if state.step % job.log_interval == 0 or validation is not None or is_last:
            line = Metrics(state.step, state.bits / state.characters, interval.rate, peak, validation)
            state = dataclasses.replace(state, bits=0.0, characters=0)
            interval = _Clock()
        mine = following
        yield state, line


@dataclass(frozen=True)
class RateTest:
    """Losses of steps whose learning rate rises, smoothed; the last rates are left out where the loss grew too large.

    `suggested` is the rate at which the loss falls fastest; None where it never fell.
    """

    rates: list[float]
    losses: list[float]
    suggested: float | None


def learning_rates(job: Job, optimiser: optim.GradientTransformation, steps: int = 100) -> RateTest:
    """Try rates from 1e-6 to 1 in so many steps of a run, and write nothing. `optimiser` is one of learning rate 1.

    Source: Smith 2017, "Cyclical learning rates for training neural networks", section 3.3, with rates that rise by a
    factor. The loss is smoothed by a moving average of weight 0.1, and the test ends where it is four times its least.
    """
    params, state = job.state.params, optimiser.init(job.state.params)
    rates: list[float] = []
    losses: list[float] = []
    total, weight = 0.0, 0.0
    for number, rate in enumerate(np.geomspace(1e-6, 1.0, steps)):
        share = job.task.share_at(job.state.step + number)
        loss, grads = job.ranks.begin_sum(*job.task.value_and_grad(params, *share.arguments))()
        total, weight = 0.9 * total + 0.1 * loss, 0.9 * weight + 0.1
        if not np.isfinite(loss) or total / weight > 4 * min(losses, default=np.inf):
            break
        rates.append(float(rate))
        losses.append(total / weight)
        updates, state = optimiser.update(grads, state, params)
        params = optim.apply_updates(params, tree.map(lambda u, rate=rate: (rate * u).astype(u.dtype), updates))
    slopes = np.gradient(losses) if len(losses) > 1 else np.zeros(1)
    falls = int(np.argmin(slopes))
    return RateTest(rates, losses, rates[falls] if slopes[falls] < 0 else None)


@dataclass
class _Clock:
    """Characters and seconds of the timed steps of an interval; of any step, as long as there is no timed one."""

    characters: int = 0
    seconds: float = 0.0
    is_timed: bool = False

    def add(self, characters: int, seconds: float, is_timed: bool) -> None:
        if is_timed and not self.is_timed:
            self.characters, self.seconds, self.is_timed = 0, 0.0, True
        self.characters += characters
        self.seconds += seconds

    @property
    def rate(self) -> float:
        return self.characters / max(self.seconds, 1e-9)


# Training within a memory budget, and a record of where the bytes of some steps were.

# The steps of a run that are recorded: after the first one, which compiles.
FIRST_RECORDED, RECORDED = 2, 3
# Into memory.txt, memory.json, memory.html and memory.png.
RECORD = "memory"


@contextmanager
def within(limit: int | None) -> Iterator[None]:
    """A block of code within a budget of so many bytes; None: without one."""
    if limit is None:
        yield
        return
    with memory.budget(device=limit):
        yield


def enough(limit: int, run: Callable[[], object]) -> int:
    """A budget within which a function runs, above a limit that was too small: tried, to a sixteenth of it."""

    def works(budget: int) -> bool:
        try:
            with within(budget):
                run()
        except MemoryBudgetError:
            return False
        return True

    high = 2 * max(limit, 512)
    while not works(high):
        limit, high = high, 2 * high
    while high - limit > high // 16:
        middle = (limit + high) // 2
        limit, high = (limit, middle) if works(middle) else (middle, high)
    return high


class StepProfile:
    """Records a few steps of a run, and writes what it found into a folder as soon as they are over."""

    def __init__(self, folder: Path, writing: Callable[[], AbstractContextManager[None]]) -> None:
        """`writing` is entered around what is written into the folder."""
        self.folder = folder
        self._writing = writing
        self._steps = 0
        self._recording: Profile | None = None
        self._context = ExitStack()

    def __enter__(self) -> StepProfile:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.close()
        if error[0] is None:
            self._write()

    def before_step(self) -> None:
        """To be called before each step, and after the last."""
        self._steps += 1
        if self._steps == FIRST_RECORDED:
            self._recording = self._context.enter_context(memory.profile())
        elif self._steps == FIRST_RECORDED + RECORDED:
            self._context.close()
            self._write()

    def _write(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            with self._writing():
                recording.write_all(self.folder / RECORD)
