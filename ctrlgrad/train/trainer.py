"""The run: steps with checkpoints in between, validation, and what is left on disk.

Every step is a function of the state and the step's number, so a run that is stopped after any step and resumed from
its checkpoint ends in the same numbers as an unbroken one. On several ranks each goes through every step, with its
share of the lines; after each step all have the same state, and it is the one a single process has, within rounding.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctrlgrad import optim, random, tree
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.mpi.watch import STOPPED, Ending
from ctrlgrad.train import memory, metrics
from ctrlgrad.train.checkpoint import Identity, Saved, State
from ctrlgrad.train.corpus import Batch, Corpus, TrainingOrder, pad, validation_lines
from ctrlgrad.train.folder import CHECKPOINT, METRICS
from ctrlgrad.train.layers import LAYERS
from ctrlgrad.train.metrics import Metrics, Step, Summary
from ctrlgrad.train.model import SAMPLE_LIMIT, Model
from ctrlgrad.train.ranks import Alone, Pressed, Ranks, columns, places_of, share
from ctrlgrad.train.run_files import RunFiles
from ctrlgrad.train.settings import (
    CHECKPOINT_INTERVAL,
    GRADIENT_NORM_LIMIT,
    LOG_INTERVAL,
    VALIDATIONS,
    WARMUP_STEPS,
    Settings,
)

# Keys of the random streams beside the training order's.
INIT_STREAM, SAMPLE_STREAM = 1, 2


class Interrupted(Exception):
    """Ctrl-C was pressed in training; the checkpoint holds everything up to the last whole step."""

    def __init__(self, job: Job, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.job = job
        self.step = step

    @property
    def ending(self) -> Ending:
        """What the user is told."""
        if not self.job.checkpoint.exists():
            return Ending("Stopped", "before the end of the first step; nothing was written", STOPPED)
        told = f"after step {self.step}; the checkpoint is {self.job.checkpoint}\n  try: {self.job.advice}"
        return Ending("Stopped", told, STOPPED)


@dataclass(frozen=True)
class Job:
    """A run before it starts: nothing has been written yet."""

    settings: Settings
    corpus: Corpus
    model: Model
    optimiser: optim.GradientTransformation
    out: Path
    state: State
    identity: Identity
    # Whether a few steps are recorded (`ctrlgrad.train.memory`).
    is_profiled: bool = False
    ranks: Ranks = field(default_factory=Alone)

    @property
    def checkpoint(self) -> Path:
        return self.out / CHECKPOINT

    @property
    def advice(self) -> str:
        """The command that goes on with the run: it finds the other options in the folder."""
        processes = f"mpirun -n {self.ranks.size} " if self.ranks.size > 1 else ""
        return f"{processes}ctrlgrad train --resume --out {shlex.quote(str(self.out))}"

    def with_verified(self, verified: bool) -> Job:
        return dataclasses.replace(self, identity=dataclasses.replace(self.identity, verified=verified))


def prepare(
    settings: Settings,
    corpus: Corpus,
    text: str | None,
    out: Path,
    *,
    saved: Saved | None = None,
    is_profiled: bool = False,
    ranks: Ranks | None = None,
) -> Job:
    """Make the model and its first state, or take the state of a run that is to go on: the one that was `saved`.

    `text` is the path of the corpus. On several ranks all call this. Rank 0 has read what was saved, and the others get
    the state from it.
    """
    ranks = ranks or Alone()
    if settings.pipeline and ranks.size > settings.layers:
        raise UserInputError(
            "--pipeline: fewer layers than ranks",
            expected=f"--layers {ranks.size} or more, a layer for each rank",
            got=f"--layers {settings.layers}",
            hint="use more --layers, or a smaller -n of mpirun",
        )
    if ranks.parts > settings.batch:
        raise UserInputError(
            "--batch: fewer lines than ranks",
            expected=f"at least {ranks.parts}, a line for each rank",
            got=str(settings.batch),
            hint="use a larger --batch, or a smaller -n of mpirun",
        )
    places = places_of(settings.layers, ranks) if settings.pipeline else ()
    if settings.engine == "cuda":
        cupy_library.cupy_library()  # what is missing is told before anything is written
    # Within a budget the model is one loop: what lies between loops is not swapped.
    on_gradient = ranks.on_gradient if settings.memory_budget is None else None
    warmup = min(WARMUP_STEPS, settings.steps)
    peak = LAYERS[settings.cell].peak_learning_rate
    rate = optim.warmup_cosine_decay_schedule(peak / (warmup + 1), peak, warmup, settings.steps + 1, 0.1 * peak)
    optimiser = optim.chain(optim.clip_by_global_norm(GRADIENT_NORM_LIMIT), optim.adam(rate))
    try:
        model = Model(settings, corpus.symbols, columns(ranks, settings.batch), places, on_gradient)
        params = model.init(random.fold_in(random.key(settings.seed), INIT_STREAM))
        state = State(0, params, optimiser.init(params))
    except MemoryError as error:
        raise UserInputError(
            "--hidden: the model does not fit into memory",
            got=f"{settings.layers} layers of {settings.hidden} ({error})",
            hint="use a smaller --hidden",
        ) from None
    identity = Identity(settings, corpus.fingerprint, None, text)
    if saved is not None:
        saved.check_text(corpus.fingerprint)
        state = saved.state(state)
        identity = dataclasses.replace(identity, verified=saved.identity.verified)
        metrics.read(out / METRICS)  # what cannot be continued is refused here, before anything is written
    state = _from_first(ranks, state)
    return Job(settings, corpus, model, optimiser, out, state, identity, is_profiled, ranks)


def _from_first(ranks: Ranks, state: State) -> State:
    """The state that rank 0 has."""
    if ranks.size == 1:
        return state
    names = [f.name for f in dataclasses.fields(State)]
    values = ranks.from_first_leaves([getattr(state, name) for name in names])
    # Back from arrays to the plain numbers that they were.
    values = [value.item() if isinstance(value, np.ndarray) else value for value in values]
    return State(**dict(zip(names, values, strict=True)))


OnStep = Callable[[Step], None]


def run(job: Job, on_step: OnStep) -> tuple[Summary, State]:
    """Train to the last step, validating on the way and at its end, and write the summary and the figure.

    `on_step` gets each step's own figures. Raises `Interrupted` on Ctrl-C, after it has written a checkpoint; where
    there are several ranks, Ctrl-C ends the processes instead.
    """
    files = RunFiles(job.out, job.identity, job.state, job.advice) if job.ranks.rank == 0 else None
    state = job.state
    with (
        job.ranks.stopping(None if files is None else lambda: _stopped(job, files)) as pressed,
        memory.within(job.settings.memory_budget),
        ExitStack() as recording,
    ):
        recorded = None
        if job.is_profiled and files is not None:
            recorded = recording.enter_context(memory.StepProfile(job.out, files.writing))
        rate, validation = 0.0, None
        for state, line in steps(job, on_step, recorded.before_step if recorded is not None else _nothing):
            if line is not None:
                rate = line.characters_per_second
                if is_validated_at(state.step, job.settings.steps):
                    validation = validate(job, state.params, pressed)
                    if validation is None:  # the run that goes on makes this step again
                        assert files is not None
                        raise Interrupted(job, files.save().step)
                    line = dataclasses.replace(line, validation_bits_per_char=validation)
            if files is not None:
                files.keep(state, line)
            job.ranks.advise(job.advice)  # there is a checkpoint from now on
            if state.step % CHECKPOINT_INTERVAL == 0:
                _check_same(job.ranks, state)
            if pressed():
                assert files is not None
                files.save()
                raise Interrupted(job, state.step)
        if job.state.step == state.step:  # no step was left to make
            validation = validate(job, state.params, pressed)
            if validation is None:
                raise Interrupted(job, state.step)
        summary = Summary(
            validation_bits_per_char=validation,
            unigram_bits_per_char=job.corpus.unigram_bits_per_char(),
            bigram_bits_per_char=job.corpus.bigram_bits_per_char(),
            steps=state.step,
            seconds=state.seconds,
            # Where no step was timed, there was one, which the line of metrics is about.
            characters_per_second=state.timed_characters / state.timed_seconds if state.timed_seconds else rate,
            peak_memory_bytes=metrics.peak_memory_bytes(),
            verified=job.identity.verified,
        )
        if files is not None:
            files.end(summary)
    return summary, state


def _nothing() -> None:
    """Before each step of a run that is not profiled."""


def _stopped(job: Job, files: RunFiles) -> Ending:
    """What is done, and said, when a run on several ranks is interrupted."""
    return Interrupted(job, files.save().step).ending


def _check_same(ranks: Ranks, state: State) -> None:
    """Every rank makes the step by itself; ranks whose parameters drift apart would go unnoticed."""
    if ranks.size > 1:
        ranks.check_same(
            f"parameters after step {state.step}", b"".join(np.asarray(p).tobytes() for p in tree.leaves(state.params))
        )


def steps(job: Job, on_step: OnStep, before: Callable[[], None]) -> Iterator[tuple[State, Metrics | None]]:
    """The states after each step, with a line of metrics at the end of each interval and of the run.

    `before` is called before each step.
    """
    order = TrainingOrder(job.corpus, job.settings.batch, job.settings.seed)
    state = job.state
    interval = _Clock()
    mine = share_at(job, order, state.step)
    while state.step < job.settings.steps:
        before()
        start = time.perf_counter()
        finish_sum = job.ranks.begin_sum(*job.model.bits_and_grads(state.params, *mine.arguments))
        following = share_at(job, order, state.step + 1)
        bits, grads = finish_sum()
        # All ranks have the same loss; rank 0 speaks for them, and its end is theirs.
        if not np.isfinite(bits) and job.ranks.rank == 0:
            kept = f"the last checkpoint is {job.checkpoint}; " if job.checkpoint.exists() else ""
            raise ExecutionError(
                f"training has diverged: the loss is {bits} at step {state.step + 1}",
                hint=f"{kept}try another --seed, --cell, --hidden or --layers",
            )
        updates, optimiser = job.optimiser.update(grads, state.optimiser, state.params)
        params = optim.apply_updates(state.params, updates)
        seconds = time.perf_counter() - start
        is_timed = state.step > job.state.step
        interval.add(mine.characters, seconds, is_timed)
        state = State(
            state.step + 1,
            params,
            optimiser,
            state.bits + bits * mine.characters,
            state.characters + mine.characters,
            state.timed_characters + is_timed * mine.characters,
            state.timed_seconds + is_timed * seconds,
            state.seconds + seconds,
        )
        peak = metrics.peak_memory_bytes()
        on_step(Step(state.step, bits, mine.characters, seconds, is_timed, peak))
        line = None
        if state.step % LOG_INTERVAL == 0 or state.step == job.settings.steps:
            line = Metrics(state.step, state.bits / state.characters, interval.rate, peak)
            state = dataclasses.replace(state, bits=0.0, characters=0)
            interval = _Clock()
        mine = following
        yield state, line


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


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's lines of one step, and how many characters the whole batch has."""

    batch: Batch
    characters: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the model's loss takes beside the parameters."""
        return self.batch.symbols, self.batch.lengths, np.int64(self.characters)


