"""The run: steps with checkpoints in between, validation, and what is left on disk.

Every step is a function of the state and the step's number, so a run that is stopped after any step and resumed from
its checkpoint ends in the same numbers as an unbroken one. On several ranks each goes through every step, with its
share of the lines; after each step all have the same state, and it is the one a single process has, within rounding.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctrlgrad import optim, tree
from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.mpi.watch import STOPPED, Ending
from ctrlgrad.train import checkpoint, memory, metrics
from ctrlgrad.train.checkpoint import Identity, State
from ctrlgrad.train.corpus import Batch, Corpus, TrainingOrder, pad, validation_lines
from ctrlgrad.train.keeper import CHECKPOINT, METRICS, PLOT, SUMMARY, Keeper
from ctrlgrad.train.metrics import Metrics, Summary
from ctrlgrad.train.model import SAMPLE_LIMIT, Model
from ctrlgrad.train.ranks import Alone, Pressed, Ranks, columns, places_of, share
from ctrlgrad.train.settings import (
    CHECKPOINT_INTERVAL,
    GRADIENT_NORM_LIMIT,
    LOG_INTERVAL,
    PEAK_LEARNING_RATE,
    WARMUP_STEPS,
    Settings,
)

# Keys of the random streams beside the training order's.
INIT_STREAM, SAMPLE_STREAM = 1, 2


class Interrupted(Exception):
    """Ctrl-C was pressed in training; the checkpoint holds everything up to the last whole step."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.path = path
        self.step = step

    @property
    def ending(self) -> Ending:
        """What the user is told."""
        told = f"after step {self.step}; the checkpoint is {self.path}\n  try: the same command with --resume"
        return Ending("Stopped", told, STOPPED)


@dataclass(frozen=True)
class Job:
    """A run before it starts: nothing has been written yet."""

    settings: Settings
    corpus: Corpus
    model: Model
    optimiser: optim.Optimiser
    out: Path
    state: State
    identity: Identity
    # Whether a few steps are recorded (`ctrlgrad.train.memory`).
    is_profiled: bool = False
    ranks: Ranks = field(default_factory=Alone)

    @property
    def checkpoint(self) -> Path:
        return self.out / CHECKPOINT

    def with_verified(self, verified: bool) -> Job:
        return dataclasses.replace(self, identity=dataclasses.replace(self.identity, verified=verified))


def check_folder(out: Path, resume: bool) -> None:
    """Refuse an output folder that cannot be made or written, or that a new run would overwrite."""
    nearest = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not nearest.is_dir():
        raise UserInputError("--out: this is a file", expected="a folder, or a path for one", got=str(nearest))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserInputError("--out: the folder cannot be written", expected="a folder of yours", got=str(nearest))
    held = [name for name in (CHECKPOINT, METRICS, SUMMARY, PLOT) if (out / name).exists()]
    if held and not resume:
        raise UserInputError(
            "--out: the folder already holds a run",
            expected="a folder without " + ", ".join(held),
            got=str(out),
            hint="choose another --out, or continue that run with --resume",
        )


