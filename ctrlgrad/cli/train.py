"""`ctrlgrad train`: a run, shown while it goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ctrlgrad.cli.errors import ending_of, print_ending
from ctrlgrad.errors import GradientMismatch
from ctrlgrad.memory.sizes import parse_size
from ctrlgrad.mpi.launch import join, number_of_ranks
from ctrlgrad.train import checkpoint, corpus, folder, metrics, trainer
from ctrlgrad.train.checkpoint import Saved
from ctrlgrad.train.folder import CHECKPOINT, PLOT
from ctrlgrad.train.metrics import Step, Summary
from ctrlgrad.train.ranks import Alone, DataParallel, Ranks
from ctrlgrad.train.settings import Settings
from ctrlgrad.train.trainer import Job
from ctrlgrad.train.verification import Comparison, compare_with_jax, next_gradient

SAMPLES = 3
# A smoothed figure: each step's weight in what the progress bar shows.
_WEIGHT = 0.1


@dataclass(frozen=True)
class Request:
    """What the command line asks for. `given` names the options that were given, not taken from their defaults."""

    options: Mapping[str, Any]
    given: Collection[str]
    text: Path | None
    out: Path | None
    resume: bool = False
    verify: bool = False
    as_json: bool = False
    profile: bool = False


def train_and_report(request: Request) -> None:
    """Run `ctrlgrad train`; raises the library's errors, and `Interrupted`.

    Under `mpirun` every rank runs this. What goes wrong then ends all processes, with one message and one exit code.
    """
    with _processes() as ranks, ExitStack() as stack:
        # Where mpirun's output goes, the ranks cannot tell: it gives them a terminal of its own.
        console = Console(quiet=request.as_json or ranks.rank > 0, force_terminal=False if ranks.size > 1 else None)
        job = _job(request, ranks, stack)
        console.print(_headline(job), highlight=False)
        if request.verify:
            grads = next_gradient(job)
            verified = job.ranks.from_first(lambda: _verified(job, grads, console, request.as_json))
            job = job.with_verified(bool(verified))
        with _progress(console, job) as on_step:
            summary, state = trainer.run(job, on_step)
        if ranks.rank > 0:
            return
        if request.as_json:
            typer.echo(summary.json())
            return
        _print_summary(console, job, summary)
        for number in range(SAMPLES):
            console.print(Text("  " + trainer.sample(job, state.params, number)), soft_wrap=True)


@contextmanager
def _processes() -> Iterator[Ranks]:
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
        yield DataParallel(joined.world, watch)
    except BaseException as error:  # whatever it is, the other ranks wait for this one
        watch.fail(ending_of(error))


def _job(request: Request, ranks: Ranks, stack: ExitStack) -> trainer.Job:
    """The run that is asked for; the stack holds its folder.

    Rank 0 goes first, so that what is wrong with the options, the folder or the text is found, and told, by it alone. A
    run that goes on has the settings and the text that rank 0 finds in its folder.
    """
    saved: Saved | None = None
    lines: corpus.Corpus | None = None

    def first() -> bytes:
        nonlocal saved, lines
        if not request.resume:
            settings = _settings(request.options)
        out = stack.enter_context(folder.held(request.out, request.resume))
        if request.resume:
            saved = checkpoint.read(out / CHECKPOINT)
            settings = saved.identity.settings.continued(_given(request))
        text = str(request.text.absolute()) if request.text is not None else saved.identity.text if saved else None
        lines = corpus.load(None if text is None else Path(text), settings.batch)
        return json.dumps({"settings": settings.as_dict(), "text": text, "out": str(out)}).encode()

    found = json.loads(ranks.from_first(first))
    settings, text = Settings(**found["settings"]), found["text"]
    if lines is None:
        lines = corpus.load(None if text is None else Path(text), settings.batch)
    ranks.check_same("options and text", repr((sorted(request.options.items()), lines.fingerprint)).encode())
    return trainer.prepare(
        settings,
        lines,
        text,
        Path(found["out"]),
        saved=saved,
        is_profiled=request.profile,
        ranks=ranks.by_layers() if settings.pipeline else ranks,
    )


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
    """The settings of a new run: its engine is the same in every step."""
    engine = options["engine"]
    if engine == "auto":
        engine = "dataflow" if options["pipeline"] else "native"
    limit = parse_size(options["memory_budget"])
    return Settings(**{**options, "engine": engine, "memory_budget": limit})


def _given(request: Request) -> dict[str, Any]:
    """The settings that were given for a run which has its own; "auto" is whatever engine that is."""
    given = {name: value for name, value in request.options.items() if name in request.given}
    if "memory_budget" in given:
        given["memory_budget"] = parse_size(given["memory_budget"])
    if given.get("engine") == "auto":
        del given["engine"]
    return given


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
    bits: float | None = None
    characters, seconds, is_timed = 0.0, 0.0, False
    total = job.settings.steps
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=24), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal or console.quiet) as progress:
        task = progress.add_task("", total=total, completed=job.state.step, figures="")

        def on_step(m: Step) -> None:
            nonlocal bits, characters, seconds, is_timed
            bits = m.bits_per_char if bits is None else bits + _WEIGHT * (m.bits_per_char - bits)
            # What the first step compiled is forgotten as soon as there is another one.
            keep = 1.0 - _WEIGHT if m.is_timed == is_timed else 0.0
            characters, seconds, is_timed = keep * characters + m.characters, keep * seconds + m.seconds, m.is_timed
            speed = characters / max(seconds, 1e-9)
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
        console.print("No loss.png: it needs matplotlib (pip install -e '.[plot]')", highlight=False, markup=False)
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
