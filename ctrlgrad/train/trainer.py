"""The run: steps with checkpoints in between, validation, and what is left on disk.

Every step is a function of the state and the step's number, so a run that is stopped after any step and resumed from
its checkpoint ends in the same numbers as an unbroken one.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrlgrad import optim
from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.train import checkpoint, memory, metrics
from ctrlgrad.train.checkpoint import Identity, State
from ctrlgrad.train.corpus import Corpus, TrainingOrder, validation_batches
from ctrlgrad.train.metrics import Metrics, Summary
from ctrlgrad.train.model import SAMPLE_LIMIT, Model
from ctrlgrad.train.settings import (
    CHECKPOINT_INTERVAL,
    GRADIENT_NORM_LIMIT,
    LOG_INTERVAL,
    PEAK_LEARNING_RATE,
    WARMUP_STEPS,
    Settings,
)

CHECKPOINT, METRICS, SUMMARY, PLOT = "checkpoint.safetensors", "metrics.jsonl", "summary.json", "loss.png"
# Keys of the random streams beside the training order's.
INIT_STREAM, SAMPLE_STREAM = 1, 2


class Interrupted(Exception):
    """Ctrl-C was pressed in training; the checkpoint holds everything up to the last whole step."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.path = path
        self.step = step


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


def prepare(settings: Settings, corpus: Corpus, out: Path, resume: bool, is_profiled: bool = False) -> Job:
    """Make the model and its first state, or read the state of the run to continue."""
    check_folder(out, resume)
    model = Model(settings, corpus.symbols)
    warmup = min(WARMUP_STEPS, settings.steps)
    optimiser = optim.adam(optim.warmup_cosine(PEAK_LEARNING_RATE, settings.steps, warmup))
    params = model.init(np.random.Generator(np.random.PCG64([settings.seed, 0, INIT_STREAM])))
    state = State(0, params, optimiser.init(params))
    identity = Identity(settings, corpus.fingerprint, None)
    if resume:
        state, identity = checkpoint.read(out / CHECKPOINT, state, identity)
        metrics.read(out / METRICS)  # what cannot be continued is refused here, before anything is written
    return Job(settings, corpus, model, optimiser, out, state, identity, is_profiled)


OnStep = Callable[[Metrics], None]


def run(job: Job, on_step: OnStep) -> tuple[Summary, State]:
    """Train to the last step, validate, and write the summary and the figure.

    `on_step` gets each step's own figures. Raises `Interrupted` on Ctrl-C, after it has written a checkpoint.
    """
    path = job.checkpoint
    try:
        job.out.mkdir(parents=True, exist_ok=True)
        checkpoint.write(path, job.state, job.identity)
    except OSError as error:
        raise UserInputError("--out: the folder cannot be written", got=f"{job.out}: {error.strerror}") from None
    lines = metrics.rewind(job.out / METRICS, job.state.step)
    state = job.state
    with _interruption() as pressed, memory.within(job.settings.memory_budget), ExitStack() as recording:
        recorded = recording.enter_context(memory.StepProfile(job.out)) if job.is_profiled else None
        for state, line in steps(job, on_step, recorded.before_step if recorded is not None else _nothing):
            if line is not None:
                metrics.append(job.out / METRICS, line)
                lines.append(line)
            if state.step % CHECKPOINT_INTERVAL == 0 or state.step == job.settings.steps or pressed():
                checkpoint.write(path, state, job.identity)
            if pressed():
                raise Interrupted(path, state.step)
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
        metrics.plot(job.out / PLOT, lines, summary)
        # Last, so that a folder with a summary holds a whole run.
        checkpoint.write_atomically(job.out / SUMMARY, (summary.json() + "\n").encode())
    return summary, state


def _nothing() -> None:
    """Before each step of a run that is not profiled."""


def steps(job: Job, on_step: OnStep, before: Callable[[], None]) -> Iterator[tuple[State, Metrics | None]]:
    """The states after each step, with a line of metrics at the end of each interval and of the run.

    `before` is called before each step.
    """
    order = TrainingOrder(job.corpus, job.settings.batch, job.settings.seed)
    state = job.state
    since, characters = time.perf_counter(), 0
    while state.step < job.settings.steps:
        before()
        start = time.perf_counter()
        batch = order.at(state.step)
        bits, grads = job.model.bits_and_grads(state.params, batch.symbols, batch.lengths)
        if not np.isfinite(bits):
            raise ExecutionError(
                f"training has diverged: the loss is {bits} at step {state.step + 1}",
                hint=f"the state before is in {job.checkpoint}; try another --seed, --cell, --hidden or --layers",
            )
        grads = optim.clip_by_global_norm(grads, GRADIENT_NORM_LIMIT)
        params, optimiser = job.optimiser.update(grads, state.optimiser, state.params)
        now = time.perf_counter()
        characters += batch.characters
        state = State(
            state.step + 1,
            params,
            optimiser,
            state.bits + float(bits) * batch.characters,
            state.characters + batch.characters,
            state.total_characters + batch.characters,
            state.seconds + now - start,
        )
        peak = metrics.peak_memory_bytes()
        on_step(Metrics(state.step, float(bits), batch.characters / (now - start), peak))
        line = None
        if state.step % LOG_INTERVAL == 0 or state.step == job.settings.steps:
            line = Metrics(state.step, state.bits / state.characters, characters / (now - since), peak)
            state = dataclasses.replace(state, bits=0.0, characters=0)
            since, characters = now, 0
        yield state, line


def validate(job: Job, params: Any, pressed: Callable[[], bool]) -> float:
    """Bits per character over the whole validation part, each line's end counted as a character."""
    bits, characters = 0.0, 0
    for batch in validation_batches(job.corpus, job.settings.batch):
        bits += float(np.sum(job.model.line_bits_of(params, batch.symbols, batch.lengths), dtype=np.float64))
        characters += batch.characters
        if pressed():
            raise Interrupted(job.checkpoint, job.settings.steps)
    return bits / characters


def sample(job: Job, params: Any, number: int) -> str:
    """A line that the model writes; `number` picks another one."""
    rng = np.random.Generator(np.random.PCG64([job.settings.seed, number, SAMPLE_STREAM]))
    return job.corpus.text(job.model.sample_of(params, rng.random(SAMPLE_LIMIT, np.float32)).tolist())


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed in the block; pressed again, it raises KeyboardInterrupt at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread only
        return
    pressed = False

    def handle(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