def prepare(
    settings: Settings,
    corpus: Corpus,
    out: Path,
    resume: bool,
    is_profiled: bool = False,
    ranks: Ranks | None = None,
) -> Job:
    """Make the model and its first state, or read the state of the run to continue.

    On several ranks all call this. Rank 0 reads, and the others get the state from it.
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
    # Within a budget the model is one loop: what lies between loops is not swapped.
    on_gradient = ranks.on_gradient if settings.memory_budget is None else None
    model = Model(settings, corpus.symbols, columns(ranks, settings.batch), places, on_gradient)
    warmup = min(WARMUP_STEPS, settings.steps)
    optimiser = optim.adam(optim.warmup_cosine(PEAK_LEARNING_RATE, settings.steps, warmup))
    params = model.init(np.random.Generator(np.random.PCG64([settings.seed, 0, INIT_STREAM])))
    state = State(0, params, optimiser.init(params))
    identity = Identity(settings, corpus.fingerprint, None)
    if ranks.rank == 0:
        check_folder(out, resume)
        if resume:
            state, identity = checkpoint.read(out / CHECKPOINT, state, identity)
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


OnStep = Callable[[Metrics], None]


def run(job: Job, on_step: OnStep) -> tuple[Summary, State]:
    """Train to the last step, validate, and write the summary and the figure.

    `on_step` gets each step's own figures. Raises `Interrupted` on Ctrl-C, after it has written a checkpoint; where
    there are several ranks, Ctrl-C ends the processes instead.
    """
    keeper = Keeper(job.out, job.identity) if job.ranks.rank == 0 else None
    if keeper is not None:
        keeper.begin(job.state)
    state = job.state
    with (
        job.ranks.stopping(None if keeper is None else lambda: _stopped(keeper)) as pressed,
        memory.within(job.settings.memory_budget),
        ExitStack() as recording,
    ):
        is_recorded = job.is_profiled and keeper is not None
        recorded = recording.enter_context(memory.StepProfile(job.out)) if is_recorded else None
        for state, line in steps(job, on_step, recorded.before_step if recorded is not None else _nothing):
            if keeper is not None:
                keeper.keep(state, line)
            if state.step % CHECKPOINT_INTERVAL == 0:
                _check_same(job.ranks, state)
            if pressed():
                assert keeper is not None
                keeper.save()
                raise Interrupted(job.checkpoint, state.step)
        validation = validate(job, state.params, pressed)
        summary = Summary(
            validation_bits_per_char=validation,
            unigram_bits_per_char=job.corpus.unigram_bits_per_char(),
            bigram_bits_per_char=job.corpus.bigram_bits_per_char(),
            steps=state.step,
            seconds=state.seconds,
            characters_per_second=state.total_characters / max(state.seconds, 1e-9),
            peak_memory_bytes=metrics.peak_memory_bytes(),
            verified=job.identity.verified,
        )
        if keeper is not None:
            keeper.end(summary)
    return summary, state


def _nothing() -> None:
    """Before each step of a run that is not profiled."""


def _stopped(keeper: Keeper) -> Ending:
    """What is done, and said, when a run on several ranks is interrupted."""
    return Interrupted(keeper.path, keeper.save().step).ending


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
    since, characters = time.perf_counter(), 0
    mine = share_at(job, order, state.step)
    while state.step < job.settings.steps:
        before()
        start = time.perf_counter()
        finish_sum = job.ranks.begin_sum(*job.model.bits_and_grads(state.params, *mine.arguments))
        following = share_at(job, order, state.step + 1)
        bits, grads = finish_sum()
        # All ranks have the same loss; rank 0 speaks for them, and its end is theirs.
        if not np.isfinite(bits) and job.ranks.rank == 0:
            raise ExecutionError(
                f"training has diverged: the loss is {bits} at step {state.step + 1}",
                hint=f"the state before is in {job.checkpoint}; try another --seed, --cell, --hidden or --layers",
            )
        grads = optim.clip_by_global_norm(grads, GRADIENT_NORM_LIMIT)
        params, optimiser = job.optimiser.update(grads, state.optimiser, state.params)
        now = time.perf_counter()
        characters += mine.characters
        state = State(
            state.step + 1,
            params,
            optimiser,
            state.bits + bits * mine.characters,
            state.characters + mine.characters,
            state.total_characters + mine.characters,
            state.seconds + now - start,
        )
        peak = metrics.peak_memory_bytes()
        on_step(Metrics(state.step, bits, mine.characters / (now - start), peak))
        line = None
        if state.step % LOG_INTERVAL == 0 or state.step == job.settings.steps:
            line = Metrics(state.step, state.bits / state.characters, characters / (now - since), peak)
            state = dataclasses.replace(state, bits=0.0, characters=0)
            since, characters = now, 0
        mine = following
        yield state, line


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


def validate(job: Job, params: Any, pressed: Pressed) -> float:
    """Bits per character over the whole validation part, each line's end counted as a character."""
    bits, characters = 0.0, 0
    for lines in validation_lines(job.corpus, job.settings.batch):
        batch = pad(share(job.ranks, lines), job.model.columns)
        bits += float(np.sum(job.model.line_bits_of(params, batch.symbols, batch.lengths), dtype=np.float64))
        characters += sum(map(len, lines))
        if pressed():
            raise Interrupted(job.checkpoint, job.settings.steps)
    return job.ranks.sum(bits) / characters


def sample(job: Job, params: Any, number: int) -> str:
    """A line that the model writes; `number` picks another one."""
    rng = np.random.Generator(np.random.PCG64([job.settings.seed, number, SAMPLE_STREAM]))
    return job.corpus.text(job.model.sample_of(params, rng.random(SAMPLE_LIMIT, np.float32)).tolist())
