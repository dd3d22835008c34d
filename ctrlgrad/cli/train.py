"""`ctrlgrad train`: a run, shown while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ctrlgrad.cli.errors import ending_of, print_ending
from ctrlgrad.errors import GradientMismatch, UserInputError
from ctrlgrad.memory.sizes import parse_size
from ctrlgrad.mpi.launch import join, number_of_ranks
from ctrlgrad.train import corpus, metrics, trainer
from ctrlgrad.train.keeper import PLOT
from ctrlgrad.train.metrics import Metrics, Summary
from ctrlgrad.train.ranks import Alone, Pipelined, Ranks, Together
from ctrlgrad.train.settings import Settings
from ctrlgrad.train.trainer import Job
from ctrlgrad.train.verification import Comparison, compare_with_jax, next_gradient

SAMPLES = 3
# A smoothed figure: each step's weight in what the progress bar shows.
_WEIGHT = 0.1


def train_and_report(
    options: Mapping[str, Any],
    text: Path | None,
    out: Path | None,
    *,
    resume: bool,
    verify: bool,
    as_json: bool,
    profile: bool = False,
) -> None:
    """Run `ctrlgrad train`; raises the library's errors, and `Interrupted`.

    Under `mpirun` every rank runs this. What goes wrong then ends all processes, with one message and one exit code.
    """
    with _processes(options["pipeline"]) as ranks:
        # Where mpirun's output goes, the ranks cannot tell: it gives them a terminal of its own.
        console = Console(quiet=as_json or ranks.rank > 0, force_terminal=False if ranks.size > 1 else None)
        # Rank 0 goes first, so that what is wrong with the options or the text is found, and told, by it alone.
        if ranks.rank == 0:
            settings = _settings(options)
            folder = _folder(out, resume)
            trainer.check_folder(folder, resume)
            text_corpus = corpus.load(text, settings.batch)
        ranks.from_first(lambda: b"go on")
        if ranks.rank > 0:
            settings = _settings(options)
            folder = Path()  # of which only rank 0 makes use
            text_corpus = corpus.load(text, settings.batch)
        ranks.check_same("options and text", repr((settings, text_corpus.fingerprint)).encode())
        job = trainer.prepare(settings, text_corpus, folder, resume, profile, ranks)
        console.print(_headline(job), highlight=False)
        if verify:
            grads = next_gradient(job)
            job = job.with_verified(bool(ranks.from_first(lambda: _verified(job, grads, console, as_json))))
        with _progress(console, job) as on_step:
            summary, state = trainer.run(job, on_step)
        if ranks.rank > 0:
            return
        if as_json:
            typer.echo(summary.json())
            return
        _print_summary(console, job, summary)
        for number in range(SAMPLES):
            console.print(Text("  " + trainer.sample(job, state.params, number)), soft_wrap=True)


@contextmanager
def _processes(pipeline: bool) -> Iterator[Ranks]:
    """This process, or all that `mpirun` has started; whatever ends one of them ends all."""
    if number_of_ranks() == 1:
        yield Alone()
        return
    joined = join()
    # Up to here every rank fails alike, and rank 0 alone speaks (see `ctrlgrad.cli.main`).
    sys.stderr = sys.__stderr__
    watch = joined.watch
    watch.show = print_ending
    watch.advice = "the same command again"
    watch.catch_signals()
    try:
        yield (Pipelined if pipeline else Together)(joined.world, watch)
    except BaseException as error:  # whatever it is, the other ranks wait for this one
        watch.fail(ending_of(error))


def _verified(job: Job, grads: Any, console: Console, as_json: bool) -> bytes:
    """Compare a gradient with JAX's and show it; raises `GradientMismatch` where they disagree."""
    comparison = compare_with_jax(job, grads)
    console.print(_table(comparison))
    if not comparison.agrees:
        if as_json:
            typer.echo(_nothing_trained(job).json())
        raise GradientMismatch(f"the gradient disagrees with JAX's: {comparison.worst}\n  nothing was trained")
    return b"agrees"


def _settings(options: Mapping[str, Any]) -> Settings:
    """The settings of a run: its engine is the same in every step."""
    engine = options["engine"]
    if engine == "auto":
        engine = "dataflow" if options["pipeline"] else "native"
    limit = parse_size(options["memory_budget"])
    return Settings(**{**options, "engine": engine, "memory_budget": limit})