def share_at(job: Job, order: TrainingOrder, step: int) -> Share:
    """A rank's share of a step's batch."""
    lines = order.lines(step)
    return Share(pad(share(job.ranks, lines), job.model.columns), sum(map(len, lines)))


def is_validated_at(step: int, steps: int) -> bool:
    """Whether the line of metrics of a step is one of the run's `VALIDATIONS`: the first in each part, and the last."""
    before = (step - 1) // LOG_INTERVAL * LOG_INTERVAL  # the line before
    return step * VALIDATIONS // steps > before * VALIDATIONS // steps


def validate(job: Job, params: Any, pressed: Pressed) -> float | None:
    """Bits per character over the whole validation part, each line's end counted as a character; None if stopped."""
    bits, characters = 0.0, 0
    for lines in validation_lines(job.corpus, job.settings.batch):
        batch = pad(share(job.ranks, lines), job.model.columns)
        line_bits = np.asarray(job.model.line_bits_of(params, batch.symbols, batch.lengths))
        bits += float(np.sum(line_bits, dtype=np.float64))
        characters += sum(map(len, lines))
        if pressed():
            return None
    return job.ranks.sum(bits) / characters


def sample(job: Job, params: Any, number: int) -> str:
    """A line that the model writes; `number` picks another one."""
    rng = np.random.Generator(np.random.PCG64([job.settings.seed, number, SAMPLE_STREAM]))
    # One line is written on the processor, wherever the parameters lie.
    params = tree.map(np.asarray, params)
    return job.corpus.text(job.model.sample_of(params, rng.random(SAMPLE_LIMIT, np.float32)).tolist())