def _folder(out: Path | None, resume: bool) -> Path:
    if out is not None:
        return out
    if resume:
        raise UserInputError(
            "--resume: which run?", expected="the folder of a run", got="no --out", hint="add --out DIR"
        )
    number = 1
    while Path("runs", str(number)).exists():
        number += 1
    return Path("runs", str(number))


def _headline(job: Job) -> str:
    s, c = job.settings, job.corpus
    shape = f"{s.layers} x {s.cell} of {s.hidden}" if s.layers > 1 else f"{s.cell} of {s.hidden}"
    start = f" from step {job.state.step}" if job.state.step else ""
    over = f" over {job.ranks.size} ranks" if job.ranks.size > 1 else ""
    if s.pipeline:
        over += f", layers on {', '.join(dict.fromkeys(job.model.places))}"
    return (
        f"Training {shape} on {len(c.train)} lines ({c.symbols} symbols), {s.batch} a step{over}, "
        f"{s.steps} steps{start}; {len(c.validation)} lines for validation. Results go to {job.out}"
    )


class _Rate(ProgressColumn):
    """Bits per character, characters per second and peak memory, from the task's fields."""

    def render(self, task: Any) -> Text:
        return Text(task.fields["figures"], style="cyan")


@contextmanager
def _progress(console: Console, job: Job) -> Iterator[trainer.OnStep]:
    """A progress bar; where the output is no terminal, a line for every tenth of the run."""
    bits = speed = None
    total = job.settings.steps
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=24), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal or console.quiet) as progress:
        task = progress.add_task("", total=total, completed=job.state.step, figures="")

        def on_step(m: Metrics) -> None:
            nonlocal bits, speed
            bits = m.bits_per_char if bits is None else bits + _WEIGHT * (m.bits_per_char - bits)
            rate = m.characters_per_second
            speed = rate if speed is None else speed + _WEIGHT * (rate - speed)
            figures = f"{bits:.3f} bits/char  {speed:,.0f} chars/s  {_size(m.peak_memory_bytes)}"
            progress.update(task, completed=m.step, figures=figures)
            if not console.is_terminal and (m.step * 10 // total > (m.step - 1) * 10 // total):
                console.print(f"step {m.step}/{total}  {figures}", highlight=False)

        yield on_step


def _size(count: int | None) -> str:
    return "" if count is None else f"peak {count / 2**20:,.0f} MiB"


def _print_summary(console: Console, job: Job, summary: Summary) -> None:
    table = Table(title=f"{summary.steps} steps in {summary.seconds:.1f} s", title_justify="left")
    table.add_column("bits per character")
    table.add_column("", justify="right")
    table.add_row("unigram entropy of the text", f"{summary.unigram_bits_per_char:.4f}")
    table.add_row("bigram entropy of the text", f"{summary.bigram_bits_per_char:.4f}")
    table.add_row("validation", f"{summary.validation_bits_per_char:.4f}", style="bold")
    console.print(table)
    console.print(
        f"{summary.characters_per_second:,.0f} characters per second, {_size(summary.peak_memory_bytes)}",
        highlight=False,
    )
    if not (job.out / PLOT).exists():
        console.print("No loss.png: it needs matplotlib (pip install 'ctrlgrad[plot]')", highlight=False, markup=False)
    console.print("Lines that the model writes:")


def _table(comparison: Comparison) -> Table:
    table = Table(title="The first gradient, against JAX", title_justify="left")
    for heading in ("parameter", "shape"):
        table.add_column(heading)
    for heading in ("largest error", "allowed"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in comparison.rows:
        mark = Text("agrees", style="green") if row.agrees else Text("differs", style="bold red")
        table.add_row(row.name, str(list(row.shape)), f"{row.error:.2e}", f"{row.allowed:.2e}", mark)
    return table


def _nothing_trained(job: Job) -> Summary:
    return Summary(
        validation_bits_per_char=None,
        unigram_bits_per_char=job.corpus.unigram_bits_per_char(),
        bigram_bits_per_char=job.corpus.bigram_bits_per_char(),
        steps=job.state.step,
        seconds=job.state.seconds,
        characters_per_second=0.0,
        peak_memory_bytes=metrics.peak_memory_bytes(),
        verified=False,
    )
